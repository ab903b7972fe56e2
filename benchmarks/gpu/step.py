"""Part `step`: training steps of slices of Air and GLM-4.5 (355B), and what others make of the same.

`mfu` is model FLOPs (the closed form of `glmforge plan`: recomputation, norms and optimizer do not count) per second
over the maker's dense bf16 peak; `share` is the same over the rate that a large matmul reaches on this very card. Real
routing is that of random weights on unevenly frequent tokens; `imbalance` says how uneven it is.
"""

import gc
import math
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from glmforge.config.parameter_groups import parameter_groups
from glmforge.config.schema import RunConfig
from glmforge.plan.machine.hardware import find_accelerator
from gpu.bench import Bench
from gpu.composition import Composition
from gpu.kernel_times import kernel_times
from gpu.results import Figure, MissingError, not_installed
from gpu.slice_runs import (
    OtherStep,
    OwnStep,
    batch_of,
    check_memory,
    composition_step,
    cut,
    flops_of,
    load,
    tokens_of,
    transformers_step,
    triton_settings,
)
from gpu.timing import measure

WARM_UP, STEPS = 2, 5
ALIKE = ("air-32k", "355b-32k", "355b-128k")
"""Slices that a dry run leaves out, as their path is another one's."""
ALWAYS_FITS = 4096
"""Tokens of a row up to which no dry run is made first: a slice fits on 80 GB."""
COMPILED, ADAMW = "parallel.compile=true", "optim.matrix_optimizer=adamw"


def run(bench: Bench) -> None:
    def ours(slice_name: str, *settings: str, level: bool = False, expected_s: float = 50, label: str = "") -> None:
        words = ["glmforge", *filter(None, [label]), "level routing" if level else "real routing"]
        name = f"{slice_name} | {', '.join(words)}"
        if bench.dry and slice_name in ALIKE:
            return
        function = partial(own_figure, bench, slice_name, settings, level=level)
        bench.figure(name, function, expected_s=expected_s)
        if bench.results.figures[name]["status"] == "too large":
            shorter = load(slice_name, dry=bench.dry).phases[0].seq_len // 2
            name = f"{slice_name}, rows cut to {shorter} tokens | {', '.join(words)}"
            bench.figure(name, partial(function, seq_len=shorter), expected_s=expected_s)

    def theirs(slice_name: str, who: str, build: Callable[..., OtherStep], expected_s: float = 50) -> None:
        for compiled in (True, False):
            name = f"{slice_name} | {who}{', compiled' if compiled else ''}"
            function = partial(other_figure, bench, slice_name, build, compiled=compiled)
            bench.figure(name, function, expected_s=expected_s, is_ours=False)

    bench.figure("composition | equals glmforge", partial(composition_is_right, bench), expected_s=5)
    ours("air-4k", COMPILED, expected_s=90)
    ours("air-4k", COMPILED, level=True)
    ours("air-4k", COMPILED, ADAMW, label="AdamW")
    for optimizer in ("muon", "adamw"):
        bench.figure(f"air-4k | update, {optimizer}", partial(update_figure, bench, optimizer), expected_s=15)
    theirs("air-4k", "composition", composition_step, expected_s=70)
    theirs("air-4k", "transformers", transformers_step, expected_s=70)
    if not bench.dry:  # under Triton's interpreter a step would take minutes
        ours("air-4k", COMPILED, *triton_settings(), label="every Triton kernel", expected_s=80)
    ours("355b-4k", COMPILED, expected_s=70)
    ours("355b-4k", COMPILED, level=True)
    ours("air-32k", COMPILED)
    ours("air-128k", COMPILED)
    ours("355b-32k", COMPILED)
    ours("355b-128k", COMPILED)
    ours("air-4k", label="eager")
    ours("air-4k", COMPILED, "model.num_nextn_predict_layers=1", "model.num_hidden_layers=5", label="with MTP")


def own_figure(
    bench: Bench, slice_name: str, settings: tuple[str, ...], *, level: bool, seq_len: int | None = None
) -> Figure:
    config = load(slice_name, *settings, dry=bench.dry)
    if seq_len is not None:
        config = cut(config, seq_len)
    if config.phases[0].seq_len > ALWAYS_FITS:
        check_memory(config, bench.free_bytes)
    step = OwnStep.build(config, bench.device, level=level)
    figure = timed_steps(bench, config, step)
    figure["imbalance"] = step.imbalance
    figure["phases_s"] = phases(bench, step)
    figure["kernels_s"] = kernel_times(lambda: step.backend.accumulate(step.objective(), step.micro_batches()))
    step.backend.zero_grad()
    figure["settings"] = list(settings)
    return figure


def other_figure(bench: Bench, slice_name: str, build: Callable[..., OtherStep], *, compiled: bool) -> Figure:
    config = load(slice_name, dry=bench.dry)
    try:
        step = build(config, bench.device, compiled=compiled and not bench.dry)
    except ModuleNotFoundError as error:
        raise MissingError(not_installed(error.name)) from error
    return timed_steps(bench, config, step)


