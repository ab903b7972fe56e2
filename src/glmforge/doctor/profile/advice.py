"""What to change first, as rules on a profile: each says what is lost, how much of the step, and what to set.

First come losses that were measured, the largest first: waiting for data, communication, late ranks, recomputation,
an idle device. Then what is only estimated: how much faster the same products would be in larger pieces. A loss below
`NOTABLE` of a step is not told.

Of the waiting along an axis the link's part is what the rank that waits least does; the rest is waiting for a late
rank, and told of as what makes that late.
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from glmforge.doctor.profile.ranges import DATA, EXPERTS, IDLE, MODEL_PHASES, OPTIMIZER, RECOMPUTE, SHARDING
from glmforge.doctor.profile.train import TrainProfile
from glmforge.observe.units import format_bytes

NOTABLE = 0.05
_UNEVEN = 1.1
"""A rank's time over the mean from which on it is late."""
_SLOW = 0.25
"""Share of the measured peaks below which products are small."""
_FAR_BELOW = 0.3
_LINKS = {
    "ep": "keep the ep ranks within a node (a smaller parallel.ep), or set parallel.ep_overlap=true to exchange behind "
    "the other half's computation",
    "fsdp": "send less: parallel.reduce_gradients=last_micro_batch, a larger parallel.micro_batch_size; between nodes "
    "use parallel.dp_replicate and keep dp_shard within one",
    "efsdp": "send less: a larger parallel.micro_batch_size, or a larger parallel.ep: fewer ranks share an expert",
    "tp": "keep the tp ranks within a node (a smaller parallel.tp), or set parallel.async_tp=true",
    "cp": "a smaller parallel.cp, or the other parallel.context_method",
    "dp_replicate": "fewer reductions: a larger batch in a step; or a smaller parallel.dp_replicate",
    "pp": "more micro-batches in a step (parallel.micro_batch_size down, batch_size up), or another "
    "parallel.pipeline_schedule: waiting for other stages is in this",
    "other": "these are sums over all ranks and the optimizer's exchange: take larger steps (batch_size)",
}


@dataclass(frozen=True)
class Advice:
    """`lost`: of the step, 0 to 1; `measured`, or estimated. The text has the numbers."""

    rule: str
    lost: float
    text: str
    measured: bool = True


def advise(profile: TrainProfile) -> list[Advice]:
    """The most important first."""
    found = [*_data(profile), *_links(profile), *_experts(profile), *_straggler(profile)]
    found += [*_recompute(profile), *_idle(profile), *_small_batch(profile), *_small_step(profile)]
    return sorted((one for one in found if one.lost >= NOTABLE), key=lambda one: (not one.measured, -one.lost))


def _share(profile: TrainProfile, seconds: float) -> float:
    """Of a profiled step: what the profiler costs falls on all parts."""
    return seconds / profile.mean(lambda parts: parts.total)


def _data(profile: TrainProfile) -> Iterator[Advice]:
    # One rank whose data is late is enough: the others wait for it in their collectives.
    lost = max(rank.parts.of(DATA) / rank.parts.total for rank in profile.ranks)
    workers, prefetch = profile.settings["data.num_workers"], profile.settings["data.prefetch"]
    change = (
        "the source makes its batches while training waits: fewer or shorter answers, or more engines"
        if profile.stage == "rl"
        else f"raise data.num_workers from {workers} to {max(2, 2 * workers)}"
        + (f" and data.prefetch from {prefetch} to {2 * prefetch}" if workers else "")
        + "; 'glmforge profile data' measures the loader alone"
    )
    yield Advice(
        "slow data",
        lost,
        f"the loader is the limit: {lost:.0%} of the step waits for data; {change}",
    )


def _links(profile: TrainProfile) -> Iterator[Advice]:
    axes = {axis for rank in profile.ranks for axis in rank.parts.exposed}
    for axis in sorted(axes):
        least = min(rank.parts.exposed.get(axis, 0.0) for rank in profile.ranks)
        hidden = profile.mean(lambda parts, axis=axis: parts.hidden.get(axis, 0.0))  # type: ignore[misc]
        lost, sent, peak = _share(profile, least), profile.traffic.get(axis), profile.peaks.links.get(axis)
        rate = sent / (least + hidden) if sent and least + hidden > 0 else None
        compared = _compared(rate, peak) if rate and peak else ""
        amount = f" of {format_bytes(sent)}" if sent else ""
        yield Advice(
            "slow link",
            lost,
            f"communication along {axis} is not hidden: {lost:.0%} of the step waits for it{amount}{compared}; "
            + _LINKS[axis],
        )


