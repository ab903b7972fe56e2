"""What crosses the links between nodes in a step, for the ways in which weights can lie over several nodes.

Two ways are compared with the planned one. With a copy of the weights on each node (`dp_replicate` over nodes,
`dp_shard` and `ep` within) only gradients cross, those of the adapters if it is LoRA. With shards over all nodes each
device holds less, but the weights cross whenever they are gathered: for the forward and again for the backward pass of
every micro-batch. All of it is `glmforge.plan.time`'s: the same collectives, bytes and links as in any plan.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from glmforge.config.layout import Layout, resolve_layout
from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError
from glmforge.plan.machine.collectives import network_bandwidth
from glmforge.plan.machine.machine import Machine
from glmforge.plan.memory.estimate import estimate_memory
from glmforge.plan.search.search import USABLE
from glmforge.plan.search.winner import settings_words
from glmforge.plan.stages.stage import TrainingStage
from glmforge.plan.time.step_time import StepTime, predict_step

COPY_ON_EACH = "a copy on each node"
SHARDS_OVER_ALL = "shards over all nodes"


class Crossing(NamedTuple):
    """What a step sends along an axis through one adapter, each way, and the seconds of that alone on the link."""

    axis: str
    bytes: float
    seconds: float


class AcrossNodes(NamedTuple):
    """A run with its weights over the nodes in one way.

    Attributes:
        words: how they lie, None if in neither of the ways that are compared.
        settings: what to write on the command line to have it so; empty where it is what was planned.
        peak: bytes of the fullest rank by closed forms.
    """

    words: str | None
    settings: str
    layout: Layout
    step: StepTime
    peak: int

    @property
    def is_planned(self) -> bool:
        return not self.settings

    @property
    def fits(self) -> bool:
        """With the tenth of a device left that `--search` leaves, too."""
        return self.peak <= USABLE * self.step.machine.accelerator.memory_bytes

    @property
    def crossings(self) -> list[Crossing]:
        """Of a rank's slowest pipeline place, the axis with most bytes first.

        Ranks that share an adapter (`Network.is_shared`) are counted together.
        """
        machine = self.step.machine
        found = [
            Crossing(
                link.axis,
                link.into_node if machine.network.is_shared else link.sent.outside,
                link.sent.outside / network_bandwidth(machine),
            )
            for link in self.step.links
            if link.sent.outside
        ]
        return sorted(found, key=lambda crossing: -crossing.bytes)

    @property
    def bytes(self) -> float:
        """Of a step through one adapter, each way."""
        return sum(crossing.bytes for crossing in self.crossings)

    @property
    def seconds(self) -> float:
        """What the link takes for them, regardless of overlap, without latencies."""
        return sum(crossing.seconds for crossing in self.crossings)


def across_nodes(
    config: RunConfig, layout: Layout, machine: Machine, stage: TrainingStage, *, imbalance: float = 1.0
) -> list[AcrossNodes]:
    """The planned way and those that could be taken instead, that with the fewest bytes between nodes first.

    Empty if all ranks are in one node. `config` has one phase.
    """
    if layout.world_size <= machine.ranks_per_node:
        return []
    found: list[AcrossNodes] = []
    for words, changes in _ways(layout, machine.ranks_per_node):
        try:
            changed = _with_parallel(config, changes)
            resolved = resolve_layout(changed, layout.world_size)
            if any(one.layout == resolved for one in found):
                continue
            step = predict_step(changed, resolved, machine, stage=stage, imbalance=imbalance)
        except ConfigError:  # the batch or the experts do not divide so
            continue
        settings = "" if resolved == layout else settings_words(changes)
        found.append(AcrossNodes(words, settings, resolved, step, estimate_memory(changed, resolved, stage).peak))
    return sorted(found, key=lambda one: one.bytes)


def advice(found: Sequence[AcrossNodes]) -> str | None:
    """The way to take in the place of the planned one; None if none of those that fit is faster."""
    fitting = [one for one in found if one.fits]
    best = min(fitting, key=lambda one: (one.step.seconds, not one.is_planned), default=None)
    return None if best is None or best.is_planned else f"{best.words}: {best.settings}"


def _ways(layout: Layout, ranks_per_node: int) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """Names and the settings of `parallel` that make them; the planned one comes last, if it is not among these."""
    sequence = layout.cp * layout.tp
    if layout.stage_ranks > ranks_per_node:  # else a node has all of a pipeline stage's weights, and a copy or more
        if layout.stage_ranks % ranks_per_node == 0 and ranks_per_node % sequence == 0:
            yield COPY_ON_EACH, _sizes(layout, layout.stage_ranks // ranks_per_node, ranks_per_node // sequence)
        yield SHARDS_OVER_ALL, _sizes(layout, 1, layout.data_ranks)
    yield None, _sizes(layout, layout.dp_replicate, layout.dp_shard)


def _sizes(layout: Layout, copies: int, shards: int) -> dict[str, Any]:
    """Experts stay on as many ranks as they are, or as a copy has."""
    found: dict[str, Any] = {"dp_replicate": copies, "dp_shard": shards}
    ep = math.gcd(layout.ep, shards * layout.cp * layout.tp)
    return found if ep == layout.ep else found | {"ep": ep}


def _with_parallel(config: RunConfig, changes: dict[str, Any]) -> RunConfig:
    parallel = config.parallel.model_copy(update=changes)
    return config.model_copy(update={"parallel": parallel})
