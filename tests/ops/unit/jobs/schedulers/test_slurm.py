"""Slurm, by what its commands print: recorded answers of 22.05 and 23.11, given by programs of the same names."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from glmforge.config.launch import LaunchConfig, SupervisorConfig
from glmforge.errors import LaunchError
from glmforge.observe.job_records import JobDirectory
from glmforge_ops.jobs.schedulers import base
from glmforge_ops.jobs.schedulers.base import NoAnswerError, State
from glmforge_ops.jobs.schedulers.slurm import STATES, Slurm, accounting, environment_of, state_of
from glmforge_ops.jobs.script.amounts import hours_minutes_seconds, megabytes, seconds
from helpers.scheduler_programs import Answers

LAUNCH = LaunchConfig(launcher="slurm")
NODES = "main*|node1\nshort|node1\nmain*|node2\nshort|node2\nmain*|node3\n"
DOWN = (1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")
NO_ACCOUNTS = (1, "", "Slurm accounting storage is disabled\n")


def row(number: int, state: str, **fields: Any) -> dict[str, Any]:
    """Of squeue."""
    usual = {"state_reason": "None", "nodes": "", "restart_cnt": 0}
    array = {"array_job_id": 0, "array_task_id": None, "array_task_string": ""}
    return {"job_id": number, "job_state": state} | usual | array | fields


def printed(*rows: dict[str, Any]) -> tuple[int, str, str]:
    return 0, json.dumps({"meta": {}, "errors": [], "jobs": rows}), ""


def test_jobs_as_the_controller_reports_them(answers: Answers) -> None:
    jobs = [
        row(12, "RUNNING", restart_cnt=2, nodes="node[1-2],gpu07"),
        row(13, "PENDING", state_reason="Resources"),
        row(14, "PENDING", state_reason="launch_failed_requeued_held"),
        row(15, "COMPLETED", nodes="node1"),
    ]
    answers(squeue={"--json --me --states=all": printed(*jobs)}, sacct={"": NO_ACCOUNTS})
    seen = Slurm().look(["12", "13", "14", "15", "99", "1;id"])
    assert (seen["12"].state, seen["12"].restarts, seen["12"].nodes) == (State.RUNNING, 2, ("node1", "node2", "gpu07"))
    assert (seen["13"].state, seen["13"].reason) == (State.WAITING, "Resources")
    assert (seen["14"].state, seen["14"].reason) == (State.HELD, "launch failed requeued held")
    assert seen["15"].state is State.COMPLETED
    assert (seen["99"].state, seen["99"].is_forgotten) == (State.UNKNOWN, True)
    assert "accounting cannot be asked: sacct: Slurm accounting storage is disabled" in seen["99"].reason
    assert (seen["1;id"].state, seen["1;id"].is_forgotten) == (State.UNKNOWN, False)


def test_jobs_as_a_newer_slurm_reports_them(answers: Answers) -> None:
    def number(value: int | None) -> dict[str, Any]:
        return {"set": value is not None, "infinite": False, "number": value or 0}

    plain = {"array_job_id": number(0), "array_task_id": number(None), "restart_cnt": number(1)}
    task = plain | {"array_job_id": number(7), "array_task_id": number(0)}
    jobs = [row(12, ["RUNNING", "COMPLETING"], **plain), row(8, ["COMPLETED"], **task)]  # type: ignore[arg-type]
    answers(squeue={"": printed(*jobs)})
    seen = Slurm().look(["12", "7_0"])
    assert (seen["12"].state, seen["12"].restarts) == (State.ENDING, 1)
    assert seen["7_0"].state is State.COMPLETED


def test_an_array_as_a_whole_and_by_task(answers: Answers) -> None:
    jobs = [
        row(8, "COMPLETED", array_job_id=7, array_task_id=0, nodes="node1"),
        row(9, "RUNNING", array_job_id=7, array_task_id=1, nodes="node2"),
        row(7, "PENDING", array_job_id=7, array_task_string="2-3,5%1", state_reason="JobArrayTaskLimit"),
    ]
    answers(squeue={"": printed(*jobs)}, sacct={"": NO_ACCOUNTS})
    seen = Slurm().look(["7", "7_0", "7_3", "7_4", "7_5"])
    assert (seen["7"].state, seen["7"].reason) == (State.RUNNING, "1 running, 3 waiting, 1 completed")
    assert seen["7"].nodes == ("node1", "node2")
    assert [seen[f"7_{task}"].state for task in (0, 3, 4, 5)] == [
        *(State.COMPLETED, State.WAITING, State.UNKNOWN, State.WAITING),
    ]


def account(number: int, state: str, array: int = 0, task: int | None = None) -> dict[str, Any]:
    """A start, in sacct's words."""
    of_array = {"job_id": array, "task_id": task}
    return {"job_id": number, "array": of_array, "state": {"current": state}, "nodes": "node[1-2]"}


