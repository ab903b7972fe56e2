"""Attempts of which no rank was started: what no other start mends stops the job, the rest is tried again."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from glmforge.errors import LaunchError
from glmforge.observe.job_records import Cause, JobDirectory, utc_now
from glmforge_ops.jobs.starters.base import Ranks, SilentNodeError
from glmforge_ops.jobs.supervisor.policy.ledger import Ledger
from glmforge_ops.jobs.supervisor.supervise import Supervisor
from glmforge_ops.jobs.supervisor.verdict.errors import may_start_later, read_starter
from helpers.fake_starter import FakeAllocation, FakeRunning, FakeStarter, a_job

ROOT = "mpirun refuses to run as root: launch as another user, or set OMPI_ALLOW_RUN_AS_ROOT=1"
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

    def start(self, ranks: Ranks) -> FakeRunning:
        self.started.append(ranks)
        if isinstance(self.said, LaunchError):
            raise self.said
        (ranks.directory.root / "starter.log").write_text("\n".join(self.said) + "\n")
        return FakeRunning(1)


def last_decision(job: JobDirectory) -> str:
    return str([event for event in job.read_events() if event["event"] == "decided"][-1]["why"])


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (LaunchError(ROOT), "refuses to run as root"),
        (OPTION, "unrecognized option '--frobnicate'"),
        (PYTHON, "/opt/python: No such file or directory"),
        (KEY, "Host key verification failed"),
    ],
)
def test_what_no_other_start_mends_stops_at_the_second(
    tmp_path: Path, said: list[str] | LaunchError, words: str
) -> None:
    job, starter = a_job(tmp_path, nodes=2), Refused(said)
    assert Supervisor(job, starter, FakeAllocation(("node1", "node2")), wait_s=0.0).run() == 1
    assert len(starter.started) == 2
    for part in (words, "the same error before any step as in attempt 1", "mend it"):
        assert part in last_decision(job)


@pytest.mark.parametrize(
    "said",
    [
        LaunchError("node1: has not answered within 30 s; look at it, or exclude it"),
        ["srun: error: Unable to confirm allocation for job 7: Unable to contact slurm controller (connect failure)"],
        ["srun: error: Unable to create step for job 7: Job/step already completing or completed, try again"],
        ["ssh: connect to host node2 port 22: No route to host"],
        LaunchError("node4: srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 2"),
        ["srun: error: Unable to create step for job 2: Requested node configuration is not available"],
        ["srun: error: Unable to create step for job 2: Required node not available (down, drained or reserved)"],
        ["srun: error: Unable to confirm allocation for job 2: Invalid job id specified"],
        ["srun: error: Unable to create step for job 2: Zero Bytes were transmitted or received"],
        ["srun: error: Unable to create step for job 2: Protocol authentication error"],
        [
            "srun: error: Task launch for StepId=31.0 failed on node n2: Invalid job credential",
            "srun: error: Application launch failed: Invalid job credential",
            "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
        ],
        LaunchError("'srun' cannot be started: Cannot allocate memory"),
        LaunchError("/jobs/a/attempts/0007: cannot be written to (Disk quota exceeded)"),
        [],
    ],
)
def test_what_may_be_over_in_a_moment_is_tried_again(tmp_path: Path, said: list[str] | LaunchError) -> None:
    job, starter = a_job(tmp_path, nodes=2, supervisor={"max_restarts": 3}), Refused(said)
    assert Supervisor(job, starter, FakeAllocation(("node1", "node2")), wait_s=0.0).run() == 1
    assert len(starter.started) == 4
    assert "attempts in a row made no step" in last_decision(job)


class Asked(FakeStarter):
    """Some nodes fail to tell where ranks meet."""

    def __init__(self, failures: Mapping[str, LaunchError]) -> None:
        super().__init__(lambda ranks, number: {})
        self.failures, self.asked = failures, list[str]()

    def ask(self, node: str, words: Sequence[str]) -> str:
        self.asked.append(node)
        if node in self.failures:
            raise self.failures[node]
        return super().ask(node, words)


NODES = ("node1", "node2", "node3")
SILENT = SilentNodeError("node1", "has not answered within 30 s; look at it, or exclude it")


@pytest.mark.parametrize(("gone", "cause"), [({}, Cause.MACHINE), ({"node1": "Slurm says DOWN*"}, Cause.NODE_LOST)])
def test_a_spare_takes_the_place_of_a_first_node_that_does_not_answer(
    tmp_path: Path, gone: dict[str, str], cause: Cause
) -> None:
    """`gone` only once it was asked."""
    place = FakeAllocation(NODES)

    class Noticed(Asked):
        def ask(self, node: str, words: Sequence[str]) -> str:
            place.gone = gone
            return super().ask(node, words)

    job, starter = a_job(tmp_path, nodes=2, supervisor={"spare_nodes": 1}), Noticed({"node1": SILENT})
    assert Supervisor(job, starter, place, wait_s=0.0).run() == 0
    assert [ranks.nodes for ranks in starter.started] == [("node2", "node3")]
    verdict = job.read_attempts()[0].verdict
    assert verdict is not None
    assert (verdict.cause, verdict.node) == (cause, "node1")
    assert Ledger.read(job).failures("node1", utc_now()) == 1


def test_a_first_node_that_does_not_answer_is_checked_and_after_three_times_out(tmp_path: Path) -> None:
    checked: list[str] = []

    def check(nodes: Sequence[str]) -> Mapping[str, str]:
        checked.extend(nodes)
        return {}

    job = a_job(tmp_path, nodes=2, supervisor={"min_nodes": 1, "max_restarts": 9})
    starter = Asked({"node1": SILENT})
    assert Supervisor(job, starter, FakeAllocation(NODES[:2]), checker=check, wait_s=0.0).run() == 0
    assert starter.asked[:4] == ["node1"] * 3 + ["node2"]
    assert checked == ["node1"] * 3
    assert "3 failures" in Ledger.read(job).out()["node1"].reason


def test_a_node_that_does_not_answer_and_fails_its_check_is_out_at_once(tmp_path: Path) -> None:
    job, starter = a_job(tmp_path, nodes=2, supervisor={"spare_nodes": 1}), Asked({"node1": SILENT})
    check = {"node1": "Xid 79"}
    assert Supervisor(job, starter, FakeAllocation(NODES), checker=lambda _: check, wait_s=0.0).run() == 0
    assert "Xid 79" in Ledger.read(job).out()["node1"].reason


def test_no_node_is_blamed_while_the_scheduler_does_not_answer(tmp_path: Path) -> None:
    """What starts ranks waits for it as well."""
    job, starter = a_job(tmp_path, nodes=2, supervisor={"max_restarts": 0}), Asked({"node1": SILENT})
    place = FakeAllocation(NODES, down=range(2, 3))  # after the attempt
    assert Supervisor(job, starter, place, wait_s=0.0).run() == 1
    assert place.asked >= 2
    assert not Ledger.read(job).nodes


@pytest.mark.parametrize(
    "failure",
    [
        LaunchError("node1: python: error: unknown option --frobnicate"),
        SilentNodeError("node1", "its host key is not known; compare it and add it to known_hosts"),
    ],
)
def test_what_asking_another_time_does_not_mend_stops_at_the_second(tmp_path: Path, failure: LaunchError) -> None:
    job, starter = a_job(tmp_path, nodes=2), Asked({"node1": failure})
    assert Supervisor(job, starter, FakeAllocation(NODES), wait_s=0.0).run() == 1
    assert starter.asked == ["node1", "node1"]
    for part in (str(failure).partition(": ")[2], "the same error before any step as in attempt 1"):
        assert part in last_decision(job)


def test_the_telling_line_of_a_starter() -> None:
    assert read_starter(PYTHON) == PYTHON[0]
    assert read_starter(["Warning: Permanently added 'node2'.", "all is well"]) == ""


@pytest.mark.parametrize(
    ("line", "later"),
    [
        ("ssh: Could not resolve hostname node9: Name or service not known", False),
        ("node2: it refuses the key; add the public key there: glmforge cluster setup", False),
        ("there is no 'srun' on this machine; choose another --starter", False),
        ("srun: error: Invalid --distribution specification", False),
        ("ssh: connect to host node2 port 22: Connection timed out", True),
        ("srun: error: Task launch for StepId=7.0 failed on node node2: Communication connection failure", True),
        ("srun: error: Unable to create step for job 7: Requested nodes are busy", True),
        ("srun: error: Unable to create step for job 7: Memory required by task is not available", True),
        ("slurmstepd: error: *** STEP 7.0 ON node1 CANCELLED AT 2026-01-01T00:00:00 DUE TO NODE FAILURE ***", True),
    ],
)
def test_which_errors_pass(line: str, later: bool) -> None:
    assert may_start_later(line) is later
