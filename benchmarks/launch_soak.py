"""Whether a launched job bears faults that come by the clock: so many in so many minutes, whatever it is just doing.

    python benchmarks/launch_soak.py                              # 200 within an hour
    python benchmarks/launch_soak.py --faults 20 --minutes 6 --seed 3 --keep /tmp/soak

A tiny model is trained on two nodes of a development cluster of Slurm, with one node to spare; root is needed: they are
hosts in namespaces. Moments and kinds are chosen by chance, without regard for what the job has got over: most
faults strike while it still recovers from the last. Each is mended some seconds later, whether anybody has noticed or
not. In the end all is mended, the run is stopped, and every step's loss compared with a run that nothing happened to.

A kind that finds nothing to strike (no rank runs, the disk is full already) gives way to another. So that the run can
be whole in the end, two checkpoints stay whole, and three nodes up. Writes `results/launch_soak.json`.
"""

import argparse
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launch_faults import compared, directory_of, job_to_strike, stopped
from record import ROOT, write_result

sys.path.insert(0, str(ROOT / "tests"))

from glmforge.checkpoint.format.store import list_checkpoints
from glmforge.errors import HostError
from glmforge.observe.job_records import RankRecord
from helpers.chaos import fill
from helpers.launch_faults import flip_a_bit, has_slurmd, kill_controller, slurmd_of, start_controller, start_slurmd
from helpers.launched import Launched

CODE = ["src/glmforge_ops/jobs", "tests/helpers/launched.py", "tests/helpers/launch_faults.py"]
NODES, FEWEST_NODES = 6, 3
QUIET_STEPS = 5
"""Trained before the first fault and after the last."""
HANG_TIMEOUT_S = 30
# Nodes fail far more often here than one may that is kept, and attempts often end before their first step.
SUPERVISOR = {
    "node_failures": 100_000,
    "max_restarts": 100_000,
    "max_restarts_in_all": 100_000,
    "max_back_off_s": 10.0,
}
MENDED_AFTER_S = (5.0, 60.0)
"""A fault lasts so long, by chance: shorter and longer than it takes to be noticed."""

Mend = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=60.0, help="in which they strike")
    parser.add_argument("--seed", type=int, default=0, help="of chance")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="the job's and Slurm's files stay here")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left behind
    with directory_of(given.keep) as directory:
        content = measure(directory, given.faults, given.minutes * 60, random.Random(given.seed))
    print(
        write_result("launch_soak", content | {"seed": given.seed, "cores": os.cpu_count()}, code=CODE, out=given.out)
    )


def measure(directory: Path, number: int, seconds: float, chance: random.Random) -> dict[str, Any]:
    """Strike and mend: what befell the job, and what became of it."""
    fault_tolerance = {"hang_timeout_s": HANG_TIMEOUT_S}
    with job_to_strike(directory, NODES, SUPERVISOR, fault_tolerance=fault_tolerance) as job:
        soak = Soak(job, chance, directory / "disk")
        soak.endure(sorted(chance.uniform(0, seconds) for _ in range(number)))
        became = stopped(job)
    return {
        "struck": len(soak.struck),
        "minutes": round(seconds / 60, 1),
        "by_kind": dict(Counter(row["fault"] for row in soak.struck).most_common()),
        "during_recovery": sum(row["during"] != "training" for row in soak.struck),
        "attempts_that_trained": len({event["attempt"] for event in job.events("training")}),
        "requeues": max(event["restart"] for event in job.events("supervisor started")),
        "longest_without_a_step_s": round(soak.longest_s),
        "causes": dict(Counter(job.causes()).most_common()),
        **compared(job, became),
        "faults": soak.struck,
    }


