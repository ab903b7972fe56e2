"""Time collectives between the ranks of a job and check every element of their results, in the terms of nccl-tests.

Size is the larger of a rank's input and output in bytes. Algorithm bandwidth is size over time; bus bandwidth is that
times the share of the size that each rank has to send at least, so it compares with the link's bandwidth in one
direction, whatever the number of ranks (nccl-tests, doc/PERFORMANCE.md). The time is the slowest rank's; nccl-tests
prints the average.
"""

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from glmforge.errors import ConfigError, HostError

REACHED = 0.8
"""Share of the expected bus bandwidth from which a collective passes."""
WARMUP = 5
_POISON = -1.0
# torch 2.13 has new names for these.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Kind(NamedTuple):
    """A collective: bus over algorithm bandwidth by the number of ranks, whether the message is divided among ranks,
    and nccl-tests' program for it."""

    bus_factor: Callable[[int], float]
    is_divided: bool
    program: str


def _others(ranks: int) -> float:
    return (ranks - 1) / ranks


KINDS: dict[str, Kind] = {
    "all_reduce": Kind(lambda ranks: 2 * _others(ranks), False, "all_reduce_perf"),
    "all_gather": Kind(_others, True, "all_gather_perf"),
    "reduce_scatter": Kind(_others, True, "reduce_scatter_perf"),
    "all_to_all": Kind(_others, True, "alltoall_perf"),
    "broadcast": Kind(lambda ranks: 1.0, False, "broadcast_perf"),
    "send_recv": Kind(lambda ranks: 1.0, False, "sendrecv_perf"),
}


@dataclass(frozen=True)
class Row:
    """A collective at one size: time in microseconds, bandwidths in GB/s (10^9 bytes), wrong elements on all ranks."""

    kind: str
    size: int
    time_us: float
    algbw: float
    busbw: float
    wrong: int


HEADER = (
    f"{'':18}{'size':>14}{'time':>12}{'algbw':>10}{'busbw':>10}{'#wrong':>8}",
    f"{'':18}{'(B)':>14}{'(us)':>12}{'(GB/s)':>10}{'(GB/s)':>10}{'':>8}",
)


def line_of(row: Row) -> str:
    """The row under `HEADER`."""
    numbers = f"{row.time_us:>12.4g}{row.algbw:>10.4g}{row.busbw:>10.4g}"
    return f"{row.kind:18}{row.size:>14}{numbers}{row.wrong:>8}"