STARTS = [account(17, "REQUEUED"), account(17, "COMPLETED"), account(19, "FAILED", array=18, task=3)]


def test_what_the_controller_has_forgotten_is_looked_up_in_the_accounts(answers: Answers) -> None:
    calls = answers(squeue={"": printed()}, sacct={"": printed(*STARTS)})
    seen = Slurm().look(["17", "18_3", "20"])
    assert (seen["17"].state, seen["17"].restarts) == (State.COMPLETED, 1)
    assert seen["18_3"].state is State.FAILED
    assert seen["20"].is_forgotten
    assert "sacct --json --duplicates --jobs=17,18_3,20" in calls.read_text()


def test_what_does_not_answer(answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(squeue={"": DOWN}, scancel={"": DOWN})
    with pytest.raises(NoAnswerError, match=r"^squeue: Unable to contact slurm controller"):
        Slurm().look(["5"])
    with pytest.raises(LaunchError, match=r"scancel 5: .*Unable to contact"):
        Slurm().cancel("5")
    answers(squeue={"": (0, "slurm 20.11\n", "")})
    with pytest.raises(LaunchError, match=r"^squeue --json: invalid answer; this needs Slurm 21.08"):
        Slurm().look(["5"])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="sinfo: is not on this machine; run this where jobs are submitted"):
        Slurm().check(LAUNCH)


def test_cancelling(answers: Answers) -> None:
    calls = answers(scancel={"": (1, "", "scancel: error: Kill job error on job id 5: Invalid job id specified\n")})
    Slurm().cancel("5")  # has ended already
    with pytest.raises(LaunchError, match="is not the number of a Slurm job"):
        Slurm().cancel("1;id")
    assert calls.read_text() == "scancel 5\n"


def test_nobodys_profile_changes_what_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With SCANCEL_INTERACTIVE, scancel asks whether it may, and without an answer it does nothing."""
    (tmp_path / "scancel").write_text('#!/bin/sh\nexit "${SCANCEL_INTERACTIVE:-0}"\n')
    (tmp_path / "scancel").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SCANCEL_INTERACTIVE", "1")
    Slurm().cancel("5")


def test_accounts_are_asked_in_a_form_of_times_that_sacct_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sacct of 22.05 prints "Invalid time specification" with %s, and no JSON."""
    (tmp_path / "sacct").write_text('#!/bin/sh\n[ "$SLURM_TIME_FORMAT" != %s ] && echo \'{"jobs": []}\'\n')
    (tmp_path / "sacct").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert accounting(["5"]) == []


def test_every_state_means_something() -> None:
    """As `man squeue` lists them."""
    assert state_of("PENDING", "Priority") is State.WAITING
    assert state_of("PENDING", "JobHeldUser") is State.HELD
    assert state_of(["PENDING", "REQUEUE_HOLD"]) is State.HELD
    assert state_of("WHATEVER") is State.UNKNOWN
    assert {state for state in STATES.values() if state.is_over} == {
        *(State.NODE_FAILED, State.CANCELLED, State.COMPLETED, State.TIME_LIMIT, State.FAILED, State.OUT_OF_MEMORY),
    }


def test_sbatch_tests_the_options_of_the_job(answers: Answers, tmp_path: Path) -> None:
    known(answers)
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.write_text(f'#!/bin/sh\nwhile read -r line; do echo "$line"; done >{tmp_path}/tested\n')
    Slurm().check(LaunchConfig(launcher="slurm", nodes=2, qos="gold"))
    assert {"#SBATCH --nodes=2", "#SBATCH --qos=gold"} <= {*(tmp_path / "tested").read_text().splitlines()}


def test_submitting(answers: Answers, tmp_path: Path) -> None:
    job = JobDirectory(tmp_path)
    calls = answers(sbatch={"--parsable": (0, "123;cluster\n", "")})
    assert Slurm().submit(job, LAUNCH) == "123"
    Slurm().submit(job, LAUNCH, after=["7", "8"], array="1,4%2")
    assert calls.read_text().splitlines() == [
        "sbatch --parsable script.sh",
        "sbatch --parsable --dependency=afterok:7:8 --array=1,4%2 script.sh",
    ]
    answers(sbatch={"": (1, "", "sbatch: error: Batch job submission failed: Invalid qos specification\n")})
    with pytest.raises(LaunchError, match=r"^sbatch: Batch job submission failed: Invalid qos specification; nothing"):
        Slurm().submit(job, LAUNCH)


