"""Rewards become advantages: of groups of answers to one prompt, or of the tokens of an answer.

Arithmetic in float64 on the host. Shapes: G groups, K answers of a group, N tokens of an answer.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_SMALLEST_SPREAD = 1e-6


def group_advantages(rewards_K: Floats, kind: str) -> Floats:
    """Advantages [K] of the answers to one prompt, the same for all tokens of an answer.

    Rewards that are NaN (a verifier failed) do not count, and have the advantage 0.

    Args:
        kind: "grpo", "dr_grpo", "rloo" or "reinforce++_baseline"; see `glmforge.config.rl.AdvantageConfig`.
    """
    known_K = np.isfinite(rewards_K)
    number = int(known_K.sum())
    if number < 2:
        return np.zeros_like(rewards_K)
    centred_K = np.where(known_K, rewards_K - rewards_K[known_K].mean(), 0.0)
    if kind == "grpo":
        return centred_K / (float(rewards_K[known_K].std(ddof=1)) + _SMALLEST_SPREAD)
    if kind == "rloo":
        return centred_K * number / (number - 1)
    return centred_K


def has_spread(rewards_K: Floats) -> bool:
    """Whether the rewards of a group differ: otherwise all advantages are 0, and nothing is learned from it."""
    known = rewards_K[np.isfinite(rewards_K)]
    return len(known) > 1 and float(known.std()) > _SMALLEST_SPREAD


def token_rewards(reward: float, log_ratios_N: Floats, weight: float) -> Floats:
    """[N]: -weight x log-ratio to the reference of each token, and the answer's reward on the last one."""
    rewards_N = -weight * log_ratios_N
    rewards_N[-1] += reward
    return rewards_N


def discounted_returns(rewards_N: Floats, gamma: float) -> Floats:
    """[N]: what follows each token, itself included."""
    returns_N = np.empty_like(rewards_N)
    following = 0.0
    for place in range(len(rewards_N) - 1, -1, -1):
        following = rewards_N[place] + gamma * following
        returns_N[place] = following
    return returns_N


def generalised_advantages(rewards_N: Floats, values_N: Floats, gamma: float, lam: float) -> tuple[Floats, Floats]:
    """Advantages and returns [N] each by GAE (Schulman et al., 2016, arXiv 1506.02438).

    Args:
        values_N: the critic's value before each token; the value behind the last one is 0.
    """
    errors_N = rewards_N + gamma * np.append(values_N[1:], 0.0) - values_N
    advantages_N = discounted_returns(errors_N, gamma * lam)
    return advantages_N, advantages_N + values_N


def normalised(advantages: Sequence[Floats], count: float, total: float, squares: float) -> list[Floats]:
    """Less their mean and divided by their spread, over all tokens of a step on all ranks.

    Args:
        count, total, squares: number, sum and sum of squares of all of them.
    """
    mean = total / max(count, 1.0)
    spread = max(squares / max(count, 1.0) - mean**2, 0.0) ** 0.5
    return [(one - mean) / (spread + _SMALLEST_SPREAD) for one in advantages]
