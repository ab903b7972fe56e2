"""Slurm through its own commands; jobs are read as `squeue --json`, and `sacct --json` for those that it has forgotten.

Traps of Slurm that this file is about:

- Variables win over a script's own lines: SBATCH_PARTITION of somebody's profile would move the job silently, and
  SQUEUE_USERS would hide it.
- squeue ends with an error for one unknown job, and with an empty answer for two: so it is asked for all of ours.
- A job whose start failed on a node (a prolog) is requeued and *held*, as PENDING: nothing ever happens to it.
- JSON of 22.05 has plain numbers and one state per job, that of 23.11 has {"set", "number"} and lists of states.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from glmforge.config.launch import LaunchConfig
from glmforge.errors import HostError, LaunchError
from glmforge.files import shown
from glmforge.observe.job_records import JobDirectory
from glmforge.report.goodput import Accounting
from glmforge.report.goodput_spans import Allocation
from glmforge.runtime.hostfile import expand_hosts, split_names
from glmforge_ops.jobs.schedulers.base import (
    SUBMIT_LIMIT_S,
    Answer,
    NoAnswerError,
    Seen,
    State,
    ask,
    asking,
    without_job,
)
from glmforge_ops.jobs.schedulers.slurm_check import check

ID = re.compile(r"\d{1,12}(_\d{1,9})?")
ANSWER_IS_LOST = ("timed out", "Zero Bytes were transmitted")
"""What Slurm's commands say when the controller is too busy to answer: it may have done what was asked."""

_VARIABLES = {
    "nodes": (),
    "partition": ("SBATCH_PARTITION",),
    "qos": ("SBATCH_QOS",),
    "account": ("SBATCH_ACCOUNT",),
    "time": ("SBATCH_TIMELIMIT",),
    "mem": ("SBATCH_MEM_PER_NODE", "SBATCH_MEM_PER_CPU", "SBATCH_MEM_PER_GPU"),
    "constraint": ("SBATCH_CONSTRAINT",),
    "signal": ("SBATCH_SIGNAL",),
    "array": ("SBATCH_ARRAY_INX",),
    "gpus_per_node": ("SBATCH_GPUS_PER_NODE", "SBATCH_GPUS", "SBATCH_GPUS_PER_TASK", "SBATCH_GRES"),
}
"""Variables that would win over what a script says; those of options that are not given are the user's wish."""
_NEVER = ("SBATCH_OUTPUT", "SBATCH_ERROR", "SBATCH_OPEN_MODE", "SBATCH_REQUEUE", "SBATCH_NO_REQUEUE")

STATES = {
    "BOOT_FAIL": State.NODE_FAILED,
    "CANCELLED": State.CANCELLED,
    "COMPLETED": State.COMPLETED,
    "COMPLETING": State.ENDING,
    "CONFIGURING": State.RUNNING,
    "DEADLINE": State.TIME_LIMIT,
    "FAILED": State.FAILED,
    "NODE_FAIL": State.NODE_FAILED,
    "OUT_OF_MEMORY": State.OUT_OF_MEMORY,
    "PENDING": State.WAITING,
    "PREEMPTED": State.CANCELLED,
    "REQUEUED": State.WAITING,
    "REQUEUE_FED": State.WAITING,
    "REQUEUE_HOLD": State.HELD,
    "RESIZING": State.RUNNING,
    "RESV_DEL_HOLD": State.HELD,
    "REVOKED": State.CANCELLED,
    "RUNNING": State.RUNNING,
    "SIGNALING": State.RUNNING,
    "SPECIAL_EXIT": State.HELD,
    "STAGE_OUT": State.ENDING,
    "STOPPED": State.SUSPENDED,
    "SUSPENDED": State.SUSPENDED,
    "TIMEOUT": State.TIME_LIMIT,
}
_HELD = {
    "accountnotallowed",
    "badconstraints",
    "dependencyneversatisfied",
    "invalidaccount",
    "invalidqos",
    "jobheldadmin",
    "jobhelduser",
    "jobholdmaxrequeue",
    "launchfailedrequeuedheld",
    "partitionnodelimit",
    "partitiontimelimit",
    "prologerror",
    "qosnotallowed",
}
"""Reasons, without spaces, for which a job waits until somebody does something."""

