import pytest
import torch
from torch import Tensor

from glmforge.kernels import dispatch
from glmforge.kernels.dispatch import combine, permute, sort_by_expert
from helpers.far_apart import far_apart
from helpers.triton_device import TRITON_DEVICE, assert_near

fused = pytest.importorskip("glmforge.kernels.triton.permute")

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
# Of a sum of 3 products (or of a weight's gradient, a tree over the features in float32), and its result.
NUM_ROUNDINGS = {torch.float32: 16, torch.bfloat16: 1.1}


def choices(num_tokens: int, num_choices: int, num_experts: int, dropped: bool = False) -> Tensor:
    """Different experts for each token, some of the experts without a token; of `dropped` every fourth slot."""
    generator = torch.Generator().manual_seed(num_tokens)
    popular = torch.arange(num_experts) % 3 * 0.4
    scores = torch.rand(num_tokens, num_experts, generator=generator) + popular
    experts_TK = scores.topk(num_choices, dim=-1).indices
    if dropped:
        experts_TK.view(-1)[::4] = num_experts
    return experts_TK.to(TRITON_DEVICE)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(TRITON_DEVICE, dtype).requires_grad_()


def exact(x: Tensor) -> Tensor:
    return x.detach().double().requires_grad_()


def upstream(x: Tensor) -> Tensor:
    return (torch.arange(x.numel(), device=x.device) % 7 - 2).view(x.shape).to(x.dtype)


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize(
    ("num_tokens", "num_choices", "num_experts"), [(1, 1, 1), (43, 3, 5), (64, 2, 64), (50, 8, 160), (0, 2, 4)]
)
def test_sort_is_the_plain_one(num_tokens: int, num_choices: int, num_experts: int, dropped: bool) -> None:
    experts_TK = choices(num_tokens, num_choices, num_experts, dropped)
    expected = sort_by_expert(experts_TK, num_experts)
    actual = sort_by_expert(experts_TK, num_experts, implementation="triton")
    assert actual.num_choices == expected.num_choices
    for name in ("order_N", "inverse_N", "tokens_N", "counts_E"):
        assert getattr(actual, name).dtype == torch.int64
        assert torch.equal(getattr(actual, name), getattr(expected, name)), name


def test_sort_of_slots_that_all_go_to_one_expert() -> None:
    experts_TK = torch.full((150, 2), 3, device=TRITON_DEVICE)
    routing = sort_by_expert(experts_TK, 4, implementation="triton")
    assert torch.equal(routing.order_N, torch.arange(300, device=TRITON_DEVICE))
    assert routing.counts_E.tolist() == [0, 0, 0, 300]


@pytest.mark.parametrize("num_features", [1, 37, 1024, 1025])
@DTYPES
def test_permute_equals_float64(dtype: torch.dtype, num_features: int) -> None:
    experts_TK, x_TD = choices(9, 3, 6), random(9, num_features, dtype=dtype)
    exact_TD = exact(x_TD)
    expected = permute(exact_TD, sort_by_expert(experts_TK, 6))
    actual = permute(x_TD, sort_by_expert(experts_TK, 6, implementation="triton"))
    assert torch.equal(actual.double(), expected)
    (gradient,) = torch.autograd.grad(actual, x_TD, upstream(actual))
    (expected_gradient,) = torch.autograd.grad(expected, exact_TD, upstream(expected))
    assert_near(gradient, expected_gradient.cpu(), NUM_ROUNDINGS[dtype], dtype)


