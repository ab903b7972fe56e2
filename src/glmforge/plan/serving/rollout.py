"""How long a policy's rollouts take, and how many GPUs should generate while the others train.

A step of GRPO or PPO samples several responses to each of its prompts and trains on all of them. Copies of the model
generate with as many sequences at once as their memory holds; a sequence that ends makes room for the next. The longest
response is waited for at the end, alone. Samples of a prompt share its prefill.

Steps of generation are the best that a service can do (`glmforge.plan.serving.deployment`), so that real rollouts take
longer.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace

from glmforge.errors import ConfigError
from glmforge.plan.serving.deployment import Deployment, generation_step, prefill_seconds

_SETTINGS = ("prompts", "samples", "prompt", "response", "longest")
_MOST = 10**9


@dataclass(frozen=True)
class RolloutBatch:
    """What is sampled for one step. Tokens are means; `longest` is the length at which responses are cut, or the
    longest one expected."""

    prompts: int
    samples: int
    prompt_tokens: int
    response_tokens: int
    longest: int

    @property
    def sequences(self) -> int:
        return self.prompts * self.samples

    @property
    def tokens(self) -> int:
        """Of prompts and responses, as training sees them."""
        return self.sequences * (self.prompt_tokens + self.response_tokens)


@dataclass(frozen=True)
class Rollout:
    """The rollouts of a step on `replicas` copies of a model.

    Attributes:
        batch: sequences that a copy generates at once.
        prefill, generate, tail: seconds for prompts, for responses, and for the longest one after the others.
    """

    deployment: Deployment
    replicas: int
    batch: int
    prefill: float
    generate: float
    tail: float
    tokens: int

    @property
    def seconds(self) -> float:
        return self.prefill + self.generate + self.tail

    @property
    def num_gpus(self) -> int:
        return self.replicas * self.deployment.num_gpus

    @property
    def tokens_per_second(self) -> float:
        """Generated, of all copies."""
        return self.tokens / self.seconds


@dataclass(frozen=True)
class Split:
    """GPUs that generate and GPUs that train at the same time, one step behind; seconds are each side's own."""

    generating: int
    training: int
    generate: float
    train: float

    @property
    def seconds(self) -> float:
        return max(self.generate, self.train)


def parse_rollout(text: str) -> RolloutBatch:
    """From "prompts=64,samples=8,prompt=1024,response=8192,longest=65536"; `longest` may be omitted.

    Raises `ConfigError`.
    """
    usage = "write prompts=64,samples=8,prompt=1024,response=8192,longest=65536 (the last three in tokens)"
    settings = dict(part.partition("=")[::2] for part in text.split(","))
    for name, value in settings.items():
        if name not in _SETTINGS:
            raise ConfigError(f"--rollout: unknown setting '{name}'; {usage}")
        if not (value.isascii() and value.isdigit() and 0 < int(value) <= _MOST):
            raise ConfigError(f"--rollout: {name}='{value}' must be a number from 1 to {_MOST:,}; {usage}")
    if missing := [name for name in _SETTINGS[:-1] if name not in settings]:
        raise ConfigError(f"--rollout: {missing[0]} is missing; {usage}")
    prompts, samples, prompt, response = (int(settings[name]) for name in _SETTINGS[:-1])
    longest = int(settings.get("longest", response))
    if longest < response:
        raise ConfigError(f"--rollout: longest={longest} is less than response={response}, the mean; raise it")
    return RolloutBatch(prompts, samples, prompt, response, longest)


def fastest_rollout(deployment: Deployment, num_gpus: int, batch: RolloutBatch) -> Rollout:
    """With copies of the size that is fastest; the deployment's own number of GPUs does not matter.

    Raises `ConfigError` if no copy fits.
    """
    found = list(_rollouts(deployment, num_gpus, batch))
    if not found:
        needed = deployment.weight_bytes / 1e9
        raise ConfigError(
            f"--gpus: {num_gpus} of {deployment.machine.accelerator.name} cannot hold the weights ({needed:,.0f} GB in "
            f"{deployment.weights.name}) and a sequence of {batch.prompt_tokens + batch.longest:,} tokens; take more"
        )
    return min(found, key=lambda rollout: rollout.seconds)


def balanced_split(deployment: Deployment, num_gpus: int, batch: RolloutBatch, train_seconds: float) -> Split | None:
    """The split of the GPUs with the shortest step, `train_seconds` being those of training on all of them; None if the
    model fits no part of them. Training is taken to slow down by as much as it has fewer GPUs.

    More GPUs generate faster and leave training slower, so that the best split is where the two meet.
    """
    unit = deployment.machine.ranks_per_node if num_gpus > deployment.machine.ranks_per_node else 1

    def split(units: int) -> Split:
        generating = units * unit
        seconds = min((one.seconds for one in _rollouts(deployment, generating, batch)), default=math.inf)
        return Split(generating, num_gpus - generating, seconds, train_seconds * num_gpus / (num_gpus - generating))

    most = (num_gpus - 1) // unit
    if most < 1:
        return None
    meeting = bisect_left(range(1, most), True, key=lambda units: split(units).generate <= split(units).train) + 1
    best = min((split(units) for units in {max(1, meeting - 1), meeting}), key=lambda one: one.seconds)
    return best if best.generate < math.inf else None


def _rollouts(deployment: Deployment, num_gpus: int, batch: RolloutBatch) -> Iterator[Rollout]:
    """With copies of all sizes that fit a node, or of the smallest that fit at all."""
    in_node = deployment.machine.ranks_per_node
    found = None
    size = 1
    while size <= num_gpus and (size <= in_node or found is None):
        found = _rollout(replace(deployment, num_gpus=size), num_gpus // size, batch)
        if found is not None:
            yield found
        size *= 2


def _rollout(deployment: Deployment, replicas: int, batch: RolloutBatch) -> Rollout | None:
    if not deployment.fits(batch.prompt_tokens + batch.longest):
        return None
    share = -(-batch.sequences // replicas)
    # Sequences at once are at all stages of their growth, hence half a response long on average.
    length = batch.prompt_tokens + batch.response_tokens // 2
    at_once = min(share, deployment.max_sequences(length))
    step = generation_step(deployment, at_once, length)
    alone = generation_step(deployment, 1, batch.prompt_tokens + (batch.response_tokens + batch.longest) // 2)
    return Rollout(
        deployment,
        replicas,
        at_once,
        prefill=-(-batch.prompts // replicas) * prefill_seconds(deployment, batch.prompt_tokens),
        generate=share * batch.response_tokens / step.tokens_per_second,
        tail=(batch.longest - batch.response_tokens) * alone.seconds_per_token,
        tokens=batch.sequences * batch.response_tokens,
    )
