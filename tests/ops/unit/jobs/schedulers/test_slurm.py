"""Slurm, by what its commands print: recorded answers of 22.05, given by programs of the same names."""

import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from glmforge.config.launch import LaunchConfig, SupervisorConfig
from glmforge.errors import LaunchError
from glmforge_ops.jobs.job import JobDirectory
from glmforge_ops.jobs.schedulers import commands
from glmforge_ops.jobs.schedulers.base import State
from glmforge_ops.jobs.schedulers.commands import NoAnswerError
from glmforge_ops.jobs.schedulers.slurm import Slurm, environment_of
from glmforge_ops.jobs.schedulers.slurm_jobs import STATES, state_of
from glmforge_ops.jobs.script.amounts import hours_minutes_seconds, megabytes, seconds
from helpers.scheduler_programs import Answers

PARTITIONS = (
    "PartitionName=main AllowGroups=ALL Default=YES MaxTime=UNLIMITED Nodes=node[1-3] State=UP TotalNodes=3\n"
    "PartitionName=short AllowGroups=ALL Default=NO MaxTime=1-00:00:00 Nodes=node[1-2] State=UP TotalNodes=2\n"
)
NODES = "".join(
    f"NodeName=node{number} Arch=x86_64 CPUEfctv=4 CPUTot=4 AvailableFeatures={features} Gres=gpu:h200:{gpus}(S:0-1) "
    f"RealMemory={memory} State=IDLE Partitions={partitions} OS=Linux 6 #1 @0\n"
    for number, features, gpus, memory, partitions in (
        (1, "h200,nvme", 8, 64_000, "main,short"),
        (2, "h200", 8, 64_000, "main,short"),
        (3, "(null)", 2, 32_000, "main"),
    )
)


def row(
    job: str, state: str, *, restarts: int = 0, times: str = "10 20 30", reason: str = "None", nodes: str = ""
) -> str:
    submitted, began, ended = times.split()
    array = job.partition("_")[0]
    return f"{job:40}{array:20}{state:24}{restarts:<12}{submitted:24}{began:24}{ended:24}{reason:64}{nodes:8192}\n"


def at(second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC)


def test_jobs_as_the_controller_tells_of_them(answers: Answers) -> None:
    answers(
        squeue={
            "": (
                0,
                row("12", "RUNNING", restarts=2, nodes="node[1-2],gpu07")
                + row("13", "PENDING", times="10 N/A N/A", reason="Resources")
                + row("14", "PENDING", times="10 50 N/A", reason="launch failed requeued held")
                + row("15", "COMPLETED", nodes="node1"),
                "",
            )
        },
        sacct={"": (1, "", "Slurm accounting storage is disabled\n")},
    )
    seen = Slurm().look(["12", "13", "14", "15", "99"])
    assert (seen["12"].state, seen["12"].restarts, seen["12"].nodes) == (State.RUNNING, 2, ("node1", "node2", "gpu07"))
    assert (seen["12"].submitted, seen["12"].began, seen["12"].ended) == (at(10), at(20), None)
    assert (seen["13"].state, seen["13"].reason, seen["13"].began) == (State.WAITING, "Resources", None)
    assert (seen["14"].state, seen["14"].reason, seen["14"].began) == (State.HELD, "launch failed requeued held", None)
    assert (seen["15"].state, seen["15"].ended) == (State.COMPLETED, at(30))
    assert seen["99"].state is State.UNKNOWN
    assert "has forgotten it, and accounting says: Slurm accounting storage is disabled" in seen["99"].reason


