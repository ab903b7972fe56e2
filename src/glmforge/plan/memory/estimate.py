"""The peak of every pipeline rank of a layout: which parts live at which moment of a step, added up.

The moments are those of `glmforge.plan.memory.moments`. `glmforge.dryrun` runs the step itself; how far the two are
apart stands in docs/plan.md, and `benchmarks/plan_memory.py` measures it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from glmforge.config.layout import Layout
from glmforge.config.pipeline import stages_of_rank, stages_per_rank
from glmforge.config.role import Role
from glmforge.config.schema import RunConfig
from glmforge.plan.memory.in_flight import InFlight, passes_in_flight
from glmforge.plan.memory.moments import Moment, Situation, moments
from glmforge.plan.memory.purposes import Memory, Purpose
from glmforge.plan.memory.shards import Weights
from glmforge.plan.memory.stages import RankParts, StageParts
from glmforge.plan.stages.stage import PRETRAINING, TrainingStage, laid_out, with_model_of

ROLLOUT = "rollout"
"""The moment at which an engine generates."""


@dataclass(frozen=True)
class PlaceMemory:
    """What a rank at a place of the pipeline needs at most, `moment` says when, and of host memory beside.

    `held` is what each of several models holds at all times.
    """

    pp_rank: int
    at_peak: Memory
    moment: str
    host_bytes: int = 0
    held: tuple[tuple[str, int], ...] = ()

    @property
    def peak(self) -> int:
        return self.at_peak.total()


@dataclass(frozen=True)
class MemoryEstimate:
    """Of all pipeline ranks, in order; the ranks of a stage are alike, but for shards that are smaller than others."""

    places: tuple[PlaceMemory, ...]

    @property
    def fullest(self) -> PlaceMemory:
        """The place that needs most, the first of several."""
        return max(self.places, key=lambda place: place.peak)

    @property
    def peak(self) -> int:
        """Bytes of the rank that needs most."""
        return self.fullest.peak


def estimate_memory(config: RunConfig, layout: Layout, stage: TrainingStage = PRETRAINING) -> MemoryEstimate:
    """Of a step of the first phase of `config`."""
    return MemoryModel(config, stage).estimate(config, layout)


class MemoryModel:
    """Estimates for one run under many layouts: what does not depend on the layout is made once."""

    def __init__(self, config: RunConfig, stage: TrainingStage = PRETRAINING) -> None:
        self.weights = {role: Weights(with_model_of(role, config), role) for role in stage.roles}

    def estimate(self, config: RunConfig, layout: Layout) -> MemoryEstimate:
        """`config` may differ in `parallel` and in the batch from the one that the model was made of.

        The models of a stage take turns: weights and optimizer states of all are there, and what one of them needs
        besides: gradients are gone when the next one's turn comes. An engine's turn needs its cache and the weights
        that it gathers.
        """
        by_role = [self._places(*laid_out(role, config, layout), role) for role in self.weights]
        names = [role.name for role in self.weights]
        return MemoryEstimate(tuple(_together(names, places) for places in zip(*by_role, strict=True)))

    def _places(self, config: RunConfig, layout: Layout, role: Role) -> list[PlaceMemory]:
        parallel, pp = config.parallel, layout.pp
        parts, per_rank = StageParts(config, layout, self.weights[role], role), stages_per_rank(parallel)
        places = []
        for pp_rank in range(pp):
            rank = parts.of(stages_of_rank(parallel.pipeline_schedule, pp_rank, pp, per_rank) if pp > 1 else [0])
            flights = passes_in_flight(parallel.pipeline_schedule, pp, pp_rank, per_rank, parts.micro_batches)
            if not role.is_trained:  # a forward pass alone leaves nothing behind
                flights = ((0,) * len(rank.kept),)
            places.append(_place(config, pp_rank, pp, rank, flights, parts.micro_batches, role))
        return places


_HELD = (Purpose.WEIGHTS, Purpose.OPTIMIZER)


def _together(names: Sequence[str], places: tuple[PlaceMemory, ...]) -> PlaceMemory:
    """One place of the pipeline, of models that take turns."""
    if len(places) == 1:
        return places[0]
    by_name = [(name, held_bytes(place.at_peak)) for name, place in zip(names, places, strict=True)]
    held = {purpose: sum(place.at_peak[purpose] for place in places) for purpose in _HELD}
    fullest = max(places, key=lambda place: place.peak - held_bytes(place.at_peak))
    host_bytes = sum(place.host_bytes for place in places)
    at_peak = Counter(fullest.at_peak | Counter(held))
    return PlaceMemory(fullest.pp_rank, at_peak, fullest.moment, host_bytes, tuple(by_name))


def held_bytes(memory: Memory) -> int:
    """Of it what a model holds whether it is its turn or not."""
    return sum(memory[purpose] for purpose in _HELD)


def _place(
    config: RunConfig,
    pp_rank: int,
    pp: int,
    rank: RankParts,
    flights: tuple[InFlight, ...],
    micro_batches: int,
    role: Role,
) -> PlaceMemory:
    held, is_offloaded = rank.held, config.parallel.cpu_offload
    always = {} if is_offloaded else {Purpose.WEIGHTS: held.weights, Purpose.OPTIMIZER: held.optimizer}
    host = held.weights + held.gradients + held.optimizer if is_offloaded else 0
    reached: list[Moment] = [("always", {})]
    if role.has_passes:
        found = moments(rank, flights, Situation.of(config, pp, pp_rank, micro_batches))
        reached = [
            (moment, {Purpose.BUFFERS: rank.buffers, **parts})
            for moment, parts in found
            if role.is_trained or moment == "forward"
        ]
    if role.cache_bytes:
        reached.append((ROLLOUT, {Purpose.CACHE: role.cache_bytes, Purpose.GATHERED: rank.engine}))
    moment, at_peak = max(reached, key=lambda named: sum(named[1].values()))
    return PlaceMemory(pp_rank, Counter(always | at_peak), moment, host)
