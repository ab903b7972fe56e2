"""Attention with dropped probabilities against the formula written out under the same mask, gradients by autograd."""

import pytest
import torch
from torch import Tensor

from glmforge.kernels import attention_dropout
from glmforge.kernels.attention import attention
from glmforge.kernels.attention_dropout import attention_with_dropout
from glmforge.kernels.documents import Documents
from glmforge.kernels.random import drop_rate, drops, fold

H, G, P = 6, 2, 8
RATE = 0.3
LENGTHS = [[1], [7, 7], [1, 5, 1, 70, 5, 40]]


def random_qkv(num_tokens: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(num_tokens, H, P), (num_tokens, G, P), (num_tokens, G, P)]
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for s in shapes]


def streams(num_tokens: int) -> Tensor:
    return fold(fold(torch.tensor(7), torch.arange(num_tokens))[:, None], torch.arange(H))


def reference(q_THP: Tensor, k_TGP: Tensor, v_TGP: Tensor, documents: Documents, rate: float) -> Tensor:
    """Token by token: softmax over the document's earlier tokens, some of it dropped, the rest scaled."""
    k_THP, v_THP = (x.repeat_interleave(H // G, dim=1) for x in (k_TGP, v_TGP))
    rows = []
    for token, place in enumerate(documents.positions_T.tolist()):
        keys = slice(token - place, token + 1)
        scores_HK = torch.einsum("hp,khp->hk", q_THP[token], k_THP[keys]) * P**-0.5
        dropped_HK = drops(streams(documents.num_tokens)[token], place + 1, rate)
        probs_HK = scores_HK.softmax(-1) * ~dropped_HK / (1 - drop_rate(rate))
        rows.append(torch.einsum("hk,khp->hp", probs_HK, v_THP[keys]))
    return torch.stack(rows)


def with_gradients(output: Tensor, qkv: list[Tensor]) -> list[Tensor]:
    upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return [output, *torch.autograd.grad(output, qkv, upstream.to(output.dtype))]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("block_elements", [1, 2**22])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    # Rounding of sums of up to a hundred terms of size one; bfloat16 keeps 8 bits of values up to some 4.
    [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 1e-1)],
    ids=str,
)
def test_equals_the_formula(
    lengths: list[int], block_elements: int, dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_dropout, "_BLOCK_ELEMENTS", block_elements)
    documents = Documents.from_lengths(lengths)
    qkv = random_qkv(documents.num_tokens, dtype)
    exact = [x.detach().double().requires_grad_() for x in qkv]
    expected = with_gradients(reference(*exact, documents, RATE), exact)
    actual = with_gradients(
        attention_with_dropout(*qkv, documents, streams(documents.num_tokens), RATE),
        qkv,
    )
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=tolerance)


def test_at_rate_zero_it_is_attention() -> None:
    documents = Documents.from_lengths([70, 3])
    qkv = random_qkv(73, torch.float64)
    actual = with_gradients(attention_with_dropout(*qkv, documents, streams(73), 0.0), qkv)
    expected = with_gradients(attention(*qkv, documents, implementation="dense"), qkv)
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_no_more_than_a_block_of_probabilities_exists_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_dropout, "_BLOCK_ELEMENTS", H * 256 * 32)
    length, sizes = 256, []
    make = attention_dropout._probabilities

    def record(*args: object) -> tuple[Tensor, Tensor, Tensor]:
        made = make(*args)  # type: ignore[arg-type]
        sizes.append(made[0].numel())
        return made

    monkeypatch.setattr(attention_dropout, "_probabilities", record)
    qkv = random_qkv(length, torch.float32)
    with_gradients(attention_with_dropout(*qkv, Documents.from_lengths([length]), streams(length), RATE), qkv)
    assert len(sizes) == 2 * length / 32
    assert max(sizes) == H * 32 * length
