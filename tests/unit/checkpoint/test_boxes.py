import pytest
import torch

from glmforge.checkpoint.convert.hf_names import Piece, published_pieces
from glmforge.checkpoint.format.boxes import Box
from glmforge.config.parameters import COMPLETE, Parameter

CASES = {
    "inside": (Box((0, 0), (4, 6)), Box((1, 2), (2, 3)), Box((1, 2), (2, 3))),
    "corner": (Box((0, 0), (4, 4)), Box((3, 2), (5, 5)), Box((3, 2), (1, 2))),
    "side by side": (Box((0, 0), (4, 4)), Box((0, 4), (4, 4)), None),
    "one empty": (Box((0, 0), (4, 4)), Box((2, 4), (2, 0)), None),
    "vector": (Box((2,), (5,)), Box((0,), (3,)), Box((2,), (1,))),
}


@pytest.mark.parametrize(("a", "b", "common"), CASES.values(), ids=CASES)
def test_overlap(a: Box, b: Box, common: Box | None) -> None:
    assert a.overlap(b) == b.overlap(a) == common


def test_a_box_within_another_is_the_same_elements() -> None:
    whole = torch.arange(60).view(10, 6)
    outer, inner = Box((2, 1), (6, 4)), Box((3, 2), (2, 3))
    held = whole[outer.within(Box.whole((10, 6)))]
    assert torch.equal(held[inner.within(outer)], whole[3:5, 2:5])
    assert inner.num_elements == 6


@pytest.mark.parametrize("parts", [("gate_proj.weight", "up_proj.weight"), ("down_proj.weight",), ()])
def test_the_box_of_a_piece_is_its_index(parts: tuple[str, ...]) -> None:
    row = Parameter(
        name="x.experts.packed",
        shape=(3, 8, 5),
        family="matrix",
        initial="normal",
        tp_dim=None,
        partial=COMPLETE,
        expert_parts=parts,
    )
    packed = torch.arange(3 * 8 * 5).view(3, 8, 5)
    covered = torch.zeros_like(packed, dtype=torch.bool)
    for piece in published_pieces(row):
        on_disk = packed[piece.index]
        assert torch.equal(packed[piece.box.within(Box.whole((3, 8, 5)))].view(piece.shape), on_disk)
        covered[piece.index] = True
    assert covered.all()


def test_a_part_of_a_piece_is_found_on_disk() -> None:
    packed = torch.arange(3 * 8 * 5).view(3, 8, 5)
    up = Piece("up", "gate_up", (1, slice(4, 8)), (4, 5))
    part = Box((1, 5, 2), (1, 2, 3))
    assert torch.equal(packed[up.index][up.part(part)], packed[1, 5:7, 2:5])