def test_an_array_as_a_whole_and_by_task(answers: Answers) -> None:
    tasks = row("7_0", "COMPLETED", nodes="node1") + row("7_1", "FAILED", nodes="node2")
    answers(squeue={"": (0, tasks + row("7_2", "RUNNING", times="10 25 99", nodes="node1"), "")})
    seen = Slurm().look(["7", "7_1", "7_2"])
    assert seen["7"].state is State.RUNNING
    assert seen["7"].reason == "1 running, 1 failed, 1 completed"
    assert (seen["7"].nodes, seen["7"].began, seen["7"].ended) == (("node1", "node2"), at(20), None)
    assert (seen["7_1"].state, seen["7_2"].state) == (State.FAILED, State.RUNNING)
    answers(squeue={"": (0, tasks, "")})
    whole = Slurm().look(["7"])["7"]
    assert (whole.state, whole.ended) == (State.FAILED, at(30))  # one that failed is not hidden by one that completed


def test_what_the_controller_has_forgotten_is_asked_of_accounting(answers: Answers) -> None:
    answers(
        squeue={"": (1, "", "slurm_load_jobs error: Invalid job id specified\n")},
        sacct={
            "": (
                0,
                "5|NODE_FAIL|10|20|30|node[1-2]\n5|COMPLETED|35|40|50|node[2-3]\n"
                "6|CANCELLED by 0|1|Unknown|2|None assigned\n",
                "",
            )
        },
    )
    seen = Slurm().look(["5", "6", "7"])
    assert (seen["5"].state, seen["5"].restarts, seen["5"].nodes) == (State.COMPLETED, 1, ("node2", "node3"))
    assert (seen["5"].submitted, seen["5"].began, seen["5"].ended) == (at(10), at(40), at(50))
    assert (seen["6"].state, seen["6"].began, seen["6"].nodes) == (State.CANCELLED, None, ())
    assert (seen["7"].state, seen["7"].reason) == (State.UNKNOWN, "Slurm knows no such job, or has forgotten it")
    assert [seen[number].is_forgotten for number in "567"] == [False, False, True]


def test_a_controller_that_does_not_answer_ends_no_job(answers: Answers) -> None:
    trouble = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"
    answers(squeue={"": (1, "", trouble)}, scancel={"": (1, "", trouble)})
    seen = Slurm().look(["5"])["5"]
    assert not seen.state.is_over
    assert not seen.is_forgotten
    assert seen.reason == "squeue: Unable to contact slurm controller (connect failure)"
    with pytest.raises(LaunchError, match=r"scancel 5: .*Unable to contact"):
        Slurm().cancel("5")


def test_without_slurm_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "squeue: is not on this machine" in Slurm().look(["5"])["5"].reason
    with pytest.raises(LaunchError, match="scontrol: is not on this machine; run this where jobs are submitted"):
        Slurm().check(LaunchConfig(launcher="slurm"))


@pytest.mark.parametrize("id_", ["", "-1", "1;id", "1_2_3", "a", "1 2"])
def test_what_is_no_number_reaches_no_command(answers: Answers, id_: str) -> None:
    calls = answers(squeue={}, scancel={}, sacct={})
    assert Slurm().look([id_])[id_].state is State.UNKNOWN
    with pytest.raises(LaunchError, match="no number of a Slurm job"):
        Slurm().cancel(id_)
    assert not calls.exists()


def test_many_jobs_are_asked_for_at_once(answers: Answers) -> None:
    calls = answers(squeue={"": (0, "".join(row(str(number), "RUNNING") for number in range(1, 601)), "")})
    assert len(Slurm().look(map(str, range(1, 601)))) == 600
    assert len(calls.read_text().splitlines()) == 2


