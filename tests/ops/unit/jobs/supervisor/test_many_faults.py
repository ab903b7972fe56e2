"""Thousands of random faults against the loop, with ranks that end as told: what holds whatever happens.

The world of a test decides by its seed which rank fails of what, which nodes go and come back, and when all faults
stop. It knows the truth, the supervisor does not; what the supervisor does is compared with it afterwards.
"""

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from glmforge.observe.job_records import Cause, JobDirectory
from glmforge_ops.jobs.ranks.assignment import Assignment
from glmforge_ops.jobs.supervisor.nodes import Ledger
from glmforge_ops.jobs.supervisor.supervise import Supervisor
from helpers.fake_starter import Ends, FakeAllocation, FakeStarter, a_job

STEPS = 200
GLOO = ["RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:4711"]
FAULTS = ("kill", "crash", "error", "lost", "followers", "full", "gpu", "orphan", "gave way", "hang")


@dataclass
class World:
    """What happens, and what is true.

    Attributes:
        bad: a node on which every start fails; None if there is none.
        bug: the step at which the program fails wherever it runs; None if it has no bug.
    """

    seed: int
    allocation: FakeAllocation
    faults: int
    bad: str | None = None
    bug: int | None = None
    done: int = 0
    steps: list[int] = field(default_factory=list)
    blamed: Counter[str] = field(default_factory=Counter)
    at_bug: int = 0
    started: list[tuple[str, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def __call__(self, ranks: Assignment, number: int) -> dict[int, Ends]:
        self.started.append(tuple(ranks.nodes))
        assert not set(ranks.nodes) & self.allocation.gone.keys(), "a node that does not answer was chosen"
        begin = self.done - self.done % 10  # the last checkpoint
        made = self.random.choice([0, 1, 7, 30])
        if self.bug is not None and (begin + made >= self.bug or self.faults <= 0):
            self.at_bug += 1
            return self._ends(ranks, self.bug, {0: Ends(1, ["Traceback (most recent call last):", "KeyError: 'bug'"])})
        if self.bad in ranks.nodes:
            self.blamed[self.bad or ""] += 1
            return self._ends(ranks, begin, {ranks.nodes.index(self.bad or ""): Ends(-9)})
        if self.faults <= 0:
            self.done = STEPS
            return self._ends(ranks, STEPS, {}, Ends(0))
        self.faults -= 1
        self.done = min(begin + made, STEPS - 1)
        return self._fault(ranks, number)

    def _fault(self, ranks: Assignment, number: int) -> dict[int, Ends]:
        what, rank = self.random.choice(FAULTS), self.random.randrange(ranks.world_size)
        node = ranks.nodes[rank]
        self._nodes_come_and_go()
        match what:
            case "kill" | "orphan":
                self.blamed[node] += 1
                return self._ends(ranks, self.done, {rank: Ends(-9 if what == "kill" else None)})
            case "crash":
                self.blamed[node] += 1
                return self._ends(ranks, self.done, {rank: Ends(-11, [f"Fatal Python error: number {number}"])})
            case "gpu":
                self.blamed[node] += 1
                return self._ends(ranks, self.done, {rank: Ends(1, ["RuntimeError: uncorrectable ECC error"])})
            case "lost":
                self.allocation.gone[node] = "does not answer"
                self.blamed[node] += 1
                return self._ends(ranks, self.done, {rank: Ends(None)})
            case "followers":
                return self._ends(ranks, self.done, {})
            case "full":
                return self._ends(ranks, self.done, {}, Ends(1, ["OSError: No space left on device"]))
            case "gave way":
                return self._ends(ranks, self.done, {}, Ends(75))
            case "hang":
                return self._ends(ranks, self.done, {}, Ends(124))
            case _:
                return self._ends(ranks, self.done, {rank: Ends(1, [f"ValueError: sample {number} is odd"])})

    def _nodes_come_and_go(self) -> None:
        for node in list(self.allocation.gone):
            if self.random.random() < 0.7:
                del self.allocation.gone[node]

    def _ends(self, ranks: Assignment, step: int, ends: dict[int, Ends], others: Ends | None = None) -> dict[int, Ends]:
        self.steps.append(step)
        for rank in range(ranks.world_size):
            end = ends.setdefault(rank, Ends(**vars(others or Ends(1, GLOO, 2.0))))
            end.step = step
        return ends


class Returns(FakeAllocation):
    """Nodes that are gone come back when it is asked often enough."""

    def lost(self, nodes: object) -> dict[str, str]:
        self.asked = getattr(self, "asked", 0) + 1
        if self.asked % 5 == 0:
            self.gone.clear()
        return dict(super().lost(nodes))  # type: ignore[arg-type]


def play(tmp_path: Path, seed: int, faults: int = 20, **world: object) -> tuple[int, World, JobDirectory]:
    rng = random.Random(seed)
    names = tuple("abcdef"[: rng.randint(3, 6)])
    wanted = rng.randint(2, len(names) - 1)
    options = {
        "min_nodes": rng.randint(1, wanted),
        "max_nodes": rng.choice([None, len(names)]),
        "max_restarts": 5,
        "node_failures": 3,
        "back_off_s": 0.001,
        "node_back_after_s": None,
    }
    job = a_job(tmp_path, nodes=wanted, supervisor=options)
    allocation = Returns(names)
    acted = World(seed, allocation, faults, **world)  # type: ignore[arg-type]
    status = Supervisor(job, FakeStarter(acted), allocation, wait_s=0.0).run()
    return status, acted, job


def check_what_always_holds(job: JobDirectory, world: World, status: int) -> None:
    config = job.read().launch
    least, most = config.supervisor.min_nodes or config.nodes, config.supervisor.max_nodes or config.nodes
    out: set[str] = set()
    made_nothing = 0
    starts = iter(world.started)
    for event in job.read_events():
        match event["event"]:
            case "node out":
                assert world.blamed[event["node"]] >= 3 or event["node"] == world.bad
                out.add(event["node"])
            case "attempt started":
                chosen = next(starts)
                assert not out & set(chosen), "a node that is out was chosen"
                assert least <= len(chosen) <= most
                assert made_nothing <= config.supervisor.max_restarts, "the bound of restarts is exceeded"
            case "attempt ended":
                moved = (event["last_step"] or 0) > (event["first_step"] or 0)
                made_nothing = 0 if moved else made_nothing + 1
            case "verdict":
                made_nothing = 0 if event["cause"] == Cause.PREEMPTED else made_nothing
    assert out == Ledger.read(job).out.keys()
    failures = Counter(
        attempt.verdict.node for attempt in job.read_attempts() if attempt.verdict and attempt.verdict.node is not None
    )
    assert all(count <= 3 for count in failures.values()), "a node was used after it had failed thrice"
    assert failures.keys() <= world.blamed.keys(), "a node was blamed that had done nothing"
    last = [event for event in job.read_events() if event["event"] == "decided"][-1]
    assert (last["do"], status) in {("done", 0), ("stop", 1)}


@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens(tmp_path: Path, seed: int) -> None:
    status, world, job = play(tmp_path, seed)
    check_what_always_holds(job, world, status)
    if status == 0:
        assert world.done == STEPS
        assert world.faults == 0
    else:
        why = [event for event in job.read_events() if event["event"] == "decided"][-1]["why"]
        assert "can be used" in why or "in a row" in why, why


@pytest.mark.parametrize("seed", range(2))
def test_a_job_ends_well_when_faults_stop(tmp_path: Path, seed: int) -> None:
    """Few enough that no bound is reached."""
    status, world, job = play(tmp_path, 100 + seed, faults=4)
    check_what_always_holds(job, world, status)
    assert status == 0


@pytest.mark.parametrize("seed", range(2))
def test_a_bug_stops_the_job_at_its_second_attempt(tmp_path: Path, seed: int) -> None:
    status, world, job = play(tmp_path, 200 + seed, faults=3, bug=20)
    check_what_always_holds(job, world, status)
    assert status == 1
    assert world.at_bug == 2
    assert job.read_attempts()[-1].verdict is not None
    assert "KeyError: 'bug'" in [event for event in job.read_events() if event["event"] == "decided"][-1]["why"]


@pytest.mark.parametrize("seed", range(2))
def test_a_bad_node_is_out_after_three_failures(tmp_path: Path, seed: int) -> None:
    status, world, job = play(tmp_path, 300 + seed, faults=0, bad="a")
    check_what_always_holds(job, world, status)
    assert world.blamed["a"] <= 3
    if any("a" not in nodes for nodes in world.started):
        assert status == 0


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(1000, 1150))
def test_thousands_of_faults(tmp_path: Path, seed: int) -> None:
    status, world, job = play(tmp_path, seed, faults=40)
    check_what_always_holds(job, world, status)
