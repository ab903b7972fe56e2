"""How long a launched job takes from a fault to its next training step, and whether it loses anything.

    python benchmarks/launch_faults.py                                  # each kind of fault once
    python benchmarks/launch_faults.py --faults "rank killed" "node killed" --times 3
    python benchmarks/launch_faults.py --random 200 --seed 1            # a soak: so many, chosen by chance

A tiny model is trained on two nodes of a development cluster of Slurm, with one node to spare, all of them on this
machine (root is needed: they are hosts in namespaces). One job gets over all of the faults, one after the other; each
is struck some steps after the last one is over, and mended when the job trains again. In the end the run is stopped,
and every step's loss compared with a run that nothing happened to. `--add` keeps earlier results of other faults.

Of each fault: `seconds` from striking to the next training step, and the supervisor's own account of them: `detected_s`
until all ranks had ended, `decided_s` until the next attempt began (after a requeue this is Slurm's queue; the two
minutes that Slurm waits by itself are cut short), `started_s` until its processes ran, `first_step_s` until the first
step, which is mostly importing PyTorch. Writes `results/launch_faults.json`, or `results/launch_soak.json` if random.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from record import RESULTS, ROOT, write_result

sys.path.insert(0, str(ROOT / "tests"))

from glmforge.cluster.dev.options import HEAD
from glmforge.launch.goodput.measure import as_dict, goodput_of
from helpers.chaos import small_disk
from helpers.launch_faults import FAULTS, Mend, has_slurmd
from helpers.launched import Launched, launch, launch_cluster, small_run, unharmed
from helpers.tiny_data import make_tiny_data

CODE = ["src/glmforge/launch", "tests/helpers/launched.py", "tests/helpers/launch_faults.py"]
NODES, SPARES, RANKS = 4, 1, 2
QUIET_STEPS = 5
"""Trained between two faults."""
STEPS = 100_000
"""Of the run, which is stopped before."""
SOAK = (
    "rank killed",
    "node killed",
    "supervisor's node killed",
    "link cut",
    "slurmd killed",
    "slurmctld restarted",
    "rank stopped",
    "full disk",
    "corrupt checkpoint",
)
MOMENTS = {
    "noticed": ("rank killed", "slurmctld restarted", "node killed"),
    "ended": ("slurmctld restarted", "node killed", "slurmd killed"),
    "starting": ("rank killed", "slurmctld restarted", "node killed", "slurmd killed", "link cut"),
}
"""During the recovery from a fault, and what may strike then: when its supervisor has noticed that something failed,
when the attempt has ended, when the ranks of the next have begun to import."""
OVERLAPPING = "another during recovery"
PHASES = ("detected_s", "decided_s", "started_s", "first_step_s")
# Nodes fail far more often here than one may that is kept.
OPTIONS = {"supervisor": {"node_failures": 10_000, "max_restarts_in_all": 100_000, "look_every_s": 10.0}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS), metavar="FAULT")
    parser.add_argument("--times", type=int, default=1, help="of each fault")
    parser.add_argument("--random", type=int, metavar="NUMBER", help="so many faults, chosen by chance")
    parser.add_argument("--seed", type=int, default=0, help="of chance")
    parser.add_argument(
        "--overlap", type=float, default=0.0, help="share that the next fault strikes before it is over"
    )
    parser.add_argument("--minutes", type=float, default=1e9, help="strike no more after this")
    parser.add_argument("--add", action="store_true", help="keep what was measured before of other kinds of faults")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="the job's and Slurm's files stay here")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left behind
    chains = chosen(given.faults, given.times, given.random, given.seed, given.overlap)
    with directory_of(given.keep) as directory:
        faults, run = measure(directory, chains, time.monotonic() + given.minutes * 60)
    result = "launch_soak" if given.random else "launch_faults"
    runs = [run | {"seed": given.seed if given.random else None}]
    if given.add:
        before = json.loads((given.out or RESULTS / f"{result}.json").read_text("utf-8"))
        again = {fault["fault"] for fault in faults}
        faults = [fault for fault in before["faults"] if fault["fault"] not in again] + faults
        runs = before["runs"] + runs
    content = {"by_fault": by_fault(faults), "runs": runs, "faults": faults, "cores": os.cpu_count()}
    print(write_result(result, content, code=CODE, out=given.out))


@contextmanager
def directory_of(keep: Path | None) -> Iterator[Path]:
    """For all files: that one, new, or one that is removed afterwards."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="faults-") as name:
            yield Path(name)
        return
    keep.mkdir(parents=True)
    yield keep.resolve()


@dataclass(frozen=True)
class Blow:
    """A fault by its name; `moment`: of the recovery from the one before, None if that is over."""

    name: str
    moment: str | None = None


Chain = list[Blow]
"""The first, and those that strike during the recovery."""


def chosen(faults: Sequence[str], times: int, number: int | None, seed: int, overlap: float) -> list[Chain]:
    """The faults in the order in which they are struck."""
    if number is None:
        return [[Blow(name)] for name in faults for _ in range(times)]
    chance = random.Random(seed)
    chains: list[Chain] = []
    while sum(map(len, chains)) < number:
        chain = [Blow(chance.choice(SOAK))]
        while FAULTS[chain[0].name].causes and chance.random() < overlap:
            moment = chance.choice(list(MOMENTS))
            chain.append(Blow(chance.choice(MOMENTS[moment]), moment))
        chains.append(chain)
    return chains


