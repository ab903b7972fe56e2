import pytest
import torch
from torch import Tensor

from glmforge.kernels.router import RoutingRule, route
from helpers.triton_device import TRITON_DEVICE, assert_near

fused = pytest.importorskip("glmforge.kernels.triton.router")

# Experts, and (choices, groups, kept groups, normalise, scale). 128 and 160 experts are GLM-4.5-Air's and GLM-4.5's.
RULES = {
    "air": (128, RoutingRule(8, 1, 1, True, 1.0)),
    "355b": (160, RoutingRule(8, 1, 1, True, 2.5)),
    "unnormalised": (160, RoutingRule(3, 1, 1, False, 2.5)),
    "all of them": (5, RoutingRule(5, 1, 1, True, 1.0)),
    "one of one": (1, RoutingRule(1, 1, 1, True, 1.0)),
    "groups": (256, RoutingRule(8, 8, 4, True, 2.5)),
    "odd groups": (15, RoutingRule(3, 5, 2, True, 1.0)),
    "groups of two": (12, RoutingRule(4, 6, 2, False, 1.0)),
}
RULE = pytest.mark.parametrize(("num_experts", "rule"), RULES.values(), ids=RULES)


def inputs(num_tokens: int, num_experts: int) -> tuple[Tensor, Tensor]:
    """Logits and a bias that turns the choice of most tokens."""
    generator = torch.Generator().manual_seed(num_tokens + num_experts)
    logits = 2 * torch.randn(num_tokens, num_experts, generator=generator)
    bias = 0.3 * torch.randn(num_experts, generator=generator)
    return logits.to(TRITON_DEVICE).requires_grad_(), bias.to(TRITON_DEVICE)


def by_expert(experts_TK: Tensor, *others: Tensor) -> list[Tensor]:
    """All with a token's choices in the order of the experts."""
    order = experts_TK.argsort(dim=1)
    return [x.gather(1, order).cpu() for x in (experts_TK, *others)]


def exact_routes(logits_TE: Tensor, bias_E: Tensor, rule: RoutingRule, upstream_TE: Tensor) -> tuple[Tensor, ...]:
    """Experts, weights and the logits' gradient in float64; `upstream_TE` is that of a weight by its expert."""
    exact = logits_TE.detach().cpu().double().requires_grad_()
    routes = route(exact, bias_E.cpu().double(), rule)
    upstream_TK = upstream_TE.cpu().double().gather(1, routes.experts_TK)
    (gradient,) = torch.autograd.grad(routes.weights_TK, exact, upstream_TK)
    return *by_expert(routes.experts_TK, routes.weights_TK), gradient


@pytest.mark.parametrize("num_tokens", [1, 13])
@RULE
def test_equals_float64(num_tokens: int, num_experts: int, rule: RoutingRule) -> None:
    logits_TE, bias_E = inputs(num_tokens, num_experts)
    upstream_TE = torch.linspace(-1, 2, logits_TE.numel(), device=logits_TE.device).view_as(logits_TE)
    expected_experts, expected_weights, expected_gradient = exact_routes(logits_TE, bias_E, rule, upstream_TE)
    routes = route(logits_TE, bias_E, rule, implementation="triton")
    (gradient,) = torch.autograd.grad(
        routes.weights_TK, logits_TE, upstream_TE.gather(1, routes.experts_TK), retain_graph=True
    )
    experts, weights = by_expert(routes.experts_TK, routes.weights_TK)
    assert torch.equal(experts, expected_experts)
    # A sigmoid, a sum of 8 and two products: some 10 roundings; the gradient's terms cancel each other.
    assert_near(weights, expected_weights, 16, torch.float32)
    assert (gradient.cpu() - expected_gradient).norm() <= 64 * 2**-23 * (1 + expected_gradient.norm())
    assert torch.equal(routes.scores_TE, logits_TE.sigmoid())


def test_gradient_flows_through_scores_and_weights() -> None:
    (num_experts, rule), num_tokens = RULES["355b"], 3
    logits_TE, bias_E = inputs(num_tokens, num_experts)
    gradients = []
    for x, bias, name in (
        (logits_TE, bias_E, "triton"),
        (logits_TE.detach().double().requires_grad_(), bias_E, "plain"),
    ):
        routes = route(x, bias, rule, implementation=name)
        loss = routes.weights_TK.square().sum() + 0.1 * routes.scores_TE.sum()
        gradients.append(torch.autograd.grad(loss, x)[0].cpu())
    assert_near(gradients[0], gradients[1], 64, torch.float32)


