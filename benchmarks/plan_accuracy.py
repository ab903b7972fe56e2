"""The planner's predictions held against real steps on this machine: time, peak memory, and the choice of a layout.

    python benchmarks/plan_accuracy.py                  # all of it, at most 20 minutes on two idle cores
    python benchmarks/plan_accuracy.py --quick          # a minute: one size, few layouts; writes nothing
    python benchmarks/plan_accuracy.py --rows           # the third part alone; points and sweeps stay as they are
    python benchmarks/plan_accuracy.py --choices        # today's choices alone, against the layouts that were fastest

Measured on gloo ranks of one thread each, in this order:

1. this machine's points (`plan_calibration.py`, whose result is written as well); all predictions are made from them;
2. every layout that the small model can have on four and on eight ranks. The one that the planner takes for the fastest
   of them, and the one that `plan --search` finds, which knows other schedules too, are then measured in turns with
   those that were the fastest: each may take 10 % more than the best;
3. for three sizes of a model and each of `LAYOUTS` on one to eight ranks, the seconds of a step, and the most bytes
   that live at once on a rank. Of the time the ratio to one rank is compared, which is measured before and after.

Results are written after each part. Steps are the trainer's own, in bf16. Memory is that of fp32 runs: for bf16 the
planner assumes a GPU's kernels. Exits with status 1 if a choice misses the 10 %.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from gloo_ranks import Ranks
from harness import alternating, arguments, result
from measured_layouts import measure, watch_memory
from plan_calibration import CODE as CALIBRATION_CODE
from plan_calibration import measure_machine
from record import RESULTS, write_result
from small_runs import LAYOUTS, SIZES, every_layout, small_run

from glmforge.config.layout import resolve_layout
from glmforge.config.schema import RunConfig
from glmforge.plan.machine.calibration import calibrated_machine
from glmforge.plan.machine.machine import Machine
from glmforge.plan.memory.estimate import estimate_memory
from glmforge.plan.search.search import search_layouts
from glmforge.plan.time.step_time import predict_step

CODE = (
    *CALIBRATION_CODE,
    "benchmarks/plan_calibration.py",
    "src/glmforge/plan/machine",
    "src/glmforge/plan/memory",
    "src/glmforge/plan/search",
    "src/glmforge/plan/time",
    "src/glmforge/plan/work",
    "src/glmforge/parallel",
    "src/glmforge/model",
    "src/glmforge/optim",
)
LIMIT = 1.10
"""Of the best layout's seconds: what the planner's choice may take."""
NUM_STEPS, LONGEST_S, SHORT_S = 5, 5.0, 1.0
"""Steps that are measured of a layout; fewer (but two) if they take longer than that, in sweeps than the last."""
NUM_RIVALS, NUM_TURNS = 4, 4
"""How many of the fastest layouts the choice is measured with again, and how often."""
POOLS, SWEPT = (1, 2, 4, 8), (4, 8)
"""Ranks of the jobs, and of those that all layouts are measured on."""
QUICK = ("one rank", "fsdp 2", "tp 2", "pp 2")
SCHEDULES = ("1f1b", "gpipe", "interleaved_1f1b", "looped_bfs")
"""Of the search's findings the fastest with one of these is measured: FSDP refuses the gradients that a split backward
pass of a single micro-batch leaves in bf16."""
SEARCH = "plan --search"

Pools = Mapping[int, Ranks]
Row = dict[str, Any]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="to try it: the small size, few layouts")
    parser.add_argument("--rows", action="store_true", help="keep points and sweeps, compare the three sizes again")
    parser.add_argument("--choices", action="store_true", help="keep all but the choices, and measure these again")
    parser.add_argument("--points", type=Path, help="points that were measured before")
    args = parser.parse_args()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        kept = RESULTS / "plan_calibration.json" if args.rows or args.choices else args.points
        points = kept or _measured_points(Path(folder), quick=args.quick)
        machine = calibrated_machine(points, None, "tcp10", max(POOLS))
    content: dict[str, Any] = {"limit": LIMIT, "sweeps": {}, "summary": {}, "rows": []}
    with ExitStack() as stack:
        pools = {size: stack.enter_context(Ranks(size)) for size in (POOLS[:2] if args.quick else POOLS)}
        if args.quick:
            compare("small", machine, pools, QUICK)
            return
        if args.rows or args.choices:
            before = result("plan_accuracy")
            content |= {key: before[key] for key in ("sweeps", "summary", "rows", "seconds")}
        for world_size in () if args.rows else SWEPT:
            name = f"{world_size} ranks"
            known = {row["layout"]: row["seconds"] for row in content["sweeps"].get(name, {}).get("rows", ())}
            content["sweeps"][name] = sweep(world_size, machine, pools[world_size], known)
        if args.choices:
            print(write_result("plan_accuracy", content, code=CODE, out=args.out))
        else:
            content["rows"] = []
        for size in () if args.choices else SIZES:
            content["rows"] += compare(size, machine, pools, LAYOUTS)
            content |= {"summary": summary(content["rows"]), "seconds": round(time.perf_counter() - started)}
            print(json.dumps(content["summary"]), write_result("plan_accuracy", content, code=CODE, out=args.out))
    sys.exit("\n".join(_missed(content["sweeps"])) or None)


def _missed(sweeps: dict[str, dict[str, Any]]) -> Iterator[str]:
    """What takes longer than it may."""
    for name, found in sweeps.items():
        for what, ratio in ((found["chosen"], found["ratio"]), (SEARCH, found["searched_ratio"])):
            if ratio > LIMIT:
                yield f"{name}: {what} takes {ratio} of the best, {found['best']}"


def compare(size: str, machine: Machine, pools: Pools, names: Mapping[str, Any] | tuple[str, ...]) -> list[Row]:
    """A row for each layout: measured and predicted seconds, their ratios to the first, and peak bytes.

    The first is measured between the others, so that a machine that gets slower or faster changes both alike.
    """
    rows: list[Row] = []
    first_ranks, first_parallel = LAYOUTS[next(iter(LAYOUTS))]
    first_config = small_run(size, first_parallel)
    first_predicted = predict(first_config, first_ranks, machine)
    before = _step_seconds(first_config, pools[first_ranks], SHORT_S)
    for name in names:
        world_size, parallel = LAYOUTS[name]
        config, in_fp32 = small_run(size, parallel), small_run(size, parallel, compute="fp32")
        seconds, predicted = _step_seconds(config, pools[world_size], LONGEST_S), predict(config, world_size, machine)
        after = _step_seconds(first_config, pools[first_ranks], SHORT_S)
        ratio, expected = seconds / statistics.mean((before, after)), predicted / first_predicted
        before = after
        peak = max(pools[world_size].run(watch_memory, in_fp32))
        estimated = estimate_memory(in_fp32, resolve_layout(in_fp32, world_size)).peak
        rows.append(
            {"size": size, "layout": name, "ranks": world_size}
            | {"seconds": round(seconds, 4), "predicted_seconds": round(predicted, 4)}
            | {"ratio": round(ratio, 3), "predicted_ratio": round(expected, 3), "error": round(expected / ratio - 1, 3)}
            | {"peak_bytes": peak, "predicted_peak_bytes": estimated, "peak_error": round(estimated / peak - 1, 4)}
        )
        print(
            f"{size}, {name}: {seconds:.3f} s, predicted {predicted:.3f}; ratio {ratio:.2f}, predicted {expected:.2f}; "
            f"peak {peak / 1e6:.1f} MB, predicted {estimated / 1e6:.1f}",
            flush=True,
        )
    return rows


def sweep(world_size: int, machine: Machine, ranks: Ranks, known: Mapping[str, float]) -> dict[str, Any]:
    """Measure every layout of the small model on so many ranks, and the planner's choice against the fastest again.

    `known` are seconds of layouts that need not be measured.
    """
    configs = {name: small_run("small", parallel) for name, parallel in every_layout("small", world_size)}
    predicted = {name: predict(config, world_size, machine) for name, config in configs.items()}
    seconds: dict[str, float] = {}
    for name, config in configs.items():
        if name not in known:
            seconds[name] = _step_seconds(config, ranks, SHORT_S)
            print(f"{world_size} ranks, {name}: {seconds[name]:.3f} s, predicted {predicted[name]:.3f}", flush=True)
        else:
            seconds[name] = known[name]
    in_order = sorted(seconds, key=seconds.__getitem__)
    chosen = min(predicted, key=predicted.__getitem__)
    ranked = search_layouts(small_run("small", {}), world_size, machine).ranked
    searched = next(found.config for found in ranked if found.config.parallel.pipeline_schedule in SCHEDULES)
    rivals = {name: configs[name] for name in dict.fromkeys([chosen, *in_order[:NUM_RIVALS]])}
    # What is the same layout to the bit is not measured twice: two medians of one thing differ by the machine's noise.
    same = next((name for name, rival in rivals.items() if _is_same(rival, searched, world_size)), None)
    again = _in_turns(rivals | ({SEARCH: searched} if same is None else {}), ranks)
    again[SEARCH] = again[same or SEARCH]
    best = min(again, key=again.__getitem__)
    found = {
        "layouts": len(configs),
        "chosen": chosen,
        "best": best,
        "ratio": round(again[chosen] / again[best], 3),
        "searched": searched.parallel.model_dump(exclude_defaults=True),
        "searched_ratio": round(again[SEARCH] / again[best], 3),
        "place_of_chosen": 1 + in_order.index(chosen),
        "rank_correlation": round(_rank_correlation(list(predicted.values()), list(seconds.values())), 3),
        "slowest_over_best": round(seconds[in_order[-1]] / seconds[in_order[0]], 2),
    }
    print(json.dumps(found), flush=True)
    rows = [
        {"layout": name, "seconds": round(seconds[name], 4), "predicted_seconds": round(predicted[name], 4)}
        for name in in_order
    ]
    return found | {"again": {name: round(value, 4) for name, value in again.items()}, "rows": rows}


def _is_same(one: RunConfig, other: RunConfig, world_size: int) -> bool:
    """Whether two runs are laid out alike, micro-batches included."""
    layouts = []
    for config in (one, other):
        layout = resolve_layout(config, world_size)
        rows = layout.micro_batch_size or config.phases[0].batch_size // layout.data_ranks
        layouts.append(
            (replace(layout, micro_batch_size=rows), config.parallel.model_copy(update={"micro_batch_size": rows}))
        )
    return layouts[0] == layouts[1]


def predict(config: RunConfig, world_size: int, machine: Machine) -> float:
    """Seconds of a step."""
    return predict_step(config, resolve_layout(config, world_size), machine).seconds


def summary(rows: list[Row]) -> dict[str, float]:
    """Errors; of time without the rows that ratios are taken to."""
    of_time = [abs(row["error"]) for row in rows if row["layout"] != next(iter(LAYOUTS))]
    of_peak = [abs(row["peak_error"]) for row in rows]
    found = {}
    for name, errors in (("ratio", of_time), ("peak", of_peak)):
        found |= {f"{name}_median_error": statistics.median(errors), f"{name}_largest_error": max(errors)}
    return {name: round(value, 4) for name, value in found.items()} | {"rows": len(rows)}


def _measured_points(folder: Path, *, quick: bool) -> Path:
    code = [*CALIBRATION_CODE, "benchmarks/plan_calibration.py"]
    out = folder / "points.json" if quick else None
    return write_result("plan_calibration", measure_machine(quick=quick), code=code, out=out)


def _step_seconds(config: RunConfig, ranks: Ranks, longest_s: float) -> float:
    return statistics.median(ranks.run(measure, config, NUM_STEPS, longest_s)[0].wall)


def _in_turns(configs: dict[str, RunConfig], ranks: Ranks) -> dict[str, float]:
    """The median of several turns of each."""
    turns: dict[str, list[float]] = {name: [] for name in configs}
    for name in alternating(list(configs), NUM_TURNS):
        turns[name].append(_step_seconds(configs[name], ranks, SHORT_S))
    return {name: statistics.median(seconds) for name, seconds in turns.items()}


def _rank_correlation(a: list[float], b: list[float]) -> float:
    """Spearman's: the correlation of the places that values take in order."""
    return statistics.correlation(*([sorted(values).index(value) for value in values] for values in (a, b)))


if __name__ == "__main__":
    main()
