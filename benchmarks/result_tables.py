"""The tables of docs that are made from results, by page; `scripts/doc_tables.py` writes them.

Before anything was measured they have no rows.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from harness import result, table

OURS = "glmforge"
RIVALS = {
    "transformers eager": "transformers",
    "transformers grouped_mm": "transformers, grouped",
    "transformers continuous": "its continuous batching",
    "llama.cpp": "llama.cpp",
    "vllm": "vLLM",
}
RECOVERY = ("seconds", "detected_s", "decided_s", "started_s", "first_step_s")


def generation_table(dtype: str) -> str:
    """Each workload: our rate and time to first token, and how many times each other's rate (`generation.py`)."""
    rows = []
    for workload, programs in result("generation").get(dtype, {}).items():
        if workload != "versions":
            ours = programs[OURS]
            ratios = [f"{programs[name]['ours_over_it']:.2f}" if name in programs else "" for name in RIVALS]
            rows.append([workload, f"{ours['tokens_per_s']:,.0f}", f"{1000 * ours['first_token_s']:,.0f}", *ratios])
    first, *others = RIVALS.values()
    header = [f"{dtype}: requests x prompt + answer", "tokens/s", "first token, ms", f"times {first}", *others]
    return table(header, rows)


def faults_table() -> str:
    """Each kind of fault: seconds to the next step, and what they went to (`launch_faults.py`)."""
    rows = []
    for name, figures in result("launch_faults").get("by_fault", {}).items():
        went_on = figures["seconds"] is None
        rows.append([name, *(["goes on", *[""] * 4] if went_on else [f"{figures[key] or 0:.0f}" for key in RECOVERY])])
    return table(["fault", "seconds", "detected", "decided", "started", "first step"], rows)


def accuracy_table() -> str:
    """Each size and layout: step time as a ratio to one rank, and peak memory (`plan_accuracy.py`)."""
    header = ["size", "layout", "ranks", "ratio", "predicted", "error, %", "peak MB", "predicted MB", "error, %"]
    rows = (
        [
            row["size"],
            row["layout"],
            row["ranks"],
            f"{row['ratio']:.2f}",
            f"{row['predicted_ratio']:.2f}",
            f"{100 * row['error']:+.0f}",
            f"{row['peak_bytes'] / 1e6:.1f}",
            f"{row['predicted_peak_bytes'] / 1e6:.1f}",
            f"{100 * row['peak_error']:+.1f}",
        ]
        for row in result("plan_accuracy").get("rows", [])
    )
    return table(header, rows)


def sweep_table() -> str:
    """Each number of ranks: the planner's choice beside the fastest of all layouts (`plan_accuracy.py`)."""
    header = ["ranks", "layouts", "chosen", "fastest", "chosen / fastest", "search / fastest", "slowest / fastest"]
    rows = (
        [
            name.split()[0],
            found["layouts"],
            found["chosen"],
            found["best"],
            f"{found['ratio']:.2f}",
            f"{found['searched_ratio']:.2f}",
            f"{found['slowest_over_best']:.1f}",
            f"{found['rank_correlation']:.2f}",
        ]
        for name, found in result("plan_accuracy").get("sweeps", {}).items()
    )
    return table([*header, "rank correlation"], rows)


def long_table() -> str:
    """Each case of `long_sequences.py`."""
    rows = (
        [
            case["name"],
            f"{case['peak_bytes'] / 1e6:.1f}",
            f"{case['dry_run_bytes'] / 1e6:.1f}",
            f"{case['ratio']:.3f}",
            f"{case['resident_bytes'] / 1e6:.0f}",
            f"{case['seconds']:.0f}",
        ]
        for case in result("long_sequences").get("cases", [])
    )
    return table(["long rows", "peak MB", "dry run, MB", "dry run / peak", "process grew by, MB", "step, s"], rows)


def memory_table() -> str:
    """Peaks by closed forms against dry runs (`plan_memory.py`)."""
    header = ["run", "GPUs", "peak of a dry run, GB", "closed form, GB", "error, %", "largest of a place, %"]
    rows = (
        [
            run["name"],
            f"{run['world_size']:,}",
            f"{run['peak'] / 1e9:,.2f}",
            f"{run['closed_form'][run['fullest']]['peak'] / 1e9:,.2f}",
            *(f"{100 * run[name]:+.1f}" for name in ("error", "largest_error_of_a_place")),
        ]
        for run in result("plan_memory").get("runs", [])
    )
    return table(header, rows)


def dry_runs_table() -> str:
    """What dry runs found and took: shipped files, then every schedule (`dry_runs.py`)."""
    found = result("dry_runs")
    header = ["dry run of", "settings", "phase", "GPUs", "fullest place", "its peak, GB", "of its GPU, %"]
    rows = (
        [
            Path(run["file"]).stem,
            " ".join(setting.removeprefix("parallel.") for setting in run["settings"]),
            run["phase"],
            f"{run['world_size']:,}",
            run["fullest_place"],
            f"{run['peak_bytes'] / 1e9:.1f}",
            f"{100 * run['share_of_gpu']:.0f}",
            f"{run['seconds']:.0f}",
            f"{run['cpu_seconds']:.0f}",
            f"{run['resident_bytes'] / 1e9:.2f}",
        ]
        for part in ("runs", "schedules")
        for run in found.get(part, {}).values()
    )
    return table([*header, "seconds", "of processors", "resident, GB"], rows)


TABLES: dict[str, list[Callable[[], str]]] = {
    "generate.md": [partial(generation_table, dtype) for dtype in ("fp32", "bf16")],
    "guides/recovery.md": [faults_table],
    "plan.md": [memory_table, dry_runs_table],
    "plan-accuracy.md": [sweep_table, accuracy_table, long_table],
}
