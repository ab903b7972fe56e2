"""Does a run learn its training data by heart? The gap between training loss and held-out loss, and what to change.

Of each held-out source its loss (nats per token) is compared, at every evaluation, with the training loss there: that
of the training source of the same name if there is one, else of all; the median over the later half of the records
since the evaluation before, so that neither single batches nor the way down from there count.

A gap by itself is no harm: what is trained on twice is known better. A run overfits when held-out loss has passed its
lowest point and rises beyond noise while training loss does not. Noise is estimated from the evaluations themselves: of
third differences, in which a smooth curve all but vanishes, the median absolute value, which of values with independent
errors of standard deviation s is 0.6745 sqrt(20) s. The last two evaluations must both lie five times that above the
lowest, and more than half a percent of perplexity: the lowest of many values is low by chance too.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median

import numpy as np

from glmforge.observe.metrics import Record
from glmforge.observe.run import RunLog
from glmforge.report.page import Column, Table, make_table

MIN_EVALUATIONS = 5
"""Fewer tell nothing about noise."""

_MIN_RISE = 0.005  # nats per token, about half a percent of perplexity
_NOISES = 5.0
_NOISE_OF_THIRD_DIFFERENCES = 0.6745 * math.sqrt(20)


class Verdict(Enum):
    """What the curves of a held-out source say."""

    TOO_FEW = "too few evaluations"
    NO = "no sign"
    OVERFITS = "overfits"
    BOTH_RISE = "training loss rises too"


@dataclass(frozen=True)
class Finding:
    """The evaluations of one held-out source beside the training loss, and what follows.

    Attributes:
        steps: of the evaluations that have both losses, at least one.
        held_out: nats per token at each.
        training: the same of training data.
        verdict: whether the source's loss rises, and training loss with it.
        lowest: index of the lowest held-out loss: from there on the gap widened at the expense of held-out text, if the
            verdict is so.
    """

    source: str
    steps: Sequence[int]
    held_out: Sequence[float]
    training: Sequence[float]
    verdict: Verdict
    lowest: int

    @property
    def gaps(self) -> list[float]:
        """Held-out loss less training loss, at each evaluation."""
        return [held_out - training for held_out, training in zip(self.held_out, self.training, strict=True)]

    @property
    def rise(self) -> float:
        """Of held-out loss since it was lowest."""
        return self.held_out[-1] - self.held_out[self.lowest]


def find_overfitting(run: RunLog) -> list[Finding]:
    """A finding for each held-out source that was evaluated in the course of training."""
    sources = dict.fromkeys(record["source"] for record in run.evaluations if "nll" in record)
    points = {source: _points(run, source) for source in sources}
    return [_finding(source, *zip(*own, strict=True)) for source, own in points.items() if own]


def overfitting_table(findings: Sequence[Finding]) -> Table:
    """A row for each finding."""
    numbers = ("Step", "Training loss", "Held-out loss", "Gap", "Lowest held-out", "at step", "Gap there")
    columns = ("Source", *numbers, Column("Finding"))
    rows = [
        [
            one.source,
            f"{one.steps[-1]:,}",
            f"{one.training[-1]:.3f}",
            f"{one.held_out[-1]:.3f}",
            f"{one.gaps[-1]:+.3f}",
            f"{one.held_out[one.lowest]:.3f}",
            f"{one.steps[one.lowest]:,}",
            f"{one.gaps[one.lowest]:+.3f}",
            one.verdict.value,
        ]
        for one in findings
    ]
    return make_table(
        "Overfitting", columns, rows, note="Nats per token; the gap is held-out loss minus training loss."
    )


def advice(run: RunLog, findings: Sequence[Finding]) -> list[str]:
    """What to change, a sentence each; none where nothing is wrong."""
    said = [sentence for finding in findings for sentence in _advice(run, finding)]
    return list(dict.fromkeys(said))


def _points(run: RunLog, source: str) -> list[tuple[int, float, float]]:
    """Step, held-out loss and training loss of the source's evaluations."""
    points, before = [], 0
    for record in run.evaluations:
        if record["source"] != source or not math.isfinite(record.get("nll", math.nan)):
            continue
        step = record["step"]
        training = _training_loss(run.metrics, source, before, step)
        if training is not None:
            points.append((step, float(record["nll"]), training))
        before = step
    return points