@pytest.mark.parametrize("dropped", [False, True], ids=["all", "dropped"])
@pytest.mark.parametrize("weighted", [False, True], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("num_features", [1, 37, 1024, 1025])
@DTYPES
def test_combine_equals_float64(dtype: torch.dtype, num_features: int, weighted: bool, dropped: bool) -> None:
    experts_TK = choices(9, 3, 6, dropped)
    routing = sort_by_expert(experts_TK, 6)
    given = [random(int(routing.counts_E.sum()), num_features, dtype=dtype), *[random(9, 3)] * weighted]
    exact_given = [exact(x) for x in given]
    expected = combine(exact_given[0], exact_given[1] if weighted else None, routing)
    fused_routing = sort_by_expert(experts_TK, 6, implementation="triton")
    actual = combine(given[0], given[1] if weighted else None, fused_routing)
    assert actual.dtype == dtype
    assert_near(actual, expected.cpu(), NUM_ROUNDINGS[dtype], dtype)
    gradients = torch.autograd.grad(actual, given, upstream(actual))
    expected_gradients = torch.autograd.grad(expected, exact_given, upstream(expected))
    for a, e, x in zip(gradients, expected_gradients, given, strict=True):
        assert a.dtype == x.dtype
        assert_near(a, e.cpu(), NUM_ROUNDINGS[x.dtype], x.dtype)


def test_strided_rows_and_gradients() -> None:
    """Rows apart, features apart, gradients expanded and with gaps."""
    experts_TK, wide, wide_weights = choices(8, 2, 4), random(16, 12), random(8, 5)
    for rows, columns in ((slice(None), slice(2, 9)), (slice(None), slice(0, 12, 2))):
        results = []
        for name in ("plain", "triton"):
            routing = sort_by_expert(experts_TK, 4, implementation=name)
            x_ND = permute(wide[:8, columns], routing)
            y_TD = combine(wide[rows, columns], wide_weights[:, ::3][:, :2], routing)
            loss = x_ND.sum() + 2 * x_ND[:, 1:].square().sum() + y_TD.sum() + y_TD[:, ::2].square().sum()
            results.append((x_ND, y_TD, *torch.autograd.grad(loss, (wide, wide_weights))))
        for expected, actual in zip(*results, strict=True):
            torch.testing.assert_close(actual, expected)


def test_rows_further_apart_than_int32_counts() -> None:
    """128K tokens x 8 rows x 4,096 features: the last rows lie more than 2^31 elements from the first."""
    values, weights_TK = random(3, 5, dtype=torch.bfloat16).detach(), random(1, 3).detach()
    rows = far_apart(values)
    inverse_N = torch.arange(3, device=TRITON_DEVICE)
    assert torch.equal(fused.sum_rows(rows, weights_TK, inverse_N, 3), fused.sum_rows(values, weights_TK, inverse_N, 3))
    assert torch.equal(fused.copy_rows(rows, inverse_N, 1, 3), values)
    given = [(values[:1], x, weights_TK, inverse_N) for x in (rows, values)]
    for a, e in zip(*(fused.sum_rows_backward(*x) for x in given), strict=True):
        assert torch.equal(a, e)


@pytest.mark.parametrize("implementation", ["plain", "triton"])
def test_row_weights_are_in_expert_order(implementation: str) -> None:
    experts_TK, weights_TK = choices(7, 3, 5), random(7, 3)
    routing = sort_by_expert(experts_TK, 5, implementation=implementation)
    weights_N = dispatch.row_weights(weights_TK, routing)
    assert torch.equal(weights_N, weights_TK.flatten()[routing.order_N])
    (gradient,) = torch.autograd.grad(weights_N, weights_TK, weights_N.detach())
    assert torch.equal(gradient, weights_TK)


def test_operations_are_well_formed() -> None:
    experts_TK, x_TD, y_ND, weights_TK = choices(5, 2, 4), random(5, 6), random(10, 6), random(5, 2)
    torch.library.opcheck(fused.sort_slots, (experts_TK.flatten(), 4, 2))
    inverse_N = sort_by_expert(experts_TK, 4).inverse_N
    torch.library.opcheck(fused.copy_rows, (x_TD, inverse_N, 2, 10))
    torch.library.opcheck(fused.sum_rows, (y_ND, weights_TK, inverse_N, 2))
    torch.library.opcheck(fused.sum_rows, (y_ND, None, inverse_N, 2))
    detached = [x.detach() for x in (x_TD, y_ND, weights_TK)]
    torch.library.opcheck(fused.sum_rows_backward, (*detached, inverse_N))
