"""How long a launched job takes from a fault to its next training step, and whether it loses anything.

    python benchmarks/launch_faults.py                                  # each kind of fault once
    python benchmarks/launch_faults.py --faults "rank killed" "node killed" --times 3

A tiny model is trained on two nodes of a development cluster of Slurm, with one node to spare, all of them on this
machine (root is needed: they are hosts in namespaces). One job gets over all of the faults, one after the other; each
is struck some steps after the last one is over, and mended when the job trains again. In the end the run is stopped,
and every step's loss compared with a run that nothing happened to. `--add` keeps earlier results of other faults.

Of each fault: `seconds` from striking to the next training step, and the supervisor's own account of them: `detected_s`
until all ranks had ended, `decided_s` until the next attempt began (after a requeue this is Slurm's queue; the two
minutes that Slurm waits by itself are cut short), `started_s` until its processes ran, `first_step_s` until the first
step, which is mostly importing PyTorch. Writes `results/launch_faults.json`.
"""

import argparse
import json
import os
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

from glmforge_ops.dev.options import HEAD
from glmforge_ops.jobs.goodput.measure import as_dict, goodput_of
from helpers.chaos import small_disk
from helpers.launch_faults import FAULTS
from helpers.launched import Launched, launch, launch_cluster, small_run, unharmed
from helpers.tiny_data import make_tiny_data

CODE = ["src/glmforge_ops/jobs", "tests/helpers/launched.py", "tests/helpers/launch_faults.py"]
NODES, SPARES, RANKS = 4, 1, 2
QUIET_STEPS = 5
"""Trained between two faults."""
STEPS = 100_000
"""Of the run, which is stopped before."""
PHASES = ("detected_s", "decided_s", "started_s", "first_step_s")
# Nodes fail far more often here than one may that is kept.
SUPERVISOR = {"node_failures": 10_000, "max_restarts_in_all": 100_000, "look_every_s": 10.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS), metavar="FAULT")
    parser.add_argument("--times", type=int, default=1, help="of each fault")
    parser.add_argument("--add", action="store_true", help="keep what was measured before of other kinds of faults")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="the job's and Slurm's files stay here")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left behind
    with directory_of(given.keep) as directory:
        faults, run = measure(directory, [name for name in given.faults for _ in range(given.times)])
    runs = [run]
    if given.add:
        before = json.loads((given.out or RESULTS / "launch_faults.json").read_text("utf-8"))
        again = {fault["fault"] for fault in faults}
        faults = [fault for fault in before["faults"] if fault["fault"] not in again] + faults
        runs = before["runs"] + runs
    content = {"by_fault": by_fault(faults), "runs": runs, "faults": faults, "cores": os.cpu_count()}
    print(write_result("launch_faults", content, code=CODE, out=given.out))


@contextmanager
def directory_of(keep: Path | None) -> Iterator[Path]:
    """For all files: that one, new, or one that is removed afterwards."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="faults-") as name:
            yield Path(name)
        return
    keep.mkdir(parents=True)
    yield keep.resolve()


def measure(directory: Path, names: Sequence[str]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Strike them all: each fault, and what became of the run."""
    with job_to_strike(directory, NODES, SUPERVISOR) as job:
        faults = strike_all(job, names)
        became = stopped(job)
    return faults, {"struck": len(faults)} | compared(job, became)


@contextmanager
def job_to_strike(directory: Path, nodes: int, supervisor: dict[str, Any], **sections: Any) -> Iterator[Launched]:
    """A job on two of so many nodes, with one to spare, whose checkpoints lie on a small disk of their own.

    `sections` are of its run's configuration. It is ended with the block.
    """
    with small_disk(directory / "disk", 64) as disk:
        assert disk is not None, "no file system can be mounted here: needs root"
        with launch_cluster(directory / "cluster", nodes=nodes) as cluster:
            config = small_run(make_tiny_data(directory / "data"), directory / "run", STEPS, **sections)
            (directory / "run").mkdir()
            (disk / "checkpoints").mkdir()
            (directory / "run/checkpoints").symlink_to(disk / "checkpoints")
            options = directory / "options.yaml"
            options.write_text(yaml.safe_dump({"supervisor": supervisor}))
            words = ["--launcher", "slurm", "--nodes", "2", "--spare-nodes", str(SPARES), "--cpus-per-task", "1"]
            job = launch(cluster, directory, config, *words, "--options", str(options))
            try:
                yield job
            except BaseException:
                print(job.said(), *asked_of_slurm(job), sep="\n", file=sys.stderr)
                raise
            finally:
                shutil.copytree(cluster.dev.places.logs, directory / "slurm")  # what is the cluster's is removed
                job.end()


@dataclass(frozen=True)
class Became:
    """Of a run that was stopped: the losses of its steps, and where the job's time went."""

    losses: list[float]
    goodput: dict[str, Any]


def stopped(job: Launched) -> Became:
    losses = job.stop()
    return Became(losses, as_dict(goodput_of(job.files)))


def compared(job: Launched, became: Became) -> dict[str, Any]:
    """What became of the job, beside a run that nothing happened to."""
    num_steps = len(became.losses)
    expected = unharmed(job.config, job.directory / "unharmed", RANKS, steps=num_steps)
    facts = {"attempts": job.attempt, "steps": num_steps, "bit_equal": became.losses == expected}
    return facts | {"goodput": became.goodput}


def asked_of_slurm(job: Launched) -> list[str]:
    """What it says of the nodes and of the job."""
    asked = (["show", "nodes", "--oneliner"], ["show", "job", job.number], ["show", "steps"])
    return [job.cluster.dev.run(HEAD, "scontrol", *words, check=False).stdout for words in asked]


def strike_all(job: Launched, names: Sequence[str]) -> list[dict[str, Any]]:
    job.wait_for_step(QUIET_STEPS)
    found = []
    for name in names:
        found.append(strike(job, name))
        print(found[-1], flush=True)
    return found


def strike(job: Launched, name: str) -> dict[str, Any]:
    """And the steps after it."""
    attempt, step, load = job.attempt, job.step, os.getloadavg()[0]
    at = time.time()
    mend = FAULTS[name].strike(job)
    struck_s = time.time() - at
    told: dict[str, Any] = {}
    if FAULTS[name].causes:
        told = job.wait_for_training(attempt)
        told["seconds"] = round(datetime.fromisoformat(told["time"]).timestamp() - at, 2)
    mend()
    job.wait_for_step(max(step, job.step) + QUIET_STEPS)
    facts = {key: told.get(key) for key in ("cause", "seconds", *PHASES, "total_s")}
    facts |= {"attempts": job.attempt - attempt, "load": round(load, 1)}
    return {"fault": name, "struck_s": round(struck_s, 2), **facts}


def by_fault(faults: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The median of each figure, by kind of fault."""
    found = {}
    for name in dict.fromkeys(fault["fault"] for fault in faults):
        rows = [fault for fault in faults if fault["fault"] == name]
        figures = {"times": len(rows), "attempts": max(row["attempts"] for row in rows)}
        for key in ("seconds", *PHASES, "total_s"):
            values = [row[key] for row in rows if row[key] is not None]
            figures[key] = round(median(values), 1) if values else None
        found[name] = figures
    return found


if __name__ == "__main__":
    main()
