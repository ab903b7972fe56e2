"""Random bits that are a function of counters: no state, no order of drawing, the same on every device and layout.

Dropout needs a mask that follows from which token, layer and step it is for, so that ranks that share a row, other
micro-batches and a recomputed layer all see the same one. A generator with a state cannot give that; a hash of counters
can (Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3"). The hash is SplitMix64 (Steele, Lea and Flood,
2014, "Fast splittable pseudorandom number generators"): number n of the stream `key` is the finalizer of
key + (n + 1) * gamma. Streams branch by taking such a number as the next key, `fold(fold(key, layer), token)`.

Everything is plain integer arithmetic on int64 tensors, whose overflow wraps around: the bits of unsigned numbers.
"""

import torch
from torch import Tensor


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


# SplitMix64: the golden ratio's gamma, and the finalizer's multipliers (variant 13 of D. Stafford's mixers).
_GAMMA = _signed(0x9E3779B97F4A7C15)
_MULTIPLIERS = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)

_BITS = 16
"""Random bits for each decision: rates are multiples of 2**-16."""
_PER_WORD = 64 // _BITS


def fold(key: Tensor, counter: Tensor | int) -> Tensor:
    """int64: number `counter` of the streams `key`, broadcast against each other; a key for further folding.

    A scalar key may lie on the CPU and the counters on another device.
    """
    return _mix(key + (torch.as_tensor(counter) + 1) * _GAMMA)


def drops(keys: Tensor, length: int, rate: float) -> Tensor:
    """bool [..., length]: the first `length` decisions of each stream in `keys` [...], true with probability `rate`.

    `rate` is taken as `drop_rate(rate)`.
    """
    return is_dropped(uniform_bits(keys, 0, length), rate)


@torch.library.custom_op("glmforge::drops_from", mutates_args=())
def drops_from(keys: Tensor, first: int, length: int, rate: float) -> Tensor:
    """As `drops`, the decisions from number `first` on. An operator of its own: what inductor makes of the hash for
    each of the many maps of a layer takes long to compile."""
    return is_dropped(uniform_bits(keys, first, length), rate)


@drops_from.register_fake
def _(keys: Tensor, first: int, length: int, rate: float) -> Tensor:
    return keys.new_empty((*keys.shape, length), dtype=torch.bool)


def is_dropped(bits: Tensor, rate: float) -> Tensor:
    """What `uniform_bits` decide: true with probability `drop_rate(rate)`."""
    return bits < round(drop_rate(rate) * 2**_BITS)


def uniform_bits(keys: Tensor, start: int, length: int) -> Tensor:
    """int32 [..., length]: numbers `start` to `start + length` of each stream in `keys` [...], uniform below 2**16."""
    first, stop = start // _PER_WORD, -(-(start + length) // _PER_WORD)
    words = fold(keys.unsqueeze(-1), torch.arange(first, stop, device=keys.device))
    # Not words.view(torch.int16): code that torch 2.13's inductor makes of it for a CPU writes out of bounds.
    parts = [((words >> (_BITS * part)) & (2**_BITS - 1)).to(torch.int32) for part in range(_PER_WORD)]
    skipped = start - first * _PER_WORD
    return torch.stack(parts, dim=-1).flatten(-2).narrow(-1, skipped, length)


def drop_rate(rate: float) -> float:
    """The multiple of 2**-16 below 1 that is nearest to `rate`."""
    return min(round(rate * 2**_BITS), 2**_BITS - 1) / 2**_BITS


def drop_out(x: Tensor, dropped: Tensor, rate: float) -> Tensor:
    """`x` with zeros where `dropped`, and the rest scaled so that the mean is kept."""
    return x.masked_fill(dropped, 0) * (1 / (1 - drop_rate(rate)))


def _mix(word: Tensor) -> Tensor:
    """Every bit of the input flips about half the bits of the output."""
    word = (word ^ _shift_right(word, 30)) * _MULTIPLIERS[0]
    word = (word ^ _shift_right(word, 27)) * _MULTIPLIERS[1]
    return word ^ _shift_right(word, 31)


def _shift_right(word: Tensor, places: int) -> Tensor:
    """As of an unsigned number: int64's own shift copies the sign."""
    return (word >> places) & ((1 << (64 - places)) - 1)
