"""Goodput: the useful part of the time for which a job's nodes were allocated, and where the rest went.

Definitions are in docs/jobs.md; spans are made in `goodput_spans.py`, here they are gathered from what the job and its
run have written down, and added up. The sum over all uses is exactly the allocated time.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from glmforge.errors import GlmforgeError
from glmforge.observe.job_records import STARTED, AttemptRecord, Cause, JobDirectory, RankRecord, utc_now
from glmforge.observe.record_files import last_records, read_jsonl
from glmforge.observe.run import RunDirectory, write_text
from glmforge.observe.units import counted, format_duration
from glmforge.report.goodput_spans import Allocation, Attempt, Span, Step, Use, spans_of
from glmforge.report.page import Column, Table, Tile, make_table
from glmforge.report.report import Extra

GOODPUT = "goodput.json"
"""In the job's directory: what the job has cost until its newest attempt began."""

MEANINGS = {
    Use.USEFUL: "steps trained for the first time",
    Use.START: "until all ranks are there: processes, imports, joining",
    Use.CHECKS: "after an attempt: why it ended, checks of nodes",
    Use.LOAD: "checkpoint, data, until the first step can begin",
    Use.DATA: "waiting for batches",
    Use.EVALUATION: "evaluations",
    Use.SAVING: "training waited for saves",
    Use.OTHER: "between steps: records, other hooks",
    Use.RECOMPUTE: "steps trained again that a failure had undone",
    Use.HANG: "from the last step until the hang was noticed and ended",
    Use.STOP: "from the last step to the end: saving, noticing the failure, ending",
    Use.BACK_OFF: "waiting before the next attempt, for nodes or on purpose",
    Use.SPARE: "nodes kept for when others fail",
    Use.NOT_MEASURED: "programs that report no step; what a run has not reported yet",
}
_PARTS = {
    "training_s": Use.USEFUL,
    "data_s": Use.DATA,
    "evaluation_s": Use.EVALUATION,
    "saving_s": Use.SAVING,
}
_OVER = ("supervisor ended", "requeued")
_ALL_OF_IT = 1e12
_SHOWN_ATTEMPTS = 6


@dataclass(frozen=True)
class Goodput:
    """Of a job until `until`.

    Attributes:
        spans: the allocated time, without a gap.
        queue_s: time that the job waited for nodes.
        attempts: how many there have been.
    """

    name: str
    spans: list[Span]
    queue_s: float
    attempts: int
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


def goodput_of(job: JobDirectory, *, now: datetime | None = None) -> Goodput:
    """What a job has cost until now; by its own files. Raises `GlmforgeError` if they are damaged."""
    now = now or utc_now()
    records, events = job.read_attempts(), job.read_events()
    run = job.read().run
    reported = {} if run is None else _of_run(RunDirectory(run).time, job.name)
    attempts = [_attempt(job, reported.get(record.number), record, events, now) for record in records]
    allocations = own_allocations(records, events, now)
    requeued = [time for event in events if event.get("event") == "requeued" and (time := time_of(event))]
    waited_s = 0.0
    for since in [*(each.time for each in job.read_submissions()), *requeued]:
        begin = min((each.begin for each in allocations if each.begin >= since), default=since)
        waited_s += (begin - since).total_seconds()
    return Goodput(job.name, spans_of(allocations, attempts), waited_s, len(records), now)


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
        reported = min((time for time in ends if begin <= time <= limit), default=None)
        open_ = place + 1 == len(starts) and (not own or own[-1].ended is None)
        last = max([begin, *(record.ended or limit for record in own)])
        end = reported or (now if open_ else last)
        nodes = max([1, *(len(record.nodes) + len(record.spares) for record in own)])
        found.append(Allocation(begin, max(begin, min(end, limit)), nodes, str(event.get("submission", ""))))
    return found


@dataclass(frozen=True)
class _Reported:
    """What a run reports of an attempt."""

    marks: dict[str, datetime] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)


def _attempt(
    job: JobDirectory,
    reported: _Reported | None,
    record: AttemptRecord,
    events: Sequence[Mapping[str, Any]],
    now: datetime,
) -> Attempt:
    own = {event.get("event"): event for event in reversed(events) if event.get("attempt") == record.number}
    verdict, end = own.get("verdict", {}), record.ended or now
    fault = _parsed(verdict.get("fault"))
    first = RankRecord.read(job.attempt(record.number).rank(0))
    if (reported is None or not reported.steps) and "training" in own:
        reported = _by_supervisor(own["training"], record, fault or end)
    reported = reported or _Reported()
    return Attempt(
        number=record.number,
        begin=record.began,
        end=end,
        nodes=len(record.nodes),
        decided=time_of(verdict),
        processes=first.began if first is not None else None,
        joined=reported.marks.get("joined"),
        loaded=reported.marks.get("loaded"),
        fault=fault,
        steps=reported.steps,
        hung=record.verdict is not None and record.verdict.cause is Cause.HANG,
        goes_on=record.ended is None,
    )