def test_a_submission_whose_answer_is_lost(answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "Socket timed out on send/recv operation"
    answers(sbatch={"": (1, "", f"sbatch: error: Batch job submission failed: {said}\n")})
    with pytest.raises(NoAnswerError, match=f"^sbatch: Batch job submission failed: {said}$"):
        Slurm().submit(JobDirectory(tmp_path), LAUNCH)

    def hangs(command: list[str], *, timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(base.subprocess, "run", hangs)
    with pytest.raises(NoAnswerError, match=r"^sbatch: no answer within 120 s$"):
        Slurm().submit(JobDirectory(tmp_path), LAUNCH)


def test_submissions_that_nobody_noted_are_found_by_name_and_directory(answers: Answers, tmp_path: Path) -> None:
    here = {"name": "air", "current_working_directory": str(tmp_path / "air")}
    jobs = [
        row(9, "PENDING", **here),
        row(12, "RUNNING", array_job_id=11, array_task_id=0, **here),
        row(13, "COMPLETED", **here),
        row(14, "RUNNING", name="air", current_working_directory="/elsewhere"),
    ]
    answers(squeue={"": printed(*jobs)})
    assert Slurm().unnoted(JobDirectory(tmp_path / "air")) == ["9", "11"]
    answers(squeue={"": DOWN})
    with pytest.raises(NoAnswerError):
        Slurm().unnoted(JobDirectory(tmp_path / "air"))


def test_variables_do_not_win_over_the_script() -> None:
    profile = {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_JOB_ID": "1",
        "SBATCH_PARTITION": "theirs",
        "SBATCH_ACCOUNT": "default",
        "RANK": "3",
        "SBATCH_OUTPUT": "x",
    }
    kept = environment_of(LaunchConfig(launcher="slurm", partition="gpu"), profile)
    assert kept == {"PATH": "/bin", "SLURM_CONF": "/etc/slurm.conf", "SBATCH_ACCOUNT": "default"}


def known(answers: Answers, test_only: tuple[int, str, str] = (0, "", "sbatch: Job 4 to start at ...\n")) -> Path:
    return answers(
        sinfo={"": (0, NODES, "")},
        squeue={"": printed(row(11, "RUNNING"))},
        sacct={"": NO_ACCOUNTS},
        sbatch={"--test-only": test_only},
    )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"partition": "mian"}, "partition: Slurm has no 'mian'; did you mean 'main'?"),
        ({"nodes": 3, "partition": "short"}, "nodes: 3 is more than partition short has: 2"),
        (
            {"nodes": 5, "supervisor": SupervisorConfig(min_nodes=4, spare_nodes=1)},
            "nodes: 4 is more than partition main has: 3",
        ),
        ({"dependency": "afterok:11:12"}, "dependency: Slurm does not know job 12; 'squeue --me'"),
    ],
)
def test_what_sbatch_does_not_explain_is_refused_before(
    answers: Answers, changes: dict[str, object], told: str
) -> None:
    known(answers)
    with pytest.raises(LaunchError) as error:
        Slurm().check(LaunchConfig(launcher="slurm", **changes))  # type: ignore[arg-type]
    assert str(error.value).startswith(told)


@pytest.mark.parametrize(
    "changes",
    [
        {"nodes": 2, "partition": "short", "dependency": "afterok:11"},
        {"nodes": 3, "supervisor": SupervisorConfig(spare_nodes=1)},  # a spare one if there is one
        {"nodes": 4, "supervisor": SupervisorConfig(min_nodes=3)},
    ],
)
def test_what_can_be_passes(answers: Answers, changes: dict[str, object]) -> None:
    known(answers)
    Slurm().check(LaunchConfig(launcher="slurm", **changes))  # type: ignore[arg-type]


def test_a_cluster_without_a_default_partition(answers: Answers) -> None:
    known(answers)
    answers(sinfo={"": (0, "gpu|node1\n", "")})
    with pytest.raises(LaunchError, match="partition: Slurm has no default one, so pass --partition"):
        Slurm().check(LAUNCH)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Invalid qos specification", "sbatch rejects this job: Invalid qos specification"),
        (
            "Requested node configuration is not available",
            "sbatch rejects this job: Requested node configuration is not available; 'sinfo --Node --long' shows what",
        ),
    ],
)
def test_slurm_has_the_last_word(answers: Answers, said: str, told: str) -> None:
    known(answers, (1, "", f"allocation failure: {said}\n"))
    with pytest.raises(LaunchError) as error:
        Slurm().check(LAUNCH)
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
        ("infinite", float("inf")),
    ],
)
def test_times(text: str, expected: float) -> None:
    assert seconds(text) == expected


def test_amounts() -> None:
    assert [megabytes(text) for text in ("64G", "1T", "500", "1500K")] == [65_536, 1_048_576, 500, 2]
    assert hours_minutes_seconds("1-12:30") == "36:30:00"


def test_the_programs_of_this_test_are_asked(answers: Answers) -> None:
    """That recorded answers are what is read, not a Slurm that this machine has."""
    answers(squeue={"": (0, "recorded", "")})
    done = subprocess.run(["squeue"], env=os.environ, capture_output=True, text=True, check=True)
    assert done.stdout == "recorded"
