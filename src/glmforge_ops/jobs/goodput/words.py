"""Goodput in words: on the terminal, and as a table of the run's report."""

from collections.abc import Mapping
from pathlib import Path

from glmforge.errors import GlmforgeError
from glmforge.observe.run import RunDirectory
from glmforge.observe.units import counted, format_duration
from glmforge.report.page import Column, Table, Tile, make_table
from glmforge.report.report import Extra
from glmforge_ops.jobs.columns import aligned
from glmforge_ops.jobs.goodput.measure import Goodput, read_goodput
from glmforge_ops.jobs.goodput.timeline import Use
from glmforge_ops.jobs.job import JobDirectory
from glmforge_ops.jobs.last_records import last_records

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
    Use.NOT_MEASURED: "programs that tell no step; what a run has not told yet",
}


def headline(goodput: Goodput) -> str:
    """'air: goodput 91.3% of 12h 04m of nodes; 3 attempts, 5m 10s in the queue (Slurm's accounting)'."""
    share = "-" if goodput.share is None else f"{goodput.share:.1%}"
    return (
        f"{goodput.name}: goodput {share} of {format_duration(goodput.allocated / 1e6)} of nodes; "
        f"{counted(goodput.attempts, 'attempt')}, {format_duration(goodput.queue_s)} in the queue ({goodput.source})"
    )


def table_of(goodput: Goodput, *, attempts: bool = False) -> list[str]:
    """Lines for a terminal."""
    lines = [headline(goodput)]
    rows = [
        [f"  {use.value}", format_duration(micro / 1e6), _share(micro, goodput.allocated), MEANINGS[use]]
        for use, micro in goodput.by_use().items()
    ]
    lines += aligned(rows) if rows else []
    if attempts and goodput.numbers:
        by_attempt = {number: goodput.by_use(number) for number in goodput.numbers}
        lines += ["", *aligned(_by_attempt(by_attempt))]
    return lines


def report_table(goodput: Goodput) -> Table:
    """A row per use, in all and in the newest attempts."""
    shown = goodput.numbers[-_SHOWN_ATTEMPTS:]
    by_attempt = [goodput.by_use(number) for number in shown]
    rows = [
        [
            use.value,
            format_duration(micro / 1e6),
            _share(micro, goodput.allocated),
            *(format_duration(each[use] / 1e6) if use in each else "" for each in by_attempt),
            MEANINGS[use],
        ]
        for use, micro in goodput.by_use().items()
    ]
    numbers = [Column(title, number=True) for title in ("Nodes' time", "Share", *(f"Attempt {each}" for each in shown))]
    columns = (Column("Use"), *numbers, Column("What it is"))
    note = f"Of the job {headline(goodput)}. Time in the queue is not allocated. Definitions: docs/jobs.md."
    return make_table("Goodput", columns, rows, note=note)


def report_extra(run: Path) -> Extra:
    """What the report of a run says of the job that it belongs to; nothing if there is none, or it cannot be read."""
    job = _job_of(run)
    goodput = read_goodput(job) if job is not None else None
    if goodput is None or goodput.share is None:
        return {}
    tile = Tile("Goodput", f"{goodput.share:.1%}", f"of the nodes' time, {counted(goodput.attempts, 'attempt')}")
    return {"tiles": [tile], "tables": [report_table(goodput)], "facts": {"Job": f"{job.root}"} if job else {}}


def _job_of(run: Path) -> JobDirectory | None:
    """The job that a run was last started by: its own note says which, and where the job lies."""
    try:
        events = last_records(RunDirectory(run).events)
    except GlmforgeError:
        return None
    for event in reversed(events):
        if event.get("event") in ("started", "resumed"):
            place = event.get("job_directory")
            job = JobDirectory(Path(place)) if isinstance(place, str) and "\0" not in place else None
            return job if job is not None and job.description.is_file() else None
    return None


_SHOWN_ATTEMPTS = 6


def _by_attempt(by_attempt: Mapping[int, Mapping[Use, int]]) -> list[list[str]]:
    uses = [use for use in Use if any(use in each for each in by_attempt.values())]
    head = ["attempt", *(use.value for use in uses)]
    rows = [
        [str(number), *(format_duration(each[use] / 1e6) if use in each else "-" for use in uses)]
        for number, each in by_attempt.items()
    ]
    return [head, *rows]


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"