def _of_run(path: Path, job: str) -> dict[int, _Reported]:
    """Of each attempt, from the run's `time.jsonl`."""
    found: dict[int, _Reported] = {}
    for row in read_jsonl(path) if path.exists() else []:
        time, attempt = time_of(row), row.get("attempt")
        if time is None or row.get("job") != job or not isinstance(attempt, int):
            continue
        reported = found.setdefault(attempt, _Reported())
        if row.get("event") in ("joined", "loaded"):
            reported.marks[row["event"]] = time
        elif isinstance(row.get("step"), int) and isinstance(row.get("steps"), int):
            seconds = {use: _seconds(row.get(name)) for name, use in _PARTS.items()}
            reported.steps.append(Step(time, row["step"], max(1, row["steps"]), seconds))
    return found


def _by_supervisor(training: Mapping[str, Any], record: AttemptRecord, until: datetime) -> _Reported:
    """Of a program that reports its step and nothing else: all from its first step to its end counts as training."""
    began = time_of(training)
    done = record.first_step if record.first_step is not None else training.get("step")
    if began is None or not isinstance(done, int) or record.last_step is None or record.last_step <= done:
        return _Reported()
    step = Step(until, record.last_step, record.last_step - done, {Use.USEFUL: _ALL_OF_IT})
    return _Reported({"loaded": began}, [step])


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

    def seconds(number: int | None = None) -> dict[str, float]:
        return {use.value: micro / 1e6 for use, micro in goodput.by_use(number).items()}

    return {
        "job": goodput.name,
        "until": goodput.until.isoformat(),
        "metrics": metrics_of(goodput),
        "node_seconds": seconds(),
        "attempts": {str(number): seconds(number) for number in goodput.numbers},
    }


def prometheus(found: Sequence[Goodput]) -> str:
    """The metrics of jobs as a text file that node_exporter's textfile collector, or a push gateway, takes."""
    lines: list[str] = []
    rows = [(goodput.name, metrics_of(goodput)) for goodput in found]
    for name in ("goodput", "allocated_node_seconds", "queue_seconds", "attempts_before"):
        shown = f"glmforge_job_{'attempts' if name == 'attempts_before' else name}"
        values = [f'{shown}{{job="{job}"}} {metrics[name]}' for job, metrics in rows if name in metrics]
        lines += [f"# TYPE {shown} gauge", *values] if values else []
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


def headline(goodput: Goodput) -> str:
    """'air: goodput 91.3% of 12h 04m of nodes; 3 attempts, 5m 10s in the queue'."""
    share = "-" if goodput.share is None else f"{goodput.share:.1%}"
    return (
        f"{goodput.name}: goodput {share} of {format_duration(goodput.allocated / 1e6)} of nodes; "
        f"{counted(goodput.attempts, 'attempt')}, {format_duration(goodput.queue_s)} in the queue"
    )


def rows_of(goodput: Goodput) -> list[list[str]]:
    """Of each use its name, time, share and meaning."""
    return [
        [use.value, format_duration(micro / 1e6), f"{micro / goodput.allocated:.1%}", MEANINGS[use]]
        for use, micro in goodput.by_use().items()
    ]


def rows_by_attempt(goodput: Goodput) -> list[list[str]]:
    """A head, then a row for each attempt; [] if none has time."""
    of_attempts = {number: goodput.by_use(number) for number in goodput.numbers}
    uses = [use for use in Use if any(use in each for each in of_attempts.values())]
    rows = [
        [str(number), *(format_duration(each[use] / 1e6) if use in each else "-" for use in uses)]
        for number, each in of_attempts.items()
    ]
    return [["attempt", *(use.value for use in uses)], *rows] if rows else []


def report_table(goodput: Goodput) -> Table:
    """A row per use, in all and in the newest attempts."""
    shown = goodput.numbers[-_SHOWN_ATTEMPTS:]
    of_attempts = [goodput.by_use(number) for number in shown]
    rows = [
        [*row[:3], *(format_duration(each[use] / 1e6) if use in each else "" for each in of_attempts), row[3]]
        for row, use in zip(rows_of(goodput), goodput.by_use(), strict=True)
    ]
    numbers = [Column(title, number=True) for title in ("Nodes' time", "Share", *(f"Attempt {each}" for each in shown))]
    note = f"Of the job {headline(goodput)}. Time in the queue is not allocated. Definitions: docs/jobs.md."
    return make_table("Goodput", (Column("Use"), *numbers, Column("What it is")), rows, note=note)


def report_extra(run: Path) -> Extra:
    """What the report of a run says of the job that it belongs to; nothing if there is none, or it cannot be read."""
    try:
        job = _job_of(run)
        goodput = goodput_of(job) if job is not None else None
    except GlmforgeError:
        return {}
    if job is None or goodput is None or goodput.share is None:
        return {}
    tile = Tile("Goodput", f"{goodput.share:.1%}", f"of the nodes' time, {counted(goodput.attempts, 'attempt')}")
    return {"tiles": [tile], "tables": [report_table(goodput)], "facts": {"Job": f"{job.root}"}}


def _job_of(run: Path) -> JobDirectory | None:
    """The job that a run was last started by: its own note says which, and where the job lies."""
    for event in reversed(last_records(RunDirectory(run).events)):
        if event.get("event") in ("started", "resumed"):
            place = event.get("job_directory")
            job = JobDirectory(Path(place)) if isinstance(place, str) and "\0" not in place else None
            return job if job is not None and job.description.is_file() else None
    return None