@pytest.mark.parametrize("rule", [RoutingRule(2, 1, 1, True, 1.0), RoutingRule(2, 4, 2, True, 1.0)], ids=str)
def test_of_equal_experts_the_first_are_chosen(rule: RoutingRule) -> None:
    zeros_TE = torch.zeros(1, 8, device=TRITON_DEVICE)
    assert route(zeros_TE, zeros_TE[0], rule, implementation="triton").experts_TK.tolist() == [[0, 1]]
    bias_E = torch.tensor([0.0, 0, 1, 0, 0, 1, 0, 1], device=TRITON_DEVICE)
    assert route(zeros_TE, bias_E, rule, implementation="triton").experts_TK.tolist() == [[2, 5]]


def test_choices_are_different_experts_whatever_the_logits() -> None:
    bad_TE = torch.zeros(5, 6)
    bad_TE[0] = torch.nan
    bad_TE[1] = -torch.inf
    bad_TE[2, 4] = torch.nan
    bad_TE[3] = torch.inf
    bias_E = torch.zeros(6, device=TRITON_DEVICE)
    rule = RoutingRule(4, 1, 1, True, 1.0)
    routes = route(bad_TE.to(TRITON_DEVICE), bias_E, rule, implementation="triton")
    assert all(len(set(row)) == 4 and set(row) <= set(range(6)) for row in routes.experts_TK.tolist())
    assert routes.experts_TK[2, 0] == 4
    routes = route(bad_TE[4:].to(TRITON_DEVICE), bias_E - torch.inf, rule, implementation="triton")
    assert routes.experts_TK.tolist() == [[0, 1, 2, 3]]


def test_given_choice_replaces_score_and_bias() -> None:
    logits_TE, bias_E = inputs(7, 15)
    rule = RULES["odd groups"][1]
    choice_TE = (torch.randn(7, 15, generator=torch.Generator().manual_seed(1)) - 2).to(TRITON_DEVICE)  # of both signs
    actual, expected = (
        route(logits_TE, bias_E, rule, choice_TE=choice_TE, implementation=name) for name in ("triton", "plain")
    )
    for a, e in zip(by_expert(*actual[1::-1]), by_expert(*expected[1::-1]), strict=True):
        torch.testing.assert_close(a, e)


@pytest.mark.parametrize("name", ["355b", "groups"])
def test_given_experts_are_taken_in_their_order_with_the_weights_of_these_logits(name: str) -> None:
    num_experts, rule = RULES[name]
    logits_TE, bias_E = inputs(9, num_experts)
    free = route(logits_TE, bias_E, rule, implementation="triton")
    given_TK = free.experts_TK.clone()
    given_TK[4] = -1  # chooses for itself
    replayed = route(logits_TE, bias_E, rule, given_TK=given_TK, implementation="triton")
    assert torch.equal(replayed.experts_TK, free.experts_TK)
    assert torch.equal(replayed.weights_TK, free.weights_TK)
    other_TK = (free.experts_TK + 1) % num_experts
    other = [route(logits_TE, bias_E, rule, given_TK=other_TK, implementation=name) for name in ("triton", "plain")]
    assert torch.equal(other[0].experts_TK, other_TK)
    assert_near(other[0].weights_TK.detach(), other[1].weights_TK.detach(), 16, torch.float32)
    gradients = [torch.autograd.grad(routes.weights_TK.square().sum(), logits_TE)[0] for routes in other]
    assert_near(*gradients, 64, torch.float32)


def test_strided_logits_and_gradients() -> None:
    wide_TE, bias_E = inputs(4, 24)
    rule = RoutingRule(3, 1, 1, True, 1.0)
    strided = route(wide_TE[:, ::2], bias_E[::2], rule, implementation="triton")
    copied = route(wide_TE[:, ::2].contiguous(), bias_E[::2].contiguous(), rule, implementation="triton")
    assert torch.equal(strided.experts_TK, copied.experts_TK)
    gradients = [
        torch.autograd.grad((routes.weights_TK * torch.arange(3.0, device=TRITON_DEVICE))[:, 1].sum(), wide_TE)[0]
        for routes in (strided, copied)
    ]
    assert gradients[0].any()
    assert torch.equal(*gradients)


def test_no_tokens() -> None:
    logits_TE, bias_E = inputs(0, 8)
    routes = route(logits_TE, bias_E, RoutingRule(2, 1, 1, True, 1.0), implementation="triton")
    assert [tuple(x.shape) for x in routes] == [(0, 2), (0, 2), (0, 8)]
    assert torch.autograd.grad(routes.weights_TK.sum(), logits_TE)[0].shape == (0, 8)


def test_operations_are_well_formed() -> None:
    logits_TE, bias_E = inputs(3, 8)
    torch.library.opcheck(fused.route, (logits_TE, bias_E, None, 2, 1, 1, True, 1.5))
    weights_TK, experts_TK, scores_TK = fused.route(logits_TE.detach(), bias_E, None, 2, 1, 1, True, 1.5)
    torch.library.opcheck(fused.route_backward, (weights_TK, experts_TK, scores_TK, 8, True, 1.5))
