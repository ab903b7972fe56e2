"""What docs/plan.md has of the code: the command's own words on one run, and the devices that are known.

`python scripts/doc_tables.py` writes them into the page, and those of `result_tables.py`.
"""

import io
from collections.abc import Callable

from harness import table
from record import ROOT
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
    header = [
        "GPU",
        "also",
        "bf16, TFLOP/s",
        "fp8, TFLOP/s",
        "memory, GB",
        "GB/s",
        "NVLink, GB/s each way",
        "W",
        "source",
    ]
    return table(header, [_device(row, aliases.get(row.name, [])) for row in ACCELERATORS])


def _device(row: Accelerator, aliases: list[str]) -> list[str]:
    numbers = (
        (row.bf16_flops, 1e12),
        (row.fp8_flops, 1e12),
        (row.memory_bytes, 1e9),
        (row.memory_bandwidth, 1e9),
        (row.nvlink_bandwidth, 1e9),
        (row.power, 1),
    )
    cells = [f"{value / unit:,.4g}" if value else "" for value, unit in numbers]
    return [row.name, ", ".join(aliases), *cells, row.source]


TABLES: list[Callable[[], str]] = [summary, devices_table]
