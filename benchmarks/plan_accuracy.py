"""The planner's predictions held against real steps on this machine: time, peak memory, and the choice of a layout.

    python benchmarks/plan_accuracy.py                  # all of it, at most 20 minutes on two idle cores
    python benchmarks/plan_accuracy.py --quick          # a minute: one size, few layouts; writes nothing

Measured on gloo ranks of one thread each, in this order:

1. this machine's points (`plan_calibration.py`, whose result is written as well); all predictions are made from them;
2. for three sizes of a model and each of `LAYOUTS` on one to eight ranks, the seconds of a step, and the most bytes
   that live at once on a rank. Of the time the ratio to one rank is compared;
3. every layout that the small model can have on four and on eight ranks. The layout that the planner takes for the
   fastest is then measured again, in turns with those that were the fastest: it may take 10 % more than the best.

Steps are the trainer's own, in bf16. Memory is that of fp32 runs: for bf16 the planner assumes a GPU's kernels. Exits
with status 1 if a choice misses the 10 %.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gloo_ranks import Ranks
from measured_layouts import measure, watch_memory
from plan_calibration import CODE as CALIBRATION_CODE
from plan_calibration import measure_machine
from record import write_result
from small_runs import LAYOUTS, SIZES, Parallel, every_layout, small_run

from glmforge.config.layout import resolve_layout
from glmforge.config.schema import RunConfig
from glmforge.plan.machine.calibration import calibrated_machine, read_calibration
from glmforge.plan.machine.machine import Machine
from glmforge.plan.memory.estimate import estimate_memory
from glmforge.plan.time.step_time import predict_step

CODE = (
    *CALIBRATION_CODE,
    "benchmarks/plan_calibration.py",
    "benchmarks/measured_layouts.py",
    "benchmarks/small_runs.py",
    "src/glmforge/plan",
    "src/glmforge/parallel",
    "src/glmforge/model",
    "src/glmforge/optim",
)
LIMIT = 1.10
"""Of the best layout's seconds: what the planner's choice may take."""
NUM_STEPS, LONGEST_S = 5, 6.0
"""Steps that are measured of a layout; fewer, if they take longer than that."""
NUM_RIVALS, NUM_TURNS = 4, 4
"""How many of the fastest layouts the choice is measured with again, and how often."""
QUICK = ("one rank", "fsdp 2", "tp 2", "pp 2")

Pools = Mapping[int, Ranks]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="to try it: the small size, few layouts")
    parser.add_argument("--points", type=Path, help="points that were measured before")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        machine = _machine(arguments.points or _measured_points(Path(folder), quick=arguments.quick))
    with ExitStack() as stack:
        pools = {size: stack.enter_context(Ranks(size)) for size in ((1, 2) if arguments.quick else (1, 2, 4, 8))}
        sizes = ["small"] if arguments.quick else list(SIZES)
        rows = [row for size in sizes for row in compare(size, machine, pools, quick=arguments.quick)]
        sweeps = [sweep("small", world_size, machine, pools) for world_size in pools if world_size in (4, 8)]
    content = {"summary": summary(rows), "rows": rows, "sweeps": sweeps, "limit": LIMIT}
    content["seconds"] = round(time.perf_counter() - started)
    print(json.dumps({"summary": content["summary"], "seconds": content["seconds"]}, indent=1))
    if arguments.quick:
        return
    print(write_result("plan_accuracy", content, code=CODE, out=arguments.out))
    missed = [
        f"{s['ranks']} ranks: {s['chosen']} takes {s['ratio']} of {s['best']}" for s in sweeps if s["ratio"] > LIMIT
    ]
    sys.exit("\n".join(missed))


def compare(size: str, machine: Machine, pools: Pools, *, quick: bool) -> list[dict[str, Any]]:
    """A row for each layout: measured and predicted seconds, their ratios to one rank, and peak bytes."""
    rows: list[dict[str, Any]] = []
    for name, (world_size, parallel) in LAYOUTS.items():
        if quick and name not in QUICK:
            continue
        config, in_fp32 = small_run(size, parallel), small_run(size, parallel, compute="fp32")
        seconds, predicted = _step_seconds(config, pools[world_size]), predict(config, world_size, machine)
        first = rows[0] if rows else {"seconds": seconds, "predicted_seconds": predicted}
        ratio, expected = seconds / first["seconds"], predicted / first["predicted_seconds"]
        peak = max(pools[world_size].run(watch_memory, in_fp32))
        estimated = estimate_memory(in_fp32, resolve_layout(in_fp32, world_size)).peak
        rows.append(
            {"size": size, "layout": name, "ranks": world_size}
            | {"seconds": seconds, "predicted_seconds": predicted}
            | {"ratio": ratio, "predicted_ratio": expected, "error": expected / ratio - 1}
            | {"peak_bytes": peak, "predicted_peak_bytes": estimated, "peak_error": estimated / peak - 1}
        )
        print(
            f"{size}, {name}: {seconds:.3f} s, predicted {predicted:.3f}; ratio {ratio:.2f}, predicted {expected:.2f}; "
            f"peak {peak / 1e6:.1f} MB, predicted {estimated / 1e6:.1f}",
            flush=True,
        )
    return rows


def sweep(size: str, world_size: int, machine: Machine, pools: Pools) -> dict[str, Any]:
    """Measure every layout on so many ranks, and the planner's choice against the fastest again."""
    layouts = dict(every_layout(size, world_size))
    ranks = pools[world_size]
    predicted = {name: predict(small_run(size, parallel), world_size, machine) for name, parallel in layouts.items()}
    seconds = {}
    for name, parallel in layouts.items():
        seconds[name] = _step_seconds(small_run(size, parallel), ranks, longest_s=1.5)
        print(f"{world_size} ranks, {name}: {seconds[name]:.3f} s, predicted {predicted[name]:.3f}", flush=True)
    chosen = min(predicted, key=predicted.__getitem__)
    rivals = sorted(seconds, key=seconds.__getitem__)[:NUM_RIVALS]
    again = _in_turns(size, {name: layouts[name] for name in {chosen, *rivals}}, ranks)
    best = min(again, key=again.__getitem__)
    return {
        "ranks": world_size,
        "layouts": len(layouts),
        "chosen": chosen,
        "best": best,
        "ratio": round(again[chosen] / again[best], 3),
        "rank_of_chosen": 1 + sorted(seconds, key=seconds.__getitem__).index(chosen),
        "rank_correlation": round(_rank_correlation(list(predicted.values()), list(seconds.values())), 3),
        "worst_over_best": round(max(seconds.values()) / min(seconds.values()), 2),
        "again": again,
        "rows": [{"layout": name, "seconds": seconds[name], "predicted_seconds": predicted[name]} for name in layouts],
    }