def test_nobodys_profile_keeps_a_job_from_being_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With SCANCEL_INTERACTIVE, scancel asks whether it may, and without an answer it does nothing."""
    (tmp_path / "scancel").write_text('#!/bin/sh\nexit "${SCANCEL_INTERACTIVE:-0}"\n')
    (tmp_path / "scancel").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SCANCEL_INTERACTIVE", "1")
    Slurm().cancel("5")


def test_a_job_that_has_ended_is_left(answers: Answers) -> None:
    answers(scancel={"": (1, "", "scancel: error: Kill job error on job id 5: Invalid job id specified\n")})
    Slurm().cancel("5")


def test_every_state_means_something() -> None:
    """As `man squeue` lists them."""
    assert state_of("PENDING", "Priority") is State.WAITING
    assert state_of("PENDING", "JobHeldUser") is State.HELD
    assert state_of("PENDING", "launch_failed_requeued_held") is State.HELD
    assert state_of("CANCELLED by 1000") is State.CANCELLED
    assert state_of("CANCELLED+") is State.CANCELLED
    assert state_of("WHATEVER") is State.UNKNOWN
    assert {state for state in STATES.values() if state.is_over} == {
        State.NODE_FAILED,
        State.CANCELLED,
        State.COMPLETED,
        State.TIME_LIMIT,
        State.FAILED,
        State.OUT_OF_MEMORY,
    }


def test_submitting(answers: Answers, tmp_path: Path) -> None:
    job = JobDirectory(tmp_path)
    calls = answers(sbatch={"--parsable": (0, "123;cluster\n", "")})
    assert Slurm().submit(job, LaunchConfig(launcher="slurm")) == "123"
    assert calls.read_text() == "sbatch --parsable script.sh\n"
    answers(sbatch={"": (1, "", "sbatch: error: Batch job submission failed: Invalid qos specification\n")})
    with pytest.raises(LaunchError, match=r"^sbatch: Batch job submission failed: Invalid qos specification; nothing"):
        Slurm().submit(job, LaunchConfig(launcher="slurm"))


@pytest.mark.parametrize("said", ["Socket timed out on send/recv operation", "Zero Bytes were transmitted or received"])
def test_a_submission_whose_answer_is_lost(answers: Answers, tmp_path: Path, said: str) -> None:
    answers(sbatch={"": (1, "", f"sbatch: error: Batch job submission failed: {said}\n")})
    with pytest.raises(NoAnswerError, match=f"^sbatch: Batch job submission failed: {said}$"):
        Slurm().submit(JobDirectory(tmp_path), LaunchConfig(launcher="slurm"))


def test_a_submission_that_hangs_is_not_to_be_tried_again(
    answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs(command: list[str], *, timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(commands.subprocess, "run", hangs)
    with pytest.raises(NoAnswerError, match=r"^sbatch: no answer within 120 s$"):
        Slurm().submit(JobDirectory(tmp_path), LaunchConfig(launcher="slurm"))


def test_variables_do_not_win_over_the_script() -> None:
    profile = {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_JOB_ID": "1",
        "SLURM_NTASKS": "8",
        "SBATCH_PARTITION": "theirs",
        "SBATCH_ACCOUNT": "default",
        "RANK": "3",
        "SBATCH_OUTPUT": "x",
    }
    kept = environment_of(LaunchConfig(launcher="slurm", partition="gpu"), profile)
    assert kept == {"PATH": "/bin", "SLURM_CONF": "/etc/slurm.conf", "SBATCH_ACCOUNT": "default"}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"partition": "mian"}, "partition: Slurm has no 'mian'; did you mean 'main'?"),
        ({"nodes": 4}, "nodes: 4 is more than partition main has: 3"),
        ({"nodes": 3, "partition": "short"}, "nodes: 3 is more than partition short has: 2"),
        (
            {"nodes": 3, "supervisor": SupervisorConfig(spare_nodes=1), "supervise": False},
            "nodes: 4, 1 of them spare, is more than partition main has: 3",
        ),
        (
            {"nodes": 5, "supervisor": SupervisorConfig(min_nodes=4, spare_nodes=1)},
            "nodes: 4 (min_nodes) is more than partition main has: 3",
        ),
        ({"nodes": 3, "exclude": ["node1"]}, "exclude: leaves 2 of the 3 nodes of partition main, and nodes is 3"),
        ({"exclude": ["nod1"]}, "exclude: Slurm has no node 'nod1'; did you mean 'node1'?"),
        ({"gpus_per_node": 9}, "gpus-per-node: 9 on each of 1 nodes: partition main has at most 8"),
        (
            {"gpus_per_node": 8, "nodes": 3},
            "gpus-per-node: 8 on each of 3 nodes: partition main has at most 8; node[1-2] alone",
        ),
        ({"mem": "1T"}, "mem: 1048576 MB on each of 1 nodes: partition main has at most 64000"),
        ({"cpus_per_task": 5}, "cpus-per-task: 5 CPUs (1 ranks) on each of 1 nodes: partition main has at most 4"),
        (
            {"cpus_per_task": 3, "ranks_per_node": 2},
            "cpus-per-task: 6 CPUs (2 ranks) on each of 1 nodes: partition main has at most 4",
        ),
        (
            {"gpus_per_node": 8, "mem": "96G", "nodes": 1},
            "mem: 98304 MB on each of 1 nodes: partition main has at most 64000",
        ),
        ({"constraint": "a100"}, "constraint: no node of partition main has 'a100'; there are h200, nvme"),
        (
            {"constraint": "nvme", "nodes": 2},
            "constraint: 'nvme' leaves 1 of the nodes of partition main, and nodes is 2",
        ),
        (
            {"time": "25:00:00", "partition": "short"},
            "time: 25:00:00 is above the limit of partition short, 1-00:00:00",
        ),
        ({"dependency": "afterok:12:11"}, "dependency: Slurm knows no job 12;"),
        (
            {"dependency": "afterok:11:12"},
            "dependency: Slurm knows no job 12; 'squeue --me' shows those that there are",
        ),
    ],
)
def test_what_cannot_be_is_said_before(answers: Answers, changes: dict[str, object], told: str) -> None:
    known(answers)
    with pytest.raises(LaunchError) as error:
        Slurm().check(LaunchConfig(launcher="slurm", **changes))  # type: ignore[arg-type]
    assert str(error.value).startswith(told)


def known(answers: Answers, test_only: tuple[int, str, str] = (0, "", "sbatch: Job 4 to start at ...\n")) -> Path:
    return answers(
        scontrol={
            "show partition": (0, PARTITIONS, ""),
            "show node": (0, NODES, ""),
            "show job -o 11": (0, "JobId=11 JobState=RUNNING\n", ""),
            "show job -o 10": (1, "", "slurm_load_jobs error: Invalid job id specified\n"),
            "show job -o 12": (1, "", "slurm_load_jobs error: Invalid job id specified\n"),
        },
        sacct={"-n -P -X --jobs=10": (0, "10\n", ""), "": (0, "", "")},
        sbatch={"--test-only": test_only},
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"nodes": 2, "gpus_per_node": 8, "ranks_per_node": 4, "mem": "60000", "time": "1-0", "partition": "short"},
        {"constraint": "h200&nvme"},  # an expression is Slurm's to judge
        {"dependency": "afterok:10:11,afterany:11"},
        {"exclude": ["node1"], "nodes": 2},
        {"nodes": 3, "supervisor": SupervisorConfig(spare_nodes=1)},  # a spare one if there is one
        {"nodes": 4, "supervisor": SupervisorConfig(min_nodes=3, max_nodes=8)},
    ],
)
def test_what_can_be_passes(answers: Answers, changes: dict[str, object]) -> None:
    known(answers)
    Slurm().check(LaunchConfig(launcher="slurm", **changes))  # type: ignore[arg-type]


def test_nodes_have_what_is_theirs_to_give(answers: Answers) -> None:
    """All kinds of devices together; of the CPUs those that Slurm does not keep for itself."""
    odd = "NodeName=odd CPUEfctv=6 CPUTot=8 Gres=gpu:a100:2,gpu:h200:4 RealMemory=96000 State=IDLE Partitions=main\n"
    asks = {"gpus_per_node": 6, "ranks_per_node": 1, "mem": "90000"}
    known(answers)
    answers(scontrol={"show partition": (0, PARTITIONS, ""), "show node": (0, NODES + odd, "")})
    Slurm().check(LaunchConfig(launcher="slurm", **asks, cpus_per_task=6))  # type: ignore[arg-type]
    with pytest.raises(LaunchError, match=r"cpus-per-task: 7 CPUs .* has at most 6"):
        Slurm().check(LaunchConfig(launcher="slurm", **asks, cpus_per_task=7))  # type: ignore[arg-type]
    with pytest.raises(LaunchError, match=r"mem: 90000 MB on each of 1 nodes: partition main has at most 64000"):
        Slurm().check(LaunchConfig(launcher="slurm", gpus_per_node=8, mem="90000"))


def test_a_controller_that_does_not_answer_is_no_job_that_there_is_not(answers: Answers) -> None:
    known(answers)
    trouble = (1, "", "slurm_load_jobs error: Unable to contact slurm controller\n")
    answers(scontrol={"show partition": (0, PARTITIONS, ""), "show node": (0, NODES, ""), "show job": trouble})
    with pytest.raises(LaunchError, match=r"^scontrol: Unable to contact slurm controller"):
        Slurm().check(LaunchConfig(launcher="slurm", dependency="afterok:11"))


def test_slurm_has_the_last_word(answers: Answers) -> None:
    known(answers, (1, "", "allocation failure: Job violates accounting/QOS policy\n"))
    with pytest.raises(LaunchError, match=r"^sbatch: would not take this job: Job violates accounting/QOS policy$"):
        Slurm().check(LaunchConfig(launcher="slurm", account="lab"))


@pytest.mark.parametrize(
    ("changes", "said", "told"),
    [
        (
            {"account": "lab"},
            "Invalid account or account/partition combination",
            "account: Slurm does not take 'lab' (",
        ),
        ({}, "Invalid account or account/partition combination specified", "account: Slurm wants one to be given ("),
        ({"qos": "gold"}, "Invalid qos specification", "qos: Slurm does not take 'gold' (Invalid qos specification); "),
        ({"dependency": "foo"}, "Job dependency problem", "dependency: Slurm does not take 'foo' (Job dependency prob"),
        ({"constraint": "a&b"}, "Invalid feature specification", "constraint: Slurm does not take 'a&b' (Invalid feat"),
    ],
)
def test_the_option_is_named_that_slurm_means(
    answers: Answers, changes: dict[str, object], said: str, told: str
) -> None:
    known(answers, (1, "", f"allocation failure: {said}\n"))
    with pytest.raises(LaunchError) as error:
        Slurm().check(LaunchConfig(launcher="slurm", **changes))  # type: ignore[arg-type]
    assert str(error.value).startswith(told)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 5400),
        ("1:30", 90),
        ("1:00:00", 3600),
        ("2-0", 172_800),
        ("1-12:30", 131_400),
        ("1-00:00:10", 86_410),
        ("UNLIMITED", float("inf")),
    ],
)
def test_times(text: str, expected: float) -> None:
    assert seconds(text) == expected


def test_of_pbs() -> None:
    assert hours_minutes_seconds("1-12:30") == "36:30:00"
    assert hours_minutes_seconds("90") == "01:30:00"


@pytest.mark.parametrize(("text", "expected"), [("64G", 65_536), ("1T", 1_048_576), ("500", 500), ("1500K", 2)])
def test_amounts(text: str, expected: int) -> None:
    assert megabytes(text) == expected


def test_the_programs_of_this_test_are_asked(answers: Answers) -> None:
    """That recorded answers are what is read, not a Slurm that this machine has."""
    answers(squeue={"": (0, "recorded", "")})
    done = subprocess.run(["squeue"], env=os.environ, capture_output=True, text=True, check=True)
    assert done.stdout == "recorded"
