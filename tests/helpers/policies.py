"""Answers of a policy with random log-probabilities, packed as they are trained on, and the loss of a batch."""

import numpy as np
import torch

from glmforge.config.layout import resolve_layout
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
)
from glmforge.parallel.inputs import TokenShare
from glmforge.parallel.world import World
from helpers.models import run_config

LENGTHS = ((7, 5, 4), (10, 6))
PROMPTS = ((2, 1, 4), (3, 2))
"""Tokens without labels at the beginning of each document; the third one has no answer at all."""
NUM_TOKENS = 32


def batch() -> Batch:
    generator = np.random.default_rng(0)
    labels = np.full((2, 16), -100)
    advantages = np.zeros((2, 16))
    for row, (lengths, prompts) in enumerate(zip(LENGTHS, PROMPTS, strict=True)):
        place = 0
        for length, prompt in zip(lengths, prompts, strict=True):
            if length > prompt:
                labels[row, place + prompt - 1 : place + length - 1] = 1
                advantages[row, place + prompt - 1 : place + length - 1] = generator.choice([-1.5, -0.5, 0.7, 2.0])
            place += length
    new = -1.5 + 0.3 * generator.standard_normal((2, 16))
    per_token = {
        ADVANTAGE: advantages,
        OLD_LOGPROB: new + 0.25 * generator.standard_normal((2, 16)),
        ROLLOUT_LOGPROB: new + 0.4 * generator.standard_normal((2, 16)),
        REFERENCE_LOGPROB: new + 0.3 * generator.standard_normal((2, 16)),
        "new": new,
    }
    ids = torch.zeros(2, 16, dtype=torch.int64)
    tensors = {name: torch.tensor(np.where(labels == 1, values, 0.0)) for name, values in per_token.items()}
    return Batch(ids, torch.tensor(labels), LENGTHS, (0, 1), (0, 0), tensors)


def answers(given: Batch) -> list[dict[str, np.ndarray]]:
    """Of each document with an answer, the values of its labels."""
    found = []
    for row, lengths in enumerate(LENGTHS):
        place = 0
        for length in lengths:
            is_label = given.labels_BS[row, place : place + length].numpy() == 1
            values = {name: x[row, place : place + length].numpy()[is_label] for name, x in given.per_token.items()}
            if is_label.any():
                found.append(values)
            place += length
    return found


def loss_of(given: Batch, rl: RlConfig, new: torch.Tensor, entropy: torch.Tensor | None = None) -> torch.Tensor:
    """The weighted sum of the means of all terms, as a backend makes it."""
    config = run_config()
    world = World.single()
    share = TokenShare(2, 16, world, ParallelConfig())
    assert resolve_layout(config, 1).data_ranks == 1
    objective = PolicyObjective(rl)
    router = RouterStats(torch.zeros(0, 1), torch.zeros(0, 1), torch.zeros(()))
    output = ForwardOutput(TokenLogprobs(-new.flatten(), entropy), (), router)
    means = objective.numerators(output, given, share) / objective.denominators(given)
    return (means * torch.tensor(objective.weights, dtype=torch.float64)).sum()
