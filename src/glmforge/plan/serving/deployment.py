"""A model served by some GPUs that share its weights: does it fit, how many sequences, how fast is a token.

This is what a service can do at best. A step that generates a token for each sequence of a batch must read the weights
that any of them uses and all their caches, must multiply, and must exchange activations between the GPUs after every
attention and MLP. It takes at least the longer of reading and multiplying, and the exchange on top. Weights and caches
are taken to be shared evenly, experts to be chosen by chance, and an exchange to take what the planner's collectives
take. Engines also lose time between kernels, so they are slower.

Speculation is multi-token prediction: the MTP layer drafts one token more, the next step checks both, and a share
`acceptance` of the drafts stands.
"""

import math
from dataclasses import dataclass
from functools import cached_property

from glmforge.config.model import ModelConfig
from glmforge.plan.counts.flops import forward_flops_per_token
from glmforge.plan.machine.ceilings import ceilings
from glmforge.plan.machine.collectives import Group, collective_seconds
from glmforge.plan.machine.machine import Machine
from glmforge.plan.serving.formats import CacheFormat, WeightBytes, WeightFormat, cache_bytes_per_token, weight_bytes

MEMORY_SHARE = 0.9
"""Of a GPU's memory for weights and caches, the default of vLLM; the rest is for activations and the runtime."""

_BF16 = 2
_MAX_BATCH = 2**16


@dataclass(frozen=True)
class Deployment:
    """`num_gpus` that serve one copy of a model together. `acceptance`: share of drafts that stand; None: no drafts."""

    model: ModelConfig
    machine: Machine
    num_gpus: int
    weights: WeightFormat
    cache: CacheFormat = "bf16"
    acceptance: float | None = None

    @property
    def is_drafting(self) -> bool:
        return self.acceptance is not None

    @cached_property
    def sizes(self) -> WeightBytes:
        """Of the whole model, part by part."""
        return weight_bytes(self.model, self.weights)

    @property
    def weight_bytes(self) -> float:
        """Of the whole model, MTP layers included, as published files have them."""
        return self.sizes.total

    @property
    def cache_bytes_per_token(self) -> float:
        """Of a sequence, on all GPUs together."""
        return cache_bytes_per_token(self.model, self.cache, with_mtp=self.is_drafting)

    @property
    def memory_bytes(self) -> float:
        """For weights and caches, on all GPUs together."""
        return MEMORY_SHARE * self.num_gpus * self.machine.accelerator.memory_bytes

    @property
    def cache_room(self) -> float:
        """Bytes left for caches; negative if the weights alone do not fit."""
        return self.memory_bytes - self.weight_bytes

    def max_sequences(self, length: int) -> int:
        """Sequences of `length` tokens whose caches fit at once."""
        return max(0, int(self.cache_room // (length * self.cache_bytes_per_token)))

    def fits(self, length: int) -> bool:
        """Whether it serves at least one sequence of `length` tokens."""
        return self.max_sequences(length) > 0


@dataclass(frozen=True)
class Step:
    """One pass of the model that generates for each sequence of a batch.

    Attributes:
        read, multiply, exchange: seconds that each takes by itself; the first two overlap.
        tokens: generated for each sequence: one, or one and the drafts that stand.
    """

    batch: int
    read: float
    multiply: float
    exchange: float
    tokens: float

    @property
    def seconds(self) -> float:
        return max(self.read, self.multiply) + self.exchange

    @property
    def seconds_per_token(self) -> float:
        """Of one sequence: what its reader waits for."""
        return self.seconds / self.tokens

    @property
    def tokens_per_second(self) -> float:
        """Of the whole batch."""
        return self.batch / self.seconds_per_token

    @property
    def bottleneck(self) -> str:
        """What takes longest."""
        parts = {"memory": self.read, "compute": self.multiply, "links": self.exchange}
        return max(parts, key=lambda name: parts[name])


def generation_step(deployment: Deployment, batch: int, length: int) -> Step:
    """With `batch` sequences of `length` tokens in their caches."""
    model, drafts = deployment.model, int(deployment.is_drafting)
    checked = batch * (1 + drafts)
    sizes = deployment.sizes
    read = sizes.common + sizes.experts * visited_share(model, checked) + sizes.head
    if drafts:
        read += sizes.mtp + sizes.mtp_experts * visited_share(model, batch) + sizes.head
    read += batch * length * deployment.cache_bytes_per_token
    # A query sees all of its cache, of which a formula for training counts half.
    flops = checked * forward_flops_per_token(model, 2 * length)
    return Step(
        batch,
        read / (deployment.num_gpus * ceilings(deployment.machine.accelerator).bandwidth),
        flops / (deployment.num_gpus * _flops_per_second(deployment)),
        exchange_seconds(deployment, checked),
        1 + (deployment.acceptance or 0.0),
    )


def prefill_seconds(deployment: Deployment, length: int) -> float:
    """Of one prompt, until its first token."""
    model = deployment.model
    sizes = deployment.sizes
    read = sizes.common + sizes.experts * visited_share(model, length) + sizes.head
    flops = length * forward_flops_per_token(model, length, with_head=False) + 2 * model.vocab_size * model.hidden_size
    reading = read / (deployment.num_gpus * ceilings(deployment.machine.accelerator).bandwidth)
    multiplying = flops / (deployment.num_gpus * _flops_per_second(deployment))
    return max(reading, multiplying) + exchange_seconds(deployment, length)


def largest_batch(deployment: Deployment, length: int, seconds_per_token: float) -> int:
    """Sequences of `length` tokens that can be served together at this many seconds per token; may be 0."""
    low, high = 0, min(_MAX_BATCH, deployment.max_sequences(length))
    while low < high:
        middle = (low + high + 1) // 2
        if generation_step(deployment, middle, length).seconds_per_token <= seconds_per_token:
            low = middle
        else:
            high = middle - 1
    return low


def fewest_gpus(deployment: Deployment, length: int) -> int:
    """That serve one sequence of `length` tokens: a power of two within a node, or whole nodes."""
    in_node = deployment.machine.ranks_per_node
    needed = deployment.weight_bytes + length * deployment.cache_bytes_per_token
    number = math.ceil(needed / (deployment.memory_bytes / deployment.num_gpus))
    rounded: int = 2 ** math.ceil(math.log2(number))
    return rounded if rounded < in_node else in_node * math.ceil(number / in_node)


def visited_share(model: ModelConfig, tokens: int) -> float:
    """Of a layer's experts those that any of this many tokens visits, if each chooses by chance."""
    return float(1 - (1 - model.num_experts_per_tok / model.n_routed_experts) ** tokens)


def exchange_seconds(deployment: Deployment, tokens: int) -> float:
    """Of the all-reduces of a step, two for each layer."""
    model, group = deployment.model, Group(deployment.num_gpus, deployment.machine.ranks_per_node)
    size = _BF16 * tokens * model.hidden_size
    return 2 * model.num_hidden_layers * collective_seconds("all_reduce", size, group, deployment.machine)


def _flops_per_second(deployment: Deployment) -> float:
    accelerator = deployment.machine.accelerator
    faster = 1.0
    if deployment.weights.is_fp8 and accelerator.fp8_flops is not None:
        faster = accelerator.fp8_flops / accelerator.bf16_flops
    return faster * ceilings(accelerator).bf16_flops
