"""Initial weights as a pure function of (seed, parameter name, expert, block of rows).

By the table of parameters every linear map, embedding, router and expert is N(0, initializer_range); biases and the
router's correction bias are 0, norms 1; no depth scaling. An adapter's first factor has the variance of `nn.Linear`.

The random numbers of a matrix come in blocks of rows, each with a generator of its own seeded by a hash, so a rank
makes just the rows it owns, bit-equal to those that any other layout would make. Values are always drawn on the CPU in
fp32: generators of other devices draw other numbers.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from glmforge.config.model import ModelConfig
from glmforge.config.parameters import Parameter, ParameterTable, parameter_table

BLOCK_ROWS = 256


def initialize(model: nn.Module, table: ParameterTable, seed: int, std: float) -> None:
    """Fill every parameter and router bias of a whole (unsharded) model in place."""
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            row = table[name]
            tensor.copy_(initial_chunk(row, (0,) * len(row.shape), row.shape, seed=seed, std=std))


class InitialWeights(Mapping[str, Tensor]):
    """The initial values of all parameters and router biases of a model by name, each drawn when it is requested."""

    def __init__(self, config: ModelConfig, seed: int) -> None:
        self._table, self._seed, self._std = parameter_table(config), seed, config.initializer_range

    def __getitem__(self, name: str) -> Tensor:
        row = self._table[name]
        return initial_chunk(row, (0,) * len(row.shape), row.shape, seed=self._seed, std=self._std)

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


def initial_chunk(
    parameter: Parameter, offsets: Sequence[int], sizes: Sequence[int], *, seed: int, std: float
) -> Tensor:
    """The part of the parameter's initial value that begins at `offsets` and is `sizes` large.

    fp32 on the CPU, bit-equal to that slice of the whole. Only the experts and the blocks of rows that the part
    touches are drawn, each over all columns. What is drawn is `[rows, columns]`, or of packed experts
    `[E, rows, columns]`.
    """
    if parameter.initial in ("zeros", "ones"):
        return torch.full(tuple(sizes), 1.0 if parameter.initial == "ones" else 0.0)
    name, shape = parameter.name, parameter.shape
    if parameter.initial == "fan_in":
        std = (3 * shape[-1]) ** -0.5
    chunk = torch.empty(tuple(sizes))
    if chunk.numel() == 0:
        return chunk
    *experts, row, column = offsets
    *_, num_rows, num_columns = sizes

    def part(matrix: str) -> Tensor:
        rows = _normal_rows(matrix, shape[-2:], row, row + num_rows, seed, std)
        return rows[:, column : column + num_columns]

    if not experts:
        return part(name).contiguous()
    for index in range(sizes[0]):
        chunk[index] = part(f"{name}/{experts[0] + index}")
    return chunk


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
