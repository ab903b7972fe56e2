import math

import pytest
import torch
from torch.nn import functional as F

from glmforge.kernels.cross_entropy import IGNORE_INDEX, linear_cross_entropy_sum, token_nll
from glmforge.kernels.entropy import token_entropy
from helpers.flops import flop_counter

D, V = 12, 37


def random_inputs(num_tokens, dtype=torch.float64, weight_dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    h_TD = torch.randn(num_tokens, D, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight_VD = torch.randn(V, D, generator=generator, dtype=torch.float64).to(weight_dtype).requires_grad_()
    labels_T = torch.randint(0, V, (num_tokens,), generator=generator)
    labels_T[::3] = IGNORE_INDEX
    return h_TD, weight_VD, labels_T


def reference_nll(h_TD, weight_VD, labels_T):
    return F.cross_entropy(F.linear(h_TD, weight_VD), labels_T, ignore_index=IGNORE_INDEX, reduction="none")


PRECISIONS = pytest.mark.parametrize(
    ("dtype", "weight_dtype", "tolerance"),
    [
        (torch.float64, torch.float64, 1e-12),
        (torch.float32, torch.float32, 1e-5),
        # bfloat16 logits of size ~4 are rounded by 2^-7 and their gradients by 2^-9; the terms summed add up.
        (torch.bfloat16, torch.float32, 6e-2),
        (torch.bfloat16, torch.bfloat16, 6e-2),
    ],
    ids=["float64", "float32", "bfloat16-master-weights", "bfloat16"],
)
SIZES = pytest.mark.parametrize(("num_tokens", "chunk_tokens"), [(1, 1), (2, 5), (10, 10), (11, 4), (30, None)])


@PRECISIONS
@SIZES
def test_sum_equals_reference(num_tokens, chunk_tokens, dtype, weight_dtype, tolerance):
    h_TD, weight_VD, labels_T = random_inputs(num_tokens, dtype, weight_dtype)
    exact = [x.detach().double().requires_grad_() for x in (h_TD, weight_VD)]
    expected = reference_nll(*exact, labels_T).sum()
    actual = linear_cross_entropy_sum(h_TD, weight_VD, labels_T, chunk_tokens=chunk_tokens)
    assert actual.dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(actual.double(), expected, atol=tolerance, rtol=tolerance)
    gradients = torch.autograd.grad(actual / 7, (h_TD, weight_VD))
    for a, e in zip(gradients, torch.autograd.grad(expected / 7, exact), strict=True):
        torch.testing.assert_close(a.double(), e, atol=tolerance, rtol=tolerance)
    assert [g.dtype for g in gradients] == [dtype, weight_dtype]


@PRECISIONS
@SIZES
def test_token_nll_equals_reference(num_tokens, chunk_tokens, dtype, weight_dtype, tolerance):
    h_TD, weight_VD, labels_T = random_inputs(num_tokens, dtype, weight_dtype)
    exact = [x.detach().double().requires_grad_() for x in (h_TD, weight_VD)]
    upstream = torch.linspace(-1, 2, num_tokens, dtype=torch.float64)
    expected_T = reference_nll(*exact, labels_T)
    actual_T = token_nll(h_TD, weight_VD, labels_T, chunk_tokens=chunk_tokens)
    torch.testing.assert_close(actual_T.double(), expected_T, atol=tolerance, rtol=tolerance)
    gradients = torch.autograd.grad(actual_T, (h_TD, weight_VD), upstream.to(actual_T.dtype))
    for a, e in zip(gradients, torch.autograd.grad(expected_T, exact, upstream), strict=True):
        torch.testing.assert_close(a.double(), e, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("function", [linear_cross_entropy_sum, token_nll])
def test_gradcheck(function):
    h_TD, weight_VD, labels_T = random_inputs(5)
    assert torch.autograd.gradcheck(lambda h, w: function(h, w, labels_T, chunk_tokens=2), (h_TD, weight_VD))


def test_z_loss_is_part_of_the_sum_and_its_gradient():
    h_TD, weight_VD, labels_T = random_inputs(11)
    nll_T, log_z_T = torch.zeros(11, dtype=torch.float64), torch.zeros(11, dtype=torch.float64)
    actual = linear_cross_entropy_sum(
        h_TD, weight_VD, labels_T, chunk_tokens=4, nll_T=nll_T, z_weight=0.1, log_z_T=log_z_T
    )
    expected_nll_T = reference_nll(h_TD, weight_VD, labels_T)
    expected_log_z_T = F.linear(h_TD, weight_VD).logsumexp(1) * (labels_T != IGNORE_INDEX)
    expected = (expected_nll_T + 0.1 * expected_log_z_T.square()).sum()
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(nll_T, expected_nll_T.detach())
    torch.testing.assert_close(log_z_T, expected_log_z_T.detach())
    inputs = (h_TD, weight_VD)
    for a, e in zip(torch.autograd.grad(actual, inputs), torch.autograd.grad(expected, inputs), strict=True):
        torch.testing.assert_close(a, e)


def test_nothing_but_ignored_labels_is_zero_with_zero_gradients():
    h_TD, weight_VD, _ = random_inputs(4)
    loss = linear_cross_entropy_sum(h_TD, weight_VD, torch.full((4,), IGNORE_INDEX))
    assert loss.item() == 0
    assert all(g.count_nonzero() == 0 for g in torch.autograd.grad(loss, (h_TD, weight_VD)))


def test_confident_and_hopeless_tokens_stay_exact():
    """Logits 200 apart: probabilities underflow in float32, the loss must not."""
    h_TD = torch.tensor([[1.0], [1.0]])
    weight_VD = torch.tensor([[100.0], [-100.0]])
    assert token_nll(h_TD, weight_VD, torch.tensor([0, 1])).tolist() == [0.0, 200.0]


def test_without_gradients_only_the_loss_is_computed(monkeypatch):
    h_TD, weight_VD, labels_T = random_inputs(6)
    monkeypatch.setattr("glmforge.kernels.cross_entropy._Gradients", None)  # calling it would fail
    with torch.no_grad():
        loss = linear_cross_entropy_sum(h_TD, weight_VD, labels_T)
    torch.testing.assert_close(loss, reference_nll(h_TD, weight_VD, labels_T).sum())


@pytest.mark.parametrize("frozen", [0, 1], ids=["hidden states", "weight"])
@pytest.mark.parametrize(("function", "matmuls", "tokens"), [(linear_cross_entropy_sum, 3, 6), (token_nll, 4, 4)])
def test_frozen_inputs_cost_no_matmul_and_change_no_bit_of_the_other_gradient(function, matmuls, tokens, frozen):
    inputs = list(random_inputs(6, torch.bfloat16, torch.float32))
    both = torch.autograd.grad(function(*inputs, chunk_tokens=4).sum(), inputs[:2])
    inputs[frozen] = inputs[frozen].detach()
    with flop_counter() as counter:
        (other,) = torch.autograd.grad(function(*inputs, chunk_tokens=4).sum(), inputs[1 - frozen])
    assert torch.equal(other, both[1 - frozen])
    assert counter.get_total_flops() == (matmuls - 1) * 2 * tokens * D * V


@pytest.mark.parametrize("z_weight", [0.0, 0.1])
def test_weighted_summands(z_weight):
    h_TD, weight_VD, labels_T = random_inputs(11)
    weights_T = torch.rand(11, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2
    weights_T[3] = 0
    nll_T, log_z_T = torch.zeros(11, dtype=torch.float64), torch.zeros(11, dtype=torch.float64)
    actual = linear_cross_entropy_sum(
        h_TD, weight_VD, labels_T, weights_T, chunk_tokens=4, nll_T=nll_T, z_weight=z_weight, log_z_T=log_z_T
    )
    expected_nll_T = reference_nll(h_TD, weight_VD, labels_T)
    expected_log_z_T = F.linear(h_TD, weight_VD).logsumexp(1) * (labels_T != IGNORE_INDEX)
    expected = (weights_T * (expected_nll_T + z_weight * expected_log_z_T.square())).sum()
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(nll_T, expected_nll_T.detach())  # metrics are not weighted
    inputs = (h_TD, weight_VD)
    for a, e in zip(torch.autograd.grad(actual, inputs), torch.autograd.grad(expected, inputs), strict=True):
        torch.testing.assert_close(a, e)


@SIZES
def test_entropies_come_with_the_nll(num_tokens, chunk_tokens):
    h_TD, weight_VD, labels_T = random_inputs(num_tokens)
    entropy_T = torch.zeros(num_tokens, dtype=torch.float64)
    nll_T = token_nll(h_TD, weight_VD, labels_T, chunk_tokens=chunk_tokens, entropy_T=entropy_T)
    assert torch.equal(nll_T, token_nll(h_TD, weight_VD, labels_T, chunk_tokens=chunk_tokens))
    expected_T = token_entropy(h_TD, weight_VD) * (labels_T != IGNORE_INDEX)
    torch.testing.assert_close(entropy_T, expected_T, atol=1e-12, rtol=1e-12)


def test_token_nll_does_not_read_tokens_without_a_label():
    h_TD, weight_VD, labels_T = random_inputs(10)
    with torch.no_grad():
        h_TD[labels_T == IGNORE_INDEX] = math.nan
    gradients = torch.autograd.grad(token_nll(h_TD, weight_VD, labels_T).sum(), (h_TD, weight_VD))
    assert all(g.isfinite().all() for g in gradients)
    none_T = token_nll(h_TD, weight_VD, torch.full((10,), IGNORE_INDEX))
    assert none_T.tolist() == [0.0] * 10
    assert not any(g.any() for g in torch.autograd.grad(none_T.sum(), (h_TD, weight_VD)))
