"""Initial weights as a pure function of (seed, parameter name, expert, block of rows).

Every linear map, embedding, router and expert is N(0, initializer_range); biases and the router's correction bias
are 0, norms 1; no depth scaling. The random numbers of a matrix come in blocks of rows, each with a generator of its
own seeded by a hash, so a rank makes just the rows it owns, bit-equal to those that any other layout would make.
Values are always drawn on the CPU in fp32: generators of other devices draw other numbers.
"""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

BLOCK_ROWS = 256


def initialize(model: nn.Module, seed: int, std: float) -> None:
    """Fill every parameter and router bias of a whole (unsharded) model in place."""
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            tensor.copy_(initial_rows(name, tensor.shape, 0, tensor.shape[0], seed=seed, std=std))


def initial_rows(name: str, shape: Sequence[int], start: int, stop: int, *, seed: int, std: float) -> Tensor:
    """Rows `[start, stop)` along dim 0 of the named parameter's initial value, fp32 on the CPU.

    For a packed expert tensor `[E, rows, columns]` dim 0 is the expert.
    """
    if name.endswith(("bias", "e_score_correction_bias")):
        return torch.zeros(stop - start)
    if len(shape) == 1:
        return torch.ones(stop - start)
    if len(shape) == 3:
        experts = [_normal_rows(f"{name}/{e}", shape[1:], 0, shape[1], seed, std) for e in range(start, stop)]
        return torch.stack(experts) if experts else torch.empty(0, *shape[1:])
    return _normal_rows(name, shape, start, stop, seed, std)


def _normal_rows(name: str, shape: Sequence[int], start: int, stop: int, seed: int, std: float) -> Tensor:
    num_rows, num_columns = shape
    rows = torch.empty(stop - start, num_columns)
    for block_start in range(start - start % BLOCK_ROWS, stop, BLOCK_ROWS):
        block_stop = min(block_start + BLOCK_ROWS, num_rows)
        generator = torch.Generator().manual_seed(_seed_of(seed, name, block_start // BLOCK_ROWS))
        block = torch.empty(block_stop - block_start, num_columns).normal_(0.0, std, generator=generator)
        first, last = max(start, block_start), min(stop, block_stop)
        rows[first - start : last - start] = block[first - block_start : last - block_start]
    return rows


def _seed_of(seed: int, name: str, block: int) -> int:
    digest = hashlib.sha256(f"{seed}/{name}/{block}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
