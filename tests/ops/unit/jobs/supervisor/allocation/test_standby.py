"""Who looks after the supervisor: neither a busy one nor one on a node that answers is taken for lost."""

import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from glmforge.config import dump_config, load_config
from glmforge.errors import HostError
from glmforge.observe.job_records import SUPERVISOR_LEASE, JobDirectory
from glmforge.observe.record_files import RunFileError
from glmforge.runtime import lease as lease_module
from glmforge.runtime.lease import Lease
from glmforge_ops.jobs.supervisor.allocation import standby as standby_module
from glmforge_ops.jobs.supervisor.allocation.run_lock import RunLock, last_seen
from glmforge_ops.jobs.supervisor.allocation.standby import Standby, StandbyStep
from helpers.fake_starter import a_job


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_silent_supervisor_on_a_node_that_is_lost(tmp_path: Path, is_lost: bool) -> None:
    asked: list[str] = []
    watching = Standby(JobDirectory(tmp_path), lambda node: asked.append(node) or is_lost, silent_s=0.0)  # type: ignore[func-returns-value]
    with Lease(tmp_path, "test", name=SUPERVISOR_LEASE, lease_s=3600):
        assert watching.look("node1") is is_lost
    assert asked == ["node1"]


def test_one_that_gives_signs_of_life(tmp_path: Path) -> None:
    watching = Standby(JobDirectory(tmp_path), lambda node: True, silent_s=3600)
    with Lease(tmp_path, "test", name=SUPERVISOR_LEASE, lease_s=3600):
        assert not watching.look("node1")


def test_a_heartbeat_begins_the_time_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 20))
    monkeypatch.setattr(lease_module.time, "monotonic", lambda: float(next(clock)))
    watching = Standby(JobDirectory(tmp_path), lambda node: True, silent_s=30)
    silent = []
    for number in (1, 2):
        write_claim(tmp_path, "1", f"{number}")
        silent += [watching.is_silent() for _ in range(3)]
    assert silent == [False, False, True] * 2


def test_a_heartbeat_is_that_of_the_newest_supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tenth, and not the ninth, though that is the last in the order of letters."""
    clock = iter(range(0, 1000, 20))
    monkeypatch.setattr(lease_module.time, "monotonic", lambda: float(next(clock)))
    watching = Standby(JobDirectory(tmp_path), lambda node: True, silent_s=30)
    (tmp_path / SUPERVISOR_LEASE).mkdir()
    (tmp_path / SUPERVISOR_LEASE / "x").touch()
    write_claim(tmp_path, "10", "one")
    silent = []
    for number, content in (("9", "one"), ("9", "two"), ("9", "three"), ("10", "two")):
        write_claim(tmp_path, number, content)
        silent.append(watching.is_silent())
    assert silent == [False, False, True, False]


def test_claims_that_cannot_be_read_have_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 20))
    monkeypatch.setattr(lease_module.time, "monotonic", lambda: float(next(clock)))
    watching = Standby(JobDirectory(tmp_path), lambda node: True, silent_s=30)
    write_claim(tmp_path, "1", "one")
    assert not watching.is_silent()
    (tmp_path / SUPERVISOR_LEASE).rename(tmp_path / "away")
    (tmp_path / SUPERVISOR_LEASE).touch()  # no directory
    assert not watching.is_silent()
    assert watching.is_silent()


@dataclass
class Controller:
    """Slurm's, which says where the batch script runs, and does not answer the first requests to requeue."""

    deaf: int = 0
    requeues: int = 0
    answers: threading.Event | None = None
    """Before it is set, nobody is told anything."""

    def ask(self, *words: str) -> str:
        if words[:2] == ("scontrol", "show"):
            assert self.answers is None or self.answers.wait(60)
            return "JobId=17 BatchHost=node1 NumNodes=2"
        assert words == ("scontrol", "requeue", "17")
        self.requeues += 1
        if self.requeues <= self.deaf:
            raise HostError("Unable to contact slurm controller")
        return ""


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Controller:
    controller = Controller()
    monkeypatch.setattr(standby_module, "ask_slurm", controller.ask)
    monkeypatch.setattr(standby_module, "lost_nodes", lambda nodes: dict.fromkeys(nodes, "DOWN"))
    monkeypatch.setattr(standby_module, "_LOOK_S", 0.0)
    monkeypatch.setattr(standby_module, "SILENT_S", 0.0)
    return controller


def test_a_requeue_that_is_not_answered_is_asked_again_and_noted_once(tmp_path: Path, controller: Controller) -> None:
    controller.deaf = 3
    job = a_job(tmp_path)
    standby_module.watch(job, "17")
    assert controller.requeues == 4
    assert [event["event"] for event in job.read_events()] == ["node lost", "requeued"]