def predict(config: RunConfig, world_size: int, machine: Machine) -> float:
    """Seconds of a step in eager torch, as these runs are."""
    return predict_step(config, resolve_layout(config, world_size), machine, "eager").seconds


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Errors of all rows but those that ratios are taken to."""
    found = {}
    for name, key in (("ratio", "error"), ("peak", "peak_error")):
        errors = [abs(row[key]) for row in rows if key == "peak_error" or row["ratio"] != 1]
        found |= {f"{name}_median_error": statistics.median(errors), f"{name}_largest_error": max(errors)}
    return {name: round(value, 4) for name, value in found.items()}


def _measured_points(folder: Path, *, quick: bool) -> Path:
    return write_result(
        "plan_calibration",
        measure_machine(quick=quick),
        code=[*CALIBRATION_CODE, "benchmarks/plan_calibration.py"],
        out=folder / "points.json" if quick else None,
    )


def _machine(points: Path) -> Machine:
    return calibrated_machine(read_calibration(points))


def _step_seconds(config: RunConfig, ranks: Ranks, longest_s: float = LONGEST_S) -> float:
    return statistics.median(ranks.run(measure, config, NUM_STEPS, longest_s)[0].wall)


def _in_turns(size: str, layouts: Mapping[str, Parallel], ranks: Ranks) -> dict[str, float]:
    """Each layout's fastest turn of several."""
    turns: dict[str, list[float]] = {name: [] for name in layouts}
    for turn in range(NUM_TURNS):
        for name in layouts if turn % 2 == 0 else reversed(layouts):
            turns[name].append(_step_seconds(small_run(size, layouts[name]), ranks, longest_s=1.5))
    return {name: min(seconds) for name, seconds in turns.items()}


def _rank_correlation(a: list[float], b: list[float]) -> float:
    """Spearman's: the correlation of the places that values take in order."""
    return statistics.correlation(*([sorted(values).index(value) for value in values] for values in (a, b)))


if __name__ == "__main__":
    main()