_ORDER = (
    *(State.RUNNING, State.ENDING, State.SUSPENDED, State.WAITING, State.HELD, State.UNKNOWN, State.NODE_FAILED),
    *(State.OUT_OF_MEMORY, State.FAILED, State.TIME_LIMIT, State.CANCELLED, State.COMPLETED),
)
"""Of an array as a whole: the first of these that one of its tasks has."""


class Slurm:
    """A `Scheduler`."""

    def check(self, launch: LaunchConfig) -> None:
        """Raises `LaunchError`: one line, before anything is submitted."""
        check(launch, environment_of(launch), self.look)

    def submit(self, job: JobDirectory, launch: LaunchConfig, *, after: Sequence[str] = (), array: str = "") -> str:
        """Logs go into the job's directory. Raises `LaunchError`, and `NoAnswerError` if it may have been submitted."""
        options = [f"--dependency=afterok:{':'.join(after)}"] if after else []
        options += [f"--array={array}"] if array else []
        answer = ask(
            *("sbatch", "--parsable", *options, job.script.name),
            environment=environment_of(launch),
            cwd=job.root,
            limit_s=SUBMIT_LIMIT_S,
        )
        number = answer.stdout.strip().partition(";")[0]
        if answer.status and any(words in answer.stderr for words in ANSWER_IS_LOST):
            raise NoAnswerError(f"sbatch: {answer.reason}")
        if answer.status or not ID.fullmatch(number):
            raise LaunchError(f"sbatch: {answer.reason}; nothing was submitted")
        return number

    def look(self, ids: Iterable[str]) -> dict[str, Seen]:
        """An array is looked at as a whole (12) or by task (12_3)."""
        wanted = list(dict.fromkeys(ids))
        known = _by_id(_rows(queue()))
        forgotten = [id_ for id_ in wanted if id_ not in known and ID.fullmatch(id_)]
        why = "Slurm knows no such job, or has forgotten it"
        if forgotten:
            jobs = accounting(forgotten)
            known |= _by_id(_of_accounting(jobs)) if not isinstance(jobs, str) else {}
            why = jobs if isinstance(jobs, str) else why
        return {
            id_: known[id_] if id_ in known else Seen(id_, State.UNKNOWN, why, is_forgotten=id_ in forgotten)
            for id_ in wanted
        }

    def cancel(self, submission: str) -> None:
        """Raises `LaunchError` if Slurm does not do it."""
        if not ID.fullmatch(submission):
            raise LaunchError(f"{shown(submission)}: is not the number of a Slurm job")
        answer = ask("scancel", submission, environment=asking())
        if answer.status and "Invalid job id" not in answer.stderr:
            raise LaunchError(f"scancel {submission}: {answer.reason}")

    def release(self, submission: str) -> None:
        """Raises `LaunchError`; Slurm refuses it for what an administrator holds."""
        answer = ask("scontrol", "release", submission)
        if answer.status:
            raise LaunchError(f"scontrol release {submission}: {answer.reason}")

    def unnoted(self, job: JobDirectory) -> list[str]:
        """By their name and directory. Raises `NoAnswerError`: to submit it then might be to submit it twice."""
        here = str(job.root.absolute())
        rows = [row for row in queue() if row.get("name") == job.name and row.get("current_working_directory") == here]
        numbers = {_number(row.get("array_job_id")) or _number(row.get("job_id")) for row in rows if _is_live(row)}
        return [str(number) for number in sorted(numbers)]


