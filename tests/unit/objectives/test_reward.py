"""The reward model's objective against NumPy: values, gradients, metrics; and planted bugs are seen."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from glmforge.config.preferences import RewardConfig
from glmforge.data.stream.batch import Batch
from glmforge.objectives import reward
from glmforge.objectives.pair_metrics import pair_metric_values, pair_sums
from glmforge.objectives.reward import RewardObjective
from helpers.preferences import documents_of, one_device_share, output_of, preference_config, random_stream

# Sums of a dozen fp32 numbers.
TOLERANCE = 1e-6
CENTER = 0.3


def objective_of(**phase: object) -> RewardObjective:
    config = preference_config("reward", **phase)
    return RewardObjective(config.phases[0], ["first", "second"], RewardConfig(center_weight=CENTER))


def by_numpy(batch: Batch, scores_BS: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Both sums over pairs, the gradient of pair + CENTER * center with respect to the scores, and the pairs."""
    sums, gradient, num_pairs = np.zeros(2), np.zeros_like(scores_BS), 0
    margins = batch.per_token["margin"].numpy()
    documents = documents_of(batch)
    for row in range(0, len(scores_BS), 2):
        chosen, rejected = ([end for r, _, end in documents if r == row + side] for side in (0, 1))
        for c, r in zip(chosen, rejected, strict=True):
            score_c, score_r = scores_BS[row, c], scores_BS[row + 1, r]
            gap = score_c - score_r - margins[row, c]
            sums += np.log1p(np.exp(-gap)), (score_c + score_r) ** 2
            pull = -1 / (1 + np.exp(gap))
            gradient[row, c] += pull + CENTER * 2 * (score_c + score_r)
            gradient[row + 1, r] += -pull + CENTER * 2 * (score_c + score_r)
            num_pairs += 1
    return sums, gradient, num_pairs


def compared() -> tuple[float, float, float]:
    """How far values, gradients and denominators are from NumPy's."""
    batch = random_stream().batch(0, 8)
    scores_T = torch.randn(batch.num_tokens, generator=torch.Generator().manual_seed(1), requires_grad=True)
    objective = objective_of()
    numerators = objective.numerators(output_of(scores_T, 2.5), batch, one_device_share(batch))
    weights = torch.tensor([1.0, CENTER, 0.0])
    (numerators * weights).sum().backward()
    sums, gradient, num_pairs = by_numpy(batch, scores_T.detach().double().numpy().reshape(batch.ids_BS.shape))
    assert objective.terms == ("pair_loss", "center_loss", "aux")
    counted = objective.denominators(batch) - torch.tensor([num_pairs, num_pairs, 8])
    assert numerators[2] == 2.5
    assert scores_T.grad is not None
    errors = np.abs(scores_T.grad.numpy().reshape(gradient.shape) - gradient)
    values = np.abs(numerators[:2].detach().numpy() - sums) / num_pairs
    return float(values.max()), float(errors.max()), counted.abs().max().item()


def test_values_and_gradients_equal_numpys() -> None:
    errors = compared()
    assert max(errors) < TOLERANCE, errors


def swap_sides(real: Callable[..., object]) -> Callable[..., object]:
    def swapped(batch: Batch) -> object:
        pairs = real(batch)
        return pairs._replace(chosen_P=pairs.rejected_P, rejected_P=pairs.chosen_P)  # type: ignore[attr-defined]

    return swapped


def count_filling(real: Callable[..., object]) -> Callable[..., object]:
    def counted(batch: Batch) -> object:
        pairs = real(batch)
        return pairs._replace(weight_P=torch.ones_like(pairs.weight_P))  # type: ignore[attr-defined]

    return counted


@pytest.mark.parametrize("plant", [swap_sides, count_filling])
def test_a_planted_bug_is_seen(plant: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward, "pairs_of", plant(reward.pairs_of))
    assert max(compared()) > 1e-3


