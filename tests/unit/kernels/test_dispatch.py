import pytest
import torch

from glmforge.kernels.dispatch import combine, limit_to_capacity, permute, sort_by_expert


def random_choice(num_tokens, num_choices, num_experts, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(num_tokens, num_experts, generator=generator)
    return scores.topk(num_choices, dim=-1).indices


@pytest.mark.parametrize(("num_tokens", "num_choices", "num_experts"), [(1, 1, 4), (7, 3, 5), (33, 2, 64)])
def test_routing_is_a_stable_sort(num_tokens, num_choices, num_experts):
    experts_TK = random_choice(num_tokens, num_choices, num_experts)
    routing = sort_by_expert(experts_TK, num_experts)
    slots = [(expert, slot) for slot, expert in enumerate(experts_TK.flatten().tolist())]
    assert routing.order_N.tolist() == [slot for _, slot in sorted(slots)]
    assert routing.tokens_N.tolist() == [slot // num_choices for _, slot in sorted(slots)]
    assert routing.order_N[routing.inverse_N].tolist() == list(range(len(slots)))
    assert routing.counts_E.tolist() == experts_TK.flatten().bincount(minlength=num_experts).tolist()


def plain_combine(y_ND, weights_TK, routing):
    """Row by row in float64."""
    out = torch.zeros(len(weights_TK), y_ND.shape[1], dtype=torch.float64)
    for n, slot in enumerate(routing.order_N.tolist()):
        token, choice = divmod(slot, weights_TK.shape[1])
        out[token] = out[token] + weights_TK[token, choice].double() * y_ND[n].double()
    return out


@pytest.mark.parametrize(
    ("dtype", "relative", "absolute"),
    [
        (torch.float64, 1e-12, 1e-12),
        (torch.float32, 1e-5, 1e-5),
        # Sums and products are float32, so each bfloat16 result is rounded once, by 2^-9 of itself.
        (torch.bfloat16, 2**-8, 1e-5),
    ],
    ids=str,
)
def test_combine_equals_the_plain_sum(dtype, relative, absolute):
    torch.manual_seed(0)
    routing = sort_by_expert(random_choice(9, 3, 5), 5)
    weights_dtype = torch.promote_types(dtype, torch.float32)
    y_ND = torch.randn(27, 6, dtype=torch.float64).to(dtype).requires_grad_()
    weights_TK = torch.rand(9, 3, dtype=torch.float64).to(weights_dtype).requires_grad_()
    upstream = torch.randn(9, 6, dtype=torch.float64).to(dtype)
    exact = [x.detach().double().requires_grad_() for x in (y_ND, weights_TK)]
    expected = plain_combine(*exact, routing)
    actual = combine(y_ND, weights_TK, routing)
    assert actual.dtype == dtype
    torch.testing.assert_close(actual.double(), expected, rtol=relative, atol=absolute)
    gradients = torch.autograd.grad(actual, (y_ND, weights_TK), upstream)
    for a, e, x in zip(gradients, torch.autograd.grad(expected, exact, upstream.double()), exact, strict=True):
        assert a.shape == x.shape
        torch.testing.assert_close(a.double(), e, rtol=relative, atol=absolute)
    assert gradients[1].dtype == weights_dtype


def test_gradcheck_of_the_round_trip():
    torch.manual_seed(0)
    routing = sort_by_expert(random_choice(4, 2, 3), 3)
    x_TD = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    weights_TK = torch.rand(4, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, w: combine(permute(x, routing).sin(), w, routing), (x_TD, weights_TK))


def test_permute_repeats_tokens_in_expert_order():
    routing = sort_by_expert(torch.tensor([[2, 0], [0, 1]]), 3)
    x_TD = torch.tensor([[1.0], [2.0]])
    assert permute(x_TD, routing).flatten().tolist() == [1.0, 2.0, 2.0, 1.0]


def test_two_runs_give_the_same_bits():
    torch.manual_seed(0)
    routing = sort_by_expert(random_choice(64, 8, 16), 16)
    x_TD, weights_TK = torch.randn(64, 32, requires_grad=True), torch.rand(64, 8, requires_grad=True)

    def run():
        y_TD = combine(permute(x_TD, routing), weights_TK, routing)
        return [y_TD, *torch.autograd.grad(y_TD.square().sum(), (x_TD, weights_TK))]

    assert all(torch.equal(a, b) for a, b in zip(run(), run(), strict=True))


def test_dropped_slots_come_last_and_are_not_counted():
    experts_TK = torch.tensor([[2, 3], [0, 3], [3, 2]])  # 3 marks a dropped choice of three experts
    routing = sort_by_expert(experts_TK, 3)
    assert routing.counts_E.tolist() == [1, 0, 2]
    assert routing.order_N.tolist() == [2, 0, 5, 1, 3, 4]


def limited_by_hand(experts_TK, weights_TK, num_experts, capacity):
    """One slot after the other, the heaviest first, of equal ones the earlier first."""
    experts, weights = experts_TK.flatten().tolist(), weights_TK.flatten().tolist()
    taken = [0] * num_experts
    for slot in sorted(range(len(experts)), key=lambda slot: (-weights[slot], slot)):
        expert = experts[slot]
        taken[expert] += 1
        if taken[expert] > capacity:
            experts[slot] = num_experts
    return experts


@pytest.mark.parametrize("capacity", [1, 3, 7, 100])
@pytest.mark.parametrize("num_weights", [None, 3, 1], ids=["distinct weights", "some ties", "all tied"])
def test_capacity_drops_the_lightest(capacity, num_weights):
    generator = torch.Generator().manual_seed(capacity)
    experts_TK = random_choice(40, 2, 5, seed=capacity)
    weights_TK = torch.rand(40, 2, generator=generator)
    if num_weights is not None:
        weights_TK = (weights_TK * num_weights).floor()
    limited_TK = limit_to_capacity(experts_TK, weights_TK, 5, capacity)
    assert limited_TK.flatten().tolist() == limited_by_hand(experts_TK, weights_TK, 5, capacity)
    assert limited_TK.flatten().bincount(minlength=6)[:5].max() <= capacity


def test_an_expert_that_nobody_chose_has_no_say_in_capacity():
    experts_TK = torch.tensor([[3], [3], [3]])
    limited_TK = limit_to_capacity(experts_TK, torch.tensor([[0.1], [0.3], [0.2]]), 4, 1)
    assert limited_TK.tolist() == [[4], [3], [4]]


def test_rows_of_dropped_choices_need_not_be_made():
    experts_TK = torch.tensor([[2, 3], [0, 3], [3, 3], [1, 2]])
    routing = sort_by_expert(experts_TK, 3)
    x_TD = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    factors_MD = torch.randn(4, 5, dtype=torch.float64)
    kept_MD, all_ND = permute(x_TD, routing, 4), permute(x_TD, routing)
    assert torch.equal(kept_MD, all_ND[:4])
    (grad_TD,) = torch.autograd.grad((kept_MD * factors_MD).sum(), x_TD)
    (expected_TD,) = torch.autograd.grad((all_ND[:4] * factors_MD).sum(), x_TD)
    assert torch.equal(grad_TD, expected_TD)
    assert torch.equal(combine(kept_MD, None, routing), combine(kept_MD, torch.ones(4, 2), routing))
    torch.testing.assert_close(combine(kept_MD, None, routing), x_TD * torch.tensor([[1], [1], [0], [2]]))