def environment_of(launch: LaunchConfig, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What sbatch gets: without variables that contradict the script, or describe another job."""
    ours = [name for field, names in _VARIABLES.items() if getattr(launch, field) for name in names]
    kept = without_job(environment, *ours, *_NEVER)
    exported = kept.get("SBATCH_EXPORT", "ALL")
    if launch.secrets and exported != "ALL":
        kept["SBATCH_EXPORT"] = ",".join([*([] if exported == "NONE" else [exported]), *launch.secrets])
    return kept


def queue() -> list[dict[str, Any]]:
    """This user's jobs as the controller reports them, also those that ended in the last minutes.

    Raises `LaunchError`, `NoAnswerError`.
    """
    answer = ask("squeue", "--json", "--me", "--states=all", environment=asking())
    return _jobs_in(answer, "squeue")


def accounting(ids: Sequence[str]) -> list[dict[str, Any]] | str:
    """A row of sacct for each start of these jobs; in words why there are none."""
    # A job that was requeued has a row for each start. sacct of 22.05 refuses its own times where they are seconds.
    environment = asking() | {"SLURM_TIME_FORMAT": "standard"}
    try:
        answer = ask("sacct", "--json", "--duplicates", f"--jobs={','.join(ids)}", environment=environment)
        return _jobs_in(answer, "sacct")
    except LaunchError as error:
        return f"Slurm's controller has forgotten it, and accounting cannot be asked: {error}"


def accounts_of(ids: Sequence[str], now: datetime) -> Accounting | None:
    """When Slurm gave these submissions nodes, and how long they waited for them; None where there is no accounting.

    They wait from when they might have started (dependencies fulfilled, begin time come); after a requeue from that.
    """
    jobs = accounting(ids) if ids else []
    allocations, waited, started = [], 0.0, set[str]()
    for job in jobs if not isinstance(jobs, str) else []:
        number, times = number_of(job), job.get("time", {})
        if number not in ids:
            continue
        start, end = time_of(times.get("start")), time_of(times.get("end"))
        since = time_of(times.get("submission" if number in started else "eligible"))
        waited += max(0.0, ((start or now) - since).total_seconds()) if since is not None else 0.0
        started.add(number)
        if start is not None:
            nodes = _number(job.get("allocation_nodes"))
            allocations.append(Allocation(start, max(start, end or now), nodes, number))
    return Accounting(allocations, waited) if allocations else None


def number_of(row: Mapping[str, Any]) -> str:
    """12, or 12_3 of an array's task, of a row of sacct."""
    of_array = row.get("array") or {}
    array, task = _number(of_array.get("job_id")), _number(of_array.get("task_id"), none=-1)
    return f"{array}_{task}" if array and task >= 0 else str(row["job_id"])


def time_of(value: Any) -> datetime | None:
    """The time of a field in seconds; None where there is none."""
    seconds = _number(value)
    return datetime.fromtimestamp(seconds, UTC) if 0 < seconds < 1 << 32 else None


def state_of(names: str | Sequence[str], reason: str = "") -> State:
    """Of Slurm's name, or its names, the last of which says what happens now; and why it waits."""
    names = [names] if isinstance(names, str) else names
    known = [STATES[name] for name in names if name in STATES]
    state = known[-1] if known else State.UNKNOWN
    if state is State.WAITING and re.sub(r"[\s_]", "", reason).lower() in _HELD:
        return State.HELD
    return state


def _jobs_in(answer: Answer, command: str) -> list[dict[str, Any]]:
    if answer.status:
        raise NoAnswerError(f"{command}: {answer.reason}")
    try:
        rows = json.loads(answer.stdout)["jobs"]
    except (ValueError, KeyError, TypeError):
        raise LaunchError(
            f"{command} --json: invalid answer; this needs Slurm 21.08 or newer with its JSON plugin"
        ) from None
    return [row for row in rows if isinstance(row, dict) and "job_id" in row]


def _rows(jobs: Iterable[Mapping[str, Any]]) -> list[Seen]:
    """Jobs and tasks of squeue; tasks that wait are one row of it."""
    found = []
    for job in jobs:
        array, task = _number(job.get("array_job_id")), _number(job.get("array_task_id"), none=-1)
        waiting = _tasks(str(job.get("array_task_string") or ""))
        ids = (
            [f"{array}_{each}" for each in (waiting or [task])]
            if array and (waiting or task >= 0)
            else [str(job["job_id"])]
        )
        told = "" if job.get("state_reason") in (None, "None") else str(job["state_reason"]).replace("_", " ")
        state = state_of(job.get("job_state", ""), told)
        for id_ in ids:
            found.append(
                Seen(
                    id_,
                    state,
                    told,
                    _nodes(job.get("nodes")),
                    _number(job.get("restart_cnt")),
                    time_of(job.get("submit_time")),
                    time_of(job.get("start_time")) if state not in (State.WAITING, State.HELD) else None,
                    time_of(job.get("end_time")) if state.is_over else None,  # of a running job it is the limit
                )
            )
    return found


def _of_accounting(jobs: Iterable[Mapping[str, Any]]) -> list[Seen]:
    """Of several starts the last, with the first submission."""
    starts: dict[str, list[Mapping[str, Any]]] = {}
    for job in jobs:
        starts.setdefault(number_of(job), []).append(job)
    found = []
    for id_, of_job in starts.items():
        last, first = of_job[-1], of_job[0].get("time", {})
        state, times = state_of(last.get("state", {}).get("current", "")), last.get("time", {})
        ended = time_of(times.get("end")) if state.is_over else None
        submitted, began = time_of(first.get("submission")), time_of(times.get("start"))
        found.append(Seen(id_, state, "", _nodes(last.get("nodes")), len(of_job) - 1, submitted, began, ended))
    return found


def _by_id(rows: Iterable[Seen]) -> dict[str, Seen]:
    """Each job and task, and each array as one."""
    rows = list(rows)
    arrays: dict[str, list[Seen]] = {}
    for row in rows:
        if "_" in row.id:
            arrays.setdefault(row.id.partition("_")[0], []).append(row)
    return {row.id: row for row in rows} | {id_: _as_one(id_, tasks) for id_, tasks in arrays.items()}


def _as_one(id_: str, tasks: Sequence[Seen]) -> Seen:
    state = next(state for state in _ORDER if any(task.state is state for task in tasks))
    counts = {each: sum(task.state is each for task in tasks) for each in _ORDER}
    return Seen(
        id_,
        state,
        ", ".join(f"{count} {each}" for each, count in counts.items() if count),
        tuple(dict.fromkeys(node for task in tasks for node in task.nodes)),
        sum(task.restarts for task in tasks),
        tasks[0].submitted,
        min((task.began for task in tasks if task.began), default=None),
        max((task.ended for task in tasks if task.ended), default=None) if state.is_over else None,
    )


def _is_live(job: Mapping[str, Any]) -> bool:
    return not state_of(job.get("job_state", "")).is_over


def _number(value: Any, none: int = 0) -> int:
    """Of 7, {"set": true, "number": 7} or null."""
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set", True) and not value.get("infinite") else None
    return value if isinstance(value, int) else none


def _tasks(text: str) -> list[int]:
    """Of 2-4,9%1; none of anything else."""
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*(%\d+)?", text):
        return []
    spans = [part.partition("-") for part in text.partition("%")[0].split(",")]
    return [task for first, _, last in spans for task in range(int(first), int(last or first) + 1)]


def _nodes(text: Any) -> tuple[str, ...]:
    """Nodes of a list as Slurm writes it; () if there are none yet."""
    if not isinstance(text, str) or not text or text.startswith(("(", "None")):
        return ()
    try:
        return tuple(expand_hosts(split_names(text), "squeue"))
    except HostError:
        return ()
