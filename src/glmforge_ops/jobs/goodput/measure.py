"""Goodput: the useful part of the time for which a job's nodes were allocated, and where the rest went.

Definitions are in docs/jobs.md; spans are made in `timeline.py`, here they are gathered from what the job, its run and
the scheduler have written down, and added up. The sum over all uses is exactly the allocated time.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from glmforge.errors import GlmforgeError
from glmforge.observe.record_files import read_jsonl
from glmforge.observe.run import RunDirectory, write_text
from glmforge_ops.jobs.goodput.accounting import Accounting, slurm_accounting
from glmforge_ops.jobs.goodput.timeline import Allocation, Attempt, Span, Step, Use, spans_of
from glmforge_ops.jobs.job import AttemptRecord, Cause, JobDescription, JobDirectory, RankRecord, utc_now
from glmforge_ops.jobs.refused import STARTED

GOODPUT = "goodput.json"
"""In the job's directory: what the job has cost until its newest attempt began."""

_PARTS = {
    "training_s": Use.USEFUL,
    "data_s": Use.DATA,
    "evaluation_s": Use.EVALUATION,
    "saving_s": Use.SAVING,
}
_OVER = ("supervisor ended", "requeued")
_ALL_OF_IT = 1e12


@dataclass(frozen=True)
class Goodput:
    """Of a job until `until`.

    Attributes:
        spans: the allocated time, without a gap.
        queue_s: time that the job waited for nodes.
        attempts: how many there have been.
        source: where the allocations are from, in words.
    """

    name: str
    spans: list[Span]
    queue_s: float
    attempts: int
    source: str
    until: datetime

    @property
    def allocated(self) -> int:
        """Node-microseconds."""
        return sum(span.node_microseconds for span in self.spans)

    def by_use(self, attempt: int | None = None) -> dict[Use, int]:
        """Node-microseconds, of one attempt or of all the time; in the order of `Use`, without zeros."""
        sums = dict.fromkeys(Use, 0)
        for span in self.spans:
            if attempt is None or span.attempt == attempt:
                sums[span.use] += span.node_microseconds
        return {use: micro for use, micro in sums.items() if micro}

    @property
    def share(self) -> float | None:
        """Useful over allocated; None before anything was allocated."""
        return self.by_use().get(Use.USEFUL, 0) / self.allocated if self.allocated else None

    @property
    def numbers(self) -> list[int]:
        """Of the attempts that have time, in order."""
        return sorted({span.attempt for span in self.spans if span.attempt is not None})


def goodput_of(job: JobDirectory, now: datetime | None = None) -> Goodput:
    """What a job has cost until now. Raises `GlmforgeError` if its files are damaged."""
    now = now or utc_now()
    description, records, events = job.read(), job.read_attempts(), job.read_events()
    told = _told_by_run(description)
    attempts = [_attempt(job, told.get(record.number, _Told()), record, events, now) for record in records]
    submissions = job.read_submissions()
    accounting = None
    if description.launch.launcher == "slurm":
        accounting = slurm_accounting([each.id for each in submissions], now)
    if accounting is None:
        allocations = own_allocations(records, events, now)
        queue_s = _own_queue(allocations, [each.time for each in submissions], events)
        accounting, source = Accounting(allocations, queue_s), "the job's own files"
    else:
        source = "Slurm's accounting"
    spans = spans_of(accounting.allocations, attempts)
    return Goodput(job.name, spans, accounting.waited_s, len(records), source, now)


def own_allocations(
    records: Sequence[AttemptRecord], events: Sequence[Mapping[str, Any]], now: datetime
) -> list[Allocation]:
    """From a supervisor's start to its end, or the end of its last attempt if it left no word."""
    found: list[Allocation] = []
    starts = [(time, event) for event in events if event.get("event") == STARTED and (time := time_of(event))]
    for place, (begin, event) in enumerate(starts):
        limit = starts[place + 1][0] if place + 1 < len(starts) else now
        ends = [time for each in events if each.get("event") in _OVER and (time := time_of(each))]
        own = [record for record in records if begin <= record.began < limit]
        told = min((time for time in ends if begin <= time <= limit), default=None)
        open_ = place + 1 == len(starts) and (not own or own[-1].ended is None)
        last = max([begin, *(record.ended or limit for record in own)])
        end = told or (now if open_ else last)
        nodes = max([1, *(len(record.nodes) + len(record.spares) for record in own)])
        found.append(Allocation(begin, max(begin, min(end, limit)), nodes, str(event.get("submission", ""))))
    return found


def _own_queue(
    allocations: Sequence[Allocation], submitted: Sequence[datetime], events: Sequence[Mapping[str, Any]]
) -> float:
    """From each submission, and from each requeue, to the start of the next supervisor."""
    requeued = [time for event in events if event.get("event") == "requeued" and (time := time_of(event))]
    waited = 0.0
    for since in [*submitted, *requeued]:
        begin = min((each.begin for each in allocations if each.begin >= since), default=None)
        if begin is not None:
            waited += (begin - since).total_seconds()
    return waited


