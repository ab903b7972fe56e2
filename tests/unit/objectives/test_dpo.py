"""DPO against NumPy and against TRL on the same tensors: values and gradients; and planted bugs are seen."""

from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from glmforge.config.preferences import DpoConfig
from glmforge.data.stream.batch import Batch
from glmforge.objectives import dpo
from glmforge.objectives.dpo import DpoObjective
from helpers.preferences import documents_of, one_device_share, output_of, preference_config, random_stream

TOLERANCE = 1e-6
BETA = 0.2


def objective_of(smoothing: float = 0.0, **phase: object) -> DpoObjective:
    config = preference_config("dpo", **{"mtp_loss_weight": 0.0, **phase})
    return DpoObjective(config.phases[0], 1, ["first", "second"], DpoConfig(beta=BETA, label_smoothing=smoothing))


def given() -> tuple[Batch, Tensor]:
    """Rows, and what each label costs: about what an untrained model gives, 0 without a label."""
    batch = random_stream(with_reference=True).batch(0, 8)
    nll_T = 6 + torch.randn(batch.num_tokens, generator=torch.Generator().manual_seed(1))
    return batch, (nll_T * (batch.labels_BS.flatten() >= 0)).requires_grad_()


def by_numpy(batch: Batch, nll_BS: np.ndarray, smoothing: float) -> tuple[float, np.ndarray, int]:
    """The sum over pairs, its gradient with respect to each token's cost, and the pairs."""
    total, gradient, num_pairs = 0.0, np.zeros_like(nll_BS), 0
    reference, documents = batch.per_token["reference_logprob"].double().numpy(), documents_of(batch)
    for row in range(0, len(nll_BS), 2):
        chosen, rejected = ([d for d in documents if d[0] == row + side] for side in (0, 1))
        for (_, c, end_c), (_, r, end_r) in zip(chosen, rejected, strict=True):
            of_c, of_r = nll_BS[row, c : end_c + 1], nll_BS[row + 1, r : end_r + 1]
            gap = BETA * ((-of_c.sum() - reference[row, end_c]) - (-of_r.sum() - reference[row + 1, end_r]))
            total += (1 - smoothing) * np.log1p(np.exp(-gap)) + smoothing * np.log1p(np.exp(gap))
            pull = -(1 - smoothing) / (1 + np.exp(gap)) + smoothing / (1 + np.exp(-gap))
            gradient[row, c : end_c + 1] -= BETA * pull
            gradient[row + 1, r : end_r + 1] += BETA * pull
            num_pairs += 1
    return float(total), gradient, num_pairs


def compared(smoothing: float = 0.0) -> tuple[float, float, float]:
    """How far value, gradient and denominator are from NumPy's."""
    batch, nll_T = given()
    objective = objective_of(smoothing)
    numerators = objective.numerators(output_of(nll_T), batch, one_device_share(batch))
    numerators[0].backward()
    total, gradient, num_pairs = by_numpy(batch, nll_T.detach().double().numpy().reshape(batch.ids_BS.shape), smoothing)
    counted = abs(objective.denominators(batch)[0].item() - num_pairs)
    assert nll_T.grad is not None
    error = np.abs(nll_T.grad.numpy().reshape(gradient.shape) - gradient).max()
    # Of a mean over pairs, log-probabilities of some 1e2 are rounded to 1e-5, times beta.
    return abs(numerators[0].item() - total) / num_pairs, float(error), counted


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_values_and_gradients_equal_numpys(smoothing: float) -> None:
    errors = compared(smoothing)
    assert max(errors) < TOLERANCE, errors


PLANTS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "sides are swapped": (
        "pairs_of",
        lambda pairs: pairs._replace(chosen_P=pairs.rejected_P, rejected_P=pairs.chosen_P),
    ),
    "filling is counted": ("pairs_of", lambda pairs: pairs._replace(weight_P=torch.ones_like(pairs.weight_P))),
    "no reference": ("at_ends", torch.zeros_like),
    "reference has the wrong sign": ("at_ends", torch.neg),
}


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, change = PLANTS[name]
    real = getattr(dpo, function)
    monkeypatch.setattr(dpo, function, lambda *arguments: change(real(*arguments)))
    assert max(compared()) > 1e-3


