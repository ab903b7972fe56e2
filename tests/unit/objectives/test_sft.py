"""Means over trained tokens and over conversations, and what has no influence on them."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from glmforge.backend.global_batch import run_section
from glmforge.config.parallel import ParallelConfig
from glmforge.config.phase import PhaseConfig
from glmforge.data.stream.batch import Batch
from glmforge.kernels.cross_entropy import IGNORE_INDEX
from glmforge.model import GlmMoe
from glmforge.objectives.next_token import LOSS_WEIGHT, NextTokenObjective
from glmforge.objectives.sft import Mean, SftObjective
from glmforge.parallel.inputs import TokenShare
from glmforge.parallel.world import World
from helpers.models import randomize_, tiny_config

CONFIG = tiny_config(num_nextn_predict_layers=1)
PHASE = PhaseConfig(name="main", steps=1, seq_len=8, batch_size=2, mtp_loss_weight=0.3, aux_loss_weight=0.0)
LENGTHS = ((3, 5), (1, 7))


def batch(weights: list[list[float]] | None = None) -> Batch:
    ids_BS = torch.randint(0, 512, (2, 9), generator=torch.Generator().manual_seed(0))
    labels_BS = ids_BS[:, 1:].clone()
    labels_BS[:, 0] = labels_BS[0, 2] = labels_BS[0, 7] = labels_BS[1, 7] = IGNORE_INDEX
    per_token = {} if weights is None else {LOSS_WEIGHT: torch.tensor(weights)}
    return Batch(ids_BS[:, :-1], labels_BS, LENGTHS, (0, 1), (0, 0), per_token=per_token)


@pytest.fixture(scope="module")
def model() -> GlmMoe:
    whole = GlmMoe(CONFIG)
    randomize_(whole)
    return whole


def losses_and_gradients(model: GlmMoe, objective: NextTokenObjective, given: Batch) -> tuple[Tensor, list[Tensor]]:
    """The mean of each term, and the gradient of their weighted sum."""
    share = TokenShare(2, 8, World.single("cpu"), ParallelConfig())
    numerators = objective.numerators(run_section(model, None, objective, given, share), given, share)
    means = numerators / objective.denominators(given).float()
    total = (means * torch.tensor(objective.weights)).sum()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(total, parameters, allow_unused=True)
    return means.detach(), [gradient for gradient in gradients if gradient is not None]


WEIGHTS = [[0.0, 2.0, 0.0, 0.5, 0.5, 1.0, 1.0, 0.0], [0.0, 1.0, 1.0, 1.0, 0.0, 3.0, 1.0, 0.0]]


@pytest.mark.parametrize("mean", ["tokens", "conversations"])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_means_are_those_of_the_definition(model: GlmMoe, mean: Mean, weights: list[list[float]] | None) -> None:
    given = batch(weights)
    means, _ = losses_and_gradients(model, SftObjective(PHASE, 1, mean=mean), given)
    logits_TV = model.differentiable_logits(given.ids_BS, given.documents()).flatten(0, 1).float()
    labels_T = given.labels_BS.flatten()
    nll_T = torch.nn.functional.cross_entropy(logits_TV, labels_T, reduction="none", ignore_index=IGNORE_INDEX)
    weights_T = torch.ones(16) if weights is None else torch.tensor(weights).flatten()
    weights_T = weights_T * (labels_T != IGNORE_INDEX)
    if mean == "tokens":
        expected = (weights_T * nll_T).sum() / weights_T.sum()
    else:
        lengths = [length for row in LENGTHS for length in row]
        pieces = list(zip(weights_T.split(lengths), nll_T.split(lengths), strict=True))
        of_each = [(w * n).sum() / w.sum() for w, n in pieces if w.sum() > 0]
        assert len(of_each) == 3  # the document of one token has no label
        expected = torch.stack(of_each).mean()
    torch.testing.assert_close(means[0], expected.detach(), rtol=1e-5, atol=0)  # fp32 sums in another order


@pytest.mark.parametrize("mean", ["tokens", "conversations"])
def test_a_token_of_weight_zero_is_as_one_without_a_label(model: GlmMoe, mean: Mean) -> None:
    """And what it would have been asked for has no influence at all, to the bit."""
    objective, given = SftObjective(PHASE, 1, mean=mean), batch(WEIGHTS)
    labels_BS = given.labels_BS.masked_fill(torch.tensor(WEIGHTS) == 0, IGNORE_INDEX)
    other_BS = given.labels_BS.where(torch.tensor(WEIGHTS) > 0, (given.labels_BS + 1) % 512)
    results = [
        losses_and_gradients(model, objective, replace(given, labels_BS=labels))
        for labels in (given.labels_BS, labels_BS, other_BS.masked_fill(given.labels_BS < 0, IGNORE_INDEX))
    ]
    for means, gradients in results[1:]:
        assert torch.equal(means, results[0][0])
        assert all(torch.equal(a, e) for a, e in zip(gradients, results[0][1], strict=True))


def test_equal_weights_are_as_none(model: GlmMoe) -> None:
    plain, expected = losses_and_gradients(model, NextTokenObjective(PHASE, 1), batch())
    means, gradients = losses_and_gradients(model, SftObjective(PHASE, 1), batch([[2.0] * 8] * 2))
    torch.testing.assert_close(means, plain)
    for a, e in zip(gradients, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-7)  # twice the sum over twice the amount, in fp32