def _compared(rate: float, peak: float) -> str:
    """With the link by itself: where that is much faster, more bandwidth would not help."""
    words = f" at {format_bytes(rate)}/s, measured alone {format_bytes(peak)}/s"
    return words + (": messages are small, or peers late" if rate < _FAR_BELOW * peak else "")


def _late(profile: TrainProfile, *names: str) -> tuple[int, float, float]:
    """The rank that these phases take longest on, its time over the mean, and what the mean rank loses by it."""
    seconds = [rank.parts.of(*names) for rank in profile.ranks]
    most, mean = max(seconds), statistics.mean(seconds)
    return seconds.index(most), most / mean if mean else 1.0, _share(profile, most - mean)


def _experts(profile: TrainProfile) -> Iterator[Advice]:
    rank, ratio, lost = _late(profile, EXPERTS)
    if ratio >= _UNEVEN and profile.expert_load >= _UNEVEN:
        capacity = "" if profile.settings["capacity_factor"] else ", or bound it with phases.N.capacity_factor"
        yield Advice(
            "imbalanced experts",
            lost,
            f"rank {rank}'s experts work {ratio:.1f} times as long as the mean and have {profile.expert_load:.1f} "
            f"times the rows: {lost:.0%} of the step; level the router (phases.N.router_bias_rate, "
            f"aux_loss_weight){capacity}",
        )


def _straggler(profile: TrainProfile) -> Iterator[Advice]:
    own = (*(name for name in MODEL_PHASES if name != EXPERTS), RECOMPUTE, SHARDING, OPTIMIZER, IDLE)
    rank, ratio, lost = _late(profile, *own)
    if ratio >= _UNEVEN:
        yield Advice(
            "straggler",
            lost,
            f"rank {rank} computes {ratio:.2f} times as long as the mean, the experts aside: {lost:.0%} of the step; "
            "compare its machine with the others (clocks, throttling, other programs on its cores)",
        )


def _recompute(profile: TrainProfile) -> Iterator[Advice]:
    mode, lighter = profile.settings["parallel.recompute"], profile.lighter_recompute
    lost = _share(profile, profile.mean(lambda parts: parts.of(RECOMPUTE)))
    change = (
        f"by plan memory allows parallel.recompute={lighter}"
        if lighter
        else "by plan memory does not allow less; a smaller parallel.micro_batch_size would"
    )
    yield Advice(
        "recompute",
        lost,
        f"parallel.recompute={mode} computes {lost:.0%} of the step again; {change}",
        measured=lighter is not None,
    )


def _idle(profile: TrainProfile) -> Iterator[Advice]:
    if profile.device == "CPU":  # which is its own host: what Python takes is in the phases
        return
    lost = _share(profile, profile.mean(lambda parts: parts.of(IDLE)))
    yield Advice(
        "idle",
        lost,
        f"the device has nothing to do for {lost:.0%} of the step: the host is late; give it larger pieces "
        "(parallel.micro_batch_size), or set parallel.compile=true",
    )


def _small_batch(profile: TrainProfile) -> Iterator[Advice]:
    """As if the model's phases reached `_SLOW` of the peaks."""
    names = [name for name in MODEL_PHASES if name in profile.work]
    seconds = profile.mean(lambda parts: parts.of(*names))
    limit = sum(profile.work[name].limit for name in names)
    lost, reached = _share(profile, seconds - limit / _SLOW), limit / seconds if seconds else 1.0
    tokens = profile.settings["parallel.micro_batch_size"] * profile.settings["seq_len"]
    raised = "phases.N.batch_size" if profile.settings["micro_batches"] == 1 else "parallel.micro_batch_size"
    yield Advice(
        "small batches",
        lost,
        f"the model's phases reach {reached:.0%} of the measured peaks on micro-batches of {tokens:,} tokens; raise "
        f"{raised} as far as memory allows ('glmforge profile memory')",
        measured=False,
    )


def _small_step(profile: TrainProfile) -> Iterator[Advice]:
    """As if a step had twice the tokens."""
    share = _share(profile, profile.mean(lambda parts: parts.of(OPTIMIZER)))
    yield Advice(
        "small steps",
        share / 2,
        f"the optimizer takes {share:.0%} of a step of {profile.tokens_per_step:,} tokens; more tokens in a step "
        "(phases.N.batch_size) spread it",
        measured=False,
    )
