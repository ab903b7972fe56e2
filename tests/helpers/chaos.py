"""Do to a training run what clusters do, start it again each time, and look at what it made of it.

A run of three phases is struck again and again: processes are killed, signals sent, disks filled, files damaged, the
number of ranks changed. `Chaos.check` proves from the ranks' own notes (`helpers.lineage`) that every sample was
trained on once and in order; `reference_losses` repeats the run without a blow, with the same changes of the number of
ranks, for the losses to be bit-equal to.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from glmforge.checkpoint.format.manifest import find_problems
from glmforge.checkpoint.format.store import list_checkpoints, step_of
from glmforge.checkpoint.node_local.parts_of_ranks import (
    Part,
    find_part_problems,
    local_root,
    read_parts,
    whole_saves,
)
from glmforge.config import RunConfig, dump_config
from glmforge.observe.record_files import read_jsonl
from helpers.job import Job, read_steps, start_job
from helpers.lineage import CountedStep, Launch, Notes, check_lineage, check_records, lineage
from helpers.tiny_data import TinyData

NUM_NODES = 2
PREEMPTED = 75

PHASES: list[dict[str, Any]] = [
    {"name": "general", "steps": 20, "seq_len": 32, "batch_size": 8, "rope_theta": 1e4}
    | {"batch_ramp": {"start": 4, "increment": 4, "tokens": 32 * 4 * 8}},
    {"name": "code", "steps": 20, "seq_len": 32, "batch_size": 8, "fim_rate": 0.5, "mtp_loss_weight": 0.1}
    | {"router_bias_rate": 0.0, "rope_theta": 1e4},
    {"name": "long", "steps": 20, "seq_len": 64, "batch_size": 4, "packing": "best_fit", "mtp_loss_weight": 0.1}
    | {"router_bias_rate": 0.0},
]
NUM_STEPS = 60

CHECKPOINT = {
    "every_steps": 4,
    "ephemeral_every_steps": 2,
    "keep_last": 2,
    "keep_ephemeral": 2,
    "max_failed_saves": 1000,
}


@dataclass(frozen=True)
class Strike:
    """One blow: what happens, after how many steps of its launch, and on how many ranks the launch runs."""

    kind: str
    after_steps: int
    world_size: int = 4


@dataclass
class Chaos:
    """A run in `directory` and the launches it took.

    `local` says whether checkpoints go to nodes' own disks first; `small_disk` is a directory of its own file system
    to fill up, None where there is none. `sections` are those of the configuration that differ from `run_config`.
    """

    data: TinyData
    directory: Path
    num_steps: int = NUM_STEPS
    local: bool = True
    small_disk: Path | None = None
    ranks_per_node: int = 2
    sections: dict[str, Any] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)

    @property
    def config(self) -> RunConfig:
        return run_config(self.data, self.directory / "run", self.num_steps, **self.sections)

    def run(self, strikes: Sequence[Strike], last_world_size: int = 4, max_quiet_launches: int = 3) -> None:
        """Strike in turn, then let the run finish."""
        for strike in strikes:
            if self.strike(strike) == 0:
                return
        for _ in range(max_quiet_launches):
            if self.strike(Strike("none", 0, last_world_size)) == 0:
                return
        raise AssertionError(f"the run does not finish when it is left alone\n{self._last_job.tail()}")

    def strike(self, strike: Strike) -> int:
        """One launch; the worst exit code."""
        number = len(self.launches)
        path = self.directory / "run.yaml"
        path.write_text(dump_config(self.config))
        job = start_job(path, strike.world_size, self.directory / "notes", number, self._overrides)
        self._last_job = job
        struck_at = None
        events = self.directory / "run" / "events.jsonl"
        # The first save is waited for, so that every blow has something to go on from.
        if strike.kind != "none" and job.wait_until(
            lambda: len(job.taken_steps()) > strike.after_steps and _count_events(events, "saved") > 0
        ):
            struck_at = BLOWS[strike.kind](self, job)
        codes = job.wait()
        self._note_launch(job, strike, codes, struck_at)
        if strike.kind in ("term", "term_one", "usr1") and struck_at is not None:
            assert set(codes) <= {PREEMPTED, 0}, f"{strike.kind}: {codes}\n{job.tail()}"
        if strike.kind == "none" and any(codes):
            raise AssertionError(f"fails although it is left alone: {codes}\n{job.tail()}")
        return max(abs(code) for code in codes)

    def checkpoints(self) -> list[Path]:
        """Directories of checkpoints on shared storage and all nodes, newest last."""
        found = (path for root in self.roots() for path in list_checkpoints(root))
        return sorted(found, key=lambda path: path.name)

    def roots(self) -> list[Path]:
        """Where checkpoints are: on shared storage and on each node."""
        shared = self.config.output_dir / "checkpoints"
        return [shared, *(local_root(node, self.config.name) for node in self.local_dirs())]

    def local_dirs(self) -> list[Path]:
        return [self._local_dir(node) for node in range(NUM_NODES)] if self.local else []

    def _local_dir(self, node: int) -> Path:
        return (self.small_disk or self.directory) / f"node{node}"

    def _overrides(self, rank: int) -> list[str]:
        return [f"checkpoint.local_dir={self._local_dir(rank // self.ranks_per_node)}"] if self.local else []

    def _note_launch(self, job: Job, strike: Strike, codes: list[int], struck_at: float | None) -> None:
        notes = [read_steps(path) for path in job.steps]
        starts = {record["started_at"] for of_rank in notes for record in of_rank if "started_at" in record}
        assert len(starts) <= 1, f"ranks began at different steps: {starts}"
        given, taken = (_by_step(notes, key) for key in ("given", "step"))
        first_times = [record["time"] for record in notes[0] if "step" in record]
        first = starts.pop() + 1 if starts else 0
        at = first_times[0] if first_times else None
        self.launches.append(Launch(strike.world_size, strike.kind, codes, first, given, taken, struck_at, at))

    def lineage(self) -> list[CountedStep]:
        """Each step as it finally counted, first step first."""
        return lineage(self.launches)

    def check(self, copies: Collection[set[int]] = ()) -> None:
        """Notes and records of the run that survived; for `copies` see `check_lineage`."""
        check_lineage(self.config, self.lineage(), copies)
        check_records(self.records(), self.lineage())

    def records(self) -> list[dict[str, Any]]:
        """Those that the run wrote of its steps."""
        return list(read_jsonl(self.config.output_dir / "metrics.jsonl"))

    def summary(self) -> dict[str, Any]:
        """Seconds from each blow to the next step, and the share of all time that went into steps that count."""
        waits = []
        for before, after in zip(self.launches, self.launches[1:], strict=False):
            if before.struck_at is not None and after.first_step_at is not None:
                waits.append(after.first_step_at - before.struck_at)
        useful = sum(next(iter(counted.taken.values()))["seconds"] for counted in self.lineage())
        notes = [record for launch in self.launches for some in launch.taken.values() for record in some.values()]
        times = [record["time"] for record in notes]
        taken = sum(len(launch.taken) for launch in self.launches)
        return {
            "blows": len([launch for launch in self.launches if launch.struck_at is not None]),
            "launches": len(self.launches),
            "steps_that_count": len(self.lineage()),
            "steps_taken": taken,
            "steps_not_noted_by_all": sum(len(counted.taken) < counted.world_size for counted in self.lineage()),
            "seconds_from_blow_to_next_step": {
                "median": sorted(waits)[len(waits) // 2] if waits else None,
                "max": max(waits, default=None),
            },
            "goodput": useful / (max(times) - min(times)),
        }


def run_config(data: TinyData, output_dir: Path, num_steps: int = NUM_STEPS, **sections: Any) -> RunConfig:
    """Three phases of equal length, dense checkpoints, two sources of which one is code; `sections` in their place."""
    phases = [phase | {"steps": num_steps // len(PHASES)} for phase in PHASES]
    text, code = {"name": "text", "path": str(data.train)}, {"name": "code", "path": str(data.held_out), "code": True}
    settings: dict[str, Any] = {
        "phases": phases,
        "data": {"tokenizer": str(data.tokenizer), "sources": [text | {"weight": 3.0}, code]},
        "checkpoint": CHECKPOINT,
        "parallel": {"process_group_timeout_s": 60},
        "fault_tolerance": {"hang_timeout_s": 45},
    }
    return data.run_config(output_dir, **(settings | sections))


# What can happen to a job; each gives the moment of the blow.


def kill_one(chaos: Chaos, job: Job) -> float:
    job.signal(signal.SIGKILL, [random.randrange(len(job.ranks))])
    return time.time()


def kill_before_note(chaos: Chaos, job: Job) -> float:
    """One that has taken a step, before it notes and saves it. The others do both, if the step's end reached them."""
    job.kill_before_note(random.randrange(len(job.ranks)))
    return time.time()


