"""What Slurm's commands answer, and what the supervisor makes of it."""

from pathlib import Path

import pytest

from glmforge.launch.supervisor.slurm import SlurmAllocation, lost_nodes


def answers(monkeypatch: pytest.MonkeyPatch, root: Path, **programs: str) -> None:
    """Programs of these names that run these lines of shell."""
    for name, lines in programs.items():
        path = root / name
        path.write_text(f"#!/bin/sh\n{lines}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{root}:/usr/bin:/bin")


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
    assert lost_nodes(["a", "b", "c", "d"]) == {"b": "Slurm says DOWN*+NOT_RESPONDING", "c": "Slurm says MIXED*"}
    assert set(lost_nodes(["a", "d", "e", "f"])) == {"e", "f"}
    answers(monkeypatch, tmp_path, scontrol="exit 1")
    assert lost_nodes([]) == {}, "and nobody is asked"


def test_a_node_that_was_taken_from_the_job_is_no_longer_its(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers(monkeypatch, tmp_path, squeue="echo 'n[1,3]'", scontrol="echo n1; echo n3")
    allocation = SlurmAllocation("7", 0, ("n1", "n2", "n3"))
    assert allocation.nodes() == ("n1", "n3")


def test_a_controller_that_is_down_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers(monkeypatch, tmp_path, squeue="echo slurm_load_jobs error >&2; exit 1", scontrol="exit 1")
    allocation = SlurmAllocation("7", 0, ("n1", "n2"))
    assert allocation.nodes() == ("n1", "n2")
    assert allocation.still_ours()
    assert allocation.ends() is None


@pytest.mark.parametrize(
    ("state", "restarts", "ours"),
    [("RUNNING", 2, True), ("COMPLETING", 2, False), ("CANCELLED", 2, False), ("COMPLETING", 3, True)],
)
def test_whether_the_job_may_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state: str, restarts: int, ours: bool
) -> None:
    """One that somebody has requeued is on its way out as well, and comes back."""
    answers(monkeypatch, tmp_path, squeue=f"printf '%-20s%-20s\\n' {state} {restarts}")
    assert SlurmAllocation("7", 2, ("n1",)).still_ours() is ours


def test_a_job_that_is_queued_again_already_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers(
        monkeypatch, tmp_path, squeue="printf '%-20s%-20s\\n' COMPLETING 1", scontrol=f'echo "$1" >>{tmp_path}/asked'
    )
    SlurmAllocation("7", 0, ("n1",)).requeue([])
    assert (tmp_path / "asked").read_text().split() == ["update"]


class Ended(Exception):
    """In place of the end of the process."""


@pytest.mark.parametrize(("nodes", "told"), [(["n2", "n1"], "n1,n2"), ([], "")])
def test_a_requeued_job_leaves_out_these_nodes_and_no_others(
    nodes: list[str], told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Slurm takes the list of a job that waits only, so not before the requeue, and perhaps not at once after it."""
    log, waits = tmp_path / "log", tmp_path / "waits"
    answers(
        monkeypatch,
        tmp_path,
        scontrol=f"""echo "$*" >> {log}
        [ "$1" = requeue ] && exit 0
        [ -e {waits} ] || {{ touch {waits}; echo 'Job is no longer pending execution' >&2; exit 1; }}""",
    )

    def sleep(seconds: float) -> None:
        if seconds > 60:
            raise Ended

    monkeypatch.setattr("time.sleep", sleep)
    with pytest.raises(Ended):
        SlurmAllocation("7", 0, ("n1", "n2")).requeue(nodes)
    asked = log.read_text().splitlines()
    assert asked == ["requeue 7", *[f"update JobId=7 ExcNodeList={told}"] * 2]
