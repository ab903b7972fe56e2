"""Parts of matrices as strided views: the same elements in the same order as one part after the other."""

import random

import pytest
import torch

from glmforge.optim.exchange import tiles_of
from glmforge.optim.matrices import Box


def box(matrices: tuple[int, int], row: int, column: int, height: int, width: int) -> Box:
    return Box(matrices, (row, row + height), (column, column + width))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_tiles_have_the_elements_of_the_boxes_in_their_order(seed: int, transposed: bool) -> None:
    """Rows of fsdp ranks, uneven ones too, by columns of tp ranks; copies; in any order."""
    draw = random.Random(seed)
    num, num_rows, num_columns = draw.randint(1, 4), draw.choice([6, 8, 12]), draw.choice([4, 6])
    matrices_NAB = torch.randn(num, num_rows, num_columns)
    matrices_NAB = matrices_NAB.mT.contiguous().mT if transposed else matrices_NAB
    height, width = -(-num_rows // draw.choice([1, 2, 4, 5])), num_columns // draw.choice([1, 2])
    boxes = [
        box((0, num), row, column, min(height, num_rows - row), width)
        for _ in range(draw.choice([1, 2]))
        for row in range(0, num_rows, height)
        for column in range(0, num_columns, width)
    ]
    if draw.random() < 0.3:
        draw.shuffle(boxes)
    expected = [matrices_NAB[tuple(slice(*span) for span in one)].flatten() for one in boxes]
    tiles = tiles_of([boxes])
    assert torch.equal(torch.cat([one.of(matrices_NAB).flatten() for one in tiles]), torch.cat(expected))


def test_the_parts_of_hundreds_of_ranks_are_one_view() -> None:
    """tp cuts the rows first, fsdp each block of them, and ranks of tp follow one another."""
    boxes = [[box((0, 1), tp * 640 + fsdp * 10, 0, 10, 16)] for fsdp in range(64) for tp in range(8)]
    (tiles,) = tiles_of(boxes)
    assert tiles.sizes == (64, 8, 1, 10, 16)
