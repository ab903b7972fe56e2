"""Goodput: the useful part of the time for which a job's nodes were allocated, and where the rest went.

Definitions are in docs/jobs.md; spans are made in `goodput_spans.py`, here they are gathered from what the job and its
run have written down, and added up. The sum over all uses is exactly the allocated time.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from glmforge.errors import GlmforgeError
from glmforge.observe.job_records import STARTED, AttemptRecord, Cause, JobDirectory, RankRecord, utc_now
from glmforge.observe.record_files import last_records, read_jsonl
from glmforge.observe.run import RunDirectory, write_text
from glmforge.observe.units import counted, format_duration
from glmforge.report.goodput_spans import Allocation, Attempt, Span, Step, Use, spans_of
from glmforge.report.page import Column, Tile, make_table
from glmforge.report.report import Extra

_Reported = tuple[dict[str, datetime], list[Step]]
"""What a run reports of an attempt: marks, and steps."""

GOODPUT = "goodput.json"
"""In the job's directory: what the job has cost until its newest attempt began."""

_PARTS = {"training_s": Use.USEFUL, "data_s": Use.DATA, "evaluation_s": Use.EVALUATION, "saving_s": Use.SAVING}
_OVER = ("supervisor ended", "requeued")
_LONGEST = timedelta(days=10_000)
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
    def allocated(self) -> timedelta:
        """Of all nodes together."""
        return sum((span.node_time for span in self.spans), timedelta())

    def by_use(self, attempt: int | None = None) -> dict[Use, timedelta]:
        """Time of all nodes, of one attempt or of all; in the order of `Use`, without zeros."""
        sums = dict.fromkeys(Use, timedelta())
        for span in self.spans:
            if attempt is None or span.attempt == attempt:
                sums[span.use] += span.node_time
        return {use: time for use, time in sums.items() if time}

    @property
    def share(self) -> float | None:
        """Useful over allocated; None before anything was allocated."""
        return self.by_use().get(Use.USEFUL, timedelta()) / self.allocated if self.allocated else None

    @property
    def numbers(self) -> list[int]:
        """Of the attempts that have time, in order."""
        return sorted({span.attempt for span in self.spans if span.attempt is not None})


def goodput_of(job: JobDirectory, *, now: datetime | None = None) -> Goodput:
    """What a job has cost until now; by its own files. Raises `GlmforgeError` if they are damaged."""
    now = now or utc_now()
    records, events = job.read_attempts(), job.read_events()
    attempts = attempts_of(job, now)
    allocations = own_allocations(records, events, now)
    requeued = [time for event in events if event.get("event") == "requeued" and (time := time_of(event))]
    waited = timedelta()
    for since in [*(each.time for each in job.read_submissions()), *requeued]:
        waited += min((each.begin - since for each in allocations if each.begin >= since), default=timedelta())
    return Goodput(job.name, spans_of(allocations, attempts), waited.total_seconds(), len(records), now)


def attempts_of(job: JobDirectory, now: datetime) -> list[Attempt]:
    """What is known of a job's attempts. Raises `GlmforgeError` if its files are damaged."""
    records, events, run = job.read_attempts(), job.read_events(), job.read().run
    reported = {} if run is None else _of_run(RunDirectory(run).time, job.name)
    return [_attempt(job, reported.get(record.number), record, events, now) for record in records]


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


