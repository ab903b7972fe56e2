"""Advantages against their formulas."""

import math

import numpy as np
import pytest

from glmforge.rl.advantages import (
    discounted_returns,
    generalised_advantages,
    group_advantages,
    has_spread,
    normalised,
    token_rewards,
)

REWARDS = np.array([1.0, 0.0, 0.0, 0.5])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("dr_grpo", REWARDS - 0.375),
        ("reinforce++_baseline", REWARDS - 0.375),
        ("grpo", (REWARDS - 0.375) / (math.sqrt(sum((r - 0.375) ** 2 for r in REWARDS) / 3) + 1e-6)),
        ("rloo", [1 - 0.5 / 3, -0.5, -0.5, 0.5 - 1 / 3]),
    ],
)
def test_of_a_group(kind: str, expected: list[float]) -> None:
    assert group_advantages(REWARDS, kind) == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo", "rloo"])
def test_an_unknown_reward_counts_for_nothing(kind: str) -> None:
    known = group_advantages(REWARDS, kind)
    with_unknown = group_advantages(np.append(REWARDS, math.nan), kind)
    assert with_unknown == pytest.approx([*known, 0.0])
    assert not group_advantages(np.array([1.0, math.nan]), kind).any()


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [([1, 0], True), ([1, 1], False), ([1, math.nan], False), ([1, math.nan, 0], True), ([math.nan] * 2, False)],
)
def test_spread(rewards: list[float], expected: bool) -> None:
    assert has_spread(np.array(rewards)) is expected


def test_returns_and_rewards_of_tokens() -> None:
    rewards = token_rewards(2.0, np.array([0.5, -1.0, 0.25]), 0.1)
    assert rewards == pytest.approx([-0.05, 0.1, 1.975])
    assert discounted_returns(rewards, 0.5) == pytest.approx([-0.05 + 0.05 + 0.49375, 0.1 + 0.9875, 1.975])


def test_generalised_advantages_are_sums_of_discounted_errors() -> None:
    generator = np.random.default_rng(0)
    rewards, values = generator.standard_normal(6), generator.standard_normal(6)
    gamma, lam = 0.9, 0.8
    errors = [rewards[t] + gamma * (values[t + 1] if t < 5 else 0.0) - values[t] for t in range(6)]
    expected = [sum((gamma * lam) ** (k - t) * errors[k] for k in range(t, 6)) for t in range(6)]
    advantages, returns = generalised_advantages(rewards, values, gamma, lam)
    assert advantages == pytest.approx(expected)
    assert returns == pytest.approx(np.array(expected) + values)
    # With lambda 1 the advantage is the return less the value.
    advantages, _ = generalised_advantages(rewards, values, gamma, 1.0)
    assert advantages == pytest.approx(discounted_returns(rewards, gamma) - values)


def test_normalised_over_all_answers() -> None:
    parts = [np.array([1.0, 3.0]), np.array([5.0])]
    found = np.concatenate(normalised(parts, 3.0, 9.0, 35.0))
    assert found.mean() == pytest.approx(0.0)
    assert found.std() == pytest.approx(1.0, rel=1e-5)
