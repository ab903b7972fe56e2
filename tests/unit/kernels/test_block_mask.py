"""Block masks by arithmetic equal those that `create_block_mask` finds by looking, in a small share of its memory."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from glmforge.kernels.block_mask import BLOCK
from glmforge.kernels.documents import Documents
from glmforge.kernels.segments import Segments


def random_documents(num_tokens: int, seed: int) -> Documents:
    """Short ones, long ones, and some that end where a block does."""
    draw = random.Random(seed)
    lengths: list[int] = []
    while (left := num_tokens - sum(lengths)) > 0:
        to_border = BLOCK - sum(lengths) % BLOCK
        lengths.append(min(left, draw.choice([1, 5, 100, to_border, to_border + 2 * BLOCK, 700])))
    return Documents.from_lengths(lengths)


def visible_QT(documents: Documents, places_Q: Tensor) -> Tensor:
    ids_T = documents.ids_T()
    return (ids_T[places_Q][:, None] == ids_T) & (places_Q[:, None] >= torch.arange(len(ids_T)))


def assert_masks(mask: BlockMask, expected_QT: Tensor) -> None:
    """The blocks are those that torch finds, and under them the mask hides what it should."""
    num_queries, num_keys = expected_QT.shape
    torchs = create_block_mask(lambda b, h, q, k: expected_QT[q, k], None, None, num_queries, num_keys, "cpu")
    assert mask.shape == torchs.shape
    assert mask.BLOCK_SIZE == torchs.BLOCK_SIZE
    for name in ("kv", "full_kv", "q", "full_q"):
        for part in (f"{name}_num_blocks", f"{name}_indices"):
            torch.testing.assert_close(getattr(mask, part), getattr(torchs, part), msg=part)
    queries, keys = torch.arange(num_queries)[:, None], torch.arange(num_keys)
    assert torch.equal(mask.mask_mod(queries, queries, queries, keys), expected_QT)


@pytest.mark.parametrize("num_tokens", [1, 127, 128, 129, 640, 1000, 2048])
@pytest.mark.parametrize("seed", range(3))
def test_of_packed_documents(num_tokens: int, seed: int) -> None:
    documents = random_documents(num_tokens, seed)
    assert_masks(documents.block_mask, visible_QT(documents, torch.arange(num_tokens)))


@pytest.mark.parametrize(
    "ranges",
    [[(0, 1280)], [(0, 256), (768, 1024)], [(100, 420), (900, 1220)], [(768, 1024), (0, 256)], [(1279, 1280)]],
    ids=str,
)
@pytest.mark.parametrize("seed", range(3))
def test_of_some_of_the_queries(ranges: list[tuple[int, int]], seed: int) -> None:
    """In any order, as context parallelism may cut them: a block of queries may lie in two places."""
    segments = Segments.cut(random_documents(1280, seed), ranges)
    assert_masks(segments.block_mask, visible_QT(segments.documents, segments.places_Q))


class LargestTensor(TorchDispatchMode):
    num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        sizes = [x.numel() * x.itemsize for x in tree_leaves(out) if isinstance(x, Tensor)]
        self.num_bytes = max(self.num_bytes, *sizes, 0)
        return out


def test_of_131072_tokens_nothing_is_made_per_pair_of_tokens() -> None:
    num_tokens = 131072
    documents = Documents.from_lengths([num_tokens - 70001, 70001])
    with LargestTensor() as largest:
        mask = documents.block_mask
    # int64 for each pair of 1024 blocks (argsort's result); 2 ** 34 bytes would be the booleans of all pairs of tokens.
    assert largest.num_bytes <= 8 * 1024 * 1025
    assert mask.shape == (1, 1, num_tokens, num_tokens)
