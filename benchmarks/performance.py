"""The tables of docs/performance.md: predictions from `glmforge.plan`, measurements from results/gpu_step.json.

`python scripts/doc_tables.py` writes them into the page. Measurements are those of part `step` of `scripts/gpu.sh`,
with the router's own choice of experts, and count for the device that the file names.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from gpu.kernel_times import KINDS, OTHER
from gpu.slices import SLICES
from harness import result, table
from record import ROOT

from glmforge.config import load_config
from glmforge.config.layout import resolve_layout
from glmforge.plan.layout import select_phase
from glmforge.plan.machine.ceilings import ceilings
from glmforge.plan.machine.hardware import ACCELERATORS, Accelerator, find_accelerator
from glmforge.plan.machine.machine import find_machine
from glmforge.plan.time import reached
from glmforge.plan.time.ledger import Ledger, Row, make_ledger, total
from glmforge.plan.time.pieces import Kernels
from glmforge.plan.time.reached import FACTORS, IMPLEMENTATIONS, LEVERS, Implementation
from glmforge.plan.time.step_time import StepTime, predict_step

DEVICES = {row.name: row for row in ACCELERATORS if row.name in ("H200 SXM", "H100 SXM")}
LAYOUTS = (
    ("scaled_down_64gpu", 64),
    ("pretrain_glm45_air_106b", 1024),
    ("pretrain_glm45_355b", 8192),
    ("pretrain_glm45_355b_guide", 8192),
)
"""Run and GPUs."""
FIGURES: dict[Implementation, str] = {
    "eager": "{} | glmforge, eager, real routing",
    "compiled": "{} | glmforge, real routing",
    "triton": "{} | glmforge, every Triton kernel, real routing",
}
"""What part `step` calls a slice's figure."""
CLIP = "gradient norm and clip"


@cache
def ledger_of(name: str, device: str) -> Ledger:
    """Of a slice on a device."""
    config = SLICES[name].load()
    return make_ledger(config, resolve_layout(config, 1), DEVICES[device])


def measured(name: str, implementation: Implementation, device: Accelerator) -> dict[str, Any]:
    """The figure of a slice on this device; empty while there is none."""
    content = result("gpu_step")
    if not content or content.get("dry") or find_accelerator(content["device"]["name"]) != device:
        return {}
    figure: dict[str, Any] = content["figures"].get(FIGURES[implementation].format(name), {})
    return figure if figure.get("status") == "ok" else {}


def ceilings_table() -> str:
    """Data sheets, and what was measured of them."""
    rows = []
    for name, device in DEVICES.items():
        best = ceilings(device)
        rates = (device.bf16_flops, best.bf16_flops, device.fp32_flops)
        bandwidths = (device.memory_bandwidth, best.bandwidth)
        rows.append([name, *(_number(rate / 1e12) for rate in rates), *(f"{rate / 1e12:.2f}" for rate in bandwidths)])
    header = ["device", "bf16, TFLOP/s", "measured", "fp32, TFLOP/s", "memory, TB/s", "measured"]
    return table(header, rows)


def slices_table() -> str:
    """What every slice is expected to reach, and what it did."""
    header = ["slice", "device", "tokens in a step", "limit: MFU"]
    header += [f"{name}: tokens/s, MFU" for name in IMPLEMENTATIONS]
    header += [
        "triton without the update: MFU",
        "with all levers: MFU",
        *(f"measured, {name}" for name in IMPLEMENTATIONS),
    ]
    rows = []
    for name in SLICES:
        for device, accelerator in DEVICES.items():
            ledger = ledger_of(name, device)
            seconds, update = ledger.total.expected, ledger.update.expected["triton"]
            cells = [name, device, f"{ledger.tokens:,.0f}", f"{ledger.utilisation(ledger.total.limit):.2f}"]
            cells += [_rate(ledger, seconds[implementation]) for implementation in IMPLEMENTATIONS]
            gain = sum(row.gain for row in ledger.rows)
            cells += [f"{ledger.utilisation(seconds['triton'] - less):.2f}" for less in (update, gain)]
            figures = (measured(name, implementation, accelerator) for implementation in IMPLEMENTATIONS)
            cells += [_rate(ledger, figure["seconds"]) if figure else "" for figure in figures]
            rows.append(cells)
    return table(header, rows)


def operations_table(name: str, device: str) -> str:
    """A slice's operations and their sums; times in ms of a step. What is measured is so for Triton's kernels."""
    ledger = ledger_of(name, device)
    figure = measured(name, "triton", DEVICES[device])
    parts: dict[str, float] = figure.get("phases_s", {})
    header = [
        f"{name} on {device}",
        "TFLOP",
        "GB",
        "limit",
        *IMPLEMENTATIONS,
        "measured",
        "share",
        "next lever",
        "gain",
    ]
    rows = [
        _operation_row(row.name, [row], ledger, parts.get("clip") if row.name == CLIP else None) for row in ledger.rows
    ]
    update = [row for row in ledger.rows if row.is_update and row.name != CLIP]
    passes = [row for row in ledger.rows if not row.is_update]
    kernels: dict[str, float] = figure.get("kernels_s", {})
    for kind in (*KINDS, OTHER):
        rows.append(_operation_row(f"all {kind}", [r for r in passes if _kind(r) == kind], ledger, kernels.get(kind)))
    rows += [
        _operation_row("forward and backward", passes, ledger, parts.get("forward_and_backward")),
        _operation_row("optimizer", update, ledger, parts.get("update")),
        _operation_row("step", ledger.rows, ledger, figure.get("seconds")),
    ]
    return table(header, rows)


