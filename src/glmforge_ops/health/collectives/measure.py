"""Time collectives and check what they give. All ranks call these together.

As nccl-tests measures: some calls to warm up, then so many in one go, divided. Of the ranks' times the slowest one's is
told, since a collective is done when it is done everywhere (nccl-tests prints the average). The result is checked in a
further call, from an input that is known, into an output that was overwritten before.
"""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from glmforge.errors import HostError
from glmforge_ops.health.collectives.kinds import elements
from glmforge_ops.health.collectives.operations import Collective, Place, make_collective
from glmforge_ops.health.collectives.rows import Row, make_row
from glmforge_ops.health.collectives.settings import BenchSettings

Make = Callable[[str, int, torch.dtype, Place], Collective]


def measure_all(
    settings: BenchSettings, place: Place, done: Callable[[Row], None], *, make: Make = make_collective
) -> list[Row]:
    """The rows of all collectives and sizes, each told to `done` as soon as it is measured; the same on all ranks."""
    rows: list[Row] = []
    for kind in settings.kinds:
        told = 0
        for size in settings.sizes:
            num_elements = elements(kind, size, settings.itemsize, place.size)
            if num_elements == told:  # too small to be divided otherwise than the size before
                continue
            told = num_elements
            try:
                row = measure(kind, num_elements, settings, place, make=make)
            except torch.OutOfMemoryError as error:
                raise HostError(
                    f"rank {place.rank}: {kind} of {size:,} bytes does not fit into the GPU's memory: give a smaller "
                    "--max-bytes, or end what else uses the GPU"
                ) from error
            done(row)
            rows.append(row)
    return rows


def measure(
    kind: str, num_elements: int, settings: BenchSettings, place: Place, *, make: Make = make_collective
) -> Row:
    """One collective at one size."""
    collective = make(kind, num_elements, getattr(torch, settings.dtype), place)
    seconds = _seconds(collective, settings, place)
    wrong = _wrong(collective, place) if settings.check else None
    return make_row(kind, num_elements, settings.dtype, place.size, seconds, wrong)


def _seconds(collective: Collective, settings: BenchSettings, place: Place) -> float:
    """Of one call, on the slowest rank."""
    for _ in range(settings.warmup):
        collective.run()
    _over_ranks(0.0, place)  # nobody begins before all are there
    start = time.perf_counter()
    for _ in range(settings.iterations):
        collective.run()
    _wait_for(place.device)
    took = (time.perf_counter() - start) / settings.iterations
    return max(_over_ranks(took, place, dist.ReduceOp.MAX), 1e-9)


def _wrong(collective: Collective, place: Place) -> int:
    """Over all ranks."""
    collective.prepare()
    _wait_for(place.device)
    _over_ranks(0.0, place)
    collective.run()
    _wait_for(place.device)
    return int(_over_ranks(float(collective.count_wrong()), place))


def _over_ranks(value: float, place: Place, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> float:
    held = torch.tensor([value], dtype=torch.float64, device=place.device)
    dist.all_reduce(held, op)
    return float(held.item())


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