def kill_all(chaos: Chaos, job: Job) -> float:
    job.signal(signal.SIGKILL)
    return time.time()


def terminate(chaos: Chaos, job: Job) -> float:
    job.signal(signal.SIGTERM)
    return time.time()


def terminate_one(chaos: Chaos, job: Job) -> float:
    job.signal(signal.SIGTERM, [len(job.ranks) - 1])
    return time.time()


def warn(chaos: Chaos, job: Job) -> float:
    job.signal(signal.SIGUSR1)
    return time.time()


def kill_while_saving(chaos: Chaos, job: Job) -> float:
    """When some directory that is being written is to be seen."""
    roots = chaos.roots()
    job.wait_until(lambda: any(_is_being_written(root) for root in roots))
    return kill_all(chaos, job)


def kill_at_file(chaos: Chaos, job: Job) -> float:
    """When a step that was not there has some number of files, hidden ones too: one rank or all."""
    roots = chaos.roots()
    there, num_files = _steps_under(roots), random.randrange(8)
    job.wait_until(lambda: any(len(_names(path)) >= num_files for path in _steps_under(roots) - there))
    return random.choice([kill_one, kill_all])(chaos, job)


def lose_node(chaos: Chaos, job: Job) -> float:
    """All are killed, and a node comes back with an empty disk."""
    at = kill_all(chaos, job)
    job.wait()
    shutil.rmtree(random.choice(chaos.local_dirs()))
    return at


