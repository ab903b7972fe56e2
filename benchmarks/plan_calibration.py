"""What this machine's processors and links reach, as points for the planner: `glmforge plan --calibrate FILE`.

    python benchmarks/plan_calibration.py               # two minutes; writes results/plan_calibration.json
    python benchmarks/plan_calibration.py --quick --out /tmp/points.json

Measured on processes of one thread, as the ranks of a job on this machine are: matmuls in bf16 and fp32 by shape,
experts' grouped matmuls, attention, copies by size, and gloo's collectives by kind, size, ranks in a group and number
of groups at work at the same time. A point is the fastest of several calls, of collectives the median.

What ranks that share cores take besides (`processors`) is fitted to steps of the small model of `small_runs.py`, on one
rank the rate of memory-bound operations and what every operation costs the host; `slowdown` is how much longer the
same step takes while every core has one to do; and on two ranks what each collective costs the host: those of FSDP
where layers are cut, where there are replicas only, and all others (of tp and ep).
"""

import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from math import floor
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from gloo_ranks import Ranks
from harness import arguments
from measured_layouts import measure
from record import write_result
from small_runs import Parallel, small_run
from torch import Tensor

from glmforge.config.layout import resolve_layout
from glmforge.kernels.attention import attention
from glmforge.kernels.documents import Documents
from glmforge.kernels.experts import expert_linear
from glmforge.observe.environment import describe_machine
from glmforge.plan.machine.calibration import CalibrationFile, make_calibration
from glmforge.plan.machine.machine import Cores, Machine
from glmforge.plan.machine.network import find_network
from glmforge.plan.time.shared_cores import parts_on_cores, rank_work
from glmforge.runtime.cores import usable_cores

CODE = (
    "benchmarks/gloo_ranks.py",
    "benchmarks/measured_layouts.py",
    "benchmarks/small_runs.py",
    "src/glmforge/kernels",
    "src/glmforge/plan/time/shared_cores.py",
)
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
ROWS, WIDTHS = (64, 256, 1024, 4096), (64, 256, 1024)
GROUPS = ((2, 64), (2, 512), (8, 64), (8, 256), (16, 64))
"""Experts and rows of each."""
EXPERT_MAPS = ((256, 128), (128, 256), (512, 256))
ATTENTION_LENGTH = 128
COPIED = tuple(1 << power for power in range(14, 28, 2))
SENT = (1 << 12, 1 << 16, 1 << 19, 1 << 22)
"""Bytes."""
RANKS = (2, 4, 8)
HEADS, HEAD_DIM = 8, 32
"""Those of the runs: attention of such narrow heads is not proportional to its FLOPs."""
ALONE: tuple[tuple[str, Parallel], ...] = (
    ("small", {"micro_batch_size": 1}),
    ("small", {"micro_batch_size": 4}),
    ("small", {}),
    ("medium", {}),
)
"""Runs on one rank to which the rates are fitted."""
PAIRS: dict[str, Parallel] = {
    "sharding_seconds": {"micro_batch_size": 1},
    "replication_seconds": {"dp_replicate": 2, "micro_batch_size": 1},
    "message_seconds": {"tp": 2, "ep": 2, "micro_batch_size": 2},
}
"""Runs on two ranks with many collectives of one sort, by what is fitted to them."""

Points = list[dict[str, Any]]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="a few points of each kind, to try it")
    args = parser.parse_args()
    print(write_result("plan_calibration", measure_machine(quick=args.quick), code=CODE, out=args.out))


def measure_machine(*, quick: bool = False) -> dict[str, Any]:
    """The content of a calibration file."""
    described, cores = describe_machine(), max(1, floor(usable_cores()))
    with Ranks(1) as one:
        (points,) = one.run(compute_points, quick)
    collectives: Points = []
    for world_size in RANKS[:1] if quick else RANKS:
        with Ranks(world_size) as ranks:
            collectives += ranks.run(collective_points, SENT[:2] if quick else SENT)[0]
    content = {"device": described["cpu"], "memory_bytes": described["memory_bytes"], **points}
    content |= {"collectives": collectives, "processors": {"cores": cores}}
    return content | {"processors": fitted_processors(content, cores)}


