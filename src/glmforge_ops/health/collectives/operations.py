"""The collectives themselves, through torch.distributed: buffers, the call, and what has to be in the output."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from glmforge_ops.health.collectives.pattern import POISON, count_wrong, fill

# torch 2.13 has new names for these.
_all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Place(NamedTuple):
    """This rank, how many there are, and where its buffers lie."""

    rank: int
    size: int
    device: torch.device


class Part(NamedTuple):
    """A stretch of the output, and where it comes from: elements from `start` on of `rank`, None if the sum of all."""

    length: int
    rank: int | None
    start: int


@dataclass
class Collective:
    """A collective of one size, ready to be called again and again.

    Attributes:
        run: carries it out; on CUDA it may return before that is done.
        prepare: brings input and output into the state before the call whose result is checked.
        output: what is checked.
        parts: what has to be in the output, from its beginning to its end.
    """

    run: Callable[[], None]
    prepare: Callable[[], None]
    output: Tensor
    parts: list[Part]
    size: int

    def count_wrong(self) -> int:
        """Elements of this rank's output that are not what they have to be."""
        wrong, low = 0, 0
        for part in self.parts:
            summed_over = self.size if part.rank is None else None
            found = self.output[low : low + part.length]
            wrong += count_wrong(found, part.rank or 0, start=part.start, summed_over=summed_over)
            low += part.length
        return wrong + self.output.numel() - low


def make_collective(kind: str, num_elements: int, dtype: torch.dtype, place: Place) -> Collective:
    """The collective `kind` (a key of `KINDS`) over all ranks; `num_elements` as `elements` divides them."""
    return _MAKERS[kind](num_elements, dtype, place)


def _all_reduce(num: int, dtype: torch.dtype, place: Place) -> Collective:
    buffer = torch.zeros(num, dtype=dtype, device=place.device)

    def prepare() -> None:
        fill(buffer, place.rank, summed_over=place.size)

    return Collective(lambda: dist.all_reduce(buffer), prepare, buffer, [Part(num, None, 0)], place.size)


def _reduce_scatter(num: int, dtype: torch.dtype, place: Place) -> Collective:
    share = num // place.size
    given = fill(torch.zeros(num, dtype=dtype, device=place.device), place.rank, summed_over=place.size)
    got = torch.zeros(share, dtype=dtype, device=place.device)
    parts = [Part(share, None, place.rank * share)]
    return Collective(lambda: _reduce_scatter_single(got, given), _poison(got), got, parts, place.size)


def _all_gather(num: int, dtype: torch.dtype, place: Place) -> Collective:
    share = num // place.size
    given = fill(torch.zeros(share, dtype=dtype, device=place.device), place.rank)
    got = torch.zeros(num, dtype=dtype, device=place.device)
    parts = [Part(share, rank, 0) for rank in range(place.size)]
    return Collective(lambda: _all_gather_single(got, given), _poison(got), got, parts, place.size)


def _all_to_all(num: int, dtype: torch.dtype, place: Place) -> Collective:
    share = num // place.size
    given, got = _given_and_got(num, dtype, place)
    parts = [Part(share, rank, place.rank * share) for rank in range(place.size)]
    return Collective(lambda: dist.all_to_all_single(got, given), _poison(got), got, parts, place.size)


def _all_to_all_uneven(num: int, dtype: torch.dtype, place: Place) -> Collective:
    rank, size = place.rank, place.size
    unit = num // (size * (size - 1) // 2)
    given, got = _given_and_got(num, dtype, place)
    sent = [(other - rank) % size * unit for other in range(size)]
    received = [(rank - other) % size * unit for other in range(size)]
    starts = [sum((before - other) % size for before in range(rank)) * unit for other in range(size)]
    parts = [Part(received[other], other, starts[other]) for other in range(size)]
    return Collective(lambda: dist.all_to_all_single(got, given, received, sent), _poison(got), got, parts, place.size)


def _broadcast(num: int, dtype: torch.dtype, place: Place) -> Collective:
    buffer = torch.zeros(num, dtype=dtype, device=place.device)

    def prepare() -> None:
        _ = fill(buffer, 0) if place.rank == 0 else buffer.fill_(POISON)

    return Collective(lambda: dist.broadcast(buffer, src=0), prepare, buffer, [Part(num, 0, 0)], place.size)


def _send_recv(num: int, dtype: torch.dtype, place: Place) -> Collective:
    """Each rank sends to the next and receives from the one before."""
    following, before = (place.rank + 1) % place.size, (place.rank - 1) % place.size
    given, got = _given_and_got(num, dtype, place)

    def run() -> None:
        sent = dist.P2POp(dist.isend, given, following)
        received = dist.P2POp(dist.irecv, got, before)
        for work in dist.batch_isend_irecv([sent, received]):
            work.wait()

    return Collective(run, _poison(got), got, [Part(num, before, 0)], place.size)


def _given_and_got(num: int, dtype: torch.dtype, place: Place) -> tuple[Tensor, Tensor]:
    """An input with this rank's elements, and an output of the same size."""
    given = fill(torch.zeros(num, dtype=dtype, device=place.device), place.rank)
    return given, torch.zeros_like(given)


def _poison(output: Tensor) -> Callable[[], None]:
    def prepare() -> None:
        output.fill_(POISON)

    return prepare


_MAKERS: dict[str, Callable[[int, torch.dtype, Place], Collective]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "all_to_all_uneven": _all_to_all_uneven,
    "broadcast": _broadcast,
    "send_recv": _send_recv,
}
