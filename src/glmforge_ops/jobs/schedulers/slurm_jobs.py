"""What Slurm tells of jobs: squeue's rows, and sacct's for what the controller has forgotten.

Traps of Slurm that this file is about:

- Times are asked for as seconds (SLURM_TIME_FORMAT=%s): by default they are local ones, without a zone.
- `squeue --jobs=1` of an unknown job is an error, `--jobs=1,2` of two of them an empty answer.
- A job whose start failed on a node (a prolog) is requeued and *held*, as PENDING: nothing ever happens to it.
"""

import os
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from glmforge.errors import HostError, LaunchError
from glmforge.runtime.hostfile import expand_hosts, split_names
from glmforge_ops.jobs.schedulers.base import Seen, State
from glmforge_ops.jobs.schedulers.commands import Answer, NoAnswerError, ask

_PREFERENCES = ("SQUEUE_", "SCANCEL_", "SACCT_", "SINFO_")
"""Variables of somebody's profile: SQUEUE_FORMAT prints other columns, SCANCEL_INTERACTIVE asks first."""

_AT_ONCE = 500  # jobs that one command names
_FIELDS = {
    "JobArrayID": 40,
    "ArrayJobID": 20,
    "State": 24,
    "RestartCnt": 12,
    "SubmitTime": 24,
    "StartTime": 24,
    "EndTime": 24,
    "Reason": 64,
    "NodeList": 8192,
}
"""What squeue is asked for, and how wide: columns, since a reason may hold any separator."""

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
    State.RUNNING,
    State.ENDING,
    State.SUSPENDED,
    State.WAITING,
    State.HELD,
    State.UNKNOWN,
    State.NODE_FAILED,
    State.OUT_OF_MEMORY,
    State.FAILED,
    State.TIME_LIMIT,
    State.CANCELLED,
    State.COMPLETED,
)
"""Of an array as a whole: the first of these that one of its tasks has."""


def look_at(ids: Sequence[str]) -> dict[str, Seen]:
    """Jobs and arrays by their numbers; those of which Slurm cannot be asked are UNKNOWN, with the reason."""
    found: dict[str, Seen] = {}
    for some in _batches(ids):
        try:
            found |= _look(some)
        except LaunchError as error:
            found |= {id_: Seen(id_, State.UNKNOWN, str(error)) for id_ in some}
    return found


def _batches(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(ids), _AT_ONCE):
        yield ids[first : first + _AT_ONCE]


def _look(ids: Sequence[str]) -> dict[str, Seen]:
    """Raises `LaunchError` if the controller does not answer."""
    known = _known(ids, _of_controller(ids))
    forgotten = [id_ for id_ in ids if id_ not in known]
    if forgotten:
        rows, why = _of_accounting(forgotten)
        known |= _known(forgotten, rows)
        known |= {id_: Seen(id_, State.UNKNOWN, why, is_forgotten=True) for id_ in forgotten if id_ not in known}
    return known


def _known(ids: Sequence[str], rows: Sequence[Seen]) -> dict[str, Seen]:
    """Of each id its job, or its array's tasks as one."""
    tasks: dict[str, list[Seen]] = {}
    for row in rows:
        tasks.setdefault(row.id, []).append(row)
        array, _, task = row.id.partition("_")
        if task:
            tasks.setdefault(array, []).append(row)
    return {id_: _as_one(id_, tasks[id_]) for id_ in ids if id_ in tasks}


def _as_one(id_: str, tasks: Sequence[Seen]) -> Seen:
    if len(tasks) == 1 and tasks[0].id == id_:
        return tasks[0]
    state = next(state for state in _ORDER if any(task.state is state for task in tasks))
    began = [task.began for task in tasks if task.began]
    ended = [task.ended for task in tasks if task.ended]
    counts = {each: sum(task.state is each for task in tasks) for each in _ORDER}
    return Seen(
        id_,
        state,
        ", ".join(f"{count} {each}" for each, count in counts.items() if count),
        tuple(dict.fromkeys(node for task in tasks for node in task.nodes)),
        sum(task.restarts for task in tasks),
        tasks[0].submitted,
        min(began, default=None),
        max(ended, default=None) if state.is_over else None,
    )


