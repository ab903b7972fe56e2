"""Capacity of the experts: what is dropped adds nothing, what fits is untouched."""

import math

import pytest
import torch
from torch import Tensor

from glmforge.model import GlmMoe
from glmforge.model.moe import MoE
from helpers.models import randomize_, tiny_config

NUM_TOKENS, NUM_EXPERTS, K = 40, 8, 2


def make_moe(capacity_factor: float | None) -> MoE:
    moe = MoE(tiny_config())
    randomize_(moe)
    moe.experts.capacity_factor = capacity_factor
    return moe


def tokens() -> Tensor:
    return torch.randn(NUM_TOKENS, 48, generator=torch.Generator().manual_seed(0))


def by_hand(moe: MoE, x_TD: Tensor, capacity: int) -> tuple[Tensor, list[int]]:
    """Token by token over the experts with the heaviest slots, and how many of each expert's were dropped."""
    routes = moe.gate(x_TD)
    y_TD = moe.shared_experts(x_TD).clone()
    dropped = []
    for expert in range(NUM_EXPERTS):
        slots = [(-routes.weights_TK[t, k].item(), t, k) for t, k in (routes.experts_TK == expert).nonzero().tolist()]
        for _, t, k in sorted(slots)[:capacity]:
            gate_I, up_I = (moe.experts.gate_up_proj[expert] @ x_TD[t]).chunk(2)
            out_D = moe.experts.down_proj[expert] @ (torch.nn.functional.silu(gate_I) * up_I)
            y_TD[t] += routes.weights_TK[t, k] * out_D
        dropped.append(max(0, len(slots) - capacity))
    return y_TD, dropped


@pytest.mark.parametrize("factor", [0.2, 0.5, 1.0, 1.2])
def test_dropped_tokens_add_nothing(factor: float) -> None:
    moe, x_TD = make_moe(factor), tokens()
    capacity = math.ceil(factor * NUM_TOKENS * K / NUM_EXPERTS)
    output = moe(x_TD)
    expected_TD, dropped = by_hand(moe, x_TD, capacity)
    assert output.dropped_E.tolist() == dropped
    assert sum(dropped) > 0
    # The routers' load is what tokens asked for, dropped or not: it is what the biases are to level.
    assert torch.equal(output.counts_E, make_moe(None)(x_TD).counts_E)
    assert output.counts_E.sum() == NUM_TOKENS * K
    # fp32 sums in another order, of outputs of size 1 to 10.
    torch.testing.assert_close(output.y_TD, expected_TD, rtol=1e-4, atol=1e-4)


def test_gradients_of_a_limited_layer() -> None:
    moe, x_TD = make_moe(0.5), tokens().requires_grad_()
    moe(x_TD).y_TD.square().sum().backward()
    ours = {name: p.grad.clone() for name, p in moe.named_parameters()} | {"x": x_TD.grad.clone()}
    moe.zero_grad()
    x_TD.grad = None
    by_hand(moe, x_TD, 5)[0].square().sum().backward()
    theirs = {name: p.grad for name, p in moe.named_parameters()} | {"x": x_TD.grad}
    for name, expected in theirs.items():
        assert ours[name].isfinite().all(), name
        # fp32 sums in another order.
        assert (ours[name] - expected).norm() < 1e-5 * expected.norm(), name


def test_a_large_capacity_is_bit_equal_to_none() -> None:
    results = []
    for factor in (None, float(NUM_EXPERTS)):
        moe, x_TD = make_moe(factor), tokens().requires_grad_()
        output = moe(x_TD)
        assert not output.dropped_E.any()
        output.y_TD.square().sum().backward()
        results.append([output.y_TD, output.counts_E, x_TD.grad, *(p.grad for p in moe.parameters())])
    for unlimited, limited in zip(*results, strict=True):
        assert torch.equal(unlimited, limited)


def test_a_model_reports_what_each_layer_dropped() -> None:
    model = GlmMoe(tiny_config())
    randomize_(model)
    ids_BS = torch.randint(0, 512, (2, 16), generator=torch.Generator().manual_seed(0))
    assert not model(ids_BS).router.dropped_LE.any()
    model.set_capacity_factor(0.5)
    router = model(ids_BS).router
    assert router.dropped_LE.shape == router.counts_LE.shape == (4, 8)
    assert (router.counts_LE.sum(1) == 2 * 16 * 2).all()
    assert (router.counts_LE - router.dropped_LE).max() == 4  # half of 64 slots over eight experts
    model.set_capacity_factor(None)
    assert not model(ids_BS).router.dropped_LE.any()
