"""A starter whose ranks end as a test says, a place to run that answers as a test says, and a job for both."""

import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

from glmforge.config.launch import LaunchConfig, SupervisorConfig
from glmforge.errors import HostError
from glmforge.observe.job_records import AttemptDirectory, JobDescription, JobDirectory, RankRecord, utc_now
from glmforge_ops.jobs.new_job import create_job
from glmforge_ops.jobs.ranks.assignment import Assignment


@dataclass
class Ends:
    """How a rank ends: its status, its last words, and how long after the start. `None`: it leaves no end."""

    status: int | None = 0
    words: list[str] = field(default_factory=list)
    after_s: float = 1.0
    step: int | None = None


NO_PROCESS = 2**22 + 1
"""No process has this number."""

Script = Callable[[Assignment, int], Mapping[int, Ends]]
"""From the ranks and the attempt's number to the ends of ranks; those that are not named end with status 0."""


class FakeRunning:
    def __init__(self, status: int | None, on_signal: Callable[[signal.Signals], int] | None = None) -> None:
        self.status, self.on_signal = status, on_signal
        self.signals: list[signal.Signals] = []
        self.killed = False

    def poll(self) -> int | None:
        return self.status

    def signal(self, number: signal.Signals) -> None:
        self.signals.append(number)
        if self.on_signal is not None:
            self.status = self.on_signal(number)

    def kill(self) -> None:
        self.killed = True
        if self.status is None:
            self.status = -signal.SIGKILL


@dataclass
class FakeStarter:
    """Writes the records of ranks at once, as if they had run and ended."""

    script: Script
    started: list[Assignment] = field(default_factory=list)
    name: str = "fake"

    @property
    def nodes(self) -> list[str]:
        """Of each attempt, each node a letter."""
        return ["".join(ranks.nodes) for ranks in self.started]

    def start(self, attempt: AttemptDirectory, ranks: Assignment) -> FakeRunning:
        self.started.append(ranks)
        number = int(attempt.root.name)
        ends = self.script(ranks, number)
        began = utc_now()
        status = 0
        for rank in range(ranks.world_size):
            end = ends.get(rank, Ends())
            node = ranks.nodes[rank // ranks.ranks_per_node]
            write_rank(attempt.root, rank, node, end, began, ranks.ranks_per_node)
            status = status or (end.status if end.status is not None else 1)
        return FakeRunning(status)


def write_rank(root: Path, rank: int, node: str, end: Ends, began: datetime, per_node: int = 1) -> None:
    RankRecord(
        rank=rank,
        local_rank=rank % per_node,
        node=node,
        host=node,
        pid=NO_PROCESS,
        began=began,
        ended=None if end.status is None else began + timedelta(seconds=end.after_s),
        status=end.status,
        last_step=end.step,
        last_words=end.words,
    ).write(root / f"rank-{rank:05d}.json")


@dataclass
class FakeAllocation:
    """`gone` are the nodes that do not answer; `down`: the questions for them, counted from 1, that nobody answers."""

    names: tuple[str, ...]
    submission: str = "17"
    restart: int = 0
    can_requeue: bool = False
    is_given: bool = False
    ask_s: float = 15.0
    gone: dict[str, str] = field(default_factory=dict)
    requeued: list[list[str]] = field(default_factory=list)
    drained: dict[str, str | None] = field(default_factory=dict)
    ours: bool = True
    again: bool = False
    """The scheduler has queued the job again."""
    down: range = range(0)
    asked: int = 0

    def nodes(self) -> tuple[str, ...]:
        return self.names

    def lost(self, nodes: Sequence[str]) -> Mapping[str, str]:
        self.asked += 1
        if self.asked in self.down:
            raise HostError("'scontrol' fails: Unable to contact slurm controller; is slurmctld up?")
        return {node: why for node, why in self.gone.items() if node in nodes}

    def address(self, node: str) -> str:
        return "127.0.0.1"

    def still_ours(self) -> bool:
        return self.ours

    def queued_again(self) -> bool:
        return self.again

    def requeue(self, without: Iterable[str]) -> None:
        self.requeued.append(list(without))

    def drain(self, node: str, reason: str | None) -> None:
        self.drained[node] = reason


def a_job(
    root: Path,
    *,
    kind: Literal["train", "script", "stage"] = "script",
    run: Path | None = None,
    command: Sequence[str] = ("true",),
    **options: object,
) -> JobDirectory:
    """A job of a launcher with nodes; `supervisor` holds options of the supervisor."""
    supervisor = {"back_off_s": 0.0, "node_back_after_s": None, **options.pop("supervisor", {})}  # type: ignore[dict-item]
    launch = LaunchConfig(
        **{"launcher": "ssh", "hosts": ["fake"], "supervisor": SupervisorConfig(**supervisor), **options}  # type: ignore[arg-type]
    )
    job = JobDirectory(root / "jobs" / "job")
    create_job(
        job,
        JobDescription(
            name="job", kind=kind, command=list(command), directory=root, run=run, created=utc_now(), launch=launch
        ),
        "the name is taken",
    )
    return job
