import torch

from glmforge.optim.balance import update_router_bias

COUNTS_LE = torch.tensor([[4, 4, 4, 4], [16, 0, 0, 0], [8, 4, 4, 0]])


def test_bias_rises_where_tokens_are_few_and_falls_where_they_are_many():
    bias_LE = torch.full((3, 4), 0.5)
    update_router_bias(bias_LE, COUNTS_LE, rate=0.25)
    expected = [[0.5, 0.5, 0.5, 0.5], [0.25, 0.75, 0.75, 0.75], [0.25, 0.5, 0.5, 0.75]]
    assert bias_LE.tolist() == expected


def test_comparison_with_the_mean_is_exact_for_huge_counts():
    # 2^60 / 3 is no float: 2^60 mod 3 = 1, so the mean is between these two neighbours, which fp32 cannot
    # tell apart
    third = 2**60 // 3
    bias_E = torch.zeros(3)
    update_router_bias(bias_E, torch.tensor([third, third, third + 1]), rate=1.0)
    assert bias_E.tolist() == [1.0, 1.0, -1.0]


def test_rate_zero_changes_nothing():
    bias_E = torch.zeros(4)
    update_router_bias(bias_E, COUNTS_LE[1], rate=0.0)
    assert bias_E.abs().max() == 0


def test_the_bias_balances_a_biased_router():
    """Tokens choose the best two of eight experts, two of which score far too well."""
    generator = torch.Generator().manual_seed(0)
    scores_TE = torch.randn(2000, 8, generator=generator).add_(torch.tensor([2.0, 1.5, 0, 0, 0, 0, -1, -1])).sigmoid()
    bias_E = torch.zeros(8)
    violations = []
    for _ in range(1500):
        counts_E = torch.bincount((scores_TE + bias_E).topk(2).indices.flatten(), minlength=8)
        violations.append((counts_E.max() / counts_E.double().mean() - 1).item())
        update_router_bias(bias_E, counts_E, rate=1e-3)
    assert violations[0] > 1.5
    assert violations[-1] < 0.1
