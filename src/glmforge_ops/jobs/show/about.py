"""All about one job: what `glmforge jobs show` prints."""

from typing import Any

from glmforge.errors import GlmforgeError
from glmforge_ops.jobs.columns import aligned
from glmforge_ops.jobs.job import AttemptRecord, JobDirectory, RankRecord
from glmforge_ops.jobs.show.logs import first_to_fail, read_ranks
from glmforge_ops.jobs.show.words import (
    ATTEMPT_COLUMNS,
    attempt_row,
    headline,
    next_command,
    node_words,
    rank_words,
    step_words,
    task_names,
)
from glmforge_ops.jobs.state.find import Job, as_dict
from glmforge_ops.jobs.state.job_files import attempt_numbers
from glmforge_ops.jobs.supervisor.nodes import Ledger, Out

_SHOWN_ATTEMPTS = 20
_SHOWN_WORDS = 15


def about(job: Job) -> list[str]:
    """The page, line by line."""
    if (files := job.files) is None:
        return [headline(job), f"next: {next_command(job)}"]
    lines = [headline(job)]
    if job.why:
        lines.append(f"why: {job.why}")
    tasks = task_names(job)
    facts = {
        "part of": files.description.part_of,
        "tasks": f"{node_words(tasks)}; each is a job: glmforge jobs logs {tasks[0]}" if tasks else None,
        "run": files.description.run,
        "steps": step_words(files) if files.step is not None else None,
        "command": " ".join(files.description.command),
        "directory": files.description.directory,
        "files": job.directory.root,
    }
    lines += [f"{name}: {value}" for name, value in facts.items() if value is not None]
    attempts = read_attempts(job.directory)
    lines += [] if tasks else _attempts(attempts, len(attempt_numbers(job.directory)))
    if (rank := _culprit(job.directory, attempts)) is not None:
        lines += [
            "",
            f"first to fail: {rank_words(rank)}",
            *(f"  | {word}" for word in rank.last_words[-_SHOWN_WORDS:]),
        ]
    lines += _nodes_out(job)
    return [*lines, "", f"next: {next_command(job)}"]


def about_dict(job: Job) -> dict[str, Any]:
    """The same for programs."""
    if job.files is None:
        return as_dict(job)
    attempts = read_attempts(job.directory)
    rank = _culprit(job.directory, attempts)
    return as_dict(job) | {
        "command": job.files.description.command,
        "directory": str(job.files.description.directory),
        "run": str(job.files.description.run) if job.files.description.run is not None else None,
        "attempts": [attempt.model_dump(mode="json") for attempt in attempts],
        "first_to_fail": rank.model_dump(mode="json") if rank is not None else None,
        "submissions": [submission.model_dump(mode="json") for submission in job.files.submissions],
        "nodes_out": {name: out.model_dump(mode="json") for name, out in nodes_out(job.directory).items()},
        "next": next_command(job),
    }


def read_attempts(directory: JobDirectory) -> list[AttemptRecord]:
    """The newest of them; those whose record is damaged are left out."""
    found = []
    for number in attempt_numbers(directory)[-_SHOWN_ATTEMPTS:]:
        try:
            record = AttemptRecord.read(directory.attempt(number).record)
        except GlmforgeError:
            continue
        if record is not None:
            found.append(record)
    return found


def _attempts(attempts: list[AttemptRecord], total: int) -> list[str]:
    if not attempts:
        return ["", "no attempt has begun"]
    left_out = [f"({total - len(attempts)} more before or without a record)"] if total > len(attempts) else []
    return ["", *aligned([ATTEMPT_COLUMNS, *map(attempt_row, attempts)]), *left_out]


def _culprit(directory: JobDirectory, attempts: list[AttemptRecord]) -> RankRecord | None:
    """The rank that failed first in the newest attempt that has ended."""
    ended = next((attempt for attempt in reversed(attempts) if attempt.ended is not None), None)
    if ended is None:
        return None
    number = first_to_fail(directory.attempt(ended.number))
    return next((rank for rank in read_ranks(directory.attempt(ended.number)) if rank.rank == number), None)


def nodes_out(directory: JobDirectory) -> dict[str, Out]:
    """Nodes that the job does not use; none if its ledger cannot be read."""
    try:
        return Ledger.read(directory).out()
    except GlmforgeError:
        return {}


def _nodes_out(job: Job) -> list[str]:
    out = nodes_out(job.directory)
    if not out:
        return []
    rows = [
        [f"  {name}", f"since {each.since:%Y-%m-%d %H:%M:%S}", f"{each.reason}{' (drained)' if each.drained else ''}"]
        for name, each in out.items()
    ]
    return ["", f"nodes that are out ('glmforge jobs allow {job.name} NODE' takes one back):", *aligned(rows)]
