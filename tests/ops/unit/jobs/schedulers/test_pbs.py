"""PBS, by what its commands print: answers as PBS Professional, Torque and Slurm's own commands give them."""

from pathlib import Path

import pytest

from glmforge.config.launch import LaunchConfig
from glmforge.errors import LaunchError
from glmforge.observe.job_records import JobDirectory
from glmforge_ops.jobs.schedulers.base import State
from glmforge_ops.jobs.schedulers.pbs import Pbs
from helpers.scheduler_programs import Answers

RUNNING = (
    "Job Id: 12.server\n    Job_Name = air\n    job_state = R\n    qtime = Mon Nov 23 10:40:54 2026\n"
    "    stime = Mon Nov 23 10:41:00 2026\n    exec_host = node001/0*8+node002/0*8+node\n\t003/0*8\n    run_count = 2\n"
)


def job(state: str, *lines: str) -> str:
    return "\n    ".join(["Job Id: 1.s", f"job_state = {state}", *lines]) + "\n"


def test_a_job_that_runs(answers: Answers) -> None:
    answers(qstat={"-x -f 12.server": (0, RUNNING, "")})
    seen = Pbs().look(["12.server"])["12.server"]
    assert (seen.state, seen.nodes) == (State.RUNNING, ("node001", "node002", "node003"))


@pytest.mark.parametrize(
    ("text", "state", "reason"),
    [
        (job("Q", "comment = Not Running: queue limit"), State.WAITING, "Not Running: queue limit"),
        (job("H"), State.HELD, ""),
        (job("F", "Exit_status = 0"), State.COMPLETED, ""),
        (job("C", "exit_status = 3"), State.FAILED, "status 3"),
        (job("F", "Exit_status = 271"), State.CANCELLED, "ended by signal 15"),
        (job("F", "Exit_status = -29"), State.FAILED, "status -29"),
        ("Job Id:\t21\n\tJob_Name = air\n\tjob_state = C\n", State.ENDED, "PBS does not say how it ended"),
    ],
)
def test_states(answers: Answers, text: str, state: State, reason: str) -> None:
    answers(qstat={"-x -f 1": (0, text, "")})
    seen = Pbs().look(["1"])["1"]
    assert seen.state is state
    assert seen.reason.startswith(reason)


def test_a_qstat_that_has_no_x(answers: Answers) -> None:
    answers(qstat={"-x": (2, "", "Unknown option: x\n"), "-f 12": (0, RUNNING, "")})
    assert Pbs().look(["12"])["12"].state is State.RUNNING


def test_what_is_forgotten_and_what_does_not_answer(answers: Answers) -> None:
    answers(qstat={"-x -f 1": (153, "", "qstat: Unknown Job Id 1\n"), "": (111, "", "Connection refused\n")})
    seen = Pbs().look(["1", "2", "x"])
    assert (seen["1"].state, seen["1"].reason) == (State.UNKNOWN, "PBS does not know this job, or has forgotten it")
    assert (seen["2"].state, seen["2"].reason) == (State.UNKNOWN, "qstat: Connection refused")
    assert (seen["x"].state, seen["x"].reason) == (State.UNKNOWN, "is not the number of a PBS job")
    assert [seen[number].is_forgotten for number in "12x"] == [True, False, False]


def test_submitting_and_cancelling(answers: Answers, tmp_path: Path) -> None:
    calls = answers(
        qsub={"": (0, "12.server\n", "")},
        qdel={
            "12": (0, "", ""),
            "13": (153, "", "qdel: Unknown Job Id 13\n"),
            "15": (1, "", ""),  # as Slurm's says it
            "": (1, "", "qdel: Unauthorized\n"),
        },
        qstat={"-x -f 15": (0, job("C"), ""), "": (0, job("R"), "")},
    )
    assert Pbs().submit(JobDirectory(tmp_path), LaunchConfig(launcher="pbs")) == "12.server"
    Pbs().submit(JobDirectory(tmp_path), LaunchConfig(launcher="pbs"), after=["7.server"])
    assert calls.read_text().splitlines() == [
        "qsub -o scheduler.log -j oe script.sh",
        "qsub -W depend=afterok:7.server -o scheduler.log -j oe script.sh",
    ]
    Pbs().cancel("12")
    Pbs().cancel("13")
    Pbs().cancel("15")
    with pytest.raises(LaunchError, match="qdel 14: qdel: Unauthorized"):
        Pbs().cancel("14")
    with pytest.raises(LaunchError, match="is not the number of a PBS job"):
        Pbs().cancel("1;id")


def test_what_sbatch_said_through_qsub_is_one_line(answers: Answers, tmp_path: Path) -> None:
    said = (
        "There was an error running the Slurm sbatch command.\nThe command was:\n'/usr/bin/sbatch -q x'\n"
        "and the output was:\n'sbatch: error: invalid partition specified: nope\n"
        " sbatch: error: Batch job submission failed: Invalid partition name specified\n'\n"
    )
    answers(qsub={"": (1, said, "")})
    with pytest.raises(LaunchError, match=r"^qsub: Batch job submission failed: Invalid partition name specified; n"):
        Pbs().submit(JobDirectory(tmp_path), LaunchConfig(launcher="pbs"))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"dependency": "afterok:1?afterok:2"}, "dependency: PBS does not know '?'"),
        ({"sbatch_args": ["--mail-type=END"]}, "sbatch_args: PBS has no such option"),
        ({"nodes": 2, "gpus_per_node": 8, "mem": "512G", "time": "24:00:00", "partition": "gpu"}, None),
    ],
)
def test_what_cannot_be_is_refused_before(answers: Answers, changes: dict[str, object], told: str | None) -> None:
    answers(qstat={"-Q": (0, "", "")})
    launch = LaunchConfig(launcher="pbs", **changes)  # type: ignore[arg-type]
    if told is None:
        Pbs().check(launch)
        return
    with pytest.raises(LaunchError) as error:
        Pbs().check(launch)
    assert str(error.value).startswith(told)


def test_no_pbs_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="qstat: is not on this machine"):
        Pbs().check(LaunchConfig(launcher="pbs"))
