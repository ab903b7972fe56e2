"""A job in words: its line in the list of all jobs, and the page about it."""

from collections.abc import Sequence
from datetime import datetime

from glmforge.observe.units import counted, format_duration
from glmforge_ops.jobs.job import AttemptRecord, RankRecord, utc_now
from glmforge_ops.jobs.state.find import Job
from glmforge_ops.jobs.state.job_state import JobFiles, JobState, changed_at
from glmforge_ops.jobs.submit.new_job import task_numbers

COLUMNS = ("name", "state", "launcher", "id", "nodes", "attempt", "step", "age", "why")
_MAX_WHY = 100
_MAX_NODES = 6


def job_row(job: Job, now: datetime | None = None) -> list[str]:
    """The job under `COLUMNS`; what is not known is '-'."""
    if (files := job.files) is None:
        return [job.name, job.state, *"------", _one_line(job.why)]
    launch, submission, attempt = files.description.launch, files.submission, files.attempt
    age = (now or utc_now()) - files.description.created
    return [
        job.name,
        job.state,
        launch.launcher,
        submission.id if submission else "-",
        str(launch.nodes),
        str(attempt.number) if attempt else "-",
        step_words(files),
        format_duration(max(0.0, age.total_seconds())),
        _one_line(job.why),
    ]


def step_words(files: JobFiles) -> str:
    """'120/1000'; '-' if no step is known."""
    if files.step is None:
        return "-"
    return str(files.step) if files.num_steps is None else f"{files.step}/{files.num_steps}"


def headline(job: Job, now: datetime | None = None) -> str:
    """'air: failed for 3m 20s (slurm 17, 2 nodes x 8)'."""
    if (files := job.files) is None:
        return f"{job.name}: {job.state}: {job.why}"
    launch, submission = files.description.launch, files.submission
    for_s = ((now or utc_now()) - changed_at(files, job.seen)).total_seconds()
    who = f"{launch.launcher} {submission.id}" if submission else launch.launcher
    size = f"{counted(launch.nodes, 'node')} x {launch.ranks}"
    return f"{job.name}: {job.state}, for {format_duration(max(0.0, for_s))} ({who}, {size})"


ATTEMPT_COLUMNS = ("attempt", "submission", "nodes", "began", "took", "steps", "ended with")


def attempt_row(attempt: AttemptRecord, now: datetime | None = None) -> list[str]:
    """The attempt under `ATTEMPT_COLUMNS`."""
    until = attempt.ended or now or utc_now()
    verdict = attempt.verdict
    if verdict is not None:
        ended = f"{verdict.cause}: {_one_line(verdict.why)}"
    elif attempt.ended is not None:
        ended = "?" if attempt.status is None else f"status {attempt.status}"
    else:
        ended = "-"
    return [
        str(attempt.number),
        attempt.submission + (f" (restart {attempt.restart})" if attempt.restart else ""),
        node_words(attempt.nodes),
        attempt.began.strftime("%Y-%m-%d %H:%M:%S"),
        format_duration(max(0.0, (until - attempt.began).total_seconds())),
        steps_of(attempt),
        ended,
    ]


def steps_of(attempt: AttemptRecord) -> str:
    """'100-250': steps done when it began, and when it ended."""
    first, last = (str(step) if step is not None else "?" for step in (attempt.first_step, attempt.last_step))
    return "-" if first == last == "?" else f"{first}-{last}"


def node_words(nodes: Sequence[str]) -> str:
    """A few names, or some and how many more."""
    if len(nodes) <= _MAX_NODES:
        return ",".join(nodes) or "-"
    return f"{','.join(nodes[: _MAX_NODES - 1])} and {len(nodes) - _MAX_NODES + 1} more"


def rank_words(rank: RankRecord) -> str:
    """'rank 9 on node2 (status -9), after step 120'."""
    status = "no status" if rank.status is None else f"status {rank.status}"
    step = "" if rank.last_step is None else f", after step {rank.last_step}"
    return f"rank {rank.rank} on {rank.node} ({status}){step}"


def next_command(job: Job) -> str:
    """What a person might do now."""
    name, logs = job.name, f"glmforge jobs logs {job.name}"
    if job.files is not None and not job.files.description.launch.supervise:
        logs += " --scheduler"
    if task_names(job) and job.state not in (JobState.NEW, JobState.CANCELLED, JobState.STOPPED):
        return f"glmforge jobs list '{name}-*'"
    if job.state is JobState.DAMAGED:
        return "mend what is named above; the other jobs are not affected"
    if job.state is JobState.NEW:
        return f"glmforge jobs resubmit {name}"
    if job.state is JobState.FINISHED:
        run = job.files.description.run if job.files is not None else None
        return f"glmforge report {run}" if run is not None else logs
    if job.files is not None and job.files.was_refused(job.seen):
        return f"glmforge jobs resubmit {name}"
    if job.state is JobState.FAILED:
        return f"{logs}; then, when it is fixed, glmforge jobs resubmit {name}"
    if job.state in (JobState.CANCELLED, JobState.STOPPED):
        return f"glmforge jobs resubmit {name}"
    if job.state is JobState.UNKNOWN:
        return f"{logs}; if it has ended, glmforge jobs resubmit {name} --force"
    return f"glmforge jobs follow {name}"


def task_names(job: Job) -> list[str]:
    """Of an array: its tasks, which are jobs of their own; none of anything else."""
    launch = None if job.files is None else job.files.description.launch
    if launch is None or not launch.array or not launch.supervise:
        return []
    return [f"{job.name}-{number}" for number in task_numbers(launch.array)]


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MAX_WHY else f"{text[: _MAX_WHY - 3]}..."
