"""PBS through qsub, qstat, qdel and pbsnodes: OpenPBS, PBS Professional, Torque, and Slurm's own (slurm-wlm-torque).

What they have in common is used, which is the text of `qstat -f`. How a job ended PBS Professional says, Torque for
some minutes, and Slurm's qstat not at all: the job's own files do. None of them warns a job before its time is over.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from glmforge.config.explain import suggest
from glmforge.config.launch import LaunchConfig
from glmforge.errors import LaunchError
from glmforge.files import shown
from glmforge_ops.jobs.job import JobDirectory
from glmforge_ops.jobs.ranks.variables import NUMBERS
from glmforge_ops.jobs.schedulers.base import Seen, State
from glmforge_ops.jobs.schedulers.commands import Answer, NoAnswerError, ask
from glmforge_ops.jobs.script.amounts import megabytes, seconds
from glmforge_ops.jobs.script.node_counts import least_nodes

_ID = re.compile(r"\d{1,12}(\[\d{0,9}\])?(\.[A-Za-z0-9][A-Za-z0-9_.-]{0,250})?")
_JOB = re.compile(r"(?<=:)\d+(?:\[\d*\])?(?:\.[A-Za-z0-9_.-]+)?(?=[:,]|$)")
_SUBMIT_LIMIT_S = 120.0
_UNKNOWN_JOB, _HAS_FINISHED = 153, 35

_STATES = {
    "B": State.RUNNING,  # an array some of whose tasks do
    "C": State.ENDED,
    "E": State.ENDING,
    "F": State.ENDED,
    "H": State.HELD,
    "M": State.ENDED,
    "Q": State.WAITING,
    "R": State.RUNNING,
    "S": State.SUSPENDED,
    "T": State.WAITING,
    "U": State.SUSPENDED,
    "W": State.WAITING,
    "X": State.ENDED,
}
_SIGNALLED = 256
_NOT_OURS = {"qos": "a quality of service", "constraint": "features of nodes", "exclude": "nodes that are left out"}


class Pbs:
    """A `Scheduler`."""

    name = "pbs"

    def check(self, launch: LaunchConfig) -> None:
        """Raises `LaunchError`: one line, before anything is submitted."""
        for field, what in _NOT_OURS.items():
            if getattr(launch, field):
                raise LaunchError(f"{field}: PBS has no option for {what}; leave it out, or write a --template")
        if "?" in (launch.dependency or ""):
            raise LaunchError("dependency: PBS knows no '?'; separate with commas, all of which have to be met")
        queues = _queues()
        if launch.partition is not None and launch.partition not in queues:
            raise LaunchError(f"partition: PBS has no queue '{launch.partition}'; {suggest(launch.partition, queues)}")
        _check_time(launch)
        _check_nodes(launch)
        for job in dict.fromkeys(_JOB.findall(launch.dependency or "")):
            if _look(job).state is State.UNKNOWN:
                raise LaunchError(f"dependency: PBS knows no job {job}; 'qstat' shows those that there are")

    def submit(self, job: JobDirectory, launch: LaunchConfig) -> str:
        """Raises `LaunchError`, and `NoAnswerError` if it may have been submitted."""
        # Names without a directory: Slurm's qsub puts its command line together without quotation marks.
        command = ("qsub", "-o", "scheduler.log", "-j", "oe", job.script.name)
        answer = ask(*command, environment=environment_of(), cwd=job.root, limit_s=_SUBMIT_LIMIT_S, mend="")
        id_ = (answer.stdout.split() or [""])[-1]
        if answer.status or not _ID.fullmatch(id_):
            raise LaunchError(f"qsub: {_complaint(answer)}; nothing was submitted")
        return id_

    def look(self, ids: Iterable[str]) -> dict[str, Seen]:
        return {id_: _look(id_) for id_ in dict.fromkeys(ids)}

    def cancel(self, submission: str) -> None:
        """Raises `LaunchError` if PBS does not do it."""
        if not _ID.fullmatch(submission):
            raise LaunchError(f"{shown(submission)}: is no number of a PBS job")
        answer = ask("qdel", submission)
        # Slurm's qdel fails without a word for a job that has ended.
        if answer.status and not _is_over(answer) and not _look(submission).state.is_over:
            raise LaunchError(f"qdel {submission}: {_complaint(answer)}")

    def again(self, seen: Seen) -> bool:
        """PBS tells nothing of starts that it refused."""
        return False


def environment_of(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What qsub gets: without variables that tell of another job."""
    return {name: value for name, value in environment.items() if _is_passed_on(name)}


def _look(id_: str) -> Seen:
    if not _ID.fullmatch(id_):
        return Seen(id_, State.UNKNOWN, "is no number of a PBS job")
    try:
        fields = _fields(id_)
    except LaunchError as error:
        return Seen(id_, State.UNKNOWN, str(error))
    if fields is None:
        return Seen(id_, State.UNKNOWN, "PBS knows no such job, or has forgotten it", is_forgotten=True)
    state, reason = _state(fields)
    return Seen(
        id_,
        state,
        reason,
        tuple(dict.fromkeys(re.findall(r"(?:^|\+)([A-Za-z0-9][A-Za-z0-9_.-]*)", fields.get("exec_host", "")))),
        max(0, _number(fields.get("run_count", "1")) - 1),
        _time(fields.get("qtime", "")),
        _time(fields.get("stime", fields.get("start_time", ""))),
        _time(fields.get("mtime", "")) if state.is_over else None,
    )


