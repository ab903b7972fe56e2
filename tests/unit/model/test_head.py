"""The questions that the output projection answers, against all logits at once."""

import pytest
import torch
import torch.nn.functional as F

from glmforge.model import head as head_module
from glmforge.model.head import LinearHead, LMHead

T, D, V = 21, 12, 37


@pytest.fixture
def head() -> LMHead:
    head = LMHead(D, V)
    with torch.no_grad():
        head.weight.normal_(generator=torch.Generator().manual_seed(1))
    return head


@pytest.fixture
def h_TD() -> torch.Tensor:
    return torch.randn(T, D, generator=torch.Generator().manual_seed(2))


@pytest.fixture
def labels_T() -> torch.Tensor:
    labels_T = torch.randint(0, V, (T,), generator=torch.Generator().manual_seed(3))
    labels_T[::4] = -100
    return labels_T


def test_losses_are_those_of_the_logits(head: LMHead, h_TD: torch.Tensor, labels_T: torch.Tensor) -> None:
    expected_T = F.cross_entropy(head(h_TD), labels_T, reduction="none")
    # fp32, a product of twelve terms: a few units in the last place.
    torch.testing.assert_close(head.token_nll(h_TD, labels_T), expected_T, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(head.cross_entropy_sum(h_TD, labels_T), expected_T.sum(), rtol=1e-5, atol=0)
    assert not head.token_nll(h_TD, labels_T)[::4].any()


@pytest.mark.parametrize("chunk_tokens", [1, 8, T, 100])
def test_greedy_is_the_argmax(
    head: LMHead, h_TD: torch.Tensor, chunk_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_module, "_GREEDY_CHUNK_TOKENS", chunk_tokens)
    with torch.no_grad():
        head.weight.round_()
    h_TD = h_TD.round()  # small integers: exact logits with many ties, of which the first id counts
    chosen_T = head.greedy(h_TD)
    best = [row.index(max(row)) for row in (h_TD @ head.weight.T).tolist()]
    assert chosen_T.dtype == torch.int64
    assert chosen_T.tolist() == best


def test_logits_have_the_compute_dtype(head: LMHead, h_TD: torch.Tensor, labels_T: torch.Tensor) -> None:
    half_TD = h_TD.bfloat16()
    assert head(half_TD).dtype == torch.bfloat16
    assert head.token_nll(half_TD, labels_T).dtype == head.cross_entropy_sum(half_TD, labels_T).dtype == torch.float32
    assert head.weight.dtype == torch.float32


def test_linear_heads_answer_in_fp32(h_TD: torch.Tensor) -> None:
    head = LinearHead(D, 2)
    with torch.no_grad():
        head.weight.normal_(generator=torch.Generator().manual_seed(4))
    answers = head(h_TD.bfloat16())
    assert answers.dtype == torch.float32
    assert torch.equal(answers, h_TD.bfloat16().float() @ head.weight.T)
