"""Attention over pages does not depend on the batch; what the kernels of a GPU are given, by stand-ins for them."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from glmforge.kernels import flashinfer
from glmforge.kernels import paged_attention as module
from glmforge.kernels.native.calls import is_available
from glmforge.kernels.paged_attention import PagedTokens, paged_attention, write_pages
from helpers.pages import paged_step, random_attention


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.skipif(not is_available(), reason="no C++ compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_native_does_not_depend_on_the_batch(dtype: torch.dtype) -> None:
    """The last token of a long sequence: alone on one thread and on two (in chunks side by side), and as the end of a
    piece in a batch."""
    heads, page_size = (8, 2, 64), 16
    tokens, num_pages = paged_step([30, 700, 3], [1, 30, 1], page_size)
    q_THP, *pages = (x.to(dtype) for x in random_attention(tokens, num_pages, page_size, heads))
    in_batch = paged_attention(q_THP, *pages, tokens, implementation="native")[30]
    rows = slice(1, 2)
    alone = PagedTokens(
        torch.tensor([0, 1], dtype=torch.int32),
        tokens.lengths_R[rows].contiguous(),
        tokens.pages_RM[rows].contiguous(),
        tokens.slots_T[30:31].contiguous(),
        (1,),
        tokens.lengths[rows],
    )
    for num_threads in (1, 2, 3):
        torch.set_num_threads(num_threads)
        assert paged_attention(q_THP[30:31], *pages, alone, implementation="native")[0].equal(in_batch)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_written_pages(dtype: torch.dtype) -> None:
    tokens, num_pages = paged_step([5, 0], [1, 9], page_size=4)
    k_TGP, v_TGP = torch.randn(2, 10, 3, 7, generator=torch.Generator().manual_seed(0)).to(dtype)
    keys, values = torch.zeros(2, num_pages, 3, 4, 7, dtype=dtype)
    write_pages(k_TGP, v_TGP, keys, values, tokens)
    for cache, new in ((keys, k_TGP), (values, v_TGP)):
        by_slot = cache.transpose(1, 2).flatten(0, 1)
        assert by_slot[tokens.slots_T].equal(new)
        assert by_slot.count_nonzero() == new.count_nonzero()


def test_an_unknown_name_is_refused() -> None:
    tokens, num_pages = paged_step([0], [1], 16)
    with pytest.raises(ValueError, match="unknown implementation 'fast'; choose one of plain, native"):
        paged_attention(*random_attention(tokens, num_pages, 16, (2, 1, 8)), tokens, implementation="fast")


def causal_attention(q_THP: Tensor, k_THP: Tensor, v_THP: Tensor) -> Tensor:
    """Aligned at the bottom right."""
    past = len(k_THP) - len(q_THP)
    visible = torch.ones(len(q_THP), len(k_THP), dtype=torch.bool).tril(past)
    q, k, v = (x.transpose(0, 1) for x in (q_THP, k_THP, v_THP))
    return F.scaled_dot_product_attention(q, k, v, visible, enable_gqa=True).transpose(0, 1)


STEP = ([9, 0, 40, 15], [1, 37, 1, 1])


def test_what_varlen_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def stand_in(q: Tensor, k: Tensor, v: Tensor, q_borders: Tensor, k_borders: Tensor, *most: int) -> Tensor:
        assert q_borders.dtype == k_borders.dtype == torch.int32
        assert most == (37, 41)
        parts = zip(
            *(x.split(b.diff().tolist()) for x, b in ((q, q_borders), (k, k_borders), (v, k_borders))), strict=True
        )
        return torch.cat([causal_attention(*part) for part in parts])

    monkeypatch.setattr(module, "causal_varlen_attention", lambda: stand_in)
    tokens, num_pages = paged_step(*STEP, page_size=16)
    inputs = random_attention(tokens, num_pages, 16, (4, 2, 8))
    expected = paged_attention(*inputs, tokens, implementation="plain")
    torch.testing.assert_close(paged_attention(*inputs, tokens, implementation="varlen"), expected)


class StandInForFlashInfer:
    """The wrapper's arguments as documented; attends plainly. Counts its plans."""

    num_plans = 0

    def __init__(self, workspace: Tensor, kv_layout: str) -> None:
        assert workspace.dtype == torch.uint8
        assert kv_layout == "HND"

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool,
        q_data_type: torch.dtype,
    ) -> None:
        assert causal
        tensors = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        assert all(x.dtype == torch.int32 for x in tensors)
        assert (num_qo_heads, num_kv_heads, head_dim_qk, page_size, q_data_type) == (4, 2, 8, 16, torch.float64)
        self.planned = tensors
        type(self).num_plans += 1

    def run(self, q: Tensor, pages: tuple[Tensor, Tensor]) -> Tensor:
        starts, page_starts, indices, last = (x.tolist() for x in self.planned)
        outputs = []
        for row, filled in enumerate(last):
            own = indices[page_starts[row] : page_starts[row + 1]]
            length = 16 * (len(own) - 1) + filled
            k, v = (x[own].transpose(1, 2).flatten(0, 1)[:length] for x in pages)
            outputs.append(causal_attention(q[starts[row] : starts[row + 1]], k, v))
        return torch.cat(outputs)


def test_what_flashinfer_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """One plan for all layers of a step, and another one for the next."""
    package: Any = ModuleType(flashinfer.PACKAGE)
    package.BatchPrefillWithPagedKVCacheWrapper = StandInForFlashInfer
    monkeypatch.setitem(sys.modules, flashinfer.PACKAGE, package)
    for seed in (0, 1):
        tokens, num_pages = paged_step(*STEP, page_size=16, seed=seed)
        for layer in (0, 1):
            inputs = random_attention(tokens, num_pages, 16, (4, 2, 8), seed=layer)
            expected = paged_attention(*inputs, tokens, implementation="plain")
            torch.testing.assert_close(paged_attention(*inputs, tokens, implementation="flashinfer"), expected)
    assert StandInForFlashInfer.num_plans == 2
    flashinfer.plan.cache_clear()
    flashinfer._wrapper.cache_clear()