def test_no_margin_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward, "at_ends", lambda batch, name: torch.zeros(len(batch.documents().lengths)))
    assert max(compared()) > 1e-3


def test_terms_without_weight_are_left_out() -> None:
    config = preference_config("reward", aux_loss_weight=0)
    objective = RewardObjective(config.phases[0], ["first"], RewardConfig(center_weight=0))
    assert (objective.terms, objective.weights, objective.num_mtp) == (("pair_loss",), (1.0,), 0)
    batch = random_stream().batch(0, 4)
    numerators = objective.numerators(output_of(torch.zeros(batch.num_tokens)), batch, one_device_share(batch))
    pairs = reward.pairs_of(batch)
    margins = reward.at_ends(batch, "margin")[pairs.chosen_P][pairs.weight_P > 0]
    assert numerators.item() == pytest.approx(torch.nn.functional.softplus(margins).sum().item())


def test_metrics_count_pairs_by_source() -> None:
    batch, objective = random_stream().batch(0, 8), objective_of()
    scores_T = torch.randn(batch.num_tokens, generator=torch.Generator().manual_seed(2))
    sums = {metric.name: torch.zeros(metric.length, dtype=torch.float64) for metric in objective.metrics}
    objective.add_metrics(sums, output_of(scores_T), batch, one_device_share(batch))
    values = objective.metric_values(sums)
    scores_BS, documents = scores_T.view(batch.ids_BS.shape).numpy(), documents_of(batch)
    gaps: dict[int, list[float]] = {0: [], 1: []}
    for row in range(0, 8, 2):
        chosen, rejected = ([d for d in documents if d[0] == row + side] for side in (0, 1))
        for (_, _, end_c), (_, _, end_r) in zip(chosen, rejected, strict=True):
            gaps[batch.source_B[row]].append(scores_BS[row, end_c] - scores_BS[row + 1, end_r])
    every = np.array(gaps[0] + gaps[1])
    assert values["pair_accuracy"] == pytest.approx(
        {name: np.mean(np.array(gaps[k]) > 0) for k, name in enumerate(("first", "second")) if gaps[k]}
    )
    assert values["score_brier"] == pytest.approx(np.mean((1 / (1 + np.exp(every))) ** 2), abs=1e-6)
    assert values["score_chosen"] - values["score_rejected"] == pytest.approx(every.mean(), abs=1e-6)  # type: ignore[operator]
    assert -1 <= values["score_length_correlation"] <= 1  # type: ignore[operator]


def test_correlation_and_calibration_equal_numpys() -> None:
    generator = torch.Generator().manual_seed(0)
    scores_P2 = 2 * torch.randn(50, 2, generator=generator)
    lengths_P2 = torch.randint(1, 40, (50, 2), generator=generator)
    weight_P, source_P = (torch.arange(50) < 40).float(), torch.zeros(50, dtype=torch.int64)
    values = pair_metric_values(pair_sums(scores_P2, lengths_P2, source_P, weight_P, 1), ["a"])
    gap = (scores_P2[:40, 0] - scores_P2[:40, 1]).double().numpy()
    length = (lengths_P2[:40, 0] - lengths_P2[:40, 1]).numpy()
    assert values["score_length_correlation"] == pytest.approx(np.corrcoef(gap, length)[0, 1])
    sure, error = 1 / (1 + np.exp(-np.abs(gap))), 0.0
    for low in np.arange(0.5, 1, 0.05):
        inside = (sure >= low) & (sure < low + 0.05)
        error += abs(np.sum(sure[inside]) - np.sum(gap[inside] > 0))
    assert values["score_calibration_error"] == pytest.approx(error / 40)
    ties = pair_metric_values(pair_sums(torch.zeros(50, 2), lengths_P2, source_P, weight_P, 1), ["a"])
    assert (ties["pair_accuracy"], ties["score_length_correlation"]) == ({"a": 0.5}, None)