def kill_while_copying(chaos: Chaos, job: Job) -> float:
    """When something is being written on shared storage, which is what is done in the background."""
    job.wait_until(lambda: _is_being_written(chaos.directory / "run" / "checkpoints"))
    return kill_all(chaos, job)


def fill_disk(chaos: Chaos, job: Job) -> float:
    """Full until a save has failed; then there is room again, and the run is killed."""
    assert chaos.small_disk is not None
    events = chaos.directory / "run" / "events.jsonl"
    failed = _count_events(events, "save failed")
    ballast = chaos.small_disk / "ballast"
    with filled(chaos.small_disk, ballast):
        job.wait_until(lambda: _count_events(events, "save failed") > failed)
    saved = _count_events(events, "saved")
    job.wait_until(lambda: _count_events(events, "saved") > saved)
    return kill_all(chaos, job)


def damage_newest(chaos: Chaos, job: Job) -> float:
    """Flip a bit of the newest checkpoint's largest file once all are dead, wherever copies of it are.

    Not before two are on shared storage: with the only one gone the run rightly refuses to begin anew.
    """
    shared = chaos.directory / "run" / "checkpoints"
    job.wait_until(lambda: len(list(shared.glob("step-*"))) >= 2)
    at = kill_all(chaos, job)
    job.wait()
    found = chaos.checkpoints()
    for path in [path for path in found if path.name == found[-1].name] if found else []:
        files = sorted(path.glob("*.distcp"), key=lambda file: file.stat().st_size)
        if files:
            content = bytearray(files[-1].read_bytes())
            content[len(content) // 2] ^= 1
            files[-1].write_bytes(content)
    return at


BLOWS: dict[str, Callable[[Chaos, Job], float]] = {
    "one": kill_one,
    "before_note": kill_before_note,
    "all": kill_all,
    "term": terminate,
    "term_one": terminate_one,
    "usr1": warn,
    "saving": kill_while_saving,
    "copying": kill_while_copying,
    "file": kill_at_file,
    "node": lose_node,
    "disk_full": fill_disk,
    "damaged": damage_newest,
}


@contextmanager
def filled(disk: Path, ballast: Path) -> Iterator[None]:
    """Leave no room on a small file system."""
    fill(ballast)
    try:
        yield
    finally:
        ballast.unlink()


def fill(ballast: Path) -> None:
    """Leave no room on the file system of this file."""
    with suppress(OSError), ballast.open("wb") as file:
        while True:
            file.write(b"\0" * 65536)
            file.flush()


@contextmanager
def small_disk(mount: Path, megabytes: int) -> Iterator[Path | None]:
    """A file system of its own, None where mounting is not allowed."""
    mount.mkdir()
    try:
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(mount)]
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        yield None
        return
    if done.returncode != 0:
        yield None
        return
    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


