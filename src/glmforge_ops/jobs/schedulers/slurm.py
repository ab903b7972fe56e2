"""Slurm by its own commands: `squeue --json`, and `sacct --json` for jobs that the controller has forgotten.

Traps of Slurm that this file is about:

- Variables win over a script's own lines: SBATCH_PARTITION of a user's profile would move the job silently.
- squeue ends with an error for one unknown job, and with an empty answer for two: so it is asked for all of ours.
- A job whose start failed on a node (a prolog) is requeued and *held*, as PENDING: nothing ever happens to it.
- JSON of 22.05 has plain numbers and one state per job, that of 23.11 has {"set", "number"} and lists of states.
- `sbatch --test-only` accepts a dependency on a job that never existed.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from glmforge.config.explain import suggest
from glmforge.config.launch import LaunchConfig
from glmforge.errors import HostError, LaunchError
from glmforge.files import shown
from glmforge.observe.job_records import JobDirectory
from glmforge.runtime.hostfile import expand_hosts, split_names
from glmforge_ops.jobs.schedulers.base import (
    SUBMIT_LIMIT_S,
    Answer,
    NoAnswerError,
    Scheduler,
    Seen,
    State,
    ask,
    asking,
    without_job,
)
from glmforge_ops.jobs.script.amounts import least_nodes
from glmforge_ops.jobs.script.render import slurm_directives

ID = re.compile(r"\d{1,12}(_\d{1,9})?")
_DEPENDENCY = re.compile(r"(?<=:)\d+(?:_\d+)?(?=[+:?,]|$)")
ANSWER_IS_LOST = ("timed out", "Zero Bytes were transmitted")
"""What Slurm's commands say when the controller is too busy to answer: it may have done what was asked."""

_VARIABLES = {
    "nodes": "OUTPUT ERROR OPEN_MODE REQUEUE NO_REQUEUE",  # every job's script says these
    "partition": "PARTITION",
    "qos": "QOS",
    "account": "ACCOUNT",
    "time": "TIMELIMIT",
    "mem": "MEM_PER_NODE MEM_PER_CPU MEM_PER_GPU",
    "constraint": "CONSTRAINT",
    "signal": "SIGNAL",
    "array": "ARRAY_INX",
    "gpus_per_node": "GPUS_PER_NODE GPUS GPUS_PER_TASK GRES",
}
"""Option -> SBATCH_* that would win over the script. Those of options that are not given are what the user wants."""

_NAMES = {
    State.WAITING: "PENDING REQUEUED REQUEUE_FED",
    State.HELD: "REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT",
    State.RUNNING: "CONFIGURING RESIZING RUNNING SIGNALING",
    State.SUSPENDED: "STOPPED SUSPENDED",
    State.ENDING: "COMPLETING STAGE_OUT",
    State.COMPLETED: "COMPLETED",
    State.FAILED: "FAILED",
    State.CANCELLED: "CANCELLED PREEMPTED REVOKED",
    State.TIME_LIMIT: "DEADLINE TIMEOUT",
    State.NODE_FAILED: "BOOT_FAIL NODE_FAIL",
    State.OUT_OF_MEMORY: "OUT_OF_MEMORY",
}
STATES = {name: state for state, names in _NAMES.items() for name in names.split()}
_HELD = re.compile(
    "accountnotallowed|badconstraints|dependencyneversatisfied|invalidaccount|invalidqos|jobheldadmin|jobhelduser|"
    "jobholdmaxrequeue|launchfailedrequeuedheld|partitionnodelimit|partitiontimelimit|prologerror|qosnotallowed"
)
"""Reasons, without spaces, for which a job waits until a person acts."""

_ORDER = (
    *(State.RUNNING, State.ENDING, State.SUSPENDED, State.WAITING, State.HELD, State.UNKNOWN, State.NODE_FAILED),
    *(State.OUT_OF_MEMORY, State.FAILED, State.TIME_LIMIT, State.CANCELLED, State.COMPLETED),
)
"""Of an array as a whole: the first of these that one of its tasks has."""