def test_who_watches_tells_what_was_seen_of_the_runs_lock(
    tmp_path: Path, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = a_job(tmp_path, kind="train", run=Path("run"))
    job.run_config.write_text(dump_config(load_config("demo")))
    controller.answers, look = threading.Event(), RunLock.look

    def look_and_tell(lock: RunLock) -> None:
        look(lock)
        controller.answers.set()  # type: ignore[union-attr]

    monkeypatch.setattr(RunLock, "look", look_and_tell)
    with Lease(tmp_path / "run", "glmforge train", lease_s=3600):
        standby_module.watch(job, "17")
    (seen,) = last_seen(job)
    assert seen["directory"] == str(tmp_path / "run")


def test_a_run_whose_storage_hangs_does_not_keep_the_job(
    tmp_path: Path, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = a_job(tmp_path, kind="train", run=Path("run"))
    job.run_config.write_text(dump_config(load_config("demo")))
    controller.answers, returns = threading.Event(), threading.Event()

    def hang(lock: RunLock) -> None:
        controller.answers.set()  # type: ignore[union-attr]
        returns.wait(60)

    monkeypatch.setattr(RunLock, "look", hang)
    standby_module.watch(job, "17")
    assert not returns.is_set()
    assert controller.requeues == 1
    assert last_seen(job) == [{}]
    returns.set()


def test_a_full_disk_is_no_reason_to_leave_the_job(
    tmp_path: Path, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: JobDirectory, *_: object, **__: object) -> None:
        raise RunFileError("events.jsonl: cannot be written (No space left on device)")

    job = a_job(tmp_path)
    monkeypatch.setattr(JobDirectory, "event", full)
    standby_module.watch(job, "17")
    assert controller.requeues == 1


def write_claim(root: Path, number: str, content: str) -> None:
    (root / SUPERVISOR_LEASE).mkdir(exist_ok=True)
    (root / SUPERVISOR_LEASE / number.zfill(8)).write_text(content)


@dataclass
class Nodes:
    """Of a job, of which some are lost; standbys on them are processes that wait."""

    names: list[str]
    lost: set[str] = field(default_factory=set)
    started: list[str] = field(default_factory=list)
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def start(self, node: str) -> "subprocess.Popen[bytes]":
        self.started.append(node)
        self.processes.append(subprocess.Popen(["sleep", "1000"]))
        return self.processes[-1]

    def step(self) -> StandbyStep:
        return StandbyStep(
            lambda: self.names, lambda nodes: dict.fromkeys(self.lost & {*nodes}, "down"), self.start, "a"
        )


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    nodes = Nodes(["a", "b", "c"])
    yield nodes
    for process in nodes.processes:
        process.kill()
        process.wait()


def test_a_standby_whose_node_is_lost_is_started_on_another(nodes: Nodes) -> None:
    step = nodes.step()
    step.renew()
    step.renew()
    assert nodes.started == ["c"]
    nodes.lost = {"c"}
    step.renew()
    assert nodes.started == ["c", "b"]
    assert [process.poll() is None for process in nodes.processes] == [False, True]
    step.end()
    assert nodes.processes[1].poll() is not None


def test_a_standby_that_ended_is_started_elsewhere_if_there_is_another_node(nodes: Nodes) -> None:
    step = nodes.step()
    step.renew()
    for expected in ("b", "c"):
        nodes.processes[-1].kill()
        nodes.processes[-1].wait()
        step.renew()
        assert nodes.started[-1] == expected
    nodes.names = ["a", "c"]
    nodes.processes[-1].kill()
    nodes.processes[-1].wait()
    step.renew()
    assert nodes.started == ["c", "b", "c", "c"]


def test_one_that_does_not_end_is_killed(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """srun waits for a node that does not answer."""
    monkeypatch.setattr(standby_module, "_END_S", 0.05)
    deaf = subprocess.Popen(["sh", "-c", "trap '' TERM; echo; while :; do sleep 0.1; done"], stdout=subprocess.PIPE)
    nodes.processes.append(deaf)
    assert deaf.stdout is not None
    deaf.stdout.readline()
    step = StandbyStep(lambda: nodes.names, lambda _: {}, lambda _: deaf, "a")
    step.renew()
    step.end()
    assert deaf.poll() == -signal.SIGKILL
    deaf.stdout.close()


def test_within_the_block_and_not_after_it(nodes: Nodes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started = threading.Event()

    def start(node: str, root: Path) -> "subprocess.Popen[bytes]":
        process = nodes.start(node)
        started.set()
        return process

    monkeypatch.setenv("SLURMD_NODENAME", "a")
    monkeypatch.setattr(standby_module, "lost_nodes", lambda _: {})
    monkeypatch.setattr(standby_module, "_start_on", start)
    with standby_module.standby(tmp_path, nodes.names, lambda: nodes.names):
        assert started.wait(60)
    assert nodes.started == ["c"]
    assert nodes.processes[0].poll() is not None


def test_in_a_job_of_one_node_nobody_is_asked_for_others(tmp_path: Path) -> None:
    with standby_module.standby(tmp_path, ["a"], lambda: ["a"]):
        assert "standby" not in [thread.name for thread in threading.enumerate()]


def test_there_is_no_standby_beside_the_supervisor_itself(nodes: Nodes) -> None:
    nodes.lost = {"b", "c"}
    step = nodes.step()
    step.renew()
    assert nodes.started == []
