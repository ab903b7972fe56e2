"""The surrogate's values and gradients against formulas written in NumPy, document by document."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from glmforge.config.parallel import ParallelConfig
from glmforge.config.rl import RlConfig
from glmforge.data.stream.batch import Batch
from glmforge.model.transformer import ForwardOutput, RouterStats
from glmforge.objectives.policy import (
    ADVANTAGE,
    OLD_LOGPROB,
    REFERENCE_LOGPROB,
    ROLLOUT_LOGPROB,
    PolicyObjective,
    TokenLogprobs,
    divergence,
)
from glmforge.parallel.inputs import TokenShare
from glmforge.parallel.world import World
from helpers.policies import NUM_TOKENS, answers, batch, loss_of


def by_formulas(given: Batch, rl: RlConfig) -> list[np.ndarray]:
    """Numerators of the terms per answer's token, before they are reduced: policy, and kl."""
    surrogate, terms = rl.surrogate, []
    low, high = surrogate.bounds
    for one in answers(given):
        new, advantage = one["new"], one[ADVANTAGE]
        base = one[OLD_LOGPROB] if surrogate.ratio_to == "old" else one[ROLLOUT_LOGPROB]
        ratio = np.exp(new - base)
        if surrogate.level == "sequence":
            ratio = np.full_like(ratio, np.exp((new - base).mean()))
        clipped = np.clip(ratio, 1 - low, 1 + high)
        loss = np.maximum(-ratio * advantage, -clipped * advantage)
        if surrogate.bound == "dual_clip":
            loss = np.where(advantage < 0, np.minimum(loss, -surrogate.dual_clip * advantage), loss)
        if surrogate.bound == "cispo":
            loss = -clipped * advantage * new
        if surrogate.bound in ("mask", "none", "probability"):
            loss = -ratio * advantage
        if surrogate.bound == "mask":
            loss = loss * ((ratio >= 1 - low) & (ratio <= 1 + high))
        if surrogate.bound == "probability":
            moved = np.exp(new) - np.exp(base)
            loss = loss * ~(((advantage > 0) & (moved > high)) | ((advantage < 0) & (moved < -low)))
        gap = np.exp(one[OLD_LOGPROB] - one[ROLLOUT_LOGPROB])
        if surrogate.correction == "truncate":
            loss = loss * np.clip(gap, surrogate.correction_low, surrogate.correction_high)
        if surrogate.correction == "mask":
            loss = loss * ((gap >= surrogate.correction_low) & (gap <= surrogate.correction_high))
        terms.append(loss)
    return terms


def reduced(terms: list[np.ndarray], rl: RlConfig) -> float:
    match rl.surrogate.reduction:
        case "tokens":
            return float(np.concatenate(terms).mean())
        case "samples":
            return float(np.mean([one.mean() for one in terms]))
    return float(np.mean([one.sum() / rl.rollout.max_new_tokens for one in terms]))


SURROGATES: dict[str, dict[str, Any]] = {
    "ppo": {},
    "dual clip": {"bound": "dual_clip", "dual_clip": 1.05},
    "grpo by samples": {"reduction": "samples"},
    "dr grpo": {"reduction": "constant"},
    "gspo": {"level": "sequence", "low": 0.02, "high": 0.05},
    "cispo": {"bound": "cispo", "high": 0.1},
    "icepop": {"bound": "none", "correction": "mask", "correction_low": 0.7, "correction_high": 1.3},
    "tis": {"correction": "truncate", "correction_high": 1.1},
    "glm-5": {"ratio_to": "rollout", "bound": "mask", "low": 0.3, "high": 0.3},
    "dppo": {"ratio_to": "rollout", "bound": "probability", "low": 0.05, "high": 0.05},
    "reinforce": {"bound": "none"},
}