class Slurm(Scheduler):
    """By Slurm's commands."""

    def check(self, launch: LaunchConfig) -> None:
        """sbatch's own test, and what it does not explain or know. Raises `LaunchError`."""
        _check_partition(launch)
        jobs = list(dict.fromkeys(_DEPENDENCY.findall(launch.dependency or "")))
        seen = self.look(jobs) if jobs else {}
        if missing := [job for job in jobs if seen[job].state is State.UNKNOWN]:
            raise LaunchError(f"dependency: Slurm does not know job {missing[0]}; 'squeue --me' shows your jobs")
        script = f"#!/bin/sh\n{slurm_directives(launch)}"
        answer = ask("sbatch", "--test-only", environment=environment_of(launch), stdin=script)
        if answer.status:
            vague = "Requested node configuration" in answer.reason
            hint = "; 'sinfo --Node --long' shows what nodes have" if vague else ""
            raise LaunchError(f"sbatch rejects this job: {answer.reason}{hint}")

    def submit(self, job: JobDirectory, launch: LaunchConfig, *, after: Sequence[str] = (), array: str = "") -> str:
        """Logs go into the job's directory. Raises `LaunchError`, and `NoAnswerError` if it may have been submitted."""
        options = [f"--dependency=afterok:{':'.join(after)}"] if after else []
        options += [f"--array={array}"] if array else []
        command = ("sbatch", "--parsable", *options, job.script.name)
        answer = ask(*command, environment=environment_of(launch), cwd=job.root, limit_s=SUBMIT_LIMIT_S)
        number = answer.stdout.strip().partition(";")[0]
        if answer.status and any(words in answer.stderr for words in ANSWER_IS_LOST):
            raise NoAnswerError(f"sbatch: {answer.reason}")
        if answer.status or not ID.fullmatch(number):
            raise LaunchError(f"sbatch: {answer.reason}; nothing was submitted")
        return number

    def look(self, ids: Iterable[str]) -> dict[str, Seen]:
        """An array is looked at as a whole (12) or by task (12_3)."""
        wanted = list(dict.fromkeys(ids))
        known = _by_id(_of_controller(queue()))
        forgotten = [id_ for id_ in wanted if id_ not in known and ID.fullmatch(id_)]
        why = "Slurm does not know this job, or has forgotten it"
        if forgotten:
            try:
                known |= _by_id(_of_accounting(accounting(forgotten)))
            except LaunchError as error:
                why = f"Slurm's controller has forgotten it, and accounting cannot be asked: {error}"
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
        live = [row for row in rows if not state_of(row.get("job_state", "")).is_over]
        return list(map(str, sorted({_number(row.get("array_job_id")) or _number(row.get("job_id")) for row in live})))


def _check_partition(launch: LaunchConfig) -> None:
    """Whether it exists and has enough nodes: sbatch says "node configuration is not available" of too many."""
    answer = ask("sinfo", "--noheader", "--Node", "--format=%P|%N", environment=asking())
    if answer.status:
        raise LaunchError(f"sinfo: {answer.reason}; is this where jobs are submitted?")
    nodes: dict[str, set[str]] = {}
    for line in answer.stdout.splitlines():
        partition, _, node = line.strip().partition("|")
        nodes.setdefault(partition, set()).add(node)
    default = next((name for name in nodes if name.endswith("*")), "")
    known = {name.rstrip("*"): of_partition for name, of_partition in nodes.items()}
    name = launch.partition or default.rstrip("*")
    if name not in known:
        missing = f"Slurm has no '{name}'" if name else "Slurm has no default one, so pass --partition"
        raise LaunchError(f"partition: {missing}; {suggest(name, sorted(known))}")
    if least_nodes(launch) > len(known[name]):
        raise LaunchError(f"nodes: {least_nodes(launch)} is more than partition {name} has: {len(known[name])}")