def _attempt(
    job: JobDirectory,
    told: "_Told",
    record: AttemptRecord,
    events: Sequence[Mapping[str, Any]],
    now: datetime,
) -> Attempt:
    own = [event for event in events if event.get("attempt") == record.number]
    fault = next((_parsed(event.get("fault")) for event in own if event.get("event") == "verdict"), None)
    marks, steps = told.marks, told.steps
    end = record.ended or now
    first = RankRecord.read(job.attempt(record.number).rank(0))
    training = next((event for event in own if event.get("event") == "training"), None)
    if not steps and training is not None:
        marks, steps = _told_by_supervisor(training, record, fault or end)
    return Attempt(
        number=record.number,
        begin=record.began,
        end=end,
        nodes=len(record.nodes),
        decided=next((time_of(event) for event in own if event.get("event") == "verdict"), None),
        processes=first.began if first is not None else None,
        joined=marks.get("joined"),
        loaded=marks.get("loaded"),
        fault=fault,
        steps=steps,
        hung=record.verdict is not None and record.verdict.cause is Cause.HANG,
        goes_on=record.ended is None,
    )


@dataclass(frozen=True)
class _Told:
    """What a run tells of an attempt."""

    marks: dict[str, datetime] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)


def _told_by_run(description: JobDescription) -> dict[int, _Told]:
    """Of each attempt, from the run's `time.jsonl`; nothing of a program that is none of ours."""
    found: dict[int, _Told] = {}
    path = RunDirectory(description.run).time if description.run is not None else None
    for row in read_jsonl(path) if path is not None and path.exists() else []:
        time, attempt = time_of(row), row.get("attempt")
        if time is None or row.get("job") != description.name or not isinstance(attempt, int):
            continue
        told = found.setdefault(attempt, _Told())
        if row.get("event") in ("joined", "loaded"):
            told.marks[row["event"]] = time
        elif isinstance(row.get("step"), int) and isinstance(row.get("steps"), int):
            seconds = {use: _seconds(row.get(name)) for name, use in _PARTS.items()}
            told.steps.append(Step(time, row["step"], max(1, row["steps"]), seconds))
    return found


def _told_by_supervisor(
    training: Mapping[str, Any], record: AttemptRecord, until: datetime
) -> tuple[dict[str, datetime], list[Step]]:
    """Of a program that tells its step and nothing else: all from its first step to its end counts as training."""
    began = time_of(training)
    done = record.first_step if record.first_step is not None else training.get("step")
    if began is None or not isinstance(done, int) or record.last_step is None or record.last_step <= done:
        return {}, []
    count = record.last_step - done
    return {"loaded": began}, [Step(until, record.last_step, count, {Use.USEFUL: _ALL_OF_IT})]


def time_of(row: Mapping[str, Any]) -> datetime | None:
    """When a record was written; None if it does not say so."""
    return _parsed(row.get("time"))


def _parsed(text: object) -> datetime | None:
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return time if time.tzinfo is not None else None


def _seconds(value: object) -> float:
    return min(max(0.0, float(value)), _ALL_OF_IT) if isinstance(value, int | float) else 0.0


def metrics_of(goodput: Goodput) -> dict[str, Any]:
    """As `glmforge.observe.metrics` names them."""
    lost = {use.value: micro / 1e6 for use, micro in goodput.by_use().items() if use is not Use.USEFUL}
    share = {"goodput": goodput.share} if goodput.attempts and goodput.share is not None else {}
    return share | {
        "allocated_node_seconds": goodput.allocated / 1e6,
        "lost_node_seconds": lost,
        "queue_seconds": goodput.queue_s,
        "attempts_before": goodput.attempts,
    }


def as_dict(goodput: Goodput) -> dict[str, Any]:
    """For programs; node-seconds."""
    return {
        "job": goodput.name,
        "until": goodput.until.isoformat(),
        "source": goodput.source,
        "metrics": metrics_of(goodput),
        "node_seconds": {use.value: micro / 1e6 for use, micro in goodput.by_use().items()},
        "attempts": {
            str(number): {use.value: micro / 1e6 for use, micro in goodput.by_use(number).items()}
            for number in goodput.numbers
        },
    }


def prometheus(found: Sequence[Goodput]) -> str:
    """The metrics of jobs as a text file that node_exporter's textfile collector, or a push gateway, takes."""
    lines: list[str] = []
    rows = [(goodput.name, metrics_of(goodput)) for goodput in found]
    for name in ("goodput", "allocated_node_seconds", "queue_seconds", "attempts_before"):
        shown = {"attempts_before": "attempts"}.get(name, name)
        values = [f'glmforge_job_{shown}{{job="{job}"}} {metrics[name]}' for job, metrics in rows if name in metrics]
        lines += [f"# TYPE glmforge_job_{shown} gauge", *values] if values else []
    lost = [
        f'glmforge_job_lost_node_seconds{{job="{job}",cause="{cause}"}} {seconds}'
        for job, metrics in rows
        for cause, seconds in metrics["lost_node_seconds"].items()
    ]
    lines += ["# TYPE glmforge_job_lost_node_seconds gauge", *lost] if lost else []
    return "".join(f"{line}\n" for line in lines)


def write_goodput(job: JobDirectory) -> None:
    """Leave what the job has cost so far in its directory, for its next attempt and for Prometheus.

    Raises `GlmforgeError` if that cannot be read or written: no reason not to start the attempt.
    """
    goodput = goodput_of(job)
    write_text(job.root / GOODPUT, json.dumps(as_dict(goodput), indent=1) + "\n")
    write_text((job.root / GOODPUT).with_suffix(".prom"), prometheus([goodput]))


def read_goodput(job: JobDirectory) -> Goodput | None:
    """None if the job's files do not tell."""
    try:
        return goodput_of(job)
    except GlmforgeError:
        return None