def _fields(id_: str) -> dict[str, str] | None:
    """What qstat tells of a job; None if it knows none such. Raises `NoAnswerError`."""
    answer = ask("qstat", "-x", "-f", id_)  # -x: finished ones, too, as PBS Professional has it
    if answer.status and not _is_over(answer):
        answer = ask("qstat", "-f", id_)
    if answer.status == 0 and "job_state" in answer.stdout:
        return dict(_attributes(answer.stdout))
    if answer.status == 0 or _is_over(answer):
        return None
    raise NoAnswerError(f"qstat: {_complaint(answer)}")


def _attributes(text: str) -> Iterator[tuple[str, str]]:
    """Lines `name = value`, of which long ones go on behind a tab, and the names of Slurm's stand behind one."""
    joined = re.sub(r"\n\t(?!\S+ = )", "", text)
    for line in joined.splitlines():
        name, equals, value = line.strip().partition(" = ")
        if equals:
            yield name, value.strip()


def _state(fields: Mapping[str, str]) -> tuple[State, str]:
    state, reason = _STATES.get(fields["job_state"][:1], State.UNKNOWN), fields.get("comment", "")
    status = fields.get("Exit_status", fields.get("exit_status", ""))
    if state is not State.ENDED:
        return state, reason
    if not re.fullmatch(r"-?\d+", status):
        return state, "PBS does not say how it ended; the job's events do"
    number = int(status)
    if number == 0:
        return State.COMPLETED, reason
    if number > _SIGNALLED:
        return State.CANCELLED, f"ended by signal {number - _SIGNALLED}"
    return State.FAILED, f"status {number}"


def _queues() -> list[str]:
    answer = ask("qstat", "-Q")
    if answer.status:
        raise LaunchError(f"qstat: {_complaint(answer)}; is this where jobs are submitted?")
    lines = answer.stdout.splitlines()
    rule = next((number for number, line in enumerate(lines) if line.startswith("---")), -1)
    return [line.split()[0] for line in lines[rule + 1 :] if line.strip()]


def _check_time(launch: LaunchConfig) -> None:
    if launch.time is None or launch.partition is None:
        return
    answer = ask("qstat", "-Q", "-f", launch.partition)
    limit = dict(_attributes(answer.stdout)).get("resources_max.walltime", "")
    if re.fullmatch(r"\d+(:\d+){2}", limit) and seconds(launch.time) > seconds(limit):
        raise LaunchError(f"time: {launch.time} is above the limit of queue {launch.partition}, {limit}")


def _check_nodes(launch: LaunchConfig) -> None:
    answer = ask("pbsnodes", "-a")
    if answer.status:
        raise LaunchError(f"pbsnodes: {_complaint(answer)}")
    nodes = [dict(_attributes(part)) for part in re.split(r"\n\s*\n", answer.stdout) if " = " in part]
    wanted = least_nodes(launch)
    if wanted > len(nodes):
        raise LaunchError(f"nodes: {wanted} is more than PBS has: {len(nodes)}")
    for field, asked, names in (
        ("gpus-per-node", launch.gpus_per_node, ("resources_available.ngpus", "gpus")),
        ("mem", megabytes(launch.mem or "0"), ("resources_available.mem", "availmem")),
        ("cpus-per-task", launch.ranks * (launch.cpus_per_task or 1), ("resources_available.ncpus", "np")),
    ):
        have = [_amount(node, names) for node in nodes]
        if sum(each >= asked for each in have) < wanted:
            what = {"mem": f"{asked} MB", "cpus-per-task": f"{asked} CPUs ({launch.ranks} ranks)"}.get(field, asked)
            raise LaunchError(f"{field}: {what} on each of {wanted} nodes: PBS has at most {max(have)}")


def _amount(node: Mapping[str, str], names: tuple[str, ...]) -> int:
    """A count, or megabytes, of the first of these that a node tells."""
    status = dict(part.split("=", 1) for part in node.get("status", "").split(",") if "=" in part)
    text = next((fields[name] for name in names for fields in (node, status) if name in fields), "0").lower()
    found = re.fullmatch(r"(\d+)(?:([kmgt]?)b)?", text)
    if found is None:
        return 0
    return int(found[1]) if found[2] is None else megabytes(f"{found[1]}{found[2].upper() or 'M'}")


def _is_over(answer: Answer) -> bool:
    text = answer.stderr + answer.stdout
    return answer.status in (_UNKNOWN_JOB, _HAS_FINISHED) or "Unknown Job Id" in text or "has finished" in text


def _complaint(answer: Answer) -> str:
    """Slurm's qsub shows what sbatch said as a Perl list in quotation marks."""
    told = re.findall(r"error: ([^\n']+)", answer.stdout)
    return shown(told[-1]) if told else answer.reason


def _is_passed_on(name: str) -> bool:
    if name in NUMBERS or name.startswith(("PBS_", "SBATCH_")):
        return False
    return not name.startswith(("SLURM_", "SLURMD_", "SRUN_")) or name.startswith("SLURM_CONF")


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _time(text: str) -> datetime | None:
    """As `ctime` writes it, in this machine's zone."""
    try:
        return datetime.strptime(" ".join(text.split()), "%a %b %d %H:%M:%S %Y").astimezone()
    except ValueError:
        return None