def _by_step(notes: Sequence[list[dict[str, Any]]], key: str) -> Notes:
    """Those notes of all ranks that name their step under `key`."""
    found: Notes = {}
    for rank, of_rank in enumerate(notes):
        for record in of_rank:
            if key in record:
                of_step = found.setdefault(record[key], {})
                assert rank not in of_step, f"rank {rank} noted step {record[key]} twice in a launch"
                of_step[rank] = record
    return found


def _is_being_written(root: Path) -> bool:
    return any(".partial" in path.name for path in root.rglob(".*")) if root.exists() else False


def _steps_under(roots: Sequence[Path]) -> set[Path]:
    return {path for root in roots if root.exists() for path in root.rglob("*step-*")}


def _names(directory: Path) -> list[str]:
    with suppress(FileNotFoundError):  # it has its last name by now
        return [path.name for path in directory.iterdir()]
    return []


def _count_events(path: Path, name: str) -> int:
    return sum(record["event"] == name for record in read_jsonl(path)) if path.exists() else 0


def whole_steps(chaos: Chaos) -> list[int]:
    """Steps of which a whole checkpoint is on shared storage or the nodes' disks, newest first. No rank works."""
    shared, *nodes = chaos.roots()
    found = {step_of(path) for path in list_checkpoints(shared) if not find_problems(path, checksums=True)}
    parts: dict[int, list[Part]] = {}
    for root in nodes:
        for path in list_checkpoints(root):
            good = [part for part in read_parts(path)[0] if not find_part_problems(path, part, checksums=True)]
            parts.setdefault(step_of(path), []).extend(good)
    return sorted(found | {step for step, of_step in parts.items() if whole_saves(of_step)}, reverse=True)


# What to compare the run that survived with.


def reference_losses(chaos: Chaos, directory: Path) -> list[float]:
    """Losses of an unkilled run whose number of ranks changes where that of the survivor did."""
    sizes = [counted.world_size for counted in chaos.lineage()]
    config = run_config(chaos.data, directory / "run", chaos.num_steps)
    path = directory / "run.yaml"
    directory.mkdir(parents=True, exist_ok=True)
    path.write_text(dump_config(config))
    stop = 0
    for number, (world_size, group) in enumerate(groupby(sizes)):
        stop += len(list(group))
        job = start_job(path, world_size, directory / "notes", number, stop_after=stop)
        codes = job.wait()
        assert codes == [0] * world_size, f"{codes}\n{job.tail()}"
    return [record["loss"] for record in read_jsonl(config.output_dir / "metrics.jsonl")]


def survivor_losses(chaos: Chaos) -> list[float]:
    return [counted.loss for counted in chaos.lineage()]


def report(chaos: Chaos) -> str:
    return json.dumps(chaos.summary() | {"cores": os.cpu_count()}, indent=1)
