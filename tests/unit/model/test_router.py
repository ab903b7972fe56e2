"""Routing, its statistics and the sequence-level balance loss."""

import pytest
import torch

from glmforge.model import GlmMoe
from glmforge.model.inputs import Rows
from glmforge.model.router import Router, row_balance, sequence_balance_loss
from helpers.models import randomize_, tiny_config


def balance_loss(layers: list[torch.Tensor], num_rows: int, k: int) -> float:
    """The loss of layers with these scores [B * S, E], tokens in the order of the rows."""
    num_tokens = len(layers[0])
    rows = Rows(torch.arange(num_tokens) // (num_tokens // num_rows), num_rows, num_tokens // num_rows)
    return sequence_balance_loss([row_balance(scores_TE, rows, k) for scores_TE in layers], rows, k).item()


def test_balance_loss_is_the_formula_written_out() -> None:
    num_rows, seq_len, num_experts, k = 3, 5, 8, 2
    scores_TE = torch.rand(num_rows * seq_len, num_experts, generator=torch.Generator().manual_seed(0))
    expected = 0.0
    for row in scores_TE.view(num_rows, seq_len, num_experts):
        for expert in range(num_experts):
            probability = sum((scores[expert] / scores.sum()).item() for scores in row)
            count = sum(expert in scores.topk(k).indices for scores in row)
            expected += num_experts / (k * seq_len**2) * probability * count
    # fp32 sums of 15 tokens in another order.
    assert balance_loss([scores_TE], num_rows, k) == pytest.approx(expected, rel=1e-5)
    assert balance_loss([scores_TE] * 2, num_rows, k) == pytest.approx(2 * expected, rel=1e-5)


def test_balance_loss_of_a_level_router_is_one_per_row() -> None:
    num_experts, k = 8, 2
    # Token t prefers experts 2t and 2t + 1 (mod 8) by so little that the probabilities are still level.
    scores_TE = torch.full((8, num_experts), 0.5)
    for token in range(8):
        scores_TE[token, [(2 * token) % 8, (2 * token + 1) % 8]] += 1e-6
    assert balance_loss([scores_TE], 2, k) == pytest.approx(2.0, rel=1e-4)


def test_balance_loss_counts_ignore_the_correction_bias_and_gradients_reach_the_router() -> None:
    model = GlmMoe(tiny_config())
    randomize_(model)
    ids_BS = torch.randint(0, 512, (2, 16), generator=torch.Generator().manual_seed(0))
    first = model(ids_BS, with_aux_loss=True, with_mtp=False)
    model.trunk_layers[-1].mlp.gate.e_score_correction_bias[0] = 5.0  # the last layer: nothing follows
    second = model(ids_BS, with_aux_loss=True, with_mtp=False)
    assert not torch.equal(first.router.counts_LE, second.router.counts_LE)
    torch.testing.assert_close(first.router.aux_loss, second.router.aux_loss)
    first.router.aux_loss.backward()
    assert model.trunk_layers[1].mlp.gate.weight.grad.abs().sum() > 0


def test_group_limit_keeps_the_choice_inside_the_best_groups() -> None:
    config = tiny_config(n_routed_experts=16, n_group=4, topk_group=1, num_experts_per_tok=3)
    router = Router(config)
    randomize_(router)
    experts_TK = router(torch.randn(32, 48, generator=torch.Generator().manual_seed(0))).experts_TK
    assert ((experts_TK // 4) == (experts_TK[:, :1] // 4)).all()


def test_router_computes_in_fp32_under_bf16_activations() -> None:
    router = Router(tiny_config())
    randomize_(router)
    x_TD = torch.randn(16, 48, generator=torch.Generator().manual_seed(0)).bfloat16()
    routes = router(x_TD)
    assert routes.weights_TK.dtype == routes.scores_TE.dtype == torch.float32
    assert torch.equal(routes.scores_TE, (x_TD.float() @ router.weight.T).sigmoid())
