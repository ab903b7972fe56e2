"""A chunk of an initial value is that slice of the whole, and costs no more than the blocks of rows it touches."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from glmforge.config.parameters import COMPLETE, Initial, Parameter
from glmforge.model import init
from glmforge.model.init import BLOCK_ROWS, initial_chunk

B = BLOCK_ROWS

CHUNKS = {
    "matrix, rows over two blocks": ((600, 16), (B - 3, 0), (7, 16)),
    "matrix, inner rectangle": ((600, 16), (B + 1, 3), (200, 9)),
    "matrix, whole": ((300, 8), (0, 0), (300, 8)),
    "matrix, no rows": ((300, 8), (300, 0), (0, 8)),
    "experts, some whole": ((6, 300, 4), (2, 0, 0), (3, 300, 4)),
    "experts, rows": ((6, 600, 4), (1, B + 10, 0), (2, 40, 4)),
    "experts, columns": ((6, 300, 8), (4, 0, 6), (2, 300, 2)),
    "experts, no rows": ((6, 300, 8), (3, 300, 0), (3, 0, 8)),
}


def make(
    name: str, shape: tuple[int, ...], offsets: tuple[int, ...], sizes: tuple[int, ...], initial: Initial = "normal"
) -> torch.Tensor:
    row = Parameter(name=name, shape=shape, family="matrix", initial=initial, tp_dim=None, partial=COMPLETE)
    return initial_chunk(row, offsets, sizes, seed=3, std=0.02)


@pytest.mark.parametrize("initial", ["normal", "zeros", "ones"])
@pytest.mark.parametrize(("shape", "offsets", "sizes"), CHUNKS.values(), ids=CHUNKS)
def test_a_chunk_is_a_slice_of_the_whole(
    initial: Initial, shape: tuple[int, ...], offsets: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    whole = make("a.weight", shape, (0,) * len(shape), shape, initial)
    chunk = make("a.weight", shape, offsets, sizes, initial)
    box = tuple(slice(offset, offset + size) for offset, size in zip(offsets, sizes, strict=True))
    assert whole.shape == shape
    assert chunk.shape == sizes
    assert chunk.dtype == torch.float32
    assert torch.equal(chunk, whole[box])


@pytest.mark.parametrize(("initial", "value"), [("zeros", 0.0), ("ones", 1.0)])
def test_a_chunk_of_a_vector(initial: Initial, value: float) -> None:
    assert torch.equal(make("a.bias", (40,), (7,), (9,), initial), torch.full((9,), value))


@contextmanager
def counted_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    drawn: list[int] = []
    seed_of = init._seed_of

    def spy(seed: int, name: str, block: int) -> int:
        drawn.append(block)
        return seed_of(seed, name, block)

    with monkeypatch.context() as patch:
        patch.setattr(init, "_seed_of", spy)
        yield drawn


@pytest.mark.parametrize(
    ("shape", "offsets", "sizes", "blocks"),
    [
        ((4 * B, 4), (B, 0), (B, 4), [1]),
        ((4 * B, 4), (2 * B - 1, 0), (2, 4), [1, 2]),
        ((3, 4 * B, 4), (1, 3 * B, 0), (2, 5, 4), [3, 3]),
        ((3, 4 * B, 4), (0, B + 7, 0), (3, 0, 4), []),
        ((B, 4), (7, 0), (0, 4), []),
    ],
    ids=["one block", "two blocks", "rows of two experts", "no rows of experts", "no rows"],
)
def test_only_what_is_touched_is_drawn(
    shape: tuple[int, ...],
    offsets: tuple[int, ...],
    sizes: tuple[int, ...],
    blocks: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with counted_blocks(monkeypatch) as drawn:
        make("x.weight", shape, offsets, sizes)
    assert drawn == blocks


def test_the_rule_in_its_own_words() -> None:
    """Runs are repeatable over versions: which block has which seed must never change."""
    matrix = make("x.weight", (300, 2), (B + 5, 0), (1, 2))
    expert = make("x.experts.down_proj", (3, 4, 2), (2, 3, 0), (1, 1, 2))
    assert torch.equal(matrix[0], drawn_block("x.weight/1", 300 - B)[5])
    assert torch.equal(expert[0, 0], drawn_block("x.experts.down_proj/2/0", 4)[3])


def drawn_block(name: str, num_rows: int) -> torch.Tensor:
    """A block of rows: its generator is seeded by 63 bits of a hash of seed, name and number of the block."""
    seed = int.from_bytes(hashlib.sha256(f"3/{name}".encode()).digest()[:8], "little") >> 1
    return torch.empty(num_rows, 2).normal_(0.0, 0.02, generator=torch.Generator().manual_seed(seed))
