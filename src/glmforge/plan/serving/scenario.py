"""How to serve a model for a goal: which GPUs share a copy, how many sequences run at once, whether drafts pay.

A scenario says what is best. Every way to divide the GPUs into copies, with and without drafts, and with the caches
that the scenario allows is computed as `deployment` does it; the best one that fits is taken. Nothing is measured.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from glmforge.config.model import ModelConfig
from glmforge.errors import ConfigError
from glmforge.plan.machine.machine import Machine
from glmforge.plan.serving.deployment import (
    Deployment,
    Step,
    fewest_gpus,
    generation_step,
    largest_batch,
    prefill_seconds,
)
from glmforge.plan.serving.formats import WEIGHT_FORMATS, CacheFormat, WeightFormat

ASSUMED_ACCEPTANCE = 0.7
"""Share of the MTP layer's drafts that stand, where nobody has measured it."""
FEW_USERS = 8
MAX_SEQUENCES = 1024
_CHUNKS = tuple(2**power for power in range(9, 15))


class Goal(NamedTuple):
    """A scenario.

    Attributes:
        seconds_per_token: what a user waits for a token at most, where there are many.
        chunk_seconds: what a chunk of a prompt may take while others wait for their next token.
    """

    name: str
    words: str
    seconds_per_token: float
    chunk_seconds: float
    caches: tuple[CacheFormat, ...] = ("bf16",)


GOALS = (
    Goal(
        "high-throughput", "the most tokens per second of all users, at most 0.1 s a token", 0.1, 0.5, ("bf16", "fp8")
    ),
    Goal("balanced", "the most tokens per second, at most 0.033 s a token", 1 / 30, 0.2),
    Goal("low-latency", f"the shortest time per token for {FEW_USERS} users", 0.1, 0.05),
    Goal("memory-constrained", "the fewest GPUs that serve one sequence of the context", 0.1, 0.2, ("fp8",)),
)


@dataclass(frozen=True)
class ServingPlan:
    """What was chosen.

    Attributes:
        deployment: of one copy of the model, whose GPUs split its heads and experts, or its layers (`by_layers`).
        max_sequences: of one copy at once. `step` generates for all of them at the mean length.
        chunk: tokens of prompts in a step at most.
        context: tokens of the longest sequence.
    """

    goal: Goal
    deployment: Deployment
    num_copies: int
    by_layers: bool
    max_sequences: int
    chunk: int
    context: int
    step: Step

    @property
    def num_gpus(self) -> int:
        return self.num_copies * self.deployment.num_gpus

    @property
    def tokens_per_second(self) -> float:
        """Of all copies at best."""
        return self.num_copies * self.step.tokens_per_second


def find_goal(name: str) -> Goal:
    """Raises `ConfigError` for an unknown name."""
    for goal in GOALS:
        if goal.name == name:
            return goal
    raise ConfigError(f"--scenario: unknown '{name}'; choose one of {', '.join(goal.name for goal in GOALS)}")


def plan_serving(
    goal: Goal,
    model: ModelConfig,
    machine: Machine,
    num_gpus: int,
    weights: WeightFormat,
    *,
    context: int,
    length: int,
    acceptance: float = ASSUMED_ACCEPTANCE,
    by_layers: bool = False,
) -> ServingPlan:
    """The best way to serve sequences of up to `context` tokens, `length` on average.

    Args:
        by_layers: the engine gives whole layers to GPUs, which work one after another and draft nothing, as llama.cpp.

    Raises:
        ConfigError: it does not fit: what it needs, what there is, and the nearest that fits.
    """
    drafts = (None, acceptance) if model.num_nextn_predict_layers and not by_layers else (None,)
    plans = [
        _plan(goal, deployment, num_gpus, by_layers, context, length)
        for size in ([num_gpus] if by_layers else _group_sizes(model, machine, num_gpus))
        for cache in _caches(goal, machine)
        for share in drafts
        if (deployment := Deployment(model, machine, size, weights, cache, share)).fits(context)
    ]
    if not plans:
        raise ConfigError(why_not(model, machine, num_gpus, weights, context=context))
    return min(plans, key=lambda plan: _cost(goal, plan))


