"""What a pipeline rank does in a step: the seconds of its passes, with what FSDP's traffic adds to them.

FSDP gathers the weights of the next layer while one computes, and reduces the gradients of the layer before; both wait
while the layer's own communication (tp, cp, ep) uses the links. What does not fit behind the computation is visible,
what does makes it slower (`BESIDE_COMMUNICATION`), and a step's first gather and last reduction are visible whole. In a
pipeline weights stay gathered for all micro-batches unless configured otherwise, and gradients are reduced after the
last backward pass, as torch does.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise

from glmforge.config.pipeline import stages_of_rank, stages_per_rank
from glmforge.plan.layout import stages_of_pp_rank
from glmforge.plan.time.piece import Piece, pieces_of
from glmforge.plan.time.pieces import Parts, PieceTime, Situation
from glmforge.plan.time.reached import BESIDE_COMMUNICATION
from glmforge.plan.time.schedules import Pass
from glmforge.plan.time.update import UpdateTime, update_time


@dataclass(frozen=True)
class RankTime:
    """Of one pipeline rank.

    Attributes:
        passes: seconds of a pass of one micro-batch, by its kind and stage.
        start: when it can begin its first pass.
        reduce: visible seconds of reducing gradients after its last pass.
        update: of the optimizer, and of what belongs to it.
        parts: seconds of the step by what it does or waits for, without the update and without the pipeline's bubble.
    """

    passes: dict[tuple[Pass, int], float]
    start: float
    reduce: float
    update: UpdateTime
    parts: Parts

    @property
    def busy(self) -> float:
        return sum(self.parts.values())


def rank_time(situation: Situation, times: dict[Piece, PieceTime], pp_rank: int) -> RankTime:
    """Of a rank of `pp_rank`; all of them are alike."""
    config, layout = situation.config, situation.layout
    parallel = config.parallel
    micro_batches = layout.num_micro_batches(config.phases[0])
    numbers = [0]
    if layout.pp > 1:
        numbers = stages_of_rank(parallel.pipeline_schedule, pp_rank, layout.pp, stages_per_rank(parallel))
    fsdp = "fsdp" if layout.fsdp > 1 else "dp_replicate"
    passes: dict[tuple[Pass, int], float] = {}
    parts: Parts = defaultdict(float)
    start = reduce = 0.0
    update = UpdateTime()
    for index, (number, stage) in enumerate(zip(numbers, stages_of_pp_rank(config, layout, pp_rank), strict=True)):
        held = pieces_of(stage, config, situation.model)
        pieces = [times[piece] for piece in held]
        updated = _update(held, situation)
        waits = _fsdp_waits(pieces, situation, micro_batches)
        found: dict[Pass, Parts] = {
            "forward": {"compute": updated.casts, fsdp: waits.forward},
            "input": {},
            "weight": {"compute": updated.accumulation, fsdp: waits.backward},
        }
        for kind, sums in found.items():
            for piece in pieces:
                _add(sums, piece.passes(kind), micro_batches)
            passes[kind, number] = sum(sums.values()) / micro_batches
            _add(parts, sums)
        passes["backward", number] = passes["input", number] + passes["weight", number]
        # The first stage's weights are waited for; those of others are gathered while it computes. The last of its
        # reductions is what no pass hides.
        start = waits.start if index == 0 else start
        reduce = max(reduce, waits.end)
        update = update.plus(updated, 1)
    parts[fsdp] += start + reduce
    return RankTime(passes, start, reduce, update, dict(parts))


@dataclass(frozen=True)
class _Waits:
    """Visible seconds of FSDP's traffic in a step of one stage: in all forward passes, in all backward ones, before the
    first pass and after the last."""

    forward: float
    backward: float
    start: float
    end: float


def _fsdp_waits(pieces: list[PieceTime], situation: Situation, micro_batches: int) -> _Waits:
    parallel, pp = situation.config.parallel, situation.layout.pp
    regathers = parallel.reshards_after_forward
    gathers_forward, gathers_backward = _visible_gathers(pieces)
    start = pieces[0].gather
    if pp > 1:
        times = micro_batches if regathers else 0
        end = sum(piece.reduce + piece.replicate for piece in pieces)
        return _Waits(
            times * gathers_forward, times * gathers_backward, start + (gathers_forward if not times else 0.0), end
        )
    reduced = [piece.reduce for piece in pieces]
    in_last = [piece.reduce + piece.replicate for piece in pieces]
    before = reduced if parallel.reduce_gradients == "every_micro_batch" else [0.0] * len(pieces)
    return _Waits(
        (micro_batches if regathers else 1) * gathers_forward,
        (micro_batches - 1) * _visible_backward(pieces, before, regathers=regathers)
        + _visible_backward(pieces, in_last, regathers=regathers),
        start,
        in_last[0],
    )


def _visible_gathers(pieces: list[PieceTime]) -> tuple[float, float]:
    """Of a forward and of a backward pass: what of each gather the piece computed before it does not hide."""
    forward = sum(_visible(piece.gather, before.forward) for before, piece in pairwise(pieces))
    return forward, _visible_backward(pieces, [0.0] * len(pieces), regathers=True)


def _visible_backward(pieces: list[PieceTime], reductions: list[float], *, regathers: bool) -> float:
    """While a piece computes its gradients, the one before it is gathered and the one after it reduced, which takes
    its `reductions`."""
    visible = 0.0
    for index, piece in enumerate(pieces):
        traffic = 0.0
        if regathers and index > 0:
            traffic += pieces[index - 1].gather_again
        if index + 1 < len(pieces):
            traffic += reductions[index + 1]
        visible += _visible(traffic, piece.passes("backward"))
    return visible


def _visible(traffic: float, parts: Parts) -> float:
    """Of so many seconds of traffic beside a pass what makes the step longer: what the computation does not hide, and
    what it takes from the computation."""
    hidden = min(traffic, sum(parts.get(part, 0.0) for part in ("compute", "recompute", "imbalance")))
    return traffic - BESIDE_COMMUNICATION.forward * hidden


def _add(sums: Parts, parts: Parts, times: float = 1) -> None:
    for part, seconds in parts.items():
        sums[part] = sums.get(part, 0.0) + times * seconds


def _update(held: list[Piece], situation: Situation) -> UpdateTime:
    """Of what all the stage's models train."""
    config, layout = situation.config, situation.layout
    parallel = config.parallel
    micro_batches = layout.num_micro_batches(config.phases[0])
    # A rank alone casts in every forward pass; FSDP casts what it gathers, as often as it gathers.
    regathers = parallel.reshards_after_forward
    again = parallel.recompute == "full" if layout.fsdp == 1 else regathers
    gathers = 1 if layout.pp > 1 and layout.fsdp > 1 and not regathers else micro_batches
    found = UpdateTime()
    for role in situation.stage.roles:
        for piece, number in Counter(held).items():
            found = found.plus(update_time(piece, role, situation, gathers * (1 + again + role.forwards)), number)
    return found