def measure(directory: Path, chains: Sequence[Chain], deadline: float) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Strike them all, stop the run, and compare: each fault, and what became of the run."""
    with small_disk(directory / "disk", 64) as disk:
        assert disk is not None, "no file system can be mounted here: needs root"
        with launch_cluster(directory / "cluster", nodes=NODES) as cluster:
            data = make_tiny_data(directory / "data")
            config = small_run(data, directory / "run", STEPS)
            (directory / "run").mkdir()
            (disk / "checkpoints").mkdir()
            (directory / "run/checkpoints").symlink_to(disk / "checkpoints")
            options = directory / "options.yaml"
            options.write_text(yaml.safe_dump(OPTIONS))
            words = ["--launcher", "slurm", "--nodes", "2", "--spare-nodes", str(SPARES), "--cpus-per-task", "1"]
            job = launch(cluster, directory, config, *words, "--options", str(options))
            try:
                faults = strike_all(job, chains, deadline)
                losses = job.stop()
                goodput = as_dict(goodput_of(job.files))
            except BaseException:
                print(job.said(), *asked_of_slurm(job), sep="\n", file=sys.stderr)
                raise
            finally:
                shutil.copytree(cluster.dev.places.logs, directory / "slurm")  # what is the cluster's is removed
                job.end()
        expected = unharmed(config, directory / "unharmed", RANKS, steps=len(losses))
    struck = sum(1 + len(fault["then"]) for fault in faults)
    facts = {"struck": struck, "attempts": job.attempt, "steps": len(losses), "bit_equal": losses == expected}
    return faults, facts | {"goodput": goodput}


def asked_of_slurm(job: Launched) -> list[str]:
    """What it says of the nodes and of the job."""
    asked = (["show", "nodes", "--oneliner"], ["show", "job", job.number], ["show", "steps"])
    return [job.cluster.dev.run(HEAD, "scontrol", *words, check=False).stdout for words in asked]


def strike_all(job: Launched, chains: Sequence[Chain], deadline: float) -> list[dict[str, Any]]:
    job.wait_for_step(QUIET_STEPS)
    found = []
    for chain in chains:
        if time.monotonic() > deadline:
            break
        found.append(strike(job, chain))
        print(found[-1], flush=True)
    return found


def strike(job: Launched, chain: Chain) -> dict[str, Any]:
    """One after the other, and the steps after the last."""
    first, step, load = job.attempt, job.step, os.getloadavg()[0]
    at = time.time()
    attempt, mends, then = first, list[Mend](), list[str]()
    for blow in chain:
        fault = FAULTS[blow.name]
        if blow.moment is not None:
            wait_for_moment(job, blow.moment, attempt)
            if not can_strike(job, blow.name):
                continue
            then.append(f"{blow.name} when {blow.moment}")
        number = job.attempt
        new = fault.strike(job)
        while mends:  # there must be nodes enough
            mends.pop()()
        mends.append(new)
        if fault.causes and blow.moment in (None, "starting"):
            attempt = number
    struck_s = time.time() - at
    told: dict[str, Any] = {}
    if FAULTS[chain[0].name].causes:
        told = job.wait_for_training(attempt)
        told["seconds"] = round(datetime.fromisoformat(told["time"]).timestamp() - at, 2)
    for mend in mends:
        mend()
    job.wait_for_step(max(step, job.step) + QUIET_STEPS)
    facts = {key: told.get(key) for key in ("cause", "seconds", *PHASES, "total_s")}
    facts |= {"attempts": job.attempt - first, "load": round(load, 1)}
    return {"fault": chain[0].name, "then": then, "struck_s": round(struck_s, 2), **facts}


def wait_for_moment(job: Launched, moment: str, attempt: int) -> None:
    """Of the recovery from what befell that attempt."""
    noticed = ("rank ended", "node lost", "attempt ended", "supervisor started")
    if moment == "starting":
        job.wait_until(lambda: job.attempt > attempt and len(job.files.attempt(job.attempt).read_ranks()) == RANKS)
        return
    names = noticed if moment == "noticed" else noticed[2:]
    before = count(job, names)
    job.wait_until(lambda: count(job, names) > before or job.attempt > attempt)


def count(job: Launched, names: Sequence[str]) -> int:
    return sum(event["event"] in names for event in job.files.read_events())


def can_strike(job: Launched, name: str) -> bool:
    """Whether there still is what it would strike."""
    if name == "slurmctld restarted":
        return True
    if job.cluster.job(job.number)["JobState"] != "RUNNING":
        return False
    if name == "rank killed":
        return job.is_up(job.rank(1).node) and job.rank(1).ended is None
    can = has_slurmd if name == "slurmd killed" else Launched.is_up
    return any(can(job, node) for node in job.nodes if node != job.batch_node())


def by_fault(faults: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The median of each figure, by kind of fault; those with others during their recovery together."""
    found = {}
    kinds = [OVERLAPPING if fault.get("then") else fault["fault"] for fault in faults]
    for name in dict.fromkeys(kinds):
        rows = [fault for fault, kind in zip(faults, kinds, strict=True) if kind == name]
        figures = {"times": len(rows), "attempts": max(row["attempts"] for row in rows)}
        for key in ("seconds", *PHASES, "total_s"):
            values = [row[key] for row in rows if row[key] is not None]
            figures[key] = round(median(values), 1) if values else None
        found[name] = figures
    return found


if __name__ == "__main__":
    main()