def _attempt(
    job: JobDirectory,
    reported: _Reported | None,
    record: AttemptRecord,
    events: Sequence[Mapping[str, Any]],
    now: datetime,
) -> Attempt:
    own = {event.get("event"): event for event in reversed(events) if event.get("attempt") == record.number}
    verdict, end = own.get("verdict", {}), record.ended or now
    first = RankRecord.read(job.attempt(record.number).rank(0))
    fault = _parsed(verdict.get("fault"))
    marks, steps = reported or ({}, [])
    if not steps and "training" in own:
        marks, steps = _by_supervisor(own["training"], record, fault or end)
    known = {"decided": time_of(verdict), "processes": None if first is None else first.began, "fault": fault, **marks}
    return Attempt(
        number=record.number,
        begin=record.began,
        end=end,
        nodes=len(record.nodes),
        marks={name: time for name, time in known.items() if time is not None},
        steps=steps,
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
        marks, steps = found.setdefault(attempt, ({}, []))
        if row.get("event") in ("joined", "loaded"):
            marks[row["event"]] = time
        steps += steps_of([(time, row)])
    return found


def steps_of(rows: Iterable[tuple[datetime, Mapping[str, Any]]]) -> list[Step]:
    """Of lines of `time.jsonl`, with their times."""
    return [
        Step(time, row["step"], max(1, row["steps"]), {use: length_of(row.get(name)) for name, use in _PARTS.items()})
        for time, row in rows
        if isinstance(row.get("step"), int) and isinstance(row.get("steps"), int)
    ]


def _by_supervisor(training: Mapping[str, Any], record: AttemptRecord, until: datetime) -> _Reported:
    """Of a program that reports its step and nothing else: all from its first step to its end counts as training."""
    began = time_of(training)
    done = record.first_step if record.first_step is not None else training.get("step")
    if began is None or not isinstance(done, int) or record.last_step is None or record.last_step <= done:
        return {}, []
    return {"loaded": began}, [Step(until, record.last_step, record.last_step - done, {Use.USEFUL: _LONGEST})]


def time_of(row: Mapping[str, Any]) -> datetime | None:
    """When a record was written; None if it does not say so."""
    return _parsed(row.get("time"))


def _parsed(text: object) -> datetime | None:
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return time if time.tzinfo is not None else None


def length_of(seconds: object) -> timedelta:
    """Zero for what is no length of time."""
    longest = _LONGEST.total_seconds()
    return timedelta(seconds=min(max(0.0, seconds), longest)) if isinstance(seconds, int | float) else timedelta()


def metrics_of(goodput: Goodput) -> dict[str, Any]:
    """As `glmforge.observe.metrics` names them."""
    lost = {use.value: time.total_seconds() for use, time in goodput.by_use().items() if use is not Use.USEFUL}
    share = {"goodput": goodput.share} if goodput.attempts and goodput.share is not None else {}
    return share | {
        "allocated_node_seconds": goodput.allocated.total_seconds(),
        "lost_node_seconds": lost,
        "queue_seconds": goodput.queue_s,
        "attempts_before": goodput.attempts,
    }


def as_dict(goodput: Goodput) -> dict[str, Any]:
    """For programs; node-seconds."""

    def seconds(number: int | None = None) -> dict[str, float]:
        return {use.value: time.total_seconds() for use, time in goodput.by_use(number).items()}

    return {
        "job": goodput.name,
        "until": goodput.until.isoformat(),
        "metrics": metrics_of(goodput),
        "node_seconds": seconds(),
        "attempts": {str(number): seconds(number) for number in goodput.numbers},
    }


def write_goodput(job: JobDirectory) -> None:
    """Leave what the job has cost so far in its directory, for its next attempt.

    Raises `GlmforgeError` if that cannot be read or written: no reason not to start the attempt.
    """
    write_text(job.root / GOODPUT, json.dumps(as_dict(goodput_of(job)), indent=1) + "\n")


def headline(goodput: Goodput) -> str:
    """'air: goodput 91.3% of 12h 04m of nodes; 3 attempts, 5m 10s in the queue'."""
    share = "-" if goodput.share is None else f"{goodput.share:.1%}"
    return (
        f"{goodput.name}: goodput {share} of {format_duration(goodput.allocated.total_seconds())} of nodes; "
        f"{counted(goodput.attempts, 'attempt')}, {format_duration(goodput.queue_s)} in the queue"
    )


def rows_of(goodput: Goodput, *, attempts: bool) -> list[list[str]]:
    """A head, then a row for each use: in all, with `attempts` also in each of the newest; what it is."""
    numbers = goodput.numbers[-_SHOWN_ATTEMPTS:] if attempts else []
    of_attempts = [goodput.by_use(number) for number in numbers]
    rows = [["use", "nodes' time", "share", *(f"attempt {number}" for number in numbers), "what it is"]]
    for use, time in goodput.by_use().items():
        cells = (format_duration(each[use].total_seconds()) if use in each else "" for each in of_attempts)
        total = format_duration(time.total_seconds())
        rows.append([use.value, total, f"{time / goodput.allocated:.1%}", *cells, use.meaning])
    return rows


def report_extra(run: Path) -> Extra:
    """What the report of a run says of the job that it belongs to; nothing if there is none, or it cannot be read."""
    try:
        job = run_job(run)
        goodput = goodput_of(job) if job is not None else None
    except GlmforgeError:
        return {}
    if job is None or goodput is None or goodput.share is None:
        return {}
    tile = Tile("Goodput", f"{goodput.share:.1%}", f"of the nodes' time, {counted(goodput.attempts, 'attempt')}")
    (first, *numbers, last), *rows = rows_of(goodput, attempts=True)
    columns = [Column(first.capitalize()), *(Column(title.capitalize(), number=True) for title in numbers)]
    note = f"Of the job {headline(goodput)}. Time in the queue is not allocated. Definitions: docs/jobs.md."
    table = make_table("Goodput", [*columns, Column(last.capitalize())], rows, note=note)
    return {"tiles": [tile], "tables": [table], "facts": {"Job": f"{job.root}"}}


def run_job(run: Path) -> JobDirectory | None:
    """The job that a run was last started by: its own note says which, and where the job lies."""
    for event in reversed(last_records(RunDirectory(run).events)):
        if event.get("event") in ("started", "resumed"):
            place = event.get("job_directory")
            job = JobDirectory(Path(place)) if isinstance(place, str) and "\0" not in place else None
            return job if job is not None and job.description.is_file() else None
    return None
