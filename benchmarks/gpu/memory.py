"""Part `memory`: peaks of a step against what `glmforge plan --dry-run` says, and copies of the state to the host.

A dry run counts tensors; the card also holds what the allocator keeps back and cannot use (`reserved`), the CUDA
context and libraries' workspaces (`outside`: what the driver says is taken less what the allocator has).
"""

import time
from functools import partial

import torch

from glmforge.checkpoint.policy.staging import Staging
from glmforge.config.optim import OptimConfig
from glmforge.kernels.attention import attention
from glmforge.kernels.documents import Documents
from glmforge.plan.counts.memory import training_state
from gpu.bench import Bench
from gpu.results import Figure
from gpu.slice_runs import OwnStep, check_memory, load
from gpu.step import memory, synchronize

COMPILED = "parallel.compile=true"
PEAKS = {
    "air-4k": (),
    "air-4k, compiled": (COMPILED,),
    "air-4k, recomputed": ("parallel.recompute=full",),
    "air-32k, compiled": (COMPILED,),
    "air-128k, compiled": (COMPILED,),
    "355b-4k, compiled": (COMPILED,),
    "355b-32k, compiled": (COMPILED,),
}


def run(bench: Bench) -> None:
    for name, settings in list(PEAKS.items())[: 1 if bench.dry else None]:
        slice_name = name.partition(",")[0]
        bench.figure(f"peak | {name}", partial(peak_figure, bench, slice_name, settings), expected_s=45)
    bench.figure("copy to the host | air-4k", partial(staging_figure, bench), expected_s=25)
    for implementation in ("documents",) if bench.dry else ("varlen", "flex"):
        name = f"attention of one document | {implementation}"
        bench.figure(name, partial(attention_figure, bench, implementation), expected_s=15)


def peak_figure(bench: Bench, slice_name: str, settings: tuple[str, ...]) -> Figure:
    """Two steps (the second one is what every later one takes) and the dry run of one."""
    config = load(slice_name, *settings, dry=bench.dry)
    planned = check_memory(config, bench.free_bytes)
    state = training_state(config.model, config.optim)
    torch._dynamo.reset()
    step = OwnStep.build(config, bench.device)
    step()
    synchronize(bench)
    if bench.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    step()
    synchronize(bench)
    figure: Figure = {"planned_bytes": planned, "state_bytes": state.total, "settings": list(settings)} | memory(bench)
    if "peak_allocated_bytes" not in figure:
        return figure | {"summary": f"planned {planned / 1e9:.3f} GB"}
    peak = figure["peak_allocated_bytes"]
    free, total = torch.cuda.mem_get_info()
    figure |= {
        "measured_over_planned": round(peak / planned, 4),
        "outside_bytes": total - free - torch.cuda.memory_reserved(),
        "summary": f"{peak / 1e9:.2f} GB, planned {planned / 1e9:.2f} GB ({peak / planned:.3f})",
    }
    return figure


def staging_figure(bench: Bench) -> Figure:
    """Weights and optimizer state to pinned memory: the first time, which allocates, and the second, beside a step."""
    config = load("air-4k", dry=bench.dry)
    step = OwnStep.build(config, bench.device)
    tensors, staging = step.backend.state_tensors(), Staging()
    num_bytes = sum(tensor.nbytes for tensor in tensors.values())

    def copied() -> tuple[float, float]:
        synchronize(bench)
        start = time.perf_counter()
        copy = staging.start(tensors)
        started = time.perf_counter() - start
        copy.finish()
        return started, time.perf_counter() - start

    first, again = copied(), copied()
    alone = min(_seconds_of_step(bench, step) for _ in range(2))
    copy = staging.start(tensors)
    # Training may not change weights before the copy is done; here it does, as only the time counts.
    beside = _seconds_of_step(bench, step)
    copy.finish()
    return {
        "bytes": num_bytes,
        "first_s": first[1],
        "seconds": again[1],
        "blocks_s": again[0],
        "bytes_per_s": num_bytes / again[1],
        "step_s": alone,
        "step_beside_copy_s": beside,
        "optimizer": OptimConfig().matrix_optimizer,
        "summary": f"{num_bytes / 1e9:.2f} GB at {num_bytes / again[1] / 1e9:.1f} GB/s, blocks {again[0] * 1e3:.1f} ms",
    }


def _seconds_of_step(bench: Bench, step: OwnStep) -> float:
    synchronize(bench)
    start = time.perf_counter()
    step()
    synchronize(bench)
    return time.perf_counter() - start


def attention_figure(bench: Bench, implementation: str) -> Figure:
    """Bytes beyond inputs and outputs that attention takes, masks and all; one document, as many heads as Air has."""
    length, heads, head_dim = (64, 4, 16) if bench.dry else (131072, 96, 128)
    kv_heads = max(1, heads // 12)
    generator = torch.Generator(bench.device).manual_seed(0)
    shapes = [(length, number, head_dim) for number in (heads, kv_heads, kv_heads)]
    q, k, v = (
        torch.randn(shape, generator=generator, device=bench.device, dtype=torch.bfloat16, requires_grad=True)
        for shape in shapes
    )
    before = 0
    if bench.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    output = attention(q, k, v, Documents.from_lengths([length], bench.device), implementation=implementation)
    torch.autograd.grad(output, (q, k, v), torch.ones_like(output))
    synchronize(bench)
    named = 2 * output.nbytes + q.nbytes + k.nbytes + v.nbytes  # the output, its gradient, and the inputs' gradients
    peak = memory(bench).get("peak_allocated_bytes", 0) - before
    return {"tokens": length, "peak_bytes": peak, "extra_bytes": peak - named, "summary": f"{peak / 1e9:.3f} GB"}
