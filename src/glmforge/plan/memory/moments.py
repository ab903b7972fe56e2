"""The moments of a step that can be the fullest, and what lives at each of them beside what is always there.

Activations are most just before backward passes begin to free what forward passes kept: in a layer, or in the head,
which makes its gradients in the forward pass. In the backward pass that follows, a layer's tensors are computed again
and its gradients are on their way; at its end it is those of the embedding. Then come the reduction of gradients that
were kept whole, and the optimizer's update.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from glmforge.config.schema import RunConfig
from glmforge.plan.memory.in_flight import InFlight
from glmforge.plan.memory.purposes import Purpose
from glmforge.plan.memory.stages import RankParts

_SPLIT = ("interleaved_zero_bubble", "zbv")
"""Backward passes come in two parts, and what the first has made waits for the second. (Those of dualpipev are whole
while most activations are kept.)"""

Moment = tuple[str, dict[Purpose, int]]


@dataclass(frozen=True)
class Situation:
    """How a rank goes through the micro-batches of a step.

    Attributes:
        reduces_late: gradients are kept whole and reduced at the end of the step.
        splits_backward: as in `_SPLIT`; `num_waiting` of the backward passes then wait for their second part.
    """

    micro_batches: int
    reduces_late: bool
    splits_backward: bool
    num_waiting: int
    is_offloaded: bool

    @classmethod
    def of(cls, config: RunConfig, pp: int, pp_rank: int, micro_batches: int) -> "Situation":
        parallel = config.parallel
        one_reduction = micro_batches > 1 and parallel.reduce_gradients == "last_micro_batch"
        schedule = parallel.pipeline_schedule if pp > 1 else ""
        num_waiting = min(pp_rank, micro_batches) if schedule == "interleaved_zero_bubble" else 0
        return cls(micro_batches, pp > 1 or one_reduction, schedule in _SPLIT, num_waiting, parallel.cpu_offload)


@dataclass(frozen=True)
class _Level:
    """What passes before have left: activations, sharded gradients, and whole ones that are still to be reduced."""

    kept: int
    gradients: int
    unreduced: int

    def at(self, moment: str, *, gathered: int, working: int) -> Moment:
        return moment, {
            Purpose.GRADIENTS: self.gradients,
            Purpose.ACTIVATIONS: self.kept,
            Purpose.GATHERED: gathered,
            Purpose.UNREDUCED: self.unreduced,
            Purpose.WORKING: working,
        }


def moments(rank: RankParts, flights: tuple[InFlight, ...], situation: Situation) -> Iterator[Moment]:
    """All that can be the fullest. `flights`: the passes whose activations the rank keeps at most."""
    held, late = rank.held, situation.reduces_late
    kept = max(sum(map(int.__mul__, flight, rank.kept)) for flight in flights)
    gradients = 0 if situation.is_offloaded else held.gradients
    unreduced = held.unreduced if late else 0
    earlier = 0 if situation.is_offloaded or situation.micro_batches == 1 else held.own if late else held.gradients
    at_once = all(min(flight) == situation.micro_batches for flight in flights)
    # Where all forward passes come first, there are no gradients yet.
    level = _Level(kept, 0, 0) if at_once else _Level(kept, earlier, unreduced + _waiting(rank, situation))
    yield level.at("forward", gathered=rank.gathered, working=rank.forward)
    yield level.at("forward", gathered=rank.gathered_outside, working=rank.head)
    yield level.at("backward", gathered=rank.gathered, working=_of_backward(rank, situation))
    if late:
        if at_once:  # the passes of the last stage are differentiated first, and those of the first one at the end
            stages = len(rank.kept)
            second = _Level(kept - rank.kept[-1], earlier // stages, unreduced // stages)
            yield second.at("backward", gathered=rank.gathered, working=rank.backward)
            kept = situation.micro_batches * rank.kept[0]
        ending = _Level(kept - rank.kept[0], earlier, unreduced)
        yield ending.at("backward", gathered=rank.gathered, working=rank.embedding)
        yield _Level(0, gradients, unreduced).at("reduction", gathered=0, working=max(rank.layer, rank.outside))
    else:
        ending = _Level(rank.kept_by_head, earlier, 0)
        yield ending.at("backward", gathered=rank.gathered_outside, working=rank.outside)
    yield _Level(0, gradients, 0).at("update", gathered=0, working=rank.update)


def _waiting(rank: RankParts, situation: Situation) -> int:
    """Gradients of the head's weight that wait for the second part of backward passes, but for those being made."""
    return max(0, situation.num_waiting - 1) * rank.head_gradients


def _of_backward(rank: RankParts, situation: Situation) -> int:
    """Working memory of the largest layer's backward pass."""
    if situation.splits_backward:  # the gradients of all results of a stage wait, as large as what it kept
        return max(rank.backward, rank.forward + max(rank.kept))
    if situation.reduces_late:
        return rank.backward
    # While a layer is differentiated, the gradients of the one after it are still being reduced.
    return max(rank.backward + rank.sent, rank.layer)