def fitted_processors(content: dict[str, Any], number: int) -> dict[str, float]:
    """What ranks take besides the points in `content`, from steps on one rank and on two."""
    machine = _machine(content)
    with Ranks(1) as one:
        seconds = [_processor_seconds(one, size, parallel) for size, parallel in ALONE]
    memory_share, operation_seconds = _fit_alone(seconds, machine)
    found: dict[str, float] = {"cores": number, "slowdown": _slowdown(number, seconds[-2])}
    found["bytes_per_second"] = round(machine.accelerator.memory_bandwidth / memory_share)
    found["operation_seconds"] = round(operation_seconds, 7)
    if number > 1:
        with Ranks(2) as two:
            for name, parallel in PAIRS.items():
                found[name] = _host_seconds(name, parallel, two, _machine(content | {"processors": found}))
    return found


def _fit_alone(seconds: list[float], machine: Machine) -> tuple[float, float]:
    """How many times as long as a copy memory-bound operations take, and seconds of the host for an operation."""
    rows = []
    for size, parallel in ALONE:
        config = small_run(size, parallel)
        work = rank_work(config, resolve_layout(config, 1), machine, "eager")
        rows.append((work.products, work.memory, work.operations))
    products, memory, operations = np.array(rows).T
    measured = np.array(seconds)
    # Relative errors count; both are positive where the points of products are right.
    unknown = np.stack([memory, operations], axis=1) / measured[:, None]
    fitted, *_ = np.linalg.lstsq(unknown, 1 - products / measured, rcond=None)
    if fitted.min() <= 0:
        raise RuntimeError(f"steps of {seconds} s do not go with the points of products: is the machine busy?")
    return float(fitted[0]), float(fitted[1])


def _slowdown(number: int, alone: float) -> float:
    """Of a step while each core has one, of jobs that do not know of each other."""
    with ExitStack() as stack:
        jobs = [stack.enter_context(Ranks(1)) for _ in range(number)]
        with ThreadPoolExecutor(number) as threads:
            together = list(threads.map(lambda job: _processor_seconds(job, *ALONE[-2]), jobs))
    return round(max(1.0, statistics.mean(together) / alone), 3)


def _host_seconds(name: str, parallel: Parallel, two: Ranks, machine: Machine) -> float:
    """Of the host for a collective: what a step on two ranks takes longer than it should without."""
    config = small_run("small", parallel)
    layout = resolve_layout(config, 2)
    measured = statistics.median(two.run(measure, config, 5, 4.0)[0].wall)
    assert machine.cores is not None, "processors are part of the points"
    expected = sum(parts_on_cores(config, layout, machine, "eager").values())
    of_each = rank_work(config, layout, machine, "eager").host_seconds(Cores(2)._replace(**{name: 1.0}))
    return round(max(0.0, (measured - expected) / of_each / machine.cores.slowdown), 7)


def _machine(content: dict[str, Any]) -> Machine:
    calibration = make_calibration(CalibrationFile.model_validate(content), "measured here")
    return calibration.machine(find_network("tcp10"), max(RANKS))


def _processor_seconds(one: Ranks, size: str, parallel: Parallel) -> float:
    """Of a step on one rank, which has nobody to wait for."""
    return min(one.run(measure, small_run(size, parallel), 5, 4.0)[0].processor)


def compute_points(quick: bool) -> dict[str, Points]:
    """Of this process, while the others are idle."""
    rows, widths = (ROWS[1:2], WIDTHS[1:2]) if quick else (ROWS, WIDTHS)
    return {
        "matmuls": [*_dense(rows, widths), *_grouped(GROUPS[:1] if quick else GROUPS)],
        "attention": _attention(),
        "copies": list(_copies(COPIED[:2] if quick else COPIED)),
    }


def _dense(rows: tuple[int, ...], widths: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    for name, dtype in DTYPES.items():
        for m in rows:
            for k in widths:
                for n in widths:
                    x, weight = torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype)
                    seconds = _seconds(lambda x=x, weight=weight: torch.nn.functional.linear(x, weight))
                    yield {"m": m, "n": n, "k": k, "dtype": name, "seconds": seconds}