def _of_controller(ids: Sequence[str]) -> list[Seen]:
    environment = asking()
    # An array that is asked for by task only is asked for as a whole: a task that still waits has no number of its own.
    arrays = sorted({id_.partition("_")[0] for id_ in ids}, key=int)
    answer = ask(
        "squeue",
        "--noheader",
        "--array",
        "--states=all",
        f"--jobs={','.join(arrays)}",
        "--Format=" + ",".join(f"{name}:{width}" for name, width in _FIELDS.items()),
        environment=environment,
    )
    if answer.status:
        if is_forgotten(answer):
            return []
        raise NoAnswerError(f"squeue: {answer.reason}")
    return [_row(line) for line in answer.stdout.splitlines() if line.strip()]


def _row(line: str) -> Seen:
    fields, at = {}, 0
    for name, width in _FIELDS.items():
        fields[name], at = line[at : at + width].strip(), at + width
    reason = "" if fields["Reason"] == "None" else fields["Reason"].replace("_", " ")
    state = state_of(fields["State"], reason)
    return Seen(
        fields["JobArrayID"],
        state,
        reason,
        _nodes(fields["NodeList"]),
        int(fields["RestartCnt"]) if fields["RestartCnt"].isdecimal() else 0,
        time_of(fields["SubmitTime"]),
        time_of(fields["StartTime"]) if state is not State.WAITING and state is not State.HELD else None,
        time_of(fields["EndTime"]) if state.is_over else None,  # of a running job it is the limit
    )


def state_of(name: str, reason: str = "") -> State:
    """Of Slurm's name, and why it waits."""
    state = STATES.get(name.split(" ")[0].rstrip("+"), State.UNKNOWN)
    if state is State.WAITING and re.sub(r"[\s_]", "", reason).lower() in _HELD:
        return State.HELD
    return state


def ask_accounting(ids: Sequence[str], fields: str) -> Answer:
    """What sacct prints of jobs: a row for each start, with "|" between fields. Raises `LaunchError`."""
    return ask(
        "sacct",
        "--noheader",
        "--parsable2",
        "--allocations",
        "--duplicates",  # a job that was requeued stands there once for each start
        f"--jobs={','.join(ids)}",
        f"--format={fields}",
        environment=asking(),
    )


def _of_accounting(ids: Sequence[str]) -> tuple[list[Seen], str]:
    """Jobs that the controller has forgotten, and why those are unknown that sacct does not tell of either."""
    try:
        answer = ask_accounting(ids, "JobID,State,Submit,Start,End,NodeList")
    except LaunchError as error:
        return [], f"Slurm's controller has forgotten it, and accounting cannot be asked: {error}"
    if answer.status:
        return [], f"Slurm's controller has forgotten it, and accounting says: {answer.reason}"
    starts: dict[str, list[list[str]]] = {}
    for line in answer.stdout.splitlines():
        fields = line.split("|")
        if len(fields) == 6:
            starts.setdefault(fields[0], []).append(fields)
    rows = []
    for id_, of_job in starts.items():
        _, name, _, start, end, nodes = of_job[-1]
        state = state_of(name)
        ended = time_of(end) if state.is_over else None
        rows.append(Seen(id_, state, "", _nodes(nodes), len(of_job) - 1, time_of(of_job[0][2]), time_of(start), ended))
    return rows, "Slurm knows no such job, or has forgotten it"


def asking() -> dict[str, str]:
    """This process's environment, in which nobody's preferences change what is printed, or what is cancelled."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_PREFERENCES)}
    return kept | {"SLURM_TIME_FORMAT": "%s"}


def is_forgotten(answer: Answer) -> bool:
    """Whether the controller says that it knows no such job."""
    return "Invalid job id" in answer.stderr


def _nodes(text: str) -> tuple[str, ...]:
    """Nodes of a list as Slurm writes it; none if there are none yet, or the list is cut off."""
    if not text or text.startswith(("(", "None")):
        return ()
    try:
        return tuple(expand_hosts(split_names(text), "squeue"))
    except HostError:
        return ()


def time_of(text: str) -> datetime | None:
    """The time that Slurm tells as seconds; None if it tells none."""
    return datetime.fromtimestamp(int(text), UTC) if text.isdecimal() and len(text) < 12 else None