def environment_of(launch: LaunchConfig, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for sbatch: without variables that contradict the script, or describe another job."""
    ours = [f"SBATCH_{name}" for field, names in _VARIABLES.items() if getattr(launch, field) for name in names.split()]
    kept = without_job(environment, *ours)
    exported = kept.get("SBATCH_EXPORT", "ALL")
    if launch.secrets and exported != "ALL":
        kept["SBATCH_EXPORT"] = ",".join([*([] if exported == "NONE" else [exported]), *launch.secrets])
    return kept


def queue() -> list[dict[str, Any]]:
    """This user's jobs in the controller, also those that ended in the last minutes.

    Raises `LaunchError`, `NoAnswerError`.
    """
    return _jobs_in(ask("squeue", "--json", "--me", "--states=all", environment=asking()), "squeue")


def accounting(ids: Sequence[str]) -> list[dict[str, Any]]:
    """A row of sacct for each start of these jobs. Raises `LaunchError`."""
    # sacct of 22.05 refuses its own times where they are seconds.
    environment = asking() | {"SLURM_TIME_FORMAT": "standard"}
    return _jobs_in(ask("sacct", "--json", "--duplicates", f"--jobs={','.join(ids)}", environment=environment), "sacct")


def state_of(names: str | Sequence[str], reason: str = "") -> State:
    """Of Slurm's name, or its names, the last of which says what happens now; and why it waits."""
    names = [names] if isinstance(names, str) else names
    known = [STATES[name] for name in names if name in STATES]
    state = known[-1] if known else State.UNKNOWN
    if state is State.WAITING and _HELD.fullmatch(re.sub(r"[\s_]", "", reason).lower()):
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


def _of_controller(jobs: Iterable[Mapping[str, Any]]) -> list[Seen]:
    """Jobs and tasks of squeue; tasks that wait are one row of it."""
    found = []
    for job in jobs:
        array, task = _number(job.get("array_job_id")), _number(job.get("array_task_id"), missing=-1)
        waiting = _tasks(str(job.get("array_task_string") or ""))
        tasks = waiting or ([task] if task >= 0 else [])
        ids = [f"{array}_{each}" for each in tasks] if array and tasks else [str(job["job_id"])]
        reason = str(job.get("state_reason") or "None").replace("_", " ")
        reason = "" if reason == "None" else reason
        state = state_of(job.get("job_state", ""), reason)
        nodes, restarts = _nodes(job.get("nodes")), _number(job.get("restart_cnt"))
        found += [Seen(id_, state, reason, nodes, restarts) for id_ in ids]
    return found


def _of_accounting(jobs: Iterable[Mapping[str, Any]]) -> list[Seen]:
    """A job that was requeued has a row for each start: the last one counts."""
    starts: dict[str, list[Mapping[str, Any]]] = {}
    for job in jobs:
        of_array = job.get("array") or {}
        array, task = _number(of_array.get("job_id")), _number(of_array.get("task_id"), missing=-1)
        starts.setdefault(f"{array}_{task}" if array and task >= 0 else str(job["job_id"]), []).append(job)
    return [
        Seen(
            id_,
            state_of(rows[-1].get("state", {}).get("current", "")),
            "",
            _nodes(rows[-1].get("nodes")),
            len(rows) - 1,
        )
        for id_, rows in starts.items()
    ]


def _by_id(rows: Iterable[Seen]) -> dict[str, Seen]:
    """Each job and task, and each array as one."""
    rows = list(rows)
    arrays: dict[str, list[Seen]] = {}
    for row in rows:
        if "_" in row.id:
            arrays.setdefault(row.id.partition("_")[0], []).append(row)
    return {row.id: row for row in rows} | {id_: _as_one(id_, tasks) for id_, tasks in arrays.items()}


def _as_one(id_: str, tasks: Sequence[Seen]) -> Seen:
    counts = {each: sum(task.state is each for task in tasks) for each in _ORDER}
    state = next(each for each, count in counts.items() if count)
    reason = ", ".join(f"{count} {each}" for each, count in counts.items() if count)
    return Seen(id_, state, reason, tuple(dict.fromkeys(node for task in tasks for node in task.nodes)))


def _number(value: Any, missing: int = 0) -> int:
    """Of 7, {"set": true, "number": 7} or null."""
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set", True) and not value.get("infinite") else None
    return value if isinstance(value, int) else missing


def _tasks(text: str) -> list[int]:
    """Of 2-4,9%1; [] of anything else."""
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*(%\d+)?", text):
        return []
    spans = [part.partition("-") for part in text.partition("%")[0].split(",")]
    return [task for first, _, last in spans for task in range(int(first), int(last or first) + 1)]


def _nodes(text: Any) -> tuple[str, ...]:
    """Of a list of nodes as Slurm writes it; () if there are none yet."""
    if not isinstance(text, str) or not text or text.startswith(("(", "None")):
        return ()
    try:
        return tuple(expand_hosts(split_names(text), "squeue"))
    except HostError:
        return ()
