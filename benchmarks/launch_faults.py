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

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from harness import arguments, result
from record import ROOT, write_result

sys.path.insert(0, str(ROOT / "tests"))

from glmforge.report.goodput import as_dict, goodput_of
from glmforge_ops.dev.state import HEAD
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
SUPERVISOR = {"node_failures": 10_000, "max_restarts_in_all": 100_000}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS), metavar="FAULT")
    parser.add_argument("--times", type=int, default=1, help="of each fault")
    parser.add_argument("--add", action="store_true", help="keep what was measured before of other kinds of faults")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="the job's and Slurm's files stay here")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left behind
    with directory_of(given.keep) as directory:
        faults, run = measure(directory, [name for name in given.faults for _ in range(given.times)])
    runs = [run]
    if given.add:
        before = result("launch_faults")
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
    """Strike them all: each fault, and what became of the run beside one that nothing happened to."""
    with job_to_strike(directory) as job:
        job.wait_for_step(QUIET_STEPS)
        faults = []
        for name in names:
            faults.append(strike(job, name))
            print(faults[-1], flush=True)
        losses = job.stop()
        goodput = as_dict(goodput_of(job.files))
    expected = unharmed(job.config, job.directory / "unharmed", RANKS, steps=len(losses))
    facts = {"struck": len(faults), "attempts": job.attempt, "steps": len(losses), "bit_equal": losses == expected}
    return faults, facts | {"goodput": goodput}


@contextmanager
def job_to_strike(directory: Path) -> Iterator[Launched]:
    """A job on two nodes, with one to spare and a small disk for checkpoints; it ends with the block."""
    with small_disk(directory / "disk", 64) as disk:
        assert disk is not None, "no file system can be mounted here: needs root"
        with launch_cluster(directory / "cluster", nodes=NODES) as cluster:
            config = small_run(make_tiny_data(directory / "data"), directory / "run", STEPS)
            (directory / "run").mkdir()
            (disk / "checkpoints").mkdir()
            (directory / "run/checkpoints").symlink_to(disk / "checkpoints")
            options = directory / "options.yaml"
            options.write_text(yaml.safe_dump({"supervisor": SUPERVISOR}))
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


def asked_of_slurm(job: Launched) -> list[str]:
    """What it says of the nodes and of the job."""
    asked = (["show", "nodes", "--oneliner"], ["show", "job", job.number], ["show", "steps"])
    return [job.cluster.dev.run(HEAD, "scontrol", *words, check=False).stdout for words in asked]


def strike(job: Launched, name: str) -> dict[str, Any]:
    """One fault, until the job trains again."""
    attempt, step, load = job.attempt, job.step, os.getloadavg()[0]
    at = time.time()
    undo = FAULTS[name].strike(job)
    struck_s = time.time() - at
    reported: dict[str, Any] = {}
    if FAULTS[name].causes:
        reported = job.wait_for_training(attempt)
        reported["seconds"] = round(datetime.fromisoformat(reported["time"]).timestamp() - at, 2)
    undo()
    job.wait_for_step(max(step, job.step) + QUIET_STEPS)
    facts = {key: reported.get(key) for key in ("cause", "seconds", *PHASES, "total_s")}
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
