"""Attempts of which no rank was started."""

from pathlib import Path

import pytest

from glmforge.errors import LaunchError
from glmforge.observe.job_records import AttemptDirectory, Cause, JobDirectory
from glmforge_ops.jobs.ranks.assignment import Assignment
from glmforge_ops.jobs.supervisor.supervise import Supervisor
from helpers.fake_starter import FakeAllocation, FakeRunning, FakeStarter, a_job

ROOT = "there is no 'srun' on this machine; install it, or choose another starter"
OPTION = ["srun: unrecognized option '--frobnicate'", 'Try "srun --help" for more information']
PYTHON = [
    "0: slurmstepd: error: execve(): /opt/python: No such file or directory",
    "srun: error: node2: task 0: Exited with exit code 2",
]
KEY = [
    "No ED25519 host key is known for node2 and you have requested strict checking.",
    "Host key verification failed.",
]


class Refused(FakeStarter):
    """Starts nothing: it says why in its log, or at once."""

    def __init__(self, said: list[str] | LaunchError) -> None:
        super().__init__(lambda ranks, number: {})
        self.said = said

    def start(self, attempt: AttemptDirectory, ranks: Assignment) -> FakeRunning:
        self.started.append(ranks)
        if isinstance(self.said, LaunchError):
            raise self.said
        (attempt.root / "starter.log").write_text("\n".join(self.said) + "\n")
        return FakeRunning(1)


def last_decision(job: JobDirectory) -> str:
    return str([event for event in job.read_events() if event["event"] == "decided"][-1]["why"])


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (LaunchError(ROOT), "there is no 'srun'"),
        (OPTION, "unrecognized option '--frobnicate'"),
        (PYTHON, "/opt/python: No such file or directory"),
        (KEY, "Host key verification failed"),
        ([], "no rank was started"),
    ],
)
def test_a_start_that_fails_is_tried_again_and_not_for_ever(
    tmp_path: Path, said: list[str] | LaunchError, words: str
) -> None:
    job, starter = a_job(tmp_path, nodes=2, supervisor={"max_restarts": 3}), Refused(said)
    assert Supervisor(job, starter, FakeAllocation(("node1", "node2")), wait_s=0.0).run() == 1
    assert len(starter.started) == 4
    for part in (words, "4 attempts in a row made no step"):
        assert part in last_decision(job)


def test_a_spare_takes_the_place_of_a_node_on_which_srun_starts_nothing(tmp_path: Path) -> None:
    class RefusedOnOne(Refused):
        def start(self, attempt: AttemptDirectory, ranks: Assignment) -> FakeRunning:
            starts = super().start if "node1" in ranks.nodes else super(Refused, self).start
            return starts(attempt, ranks)

    said = ["srun: error: Task launch for StepId=31.0 failed on node node1: Invalid job credential"]
    job, starter = a_job(tmp_path, nodes=2, supervisor={"spare_nodes": 1}), RefusedOnOne(said)
    assert Supervisor(job, starter, FakeAllocation(("node1", "node2", "node3")), wait_s=0.0).run() == 0
    assert [ranks.nodes for ranks in starter.started] == [["node1", "node2"], ["node2", "node3"]]
    verdict = job.read_attempts()[0].verdict
    assert verdict is not None
    assert (verdict.cause, verdict.node) == (Cause.MACHINE, "node1")


def test_nodes_that_lead_nowhere_are_no_place_to_meet(tmp_path: Path) -> None:
    class Lost(FakeAllocation):
        def address(self, node: str) -> str:
            raise LaunchError(f"{node}: there is no route to it")

    job, starter = a_job(tmp_path, nodes=2, supervisor={"max_restarts": 0}), Refused([])
    assert Supervisor(job, starter, Lost(("a", "b")), wait_s=0.0).run() == 1
    assert not starter.started
    assert "a: there is no route to it" in last_decision(job)