def timed_steps(bench: Bench, config: RunConfig, step: Callable[[], float]) -> Figure:
    """Median seconds of some steps after a warm-up, and what follows from them."""
    gc.collect()
    torch._dynamo.reset()  # what other figures compiled counts against the number of forms that a layer may have
    synchronize(bench)
    if bench.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    losses = [step() for _ in range(1 if bench.dry else WARM_UP)]
    warm_up_s = time.perf_counter() - start
    seconds = []
    for _ in range(2 if bench.dry else STEPS):
        synchronize(bench)
        start = time.perf_counter()
        losses.append(step())
        synchronize(bench)
        seconds.append(time.perf_counter() - start)
    if not all(loss == loss for loss in losses):
        raise ValueError(f"the loss is not a number: {losses}")
    return performance(bench, config, seconds) | {"losses": losses, "warm_up_s": round(warm_up_s, 2)} | memory(bench)


def performance(bench: Bench, config: RunConfig, seconds: list[float]) -> Figure:
    median, flops = statistics.median(seconds), flops_of(config)
    figure: Figure = {
        "seconds": median,
        "all_seconds": [round(each, 5) for each in seconds],
        "tokens_per_s": tokens_of(config) / median,
        "model_flops": flops,
        "model_flops_per_s": flops / median,
        "share": flops / median / bench.ceilings.matmul_flops,
    }
    accelerator = find_accelerator(torch.cuda.get_device_name()) if bench.device.type == "cuda" else None
    if accelerator is not None:  # an unknown card gives no MFU rather than a wrong one
        figure["mfu"] = flops / median / accelerator.bf16_flops
    rate = f"{figure['mfu']:.1%} MFU" if "mfu" in figure else "no MFU"
    figure["summary"] = f"{median:.4g} s, {figure['tokens_per_s']:,.0f} tokens/s, {rate}"
    return figure


def memory(bench: Bench) -> Figure:
    if bench.device.type != "cuda":
        return {}
    stats = torch.cuda.memory_stats()
    keys = {"peak_allocated_bytes": "allocated_bytes.all.peak", "peak_reserved_bytes": "reserved_bytes.all.peak"}
    return {name: stats[key] for name, key in keys.items()} | {"allocation_retries": stats["num_alloc_retries"]}


def phases(bench: Bench, step: OwnStep) -> dict[str, float]:
    """Seconds of the parts of a step, each waited for: gradients, norm and clipping, optimizer."""
    backend, found = step.backend, {}

    def timed(name: str, function: Callable[[], object]) -> None:
        synchronize(bench)
        start = time.perf_counter()
        function()
        synchronize(bench)
        found[name] = time.perf_counter() - start

    timed("forward_and_backward", lambda: backend.accumulate(step.objective(), step.micro_batches()))
    timed("clip", lambda: backend.clip(1.0))
    timed("update", lambda: backend.step(1e-4))
    backend.zero_grad()
    return found


def update_figure(bench: Bench, optimizer: str) -> Figure:
    """The optimizer's part of a step alone, for all matrices of the slice; with its states and masters in fp32."""
    config = load("air-4k", f"optim.matrix_optimizer={optimizer}", dry=bench.dry)
    step = OwnStep.build(config, bench.device)
    parameters = list(step.backend.model.parameters())
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    timing = measure(step.backend.step, [(1e-4,)], dry=bench.dry)
    work = update_work(step, config)
    return timing.as_json() | bench.timed(timing.median, *work) | {"parameters": sum(p.numel() for p in parameters)}


def update_work(step: OwnStep, config: RunConfig) -> tuple[float, float]:
    """FLOPs and bytes of an update: Newton-Schulz of every matrix that Muon trains; weight, gradient and states read,
    all but the gradient written."""
    table = step.backend.model.table
    flops = num_bytes = 0.0
    for group in parameter_groups(table, config.optim):
        state_bytes = group.optimizer.bytes_per_element
        for row in group.parameters:
            num_bytes += row.size * (3 * 4 + 2 * state_bytes)
            if group.optimizer.name == "muon":
                *stacked, rows, columns = row.shape
                short, long = sorted((rows // row.num_fused, columns))
                number = math.prod(stacked) * row.num_fused
                each = 4.0 * short * short * long + 2.0 * short**3
                flops += number * each * config.optim.newton_schulz_steps
    return flops, num_bytes


def composition_is_right(bench: Bench) -> Figure:
    """The loss of the composition at glmforge's weights, both in fp32: otherwise it is no comparison."""
    config = load("air-4k", "precision.compute=fp32", dry=True)
    config = config.model_copy(update={"phases": [config.phases[0].model_copy(update={"batch_size": 2})]})
    own = OwnStep.build(config, bench.device)
    (part,) = own.backend.model.parts
    other = Composition(config.model, torch.float32).to(bench.device)
    other.load_state_dict(part.state_dict())
    batch = batch_of(config, 0, bench.device)
    expected = other.loss(batch.ids_BS, batch.labels_BS).item()
    actual = own()
    if not abs(actual - expected) < 1e-4 * expected:
        raise ValueError(f"composition: its loss is {expected}, glmforge's {actual}")
    return {"summary": f"loss {actual:.6f} and {expected:.6f}"}


def synchronize(bench: Bench) -> None:
    if bench.device.type == "cuda":
        torch.cuda.synchronize()