def _kind(row: Row) -> str:
    """Of the kernels that an operation of the forward and backward passes runs in."""
    if row.kind == "matmul":
        return "grouped matmuls" if row.name.startswith("experts") else "dense matmuls"
    return "attention" if row.kind == "attention" else OTHER


def _operation_row(name: str, rows: list[Row], ledger: Ledger, seconds: float | None) -> list[str]:
    cost, gain = total(row.total for row in rows), sum(row.gain for row in rows)
    share = cost.expected["triton"] / ledger.total.expected["triton"]
    return [
        name,
        _number(cost.flops / 1e12) if cost.flops else "",
        _number(cost.bytes / 1e9),
        *(_ms(time) for time in (cost.limit, *cost.expected.values())),
        _ms(seconds) if seconds else "",
        f"{share:.3f}",
        (rows[0].lever or "") if name == rows[0].name else "",
        _ms(gain) if gain else "",
    ]


def shares_table(device: str) -> str:
    """Of the expected time with Triton's kernels, in all slices."""
    ledgers = {name: ledger_of(name, device) for name in SLICES}
    names = list(dict.fromkeys(row.name for ledger in ledgers.values() for row in ledger.rows))
    rows = []
    for name in names:
        here = [next((row for row in ledger.rows if row.name == name), None) for ledger in ledgers.values()]
        shares = zip(here, ledgers.values(), strict=True)
        rows.append([name, *(_share(row, ledger) if row else "" for row, ledger in shares)])
    return table([f"share of a step on {device}", *ledgers], rows)


@cache
def step_of(run: str, world_size: int, device: str) -> StepTime:
    """Of the first phase of a packaged run, with Triton's kernels and adapters of 400 Gb/s."""
    config = select_phase(load_config(ROOT / "configs" / f"{run}.yaml"), None)
    kernels = replace(Kernels.of(config), implementation="triton")
    return predict_step(config, resolve_layout(config, world_size), find_machine(device, "ib400"), kernels)


def steps_table(device: str) -> str:
    """Predicted steps of packaged runs and what they spend their seconds on."""
    parts = ("compute", "recompute", "tp", "cp", "ep", "fsdp", "bubble", "update")
    rows = []
    for run, world_size in LAYOUTS:
        step = step_of(run, world_size, device)
        rate = f"{step.tokens_per_second / world_size:,.0f}"
        seconds = (f"{step.parts[part]:.2f}" if part in step.parts else "" for part in parts)
        rows.append([run, f"{world_size:,}", f"{step.seconds:.2f}", rate, f"{step.utilisation:.2f}", *seconds])
    return table([f"step on {device}", "GPUs", "seconds", "tokens/s of a GPU", "MFU", *parts], rows)


def layouts_table(device: str) -> str:
    """What a rank of the slowest place of the pipeline sends in a step, and the seconds that the links take for it."""
    rows = []
    for run, world_size in LAYOUTS:
        for link in step_of(run, world_size, device).links:
            group = f"{link.group.num_ranks}, {link.group.ranks_per_node}"
            sizes = (_number(size / 1e9) for size in (link.bytes, link.into_node))
            rows.append([run, link.axis, link.kind, group, *sizes, f"{link.seconds:.2f}"])
    header = [f"links on {device}", "axis", "collective", "ranks, in a node", "GB", "GB into a node", "seconds"]
    return table(header, rows)


def factors_table() -> str:
    """Bytes moved as multiples of the least, forward and backward, with reasons."""
    header = ["bytes moved, of the least", "implementation", "forward", "backward", "because"]
    rows = [
        [name, implementation, f"{factor.forward:g}", f"{factor.backward:g}" if factor.backward else "", factor.reason]
        for name, factors in FACTORS.items()
        for implementation, factor in factors.items()
    ]
    return table(header, rows)


def rates_table() -> str:
    """What of a rate is reached."""
    rates = {
        "elementwise kernels": reached.STREAMING,
        "kernels that gather rows": reached.GATHERING,
        "attention": reached.ATTENTION,
        "attention, kernels.attention: flash3": reached.ATTENTION_FLASH3,
        "attention on A100": reached.ATTENTION_AMPERE,
        "symmetric matmuls, triton": reached.SYMMETRIC,
        "fp32 matmuls": reached.FP32_MATMUL,
        "computation beside communication": reached.BESIDE_COMMUNICATION,
    }
    rows = [[name, f"{rate.forward:g}", f"{rate.backward:g}", rate.reason] for name, rate in rates.items()]
    return table(["rate reached by", "forward", "backward", "of what"], rows)


def levers_table() -> str:
    """What remains of an operation's time, with reasons."""
    rows = [[name, lever.words, f"{lever.remains:g}", lever.reason] for name, lever in LEVERS.items()]
    return table(["operation", "lever", "of its time remains", "because"], rows)


TABLES: tuple[Callable[[], str], ...] = (
    ceilings_table,
    slices_table,
    lambda: operations_table("air-4k", "H200 SXM"),
    lambda: operations_table("355b-4k", "H200 SXM"),
    lambda: shares_table("H200 SXM"),
    lambda: steps_table("H100 SXM"),
    lambda: layouts_table("H100 SXM"),
    rates_table,
    factors_table,
    levers_table,
)


def _share(row: Row, ledger: Ledger) -> str:
    return f"{row.total.expected['triton'] / ledger.total.expected['triton']:.3f}"


def _rate(ledger: Ledger, seconds: float) -> str:
    return f"{ledger.tokens / seconds:,.0f}, {ledger.utilisation(seconds):.2f}"


def _ms(seconds: float) -> str:
    return _number(seconds * 1e3)


def _number(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"