def test_the_policy_that_is_the_reference_pays_log_two() -> None:
    stream = random_stream(with_reference=True)
    batch, nll_T = given()
    share, objective = one_device_share(batch), objective_of()
    answers_N = objective.answers_N(output_of(nll_T.detach()), batch, share)
    pairs = dpo.pairs_of(batch)
    assert stream.reference_P2 is not None
    for side, numbers in ((0, pairs.chosen_P), (1, pairs.rejected_P)):
        is_pair = pairs.weight_P > 0
        stream.reference_P2[pairs.number_P[is_pair], side] = answers_N[numbers][is_pair].numpy()
    batch = stream.batch(0, 8)
    (loss,) = objective.numerators(output_of(nll_T.detach()), batch, share)[:1] / objective.denominators(batch)[:1]
    assert loss == torch.tensor(2.0).log()
    sums = {metric.name: torch.zeros(metric.length, dtype=torch.float64) for metric in objective.metrics}
    objective.add_metrics(sums, output_of(nll_T.detach()), batch, share)
    values = objective.metric_values(sums)
    assert (values["score_chosen"], values["score_rejected"]) == (0, 0)
    assert set(values["pair_accuracy"].values()) == {0.5}  # type: ignore[attr-defined]
    assert values["logprob_chosen"] < -20  # type: ignore[operator]


def test_mtp_layers_learn_of_chosen_answers_alone() -> None:
    batch, objective = random_stream(with_reference=True).batch(0, 8), objective_of(mtp_loss_weight=0.1)
    assert objective.terms == ("pair_loss", "mtp_1", "aux")
    next_token, ahead = (targets.labels_T.view(batch.ids_BS.shape) for targets in objective.targets(batch))
    assert torch.equal(next_token, batch.labels_BS)
    assert (ahead[0::2] >= 0).any()
    assert not (ahead[1::2] >= 0).any()
    assert objective.denominators(batch)[1] == (ahead >= 0).sum()


def trl_loss(batch: Batch, nll_T: Tensor) -> tuple[Tensor, dict[str, list[float]]]:
    """TRL's own loss of the same answers, chosen ones first, one to a row."""
    try:
        from trl.trainer.dpo_trainer import DPOTrainer
    except ImportError:
        pytest.skip("trl is not installed (tests compare with it; it is no dependency)")
    documents, nll_BS = documents_of(batch), nll_T.view(batch.ids_BS.shape)
    sides = [[d for d in documents if d[0] % 2 == side] for side in (0, 1)]
    rows = [nll_BS[row, start : end + 1] for side in sides for row, start, end in side]
    longest = max(map(len, rows))
    # A token's cost stands at the token before it.
    logprobs = torch.stack([torch.nn.functional.pad(-row[:-1], (0, longest - len(row))) for row in rows])
    ends = batch.per_token["reference_logprob"]
    chosen, rejected = (torch.stack([ends[row, end] for row, _, end in side]) for side in sides)
    mask = torch.nn.functional.pad((logprobs != 0).long(), (1, 0))
    zeros = torch.zeros_like(logprobs)
    answered = SimpleNamespace(log_probs=logprobs, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool())
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(device="cpu", gather_for_metrics=lambda x: x, gather=lambda x: x),
        aux_loss_enabled=False,
        ld_alpha=None,
        precompute_ref_logps=True,
        f_divergence_type="reverse_kl",
        loss_types=["sigmoid"],
        loss_weights=[1.0],
        beta=BETA,
        label_smoothing=0.0,
        use_weighting=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
        _total_train_tokens=0,
        _tp_size=1,
    )
    inputs = {
        "input_ids": torch.zeros_like(mask),
        "attention_mask": torch.ones_like(mask),
        "completion_mask": mask,
        "ref_chosen_logps": chosen,
        "ref_rejected_logps": rejected,
    }
    loss = DPOTrainer._compute_loss(trainer, lambda **_: answered, inputs, return_outputs=False)
    return loss, trainer._metrics["train"]


def test_loss_gradients_and_rewards_equal_trls() -> None:
    batch, nll_T = given()
    objective, share = objective_of(), one_device_share(batch)
    ours = objective.numerators(output_of(nll_T), batch, share)[0] / objective.denominators(batch)[0]
    (gradient,) = torch.autograd.grad(ours, nll_T)
    theirs, metrics = trl_loss(batch, nll_T)
    (expected,) = torch.autograd.grad(theirs, nll_T)
    torch.testing.assert_close(ours.float(), theirs, atol=TOLERANCE, rtol=0)
    is_asked_T = batch.labels_BS.flatten() >= 0  # elsewhere a cost is 0 and depends on nothing
    torch.testing.assert_close(gradient[is_asked_T], expected[is_asked_T], atol=TOLERANCE, rtol=0)
    sums = {metric.name: torch.zeros(metric.length, dtype=torch.float64) for metric in objective.metrics}
    objective.add_metrics(sums, output_of(nll_T.detach()), batch, share)
    values = objective.metric_values(sums)
    for mine, name in {
        "score_chosen": "rewards/chosen",
        "score_rejected": "rewards/rejected",
        "logprob_chosen": "logps/chosen",
    }.items():
        assert values[mine] == pytest.approx(metrics[name][0], rel=1e-6)
