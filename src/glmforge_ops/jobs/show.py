"""A job in words: its line in the list of all jobs, and the page about it (`glmforge jobs show`)."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from glmforge.errors import GlmforgeError
from glmforge.observe.job_records import AttemptRecord, JobDirectory, RankRecord, utc_now
from glmforge.observe.units import counted, format_duration
from glmforge_ops.hosts.fold import fold_hosts
from glmforge_ops.jobs.logs import first_to_fail
from glmforge_ops.jobs.registry import Job, as_dict
from glmforge_ops.jobs.state import JobState, step_words
from glmforge_ops.jobs.supervisor.nodes import Ledger, Out

COLUMNS = ("name", "state", "launcher", "id", "nodes", "attempt", "step", "age", "why")
_ATTEMPT_COLUMNS = ("attempt", "submission", "nodes", "began", "took", "steps", "ended with")
_MAX_WHY = 100
_SHOWN_ATTEMPTS = 20
_SHOWN_WORDS = 15


def aligned(rows: Sequence[Sequence[str]], num_words: int | None = None) -> Iterator[str]:
    """Lines with their columns below each other; after `num_words` columns the others are numbers, to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        if num_words is not None:
            cells[num_words:] = map(str.rjust, row[num_words:], widths[num_words:])
        yield "  ".join(cells).rstrip()


def job_row(job: Job, now: datetime | None = None) -> list[str]:
    """The job under `COLUMNS`; what is not known is '-'."""
    if (files := job.files) is None:
        return [job.name, job.state, *"------", _one_line(job.why)]
    launch, age = files.description.launch, (now or utc_now()) - files.description.created
    return [
        job.name,
        job.state,
        launch.launcher,
        job.submission or "-",
        str(launch.nodes),
        str(files.attempt.number) if files.attempt else "-",
        step_words(files),
        format_duration(max(0.0, age.total_seconds())),
        _one_line(job.why),
    ]


def headline(job: Job) -> str:
    """'air: failed (slurm 17, 2 nodes x 8 ranks)'."""
    if (files := job.files) is None:
        return f"{job.name}: {job.state}: {job.why}"
    launch = files.description.launch
    who = " ".join(filter(None, [launch.launcher, job.submission]))
    return f"{job.name}: {job.state} ({who}, {counted(launch.nodes, 'node')} x {counted(launch.ranks, 'rank')})"


def about(job: Job) -> list[str]:
    """The page, line by line."""
    lines = [headline(job)]
    if (files := job.files) is not None:
        facts = {
            "why": job.why or None,
            "part of": files.description.part_of,
            "run": files.description.run,
            "steps": step_words(files) if files.step is not None else None,
            "command": " ".join(files.description.command),
            "directory": files.description.directory,
            "files": job.directory.root,
        }
        lines += [f"{name}: {value}" for name, value in facts.items() if value is not None]
        if attempts := _attempts(job.directory):
            lines += ["", *aligned([_ATTEMPT_COLUMNS, *map(_attempt_row, attempts)])]
        if (rank := _first_failed(job.directory, attempts)) is not None:
            lines += ["", f"first to fail: {_rank_words(rank)}"]
            lines += [f"  | {line}" for line in rank.last_words[-_SHOWN_WORDS:]]
        if out := _nodes_out(job.directory):
            lines += ["", f"excluded nodes ('glmforge jobs allow {job.name} NODE' uses one again):"]
            lines += [f"  {node}  since {each.since:%Y-%m-%d %H:%M:%S}  {each.reason}" for node, each in out.items()]
    return [*lines, "", f"next: {next_command(job)}"]


def about_dict(job: Job) -> dict[str, Any]:
    """For programs."""
    attempts = _attempts(job.directory)
    rank = _first_failed(job.directory, attempts)
    return as_dict(job) | {
        "attempts": [attempt.model_dump(mode="json") for attempt in attempts],
        "first_to_fail": rank and rank.model_dump(mode="json"),
        "nodes_out": {
            name: {"since": out.since.isoformat(), "reason": out.reason, "drained": out.drained}
            for name, out in _nodes_out(job.directory).items()
        },
        "next": next_command(job),
    }


def next_command(job: Job) -> str:
    """What a person might do now."""
    if job.files is None:
        return "fix what is named above; the other jobs are not affected"
    name, launch, run = job.name, job.files.description.launch, job.files.description.run
    logs = f"glmforge jobs logs {name}" + ("" if launch.supervise else " --scheduler")
    refused = job.files.is_refused(job.seen)
    if refused or job.state in (JobState.NEW, JobState.CANCELLED, JobState.STOPPED):
        return f"glmforge jobs resubmit {name}"
    if launch.array:
        return f"glmforge jobs list '{name}-*', its tasks"
    if job.state is JobState.FINISHED:
        return f"glmforge report {run}" if run is not None else logs
    if job.state is JobState.FAILED:
        return f"{logs}; then, when it is fixed, glmforge jobs resubmit {name}"
    if job.state is JobState.UNKNOWN:
        return f"{logs}; if it has ended, glmforge jobs resubmit {name} --force"
    return f"glmforge jobs follow {name}"


def _attempts(directory: JobDirectory) -> list[AttemptRecord]:
    """The newest of them; those whose record is damaged are left out."""
    found = []
    for number in directory.attempt_numbers()[-_SHOWN_ATTEMPTS:]:
        try:
            record = AttemptRecord.read(directory.attempt(number).record)
        except GlmforgeError:
            continue
        found += [record] if record is not None else []
    return found


def _attempt_row(attempt: AttemptRecord) -> tuple[str, ...]:
    verdict, until = attempt.verdict, attempt.ended or utc_now()
    if verdict is not None:
        ended = f"{verdict.cause}: {_one_line(verdict.why)}"
    else:
        ended = "-" if attempt.ended is None else f"status {attempt.status}"
    first, last = (str(step) if step is not None else "?" for step in (attempt.first_step, attempt.last_step))
    return (
        str(attempt.number),
        attempt.submission + (f" (restart {attempt.restart})" if attempt.restart else ""),
        fold_hosts(attempt.nodes),
        attempt.began.strftime("%Y-%m-%d %H:%M:%S"),
        format_duration(max(0.0, (until - attempt.began).total_seconds())),
        "-" if first == last == "?" else f"{first}-{last}",
        ended,
    )


def _first_failed(directory: JobDirectory, attempts: Sequence[AttemptRecord]) -> RankRecord | None:
    """The rank that failed first in the newest attempt that has ended."""
    ended = next((attempt for attempt in reversed(attempts) if attempt.ended is not None), None)
    if ended is None:
        return None
    of_attempt = directory.attempt(ended.number)
    number = first_to_fail(of_attempt)
    return next((rank for rank in of_attempt.read_ranks() if rank.rank == number), None)


def _rank_words(rank: RankRecord) -> str:
    """'rank 9 on node2 (status -9), after step 120'."""
    status = "no status" if rank.status is None else f"status {rank.status}"
    step = "" if rank.last_step is None else f", after step {rank.last_step}"
    return f"rank {rank.rank} on {rank.node} ({status}){step}"


def _nodes_out(directory: JobDirectory) -> dict[str, Out]:
    """Nodes that the job does not use; none if its ledger cannot be read."""
    try:
        return Ledger.read(directory).out
    except GlmforgeError:
        return {}


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MAX_WHY else f"{text[: _MAX_WHY - 3]}..."