def message_sizes(smallest: str, largest: str) -> list[int]:
    """Bytes from --min-bytes to --max-bytes, doubling. Raises `ConfigError`."""
    first, last = _parse_size(smallest, "--min-bytes"), _parse_size(largest, "--max-bytes")
    if first > last:
        raise ConfigError(f"--min-bytes {smallest} is more than --max-bytes {largest}: swap them")
    return [first << doubled for doubled in range(int(math.log2(last // first)) + 1)]


def _parse_size(text: str, option: str) -> int:
    """Bytes of "8", "64K", "1M", "2G" (K is 1,024)."""
    match = re.fullmatch(r"(\d{1,13})([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE | re.ASCII)
    size = int(match[1]) << 10 * " KMG".index(match[2].upper() or " ") if match else 0
    if not 0 < size <= 1 << 40:
        raise ConfigError(f"{option}: invalid size {text[:40]!r}; give bytes, such as 8, 64K, 1M or 2G")
    return size


def measure(kind: str, size: int, iterations: int, device: torch.device) -> Row:
    """One collective with messages of `size` bytes, rounded down to what it can divide. All ranks call this together.

    Raises `HostError` if the message does not fit into memory.
    """
    ranks = dist.get_world_size()
    parts = ranks if KINDS[kind].is_divided else 1
    numel = max(1, size // 4 // parts) * parts
    try:
        run, output, prepare, expected = _collective(kind, numel, device)
    except torch.OutOfMemoryError as error:
        fix = "give a smaller --max-bytes, or end what else uses the GPU"
        raise HostError(f"rank {dist.get_rank()}: {kind} of {size:,} bytes does not fit into memory: {fix}") from error
    for _ in range(WARMUP):
        run()
    _over_ranks(0.0, device)  # the clock starts when all are there
    start = time.perf_counter()
    for _ in range(iterations):
        run()
    _synchronize(device)
    seconds = max(_over_ranks((time.perf_counter() - start) / iterations, device, dist.ReduceOp.MAX), 1e-9)
    prepare()
    _synchronize(device)
    _over_ranks(0.0, device)
    run()
    _synchronize(device)
    wrong = int(_over_ranks(float((output != expected).sum()), device))
    algbw = 4 * numel / seconds / 1e9
    return Row(kind, 4 * numel, seconds * 1e6, algbw, algbw * KINDS[kind].bus_factor(ranks), wrong)


def _collective(
    kind: str, numel: int, device: torch.device
) -> tuple[Callable[[], object], Tensor, Callable[[], object], Tensor]:
    """What to call, its output, what to do before the checked call, and the output expected of that call.

    Element i of rank r is (5 i + 3 r) mod 7 + 1: a sum over fewer than two million ranks is exact in float32, and an
    element from another place or rank differs.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    index = torch.arange(numel, device=device)

    def of(other: int) -> Tensor:
        return ((5 * index + 3 * other) % 7 + 1).float()

    def total() -> Tensor:
        result = torch.zeros(numel, device=device)
        for other in range(min(7, ranks)):  # elements repeat after seven ranks
            result += of(other) * len(range(other, ranks, 7))
        return result

    share = slice(rank * (numel // ranks), (rank + 1) * (numel // ranks))
    given, got = of(rank), torch.zeros(numel, device=device)
    poison = lambda: got.fill_(_POISON)  # noqa: E731
    match kind:
        case "all_reduce":
            return lambda: dist.all_reduce(got), got, lambda: got.copy_(given), total()
        case "broadcast":
            before = given if rank == 0 else torch.full_like(got, _POISON)
            return lambda: dist.broadcast(got, src=0), got, lambda: got.copy_(before), of(0)
        case "all_gather":
            own = given[share].clone()
            parts = [of(other).view(ranks, -1)[other] for other in range(ranks)]
            return lambda: _all_gather(got, own), got, poison, torch.cat(parts)
        case "reduce_scatter":
            got = got[: numel // ranks]
            return lambda: _reduce_scatter(got, given), got, lambda: got.fill_(_POISON), total()[share]
        case "all_to_all":
            parts = [of(other)[share] for other in range(ranks)]
            return lambda: dist.all_to_all_single(got, given), got, poison, torch.cat(parts)
        case "send_recv":
            following, before_rank = (rank + 1) % ranks, (rank - 1) % ranks

            def exchange() -> None:
                sent, received = dist.P2POp(dist.isend, given, following), dist.P2POp(dist.irecv, got, before_rank)
                for work in dist.batch_isend_irecv([sent, received]):
                    work.wait()

            return exchange, got, poison, of(before_rank)
    raise AssertionError(kind)


def judge(rows: Sequence[Row], expected_busbw: float) -> list[tuple[str, str]]:
    """Per collective "pass" or "fail", by its best row, and a line that says why."""
    verdicts = []
    for kind in dict.fromkeys(row.kind for row in rows):
        best = max((row for row in rows if row.kind == kind), key=lambda row: row.busbw)
        status = "pass" if best.busbw >= REACHED * expected_busbw else "fail"
        limit = f"{REACHED:g} of {expected_busbw:g} expected"
        verdicts.append((status, f"{kind}: bus bandwidth {best.busbw:.4g} GB/s at {best.size:,} bytes; {limit}"))
    return verdicts


def _over_ranks(value: float, device: torch.device, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> float:
    held = torch.tensor([value], dtype=torch.float64, device=device)
    dist.all_reduce(held, op)
    return float(held.item())


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
