"""What docs/plan.md has of the code: the command's own words on one run, the devices that are known, memory by
closed forms against dry runs, and what dry runs take.

`python scripts/doc_tables.py` writes them into the page.
"""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from record import RESULTS, ROOT
from rich.console import Console

from glmforge.cli.plan.summary import show_report
from glmforge.config import load_config
from glmforge.config.layout import resolve_layout
from glmforge.plan.layout import select_phase
from glmforge.plan.machine.hardware import ACCELERATORS, ALIASES, Accelerator
from glmforge.plan.machine.machine import find_machine
from glmforge.plan.report import make_report

_RUN, _GPUS, _GPU = "pretrain_glm45_air_106b", 1024, "h100-80gb"
_WIDTH = 130


def summary() -> str:
    """The command and what it prints of one run, as a terminal shows it."""
    run = load_config(ROOT / "configs" / f"{_RUN}.yaml")
    planned = select_phase(run, None)
    report = make_report(run, planned, resolve_layout(planned, _GPUS), find_machine(_GPU))
    screen = io.StringIO()
    show_report(report, Console(file=screen, width=_WIDTH, color_system=None), page=None, as_json=False)
    lines = [line.rstrip() for line in screen.getvalue().strip().splitlines()]
    return "\n".join([f"$ glmforge plan configs/{_RUN}.yaml --gpus {_GPUS} --gpu {_GPU}", *lines, ""])


def devices_table() -> str:
    """What is known of each."""
    aliases: dict[str, list[str]] = {}
    for alias, name in ALIASES.items():
        aliases.setdefault(name, []).append(alias)
    header = "| GPU | also | bf16, TFLOP/s | fp8, TFLOP/s | memory, GB | GB/s | NVLink, GB/s each way | W | source |"
    return _markdown(header, [_device(row, aliases.get(row.name, [])) for row in ACCELERATORS])


def memory_table() -> str:
    """Peaks by closed forms against dry runs, as `plan_memory.py` has recorded them."""
    runs = json.loads((RESULTS / "plan_memory.json").read_text("utf-8"))["runs"]
    header = "| run | GPUs | peak of a dry run, GB | closed form, GB | error, % | largest of a place, % |"
    rows = []
    for run in runs:
        errors = (f"{100 * run[name]:+.1f}" for name in ("error", "largest_error_of_a_place"))
        planned = run["closed_form"][run["fullest"]]["peak"]
        sizes = f"{run['peak'] / 1e9:,.2f} | {planned / 1e9:,.2f}"
        rows.append(f"| {run['name']} | {run['world_size']:,} | {sizes} | {' | '.join(errors)} |")
    return _markdown(header, rows)


def dry_runs_table() -> str:
    """What dry runs found and took, as `dry_runs.py` has measured them: shipped files, then every schedule."""
    found = json.loads((RESULTS / "dry_runs.json").read_text("utf-8"))
    header = (
        "| dry run of | settings | phase | GPUs | fullest place | its peak, GB | of its GPU, % "
        "| seconds | of processors | resident, GB |"
    )
    return _markdown(header, [_dry_run(run) for run in (*found["runs"].values(), *found["schedules"].values())])


def _dry_run(run: dict[str, Any]) -> str:
    settings = " ".join(setting.removeprefix("parallel.") for setting in run["settings"])
    cells = [
        Path(run["file"]).stem,
        settings,
        run["phase"],
        f"{run['world_size']:,}",
        f"{run['fullest_place']}",
        f"{run['peak_bytes'] / 1e9:.1f}",
        f"{100 * run['share_of_gpu']:.0f}",
        f"{run['seconds']:.0f}",
        f"{run['cpu_seconds']:.0f}",
        f"{run['resident_bytes'] / 1e9:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def _device(row: Accelerator, aliases: list[str]) -> str:
    numbers = (
        (row.bf16_flops, 1e12),
        (row.fp8_flops, 1e12),
        (row.memory_bytes, 1e9),
        (row.memory_bandwidth, 1e9),
        (row.nvlink_bandwidth, 1e9),
        (row.power, 1),
    )
    cells = [f"{value / unit:,.4g}" if value else "" for value, unit in numbers]
    return f"| {' | '.join([row.name, ', '.join(aliases), *cells, row.source])} |"


def _markdown(header: str, rows: list[str]) -> str:
    line = "|".join(["", *[" --- "] * (header.count("|") - 1), ""])
    return "\n".join([header, line, *rows, ""])


TABLES: list[Callable[[], str]] = [summary, devices_table, memory_table, dry_runs_table]