@pytest.mark.parametrize("name", SURROGATES)
def test_values_and_gradients_are_those_of_the_formulas(name: str) -> None:
    rl, given = RlConfig.model_validate({"surrogate": SURROGATES[name]}), batch()
    new = given.per_token["new"].clone().requires_grad_()
    loss = loss_of(given, rl, new)
    loss.backward()
    assert loss.item() == pytest.approx(reduced(by_formulas(given, rl), rl), abs=1e-12)
    assert new.grad is not None
    by_differences = torch.zeros_like(new)
    step = 1e-6
    frozen = {"cispo"}  # its ratio has no gradient: the formula is differentiated with the ratio held
    for row, column in (given.labels_BS == 1).nonzero().tolist():
        values = []
        for sign in (1, -1):
            moved = given.per_token["new"].clone()
            moved[row, column] += sign * step
            changed = replace(given, per_token={**given.per_token, "new": moved})
            values.append(reduced(by_formulas(changed, rl), rl))
        by_differences[row, column] = (values[0] - values[1]) / (2 * step)
    if name in frozen:
        ratio = (given.per_token["new"] - given.per_token[OLD_LOGPROB]).exp().clamp(1 - 0.2, 1 + 0.1)
        by_differences = -ratio * given.per_token[ADVANTAGE] / (given.labels_BS == 1).sum()
        by_differences[given.labels_BS != 1] = 0
    assert torch.allclose(new.grad, by_differences, atol=1e-8)
    assert not new.grad[given.labels_BS != 1].any()


def test_without_old_logprobs_the_ratio_is_one() -> None:
    given = batch()
    given = replace(given, per_token={k: v for k, v in given.per_token.items() if k != OLD_LOGPROB})
    new = given.per_token["new"].clone().requires_grad_()
    loss_of(given, RlConfig(), new).backward()
    number = (given.labels_BS == 1).sum()
    assert torch.allclose(new.grad, -given.per_token[ADVANTAGE] / number)


def test_the_divergence_and_the_entropy_are_terms_of_their_own() -> None:
    given = batch()
    new, is_label = given.per_token["new"].clone().requires_grad_(), given.labels_BS == 1
    entropy = torch.full((NUM_TOKENS,), 2.0, dtype=torch.float64)
    plain = loss_of(given, RlConfig(), new)
    both = RlConfig.model_validate({"kl": {"weight": 0.5, "estimator": "k2"}, "entropy": 0.1})
    log_ratio = (given.per_token["new"] - given.per_token[REFERENCE_LOGPROB])[is_label]
    expected = plain.item() + 0.5 * (log_ratio.square() / 2).mean().item() - 0.1 * 2.0
    assert loss_of(given, both, new, entropy).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("estimator", "formula"), [("k1", lambda d: d), ("k2", lambda d: d**2 / 2)])
def test_estimators_of_the_divergence(estimator: str, formula: Any) -> None:
    log_ratio = torch.linspace(-2, 2, 9, dtype=torch.float64)
    assert torch.allclose(divergence(log_ratio, estimator), formula(log_ratio))
    assert torch.allclose(divergence(log_ratio, "k3"), torch.exp(-log_ratio) - 1 + log_ratio)


def test_an_enormous_ratio_gives_finite_gradients() -> None:
    given = batch()
    far = replace(given, per_token={**given.per_token, OLD_LOGPROB: given.per_token["new"] - 500})
    new = given.per_token["new"].clone().requires_grad_()
    for surrogate in SURROGATES.values():
        loss_of(far, RlConfig.model_validate({"surrogate": surrogate}), new).backward()
    assert torch.isfinite(new.grad).all()


def test_metrics_are_means_over_the_answers_tokens() -> None:
    given = batch()
    objective = PolicyObjective(RlConfig.model_validate({"kl": {}}))
    share = TokenShare(2, 16, World.single(), ParallelConfig())
    router = RouterStats(torch.zeros(0, 1), torch.zeros(0, 1), torch.zeros(()))
    new = given.per_token["new"].flatten()
    output = ForwardOutput(TokenLogprobs(-new, torch.full_like(new, 3.0)), (), router)
    sums = {one.name: torch.zeros(one.length, dtype=torch.float64) for one in objective.metrics}
    objective.add_metrics(sums, output, given, share)
    values = objective.metric_values(sums)
    one = {name: np.concatenate([answer[name] for answer in answers(given)]) for name in given.per_token}
    gap = np.abs(one[OLD_LOGPROB] - one[ROLLOUT_LOGPROB])
    ratio = np.exp(one["new"] - one[OLD_LOGPROB])
    outside = ((one[ADVANTAGE] > 0) & (ratio > 1.2)) | ((one[ADVANTAGE] < 0) & (ratio < 0.8))
    assert values["gap_mean"] == pytest.approx(gap.mean())
    assert gap.max() <= values["gap_max"] < gap.max() * 2**0.5
    assert values["clip_share"] == pytest.approx(outside.mean())
    assert 0 < outside.mean() < 1
    assert values["entropy"] == pytest.approx(3.0)
    d = one["new"] - one[REFERENCE_LOGPROB]
    assert values["reference_kl"] == pytest.approx((np.exp(-d) - 1 + d).mean())