@dataclass
class Soak:
    """What befalls a job.

    Attributes:
        struck: each fault: seconds after the first step that counted, its kind, and what the job was doing.
        mends: when each is due, and what it is.
        spoilt: checkpoints that are broken.
        longest_s: time in which no step came.
    """

    job: Launched
    chance: random.Random
    disk: Path
    struck: list[dict[str, Any]] = field(default_factory=list)
    mends: list[tuple[float, Mend]] = field(default_factory=list)
    spoilt: set[str] = field(default_factory=set)
    is_controlled: bool = True
    hurried: set[str] = field(default_factory=set)
    longest_s: float = 0.0

    def endure(self, moments: list[float]) -> None:
        """Strike at these seconds, mend, and wait until it trains again."""
        self.job.wait_for_step(QUIET_STEPS)
        began = advanced = time.monotonic()
        step = self.job.step
        while moments or self.mends or self.job.step < step + QUIET_STEPS:
            now = time.monotonic()
            if self.job.step > step and moments:
                step, advanced = self.job.step, now
            self.longest_s = max(self.longest_s, now - advanced)
            self.mend(now)
            if moments and now - began >= moments[0]:
                moments.pop(0)
                self.strike(round(now - began, 1))
                step = self.job.step
            assert not self.job.is_over(), f"it has ended\n{self.job.said()}"
            if self.is_controlled:
                self.job.hurry(self.hurried)
            time.sleep(0.2)  # the clock is what chooses

    def mend(self, now: float) -> None:
        due = [mend for at, mend in self.mends if at <= now]
        self.mends = [(at, mend) for at, mend in self.mends if at > now]
        for mend in due:
            mend()

    def strike(self, at_s: float) -> None:
        """A kind by chance, of those that find something to strike."""
        kinds = list(KINDS)
        self.chance.shuffle(kinds)
        for kind in kinds:
            during, attempt = self.during(), self.job.attempt
            mend = KINDS[kind](self)
            if mend is not None:
                self.mends.append((time.monotonic() + self.chance.uniform(*MENDED_AFTER_S), mend))
                self.struck.append({"at_s": at_s, "fault": kind, "during": during, "attempt": attempt})
                print(self.struck[-1], "step", self.job.step, flush=True)
                return

    def during(self) -> str:
        """What the job is doing, by its last event of the kind."""
        told = {"attempt started": "start", "training": "training", "attempt ended": "recovery", "decided": "recovery"}
        names = [event["event"] for event in self.job.files.read_events()]
        return next((told[name] for name in reversed(names) if name in told), "start")

    # What there is to strike.

    def is_up(self, node: str) -> bool:
        return self.job.is_up(node)

    def node(self) -> str | None:
        """One of the job's, unless too few would be left."""
        if sum(map(self.is_up, self.job.cluster.dev.nodes)) <= FEWEST_NODES:
            return None
        up = list(filter(self.is_up, self.job.nodes))
        return self.chance.choice(up) if up else None

    def ranks(self) -> list[RankRecord]:
        """Those of the last attempt that run."""
        records = self.job.files.attempt(self.job.attempt).read_ranks()
        return [record for record in records if record.ended is None and self.is_up(record.node)]

    def signal(self, rank: RankRecord, name: str) -> bool:
        """Whether there is such a process."""
        is_ours = f"grep -qs python /proc/{rank.pid}/cmdline"
        command = ["sh", "-c", f"{is_ours} && kill -{name} {rank.pid}"]
        with suppress(HostError):
            return self.job.cluster.dev.run(rank.node, *command, check=False).returncode == 0
        return False

    def signal_one(self, name: str) -> RankRecord | None:
        ranks = self.ranks()
        if not ranks:
            return None
        rank = self.chance.choice(ranks)
        return rank if self.signal(rank, name) else None


def nothing() -> None:
    """It needs no mending."""


def kill_rank(soak: Soak) -> Mend | None:
    return nothing if soak.signal_one("KILL") else None


def stop_rank(soak: Soak) -> Mend | None:
    """For good, or for some seconds."""
    rank = soak.signal_one("STOP")
    if rank is None:
        return None
    return (lambda: soak.signal(rank, "CONT")) if soak.chance.random() < 0.5 else nothing


def kill_node(soak: Soak) -> Mend | None:
    """With everything on it, the supervisor perhaps."""
    return take_node(soak, soak.job.cluster.dev.fail)


def cut_link(soak: Soak) -> Mend | None:
    return take_node(soak, soak.job.cluster.dev.cut)


def take_node(soak: Soak, take: Callable[[str], None]) -> Mend | None:
    node = soak.node()
    if node is None:
        return None
    take(node)
    return lambda: soak.job.cluster.dev.heal(node, wait=False)


def kill_slurmd(soak: Soak) -> Mend | None:
    """Its tasks go on, without anybody who could end them."""
    nodes = [node for node in soak.job.nodes if has_slurmd(soak.job, node)]
    if not nodes:
        return None
    node = soak.chance.choice(nodes)
    soak.job.cluster.dev.run(node, "kill", "-KILL", *slurmd_of(soak.job, node))

    def start() -> None:
        if soak.is_up(node) and not has_slurmd(soak.job, node):  # else it came back with its node
            start_slurmd(soak.job, node)

    return start


def kill_slurmctld(soak: Soak) -> Mend | None:
    if not soak.is_controlled:
        return None
    kill_controller(soak.job)
    soak.is_controlled = False

    def start() -> None:
        start_controller(soak.job)
        soak.is_controlled = True

    return start


def fill_disk(soak: Soak) -> Mend | None:
    """That of the checkpoints."""
    file = soak.disk / "ballast"
    if file.exists():
        return None
    fill(file)
    return file.unlink


def corrupt_checkpoint(soak: Soak) -> Mend | None:
    """The newest has another bit, and all ranks are killed: the next attempt comes upon it."""
    checkpoints = list_checkpoints(soak.job.config.output_dir / "checkpoints")
    whole = [path for path in checkpoints if path.name not in soak.spoilt]
    ranks = soak.ranks()
    if len(whole) < 3 or not ranks:
        return None
    for rank in ranks:
        soak.signal(rank, "STOP")  # so that nothing newer comes
    newest = list_checkpoints(soak.job.config.output_dir / "checkpoints")[0]
    parts = sorted(newest.glob("*.distcp"), key=lambda path: path.stat().st_size)
    if parts:
        soak.spoilt.add(newest.name)
        flip_a_bit(parts[-1])
    for rank in ranks:
        soak.signal(rank, "KILL")
    return nothing if parts else None


KINDS: dict[str, Callable[[Soak], Mend | None]] = {
    "rank killed": kill_rank,
    "rank stopped": stop_rank,
    "node killed": kill_node,
    "link cut": cut_link,
    "slurmd killed": kill_slurmd,
    "slurmctld killed": kill_slurmctld,
    "disk full": fill_disk,
    "checkpoint corrupt": corrupt_checkpoint,
}


if __name__ == "__main__":
    main()