def why_not(model: ModelConfig, machine: Machine, num_gpus: int, weights: WeightFormat, *, context: int) -> str:
    """One line: what is needed and what there is, and the nearest that fits."""
    served = Deployment(model, machine, num_gpus, weights)
    cache = context * served.cache_bytes_per_token
    device = machine.accelerator
    needed = f"{served.weight_bytes / 1e9:,.0f} GB of weights ({weights.name}) and {cache / 1e9:,.1f} GB of cache"
    there = f"{num_gpus} x {device.memory_bytes / 1e9:,.0f} GB, of which {served.memory_bytes / 1e9:,.0f} GB are usable"
    ways = [f"{fewest_gpus(served, context):,} GPUs"]
    if (shorter := int(served.cache_room // served.cache_bytes_per_token)) >= 1024:
        ways.append(f"a context of {shorter // 1024 * 1024:,}")
    lighter = [
        row.name
        for row in WEIGHT_FORMATS
        if row.bits < weights.bits and Deployment(model, machine, num_gpus, row).fits(context)
    ]
    if lighter:
        ways.append(f"weights in {lighter[0]}")
    return f"{needed} for one sequence of {context:,} tokens do not fit {there}; what fits: {', or '.join(ways)}"


def _group_sizes(model: ModelConfig, machine: Machine, num_gpus: int) -> Iterator[int]:
    """GPUs of a copy that heads can be split over: powers of two within a node, or whole nodes."""
    in_node = machine.ranks_per_node
    for size in range(1, num_gpus + 1):
        is_group = size % in_node == 0 or (size < in_node and size & (size - 1) == 0)
        if is_group and num_gpus % size == 0 and model.num_attention_heads % size == 0:
            yield size


def _caches(goal: Goal, machine: Machine) -> Iterator[CacheFormat]:
    """fp8 only where the GPU computes in it; bf16 if nothing else is left."""
    has_fp8 = machine.accelerator.fp8_flops is not None
    yield from [cache for cache in goal.caches if cache == "bf16" or has_fp8] or ["bf16"]


def _plan(goal: Goal, deployment: Deployment, num_gpus: int, by_layers: bool, context: int, length: int) -> ServingPlan:
    """The deployment holds at least one sequence of the context, so at least one is served, however slowly."""
    most = {
        "low-latency": min(FEW_USERS, deployment.max_sequences(length)),
        "memory-constrained": deployment.max_sequences(context),
    }.get(goal.name, largest_batch(deployment, length, goal.seconds_per_token))
    sequences = max(1, min(most, MAX_SEQUENCES))
    chunks = [size for size in _CHUNKS if prefill_seconds(deployment, size) <= goal.chunk_seconds]
    step = generation_step(deployment, sequences, length)
    if by_layers:
        number = deployment.num_gpus
        step = replace(step, read=number * step.read, multiply=number * step.multiply, exchange=0.0)
    return ServingPlan(
        goal,
        deployment,
        1 if goal.name == "memory-constrained" else num_gpus // deployment.num_gpus,
        by_layers,
        sequences,
        max([_CHUNKS[0], 2 ** math.ceil(math.log2(sequences)), *chunks]),
        context,
        step,
    )


def _cost(goal: Goal, plan: ServingPlan) -> tuple[float, ...]:
    """Smaller is better; where plans are equal, the one with fewer GPUs to a copy and without drafts is."""
    ties = (plan.deployment.num_gpus, float(plan.deployment.is_drafting))
    if goal.name == "low-latency":
        return plan.step.seconds_per_token, *ties
    if goal.name == "memory-constrained":
        return plan.num_gpus, -plan.max_sequences, *ties
    return -plan.tokens_per_second, *ties
