"""What Slurm's commands answer, and what the supervisor makes of it."""

from pathlib import Path

import pytest

from glmforge.errors import HostError, LaunchError
from glmforge_ops.jobs.supervisor.allocation import SlurmAllocation


def answers(monkeypatch: pytest.MonkeyPatch, root: Path, **programs: str) -> None:
    """Programs of these names that run these lines of shell."""
    for name, lines in programs.items():
        path = root / name
        path.write_text(f"#!/bin/sh\n{lines}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{root}:/usr/bin:/bin")


def job_is(state: str, restarts: int) -> str:
    """What `squeue` does for a job in this state."""
    return f"printf '%-20s%-20s\\n' {state} {restarts}"


NODES = """cat <<END
NodeName=a State=IDLE+DRAIN NodeAddr=1
NodeName=b State=DOWN*+NOT_RESPONDING NodeAddr=2
NodeName=c State=MIXED* NodeAddr=3
NodeName=d State=ALLOCATED NodeAddr=4
NodeName=e State=DOWN NodeAddr=5
NodeName=f State=IDLE+NOT_RESPONDING NodeAddr=6
END"""


def test_nodes_that_are_lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers(monkeypatch, tmp_path, scontrol=NODES)
    assert SlurmAllocation("7", 0, ()).lost(["a", "b", "c", "d"]) == {
        "b": "Slurm says DOWN*+NOT_RESPONDING",
        "c": "Slurm says MIXED*",
    }
    assert set(SlurmAllocation("7", 0, ()).lost(["a", "d", "e", "f"])) == {"e", "f"}
    answers(monkeypatch, tmp_path, scontrol="exit 1")
    assert SlurmAllocation("7", 0, ()).lost([]) == {}, "and nobody is asked"


def test_a_node_that_was_taken_from_the_job_is_no_longer_its(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers(monkeypatch, tmp_path, squeue="echo 'n[1,3]'", scontrol="echo n1; echo n3")
    allocation = SlurmAllocation("7", 0, ("n1", "n2", "n3"))
    assert allocation.nodes() == ("n1", "n3")


def test_a_controller_that_is_down_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers(monkeypatch, tmp_path, squeue="echo slurm_load_jobs error >&2; exit 1", scontrol="exit 1")
    allocation = SlurmAllocation("7", 0, ("n1", "n2"))
    assert allocation.nodes() == ("n1", "n2")
    assert allocation.still_ours()
    assert not allocation.queued_again()


@pytest.mark.parametrize(
    ("state", "restarts", "ours"),
    [("RUNNING", 2, True), ("COMPLETING", 2, False), ("CANCELLED", 2, False), ("COMPLETING", 3, True)],
)
def test_whether_the_job_may_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state: str, restarts: int, ours: bool
) -> None:
    """One that somebody has requeued is on its way out as well, and comes back."""
    answers(monkeypatch, tmp_path, squeue=job_is(state, restarts))
    allocation = SlurmAllocation("7", 2, ("n1",))
    assert allocation.still_ours() is ours
    assert allocation.queued_again() is (restarts > 2)


def test_what_somebody_wants_listed_by_default_hides_no_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Wishes in a profile come along into the job, and squeue would print nothing of it."""
    listed = """case "$*" in *State*) printf '%-20s%-20s\\n' RUNNING 1;; *%N*) echo n1;; esac"""
    answers(
        monkeypatch,
        tmp_path,
        squeue=f"if env | grep -q ^SQUEUE_; then exit 0; fi\n{listed}",
        scontrol="echo n1",
    )
    monkeypatch.setenv("SQUEUE_STATES", "PENDING")
    allocation = SlurmAllocation("7", 1, ("n1", "n2"))
    assert allocation.still_ours()
    assert allocation.nodes() == ("n1",)


class Ended(Exception):
    """In place of the end of the process."""


class Clock:
    """Goes on by what is slept; the process ends in a wait of minutes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("glmforge_ops.jobs.supervisor.allocation.time", self)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        if seconds > 60:
            raise Ended
        self.now += seconds


@pytest.mark.parametrize(("nodes", "told"), [(["n2", "n1"], "n1,n2"), ([], "")])
def test_a_requeued_job_leaves_out_these_nodes_and_no_others(
    nodes: list[str], told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Slurm takes the list of a job that waits only, so not before the requeue, and perhaps not at once after it."""
    log, waits = tmp_path / "log", tmp_path / "waits"
    answers(
        monkeypatch,
        tmp_path,
        squeue=job_is("RUNNING", 0),
        scontrol=f"""echo "$*" >> {log}
        [ "$1" = requeue ] && exit 0
        [ -e {waits} ] || {{ touch {waits}; echo 'Job is no longer pending execution' >&2; exit 1; }}""",
    )
    clock = Clock(monkeypatch)
    with pytest.raises(Ended):
        SlurmAllocation("7", 0, ("n1", "n2")).requeue(nodes)
    assert clock.now < 60
    asked = log.read_text().splitlines()
    assert asked == ["requeue 7", *[f"update JobId=7 ExcNodeList={told}"] * 2]


def test_a_job_that_somebody_else_has_requeued_is_not_requeued_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """That would end the next start. It waits to be ended as after a requeue of its own."""
    log = tmp_path / "log"
    answers(monkeypatch, tmp_path, squeue=job_is("COMPLETING", 1), scontrol=f'echo "$*" >> {log}')
    Clock(monkeypatch)
    with pytest.raises(Ended):
        SlurmAllocation("7", 0, ("n1",)).requeue(["n1"])
    assert log.read_text().splitlines() == ["update JobId=7 ExcNodeList=n1"]


def test_a_requeue_whose_answer_was_lost_is_asked_for_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nor while Slurm does not say whether it has been done."""
    log, asked, silent = tmp_path / "log", tmp_path / "asked", tmp_path / "silent"
    answers(
        monkeypatch,
        tmp_path,
        squeue=f"""if [ -e {silent} ]; then rm {silent}; exit 1; fi
        if [ -e {asked} ]; then {job_is("PENDING", 1)}; else {job_is("RUNNING", 0)}; fi""",
        scontrol=f"""echo "$*" >> {log}
        [ "$1" = update ] || {{ touch {asked} {silent}; echo 'Connection timed out' >&2; exit 1; }}""",
    )
    Clock(monkeypatch)
    with pytest.raises(Ended):
        SlurmAllocation("7", 0, ("n1",)).requeue([])
    assert log.read_text().splitlines() == ["requeue 7", "update JobId=7 ExcNodeList="]


def test_a_controller_that_hangs_is_given_up_after_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    def hangs(*_: str, **__: object) -> str:
        clock.now += 30
        raise HostError("no answer within 30 s")

    monkeypatch.setattr("glmforge_ops.jobs.supervisor.allocation.ask_slurm", hangs)
    with pytest.raises(LaunchError, match="scontrol requeue"):
        SlurmAllocation("7", 0, ("n1",)).requeue([])
    assert 3600 <= clock.now < 3700
