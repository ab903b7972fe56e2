"""What each rank sends, and what it therefore has to receive: every element is a known small integer.

Element i of rank r is 1 + (5 i + 3 r) mod 7. What is summed has it only on the 16 ranks r for which
(i + r) mod R < 16, and 0 elsewhere: sums, and every part of them, are at most 112, so that they are exact in all types
that are measured (bfloat16 has integers up to 256, int8 up to 127), in whatever order a library adds.

Made and compared in pieces, which bounds the memory beside the message itself.
"""

import torch
from torch import Tensor

POISON = -1
"""What an output holds before the collective: no element has to be this."""
_SUMMED_RANKS = 16
_PIECE = 1 << 22
"""Elements made at a time."""


def fill(out: Tensor, rank: int, *, start: int = 0, summed_over: int | None = None) -> Tensor:
    """Write a rank's elements from number `start` on into a flat tensor, and return it.

    `summed_over` is the number of ranks where these will be added up.
    """
    for low in range(0, out.numel(), _PIECE):
        piece = out[low : low + _PIECE]
        index = torch.arange(start + low, start + low + piece.numel(), device=out.device)
        values = _element(index, rank)
        if summed_over is not None:
            values *= (index + rank) % summed_over < _SUMMED_RANKS
        piece.copy_(values)
    return out


def count_wrong(found: Tensor, rank: int, *, start: int = 0, summed_over: int | None = None) -> int:
    """Elements of a flat tensor that are not those of `rank` from number `start` on, or not the sum over all ranks."""
    wrong = 0
    for low in range(0, found.numel(), _PIECE):
        piece = found[low : low + _PIECE]
        index = torch.arange(start + low, start + low + piece.numel(), device=found.device)
        expected = _element(index, rank) if summed_over is None else _sum(index, summed_over)
        wrong += int((piece != expected.to(piece.dtype)).sum())  # true of NaN as well
    return wrong


def _element(index: Tensor, rank: int | Tensor) -> Tensor:
    return (5 * index + 3 * rank) % 7 + 1


def _sum(index: Tensor, ranks: int) -> Tensor:
    total = torch.zeros_like(index)
    for place in range(min(ranks, _SUMMED_RANKS)):
        total += _element(index, (place - index) % ranks)
    return total
