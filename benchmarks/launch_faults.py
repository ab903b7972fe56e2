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
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from record import RESULTS, ROOT, write_result

sys.path.insert(0, str(ROOT / "tests"))

from glmforge.launch.goodput import as_dict, goodput_of
from helpers.chaos import small_disk
from helpers.launch_faults import FAULTS, Fault
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
    "link cut",
    "slurmd killed",
    "slurmctld restarted",
    "rank stopped",
    "full disk",
    "corrupt checkpoint",
)
PHASES = ("detected_s", "decided_s", "started_s", "first_step_s")
# Nodes fail far more often here than one may that is kept.
OPTIONS = {"supervisor": {"node_failures": 10_000, "max_restarts_in_all": 100_000, "look_every_s": 10.0}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS), metavar="FAULT")
    parser.add_argument("--times", type=int, default=1, help="of each fault")
    parser.add_argument("--random", type=int, metavar="NUMBER", help="so many faults, chosen by chance")
    parser.add_argument("--seed", type=int, default=0, help="of chance")
    parser.add_argument("--minutes", type=float, default=1e9, help="strike no more after this")
    parser.add_argument("--add", action="store_true", help="keep what was measured before of other kinds of faults")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left behind
    names = chosen(given.faults, given.times, given.random, given.seed)
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        faults, run = measure(Path(name), names, time.monotonic() + given.minutes * 60)
    result = "launch_soak" if given.random else "launch_faults"
    runs = [run | {"seed": given.seed if given.random else None}]
    if given.add:
        before = json.loads((given.out or RESULTS / f"{result}.json").read_text("utf-8"))
        again = {fault["fault"] for fault in faults}
        faults = [fault for fault in before["faults"] if fault["fault"] not in again] + faults
        runs = before["runs"] + runs
    content = {"by_fault": by_fault(faults), "runs": runs, "faults": faults, "cores": os.cpu_count()}
    print(write_result(result, content, code=CODE, out=given.out))


def chosen(faults: Sequence[str], times: int, number: int | None, seed: int) -> list[str]:
    """Names of the faults, in the order in which they are struck."""
    if number is None:
        return [name for name in faults for _ in range(times)]
    chance = random.Random(seed)
    return [chance.choice(SOAK) for _ in range(number)]


def measure(directory: Path, names: Sequence[str], deadline: float) -> tuple[list[dict[str, Any]], dict[str, Any]]:
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
                faults = strike_all(job, names, deadline)
                losses = job.stop()
                goodput = as_dict(goodput_of(job.files))
            except BaseException:
                print(job.said(), file=sys.stderr)
                raise
            finally:
                job.end()
        expected = unharmed(config, directory / "unharmed", RANKS, steps=len(losses))
    facts = {"struck": len(faults), "attempts": job.attempt, "steps": len(losses), "bit_equal": losses == expected}
    return faults, facts | {"goodput": goodput}


def strike_all(job: Launched, names: Sequence[str], deadline: float) -> list[dict[str, Any]]:
    job.wait_for_step(QUIET_STEPS)
    found = []
    for name in names:
        if time.monotonic() > deadline:
            break
        found.append(strike(job, name, FAULTS[name]))
        print(found[-1], flush=True)
    return found


def strike(job: Launched, name: str, fault: Fault) -> dict[str, Any]:
    """One, and the steps after it."""
    attempt, step, load = job.attempt, job.step, os.getloadavg()[0]
    at = time.time()
    mend = fault.strike(job)
    struck_s = time.time() - at
    told: dict[str, Any] = {}
    if fault.causes:
        told = job.wait_for_training(attempt)
        told["seconds"] = round(datetime.fromisoformat(told["time"]).timestamp() - at, 2)
    mend()
    job.wait_for_step(max(step, job.step) + QUIET_STEPS)
    facts = {key: told.get(key) for key in ("cause", "seconds", *PHASES, "total_s")}
    last = job.attempt
    return {"fault": name, "struck_s": round(struck_s, 2), "attempts": last - attempt, "load": round(load, 1), **facts}


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