def _training_loss(metrics: Sequence[Record], source: str, after: int, until: int) -> float | None:
    """Of the later half of the records of steps (after, until]; None without one."""
    losses = [_loss(record, source) for record in metrics if after < record["step"] <= until]
    finite = [loss for loss in losses if loss is not None and math.isfinite(loss)]
    return median(finite[len(finite) // 2 :]) if finite else None


def _loss(record: Record, source: str) -> float | None:
    own: Mapping[str, float] = record.get("source_loss", {})
    return own[source] if source in own else record.get("loss")


def _finding(source: str, steps: Sequence[int], held_out: Sequence[float], training: Sequence[float]) -> Finding:
    lowest = int(np.argmin(held_out))
    return Finding(source, steps, held_out, training, _verdict(held_out, training, lowest), lowest)


def _verdict(held_out: Sequence[float], training: Sequence[float], lowest: int) -> Verdict:
    if len(held_out) < MIN_EVALUATIONS:
        return Verdict.TOO_FEW
    noise = float(np.median(np.abs(np.diff(held_out, 3)))) / _NOISE_OF_THIRD_DIFFERENCES
    rise = min(held_out[-2:]) - held_out[lowest]
    if rise <= max(_NOISES * noise, _MIN_RISE):
        return Verdict.NO
    return Verdict.OVERFITS if training[-1] - training[lowest] < rise / 2 else Verdict.BOTH_RISE


def _advice(run: RunLog, finding: Finding) -> list[str]:
    step = finding.steps[finding.lowest]
    if finding.verdict is Verdict.BOTH_RISE:
        return [
            f"{finding.source}: training loss has risen with held-out loss since step {step:,}: the run is unstable "
            "or has moved on to other text, which is not overfitting; check anomalies.jsonl, lower optim.lr or "
            "lengthen warm-up"
        ]
    if finding.verdict is not Verdict.OVERFITS:
        return []
    return [
        f"{finding.source}: held-out loss was lowest at step {step:,} and has risen by {finding.rise:.3f} nats per "
        f"token since, while training loss has not: {_weights_from(run, step)}",
        *_passes(run, step),
        *([] if _stops_early(run) else ["Set observe.early_stopping: {} to stop a run when that begins"]),
    ]


def _weights_from(run: RunLog, step: int) -> str:
    """Where the weights of about that step are."""
    saved = [int(path.name.removeprefix("step-")) for path in run.directory.checkpoints.glob("step-*[0-9]")]
    if not saved:
        return "retrain for that many steps"
    nearest = min(saved, key=lambda one: (abs(one - step), one))
    return f"the nearest checkpoint is that of step {nearest:,} ({run.directory.root}@{nearest})"


def _passes(run: RunLog, step: int) -> list[str]:
    """What the number of passes through the training data at that step says."""
    epochs = next(
        (r["source_epochs"] for r in reversed(run.metrics) if r["step"] <= step and "source_epochs" in r), None
    )
    if not epochs:
        return []
    most, passes = max(epochs.items(), key=lambda item: item[1])
    if passes < 1:
        return [
            f"No source had completed an epoch by then (most: {most}, {passes:.2f} epochs), so it is not repetition: "
            "the training data are too narrow. Add text like the held-out text (data.sources), or lower optim.lr"
        ]
    return [
        f"By then {most} had been read {passes:.1f} times: stop there (epochs of the phase, max_epochs of the "
        "source), use more or more varied data, or raise optim.weight_decay or regularization.dropout, or lower "
        "optim.lr"
    ]


def _stops_early(run: RunLog) -> bool:
    observe = run.config.get("observe")
    return isinstance(observe, dict) and observe.get("early_stopping") is not None
