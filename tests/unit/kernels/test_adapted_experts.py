"""The one operator against the single operations that it stands for."""

import pytest
import torch

from glmforge.kernels import adapted_experts as kernels
from glmforge.kernels.adapted_experts import adapted_expert_linear, low_rank
from glmforge.kernels.experts import expert_linear
from helpers.flops import flop_counter

J, O, RANK, SCALING = 24, 16, 4, 1.5  # noqa: E741 - the shape legend's letter
COUNTS = [
    [1],
    [0, 3, 0, 0, 5, 0],  # idle experts at both ends and in the middle
    [40, 1, 33, 0, 2, 70],  # rounding up runs over into the next experts' rows
    [31, 1],  # rounding up would leave the tensor
]


def random_inputs(counts, dtype, factor_dtype):
    """Rows, weight, A and B."""
    generator = torch.Generator().manual_seed(0)
    num_experts = len(counts)
    shapes = [(sum(counts), J), (num_experts, O, J), (num_experts, RANK, J), (num_experts, O, RANK)]
    x, weight, a, b = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return x.to(dtype), (weight / 4).to(dtype), (a / 4).to(factor_dtype), b.to(factor_dtype)


def single_operations(x, weight, a, b, counts_E):
    added = low_rank(x, a, b, counts_E, scaling=SCALING, implementation="loop")
    return expert_linear(x, weight, counts_E, implementation="loop") + added


def adapted(x, weight, a, b, counts_E, implementation="sliced"):
    return adapted_expert_linear(x, weight, a, b, counts_E, scaling=SCALING, implementation=implementation)


def output_and_gradients(function, counts, x, weight, a, b):
    """Of rows, A and B."""
    x, a, b = (tensor.detach().requires_grad_() for tensor in (x, a, b))
    y = function(x, weight, a, b, torch.tensor(counts))
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return [y, *torch.autograd.grad(y, (x, a, b), upstream.to(y.dtype))]


@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize(
    ("dtype", "factor_dtype", "tolerance"),
    [
        (torch.float64, torch.float64, 1e-12),
        (torch.float32, torch.float32, 1e-5),
        # Rounded to 2^-9 each: factors, x A^T, results; a factor's gradient sums dozens of such terms of size ten.
        (torch.bfloat16, torch.float32, 2e-1),
    ],
    ids=str,
)
def test_equals_single_operations(counts, dtype, factor_dtype, tolerance):
    inputs = random_inputs(counts, dtype, factor_dtype)
    expected = output_and_gradients(single_operations, counts, *(tensor.double() for tensor in inputs))
    actual = output_and_gradients(adapted, counts, *inputs)
    for a, e, like in zip(actual, expected, [inputs[0], inputs[0], *inputs[2:]], strict=True):
        assert a.dtype == like.dtype
        torch.testing.assert_close(a.double(), e, atol=tolerance, rtol=tolerance)


def test_rows_that_need_no_gradient_cost_no_product():
    counts = [2, 0, 3]
    x, weight, a, b = random_inputs(counts, torch.float32, torch.float32)
    _, _, *expected = output_and_gradients(adapted, counts, x, weight, a, b)
    a, b = a.requires_grad_(), b.requires_grad_()
    y = adapted(x, weight, a, b, torch.tensor(counts))
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).float()
    found = torch.autograd.grad(y, (a, b), upstream)
    assert all(torch.equal(actual, other) for actual, other in zip(found, expected, strict=True))
    x_grad, *_ = kernels._adapted_mm_backward(
        y, x, x.new_zeros(5, RANK), weight, a, b, torch.tensor(counts), 1.0, False
    )
    assert x_grad.numel() == 0


def test_a_weight_that_is_trained_too_gets_its_gradient():
    counts = torch.tensor([2, 0, 3])
    x, weight, a, b = (tensor.requires_grad_() for tensor in random_inputs([2, 0, 3], torch.float64, torch.float64))
    expected = torch.autograd.grad(single_operations(x, weight, a, b, counts).square().sum(), (x, weight, a, b))
    found = torch.autograd.grad(adapted(x, weight, a, b, counts).square().sum(), (x, weight, a, b))
    for actual, other in zip(found, expected, strict=True):
        torch.testing.assert_close(actual, other)


def test_forward_and_backward_cost_what_they_should():
    """Of the weight two products, of each factor three."""
    counts = [2, 0, 3]
    with flop_counter() as counter:
        output_and_gradients(adapted, counts, *random_inputs(counts, torch.float32, torch.float32))
    assert counter.get_total_flops() == 2 * sum(counts) * (2 * J * O + 3 * RANK * (J + O))


@pytest.mark.parametrize("name", ["_adapted_mm", "_adapted_mm_backward"])
def test_custom_operators_keep_their_contract(name):
    """Schema, fake tensors and autograd registration agree with what the operator does."""
    counts_E = torch.tensor([2, 0, 3])
    x, weight, a, b = random_inputs([2, 0, 3], torch.float32, torch.float32)
    if name == "_adapted_mm":
        arguments = (x.requires_grad_(), weight, a.requires_grad_(), b.requires_grad_(), counts_E, SCALING)
    else:
        arguments = (torch.randn(5, O), x, torch.randn(5, RANK), weight, a, b, counts_E, SCALING, True)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(getattr(kernels, name), arguments, test_utils=checks)