def _grouped(groups: tuple[tuple[int, int], ...]) -> Iterator[dict[str, Any]]:
    """Forward only; rows per expert are uneven, as a router's are."""
    for num_experts, mean in groups:
        counts_E = torch.full((num_experts,), mean)
        counts_E[::2] += mean // 4
        counts_E[1::2] -= mean // 4
        for k, n in EXPERT_MAPS:
            x, weight = torch.randn(num_experts * mean, k).bfloat16(), torch.randn(num_experts, n, k).bfloat16()
            seconds = _seconds(lambda x=x, weight=weight, counts_E=counts_E: expert_linear(x, weight, counts_E))
            yield {"m": num_experts * mean, "n": n, "k": k, "groups": num_experts, "dtype": "bf16", "seconds": seconds}


def _attention() -> Points:
    documents = Documents.from_lengths([ATTENTION_LENGTH] * 8)
    tokens = documents.num_tokens
    q, k, v = (torch.randn(tokens, HEADS, HEAD_DIM).bfloat16().requires_grad_() for _ in range(3))
    gradient = torch.ones_like(q)
    with torch.no_grad():
        forward = _seconds(lambda: attention(q, k, v, documents))
    both = _seconds(lambda: torch.autograd.grad(attention(q, k, v, documents), (q, k, v), gradient))
    product = tokens * ATTENTION_LENGTH * HEADS * HEAD_DIM  # multiplications and additions of the causal half
    return [
        {"direction": "forward", "flops": 2.0 * product, "seconds": forward},
        {"direction": "backward", "flops": 5.0 * product, "seconds": max(both - forward, forward)},
    ]


def _copies(sizes: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """`bytes` are read and written."""
    for size in sizes:
        source = torch.randn(size // 8)
        target = torch.empty_like(source)
        yield {"bytes": size, "seconds": _seconds(lambda source=source, target=target: target.copy_(source))}


def collective_points(sizes: tuple[int, ...]) -> Points:
    """Of groups of every power of two of ranks, all groups at work at the same time; the slowest rank counts."""
    world_size, found = dist.get_world_size(), []
    for num_ranks in (2**power for power in range(1, world_size.bit_length())):
        group = _own_group(num_ranks)
        for size in sizes:
            for operation, call in _calls(size, num_ranks, group).items():
                dist.barrier()
                seconds = torch.tensor(_seconds(call, num_calls=7))
                dist.all_reduce(seconds, dist.ReduceOp.MAX)
                point = {"operation": operation, "ranks": num_ranks, "groups": world_size // num_ranks, "bytes": size}
                found.append(point | {"seconds": seconds.item()})
    return found


def _own_group(num_ranks: int) -> dist.ProcessGroup | None:
    """This rank's group of neighbours; None, which is the default one, for all."""
    world_size, rank = dist.get_world_size(), dist.get_rank()
    if num_ranks == world_size:
        return None
    made = [dist.new_group(range(start, start + num_ranks)) for start in range(0, world_size, num_ranks)]
    return made[rank // num_ranks]


def _calls(size: int, num_ranks: int, group: dist.ProcessGroup | None) -> dict[str, Callable[[], object]]:
    """Of fp32 numbers; `size` bytes are the larger of a rank's input and output."""
    whole, part = torch.zeros(size // 4), torch.zeros(size // 4 // num_ranks)
    other, rank = torch.empty_like(whole), dist.get_rank(group)
    return {
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_to_all": lambda: dist.all_to_all_single(other, whole, group=group),
        "send": lambda: _pass_on(whole, other, rank, num_ranks, group),
    }


def _pass_on(sent: Tensor, received: Tensor, rank: int, num_ranks: int, group: dist.ProcessGroup | None) -> None:
    """To the next rank, while the previous one's is received."""
    there, here = (rank + 1) % num_ranks, (rank - 1) % num_ranks
    calls = [dist.P2POp(dist.isend, sent, group=group, group_peer=there)]
    calls.append(dist.P2POp(dist.irecv, received, group=group, group_peer=here))
    for call in dist.batch_isend_irecv(calls):
        call.wait()


def _seconds(call: Callable[[], object], *, num_calls: int | None = None, least_seconds: float = 0.03) -> float:
    """Of a call, after one to warm up: the median of so many, or the fastest of as many as the time is enough for."""
    call()
    seconds: list[float] = []
    while len(seconds) < (num_calls or 3) or (num_calls is None and sum(seconds) < least_seconds):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds) if num_calls is None else statistics.median(seconds)


if __name__ == "__main__":
    main()
