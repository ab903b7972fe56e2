"""One optimizer step: accumulation changes nothing, non-finite steps are not taken, routers are levelled."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from glmforge.backend.native import NativeBackend
from glmforge.config.phase import PhaseConfig
from glmforge.data.stream.batch import Batch
from glmforge.objectives.next_token import NextTokenObjective
from glmforge.optim.optimizer import Optimizer, build_optimizer
from glmforge.parallel.build import build_model
from glmforge.parallel.model import ParallelModel
from glmforge.parallel.world import World
from glmforge.recipes.run_data import open_data
from glmforge.training.step import StepResult, train_step
from helpers.tiny_data import TinyData

WORLD = World.single("cpu")
PHASE = PhaseConfig(name="main", steps=1, seq_len=32, batch_size=8, mtp_loss_weight=0.5, aux_loss_weight=0.01)


def make(tiny_data: TinyData, tmp_path: Path) -> tuple[ParallelModel, Optimizer, Batch]:
    config = tiny_data.run_config(tmp_path)
    stream = open_data(config, WORLD).curriculum.stream(0, {})
    model = build_model(config, WORLD)
    optimizer = build_optimizer(model.named_parameters(), model.table, config.optim, compute_dtype=torch.float32)
    return model, optimizer, stream.batch(0, 8)


def take_step(model: ParallelModel, optimizer: Optimizer, micro_batches: list[Batch], **changes: object) -> StepResult:
    options = {"lr": 1e-2, "grad_clip": 1.0, "router_bias_rate": 1e-3} | changes
    objective = NextTokenObjective(PHASE, model.config.num_nextn_predict_layers)
    return train_step(NativeBackend(model, optimizer), objective, micro_batches, **options)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_accumulation_equals_the_whole_batch(tiny_data: TinyData, tmp_path: Path, size: int) -> None:
    model, optimizer, batch = make(tiny_data, tmp_path)
    expected = take_step(model, optimizer, [batch])
    other_model, other_optimizer, _ = make(tiny_data, tmp_path)
    result = take_step(other_model, other_optimizer, batch.micro_batches(size))
    assert torch.equal(result.counts_LE, expected.counts_LE)
    for term, value in expected.losses.items():
        # fp32 sums over the same tokens in another grouping.
        torch.testing.assert_close(result.losses[term], value, rtol=1e-6, atol=0)
    torch.testing.assert_close(result.grad_norm, expected.grad_norm, rtol=1e-5, atol=0)
    for (name, ours), theirs in zip(other_model.named_parameters(), model.parameters(), strict=True):
        # A first Adam step is lr * sign(g), Muon's is near-orthogonal: both magnify rounding of tiny gradients, so
        # the bound is a small part of the step (lr = 1e-2) and not of the weight.
        assert (ours - theirs).norm() < 1e-3 * 1e-2 * theirs.numel() ** 0.5, name


def test_documents_of_different_length_weigh_by_their_labels(tiny_data: TinyData, tmp_path: Path) -> None:
    """Micro-batches with different numbers of labels: a mean of means would differ from the global mean."""
    model, optimizer, batch = make(tiny_data, tmp_path)
    labels_BS = batch.labels_BS.clone()
    labels_BS[0, 4:] = -100
    uneven = replace(batch, labels_BS=labels_BS)
    whole = take_step(model, optimizer, [uneven])
    other_model, other_optimizer, _ = make(tiny_data, tmp_path)
    parts = take_step(other_model, other_optimizer, uneven.micro_batches(1))
    torch.testing.assert_close(parts.losses["loss"], whole.losses["loss"], rtol=1e-6, atol=0)
    torch.testing.assert_close(parts.grad_norm, whole.grad_norm, rtol=1e-5, atol=0)


def test_nothing_is_updated_on_a_non_finite_gradient(tiny_data: TinyData, tmp_path: Path) -> None:
    model, optimizer, batch = make(tiny_data, tmp_path)
    take_step(model, optimizer, [batch])
    with torch.no_grad():
        model.parts[0].model.norm.weight[0] = float("nan")
    state = {name: tensor.clone() for name, tensor in (model.state_dict() | optimizer.state_dict()).items()}
    result = take_step(model, optimizer, [batch])
    assert not result.finite
    for name, tensor in (model.state_dict() | optimizer.state_dict()).items():
        assert torch.equal(tensor.nan_to_num(7.0), state[name].nan_to_num(7.0)), name
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in model.parameters())


def test_router_biases_move_against_the_load(tiny_data: TinyData, tmp_path: Path) -> None:
    model, optimizer, batch = make(tiny_data, tmp_path)
    result = take_step(model, optimizer, [batch], router_bias_rate=0.25)
    moe_layers = model.moe_layers()
    assert list(moe_layers) == [0, 1, 2, 3]
    for moe, counts_E in zip(moe_layers.values(), result.counts_LE, strict=True):
        expected_E = 0.25 * (counts_E.double().mean() - counts_E).sign()
        assert torch.equal(moe.gate.e_score_correction_bias.double(), expected_E)


def test_weight_zero_leaves_a_term_out(tiny_data: TinyData, tmp_path: Path) -> None:
    model, optimizer, batch = make(tiny_data, tmp_path)
    phase = PHASE.model_copy(update={"mtp_loss_weight": 0.0, "aux_loss_weight": 0.0})
    backend, objective = NativeBackend(model, optimizer), NextTokenObjective(phase, 1)
    result = train_step(backend, objective, [batch], lr=1e-2, grad_clip=None, router_bias_rate=1e-3)
    assert set(result.losses) == {"loss"}
    assert len(result.counts_LE) == 3


def test_losses_of_sources_add_up_to_the_loss(tiny_data: TinyData, tmp_path: Path) -> None:
    model, optimizer, batch = make(tiny_data, tmp_path)
    mixed = replace(batch, source_B=(0, 2, 2, 0, 0, 2, 0, 0))
    objective = NextTokenObjective(PHASE, 1, num_sources=3)
    options = {"lr": 0.0, "grad_clip": None, "router_bias_rate": 0.0}
    result = train_step(NativeBackend(model, optimizer), objective, mixed.micro_batches(2), **options)
    second = mixed.labels_BS[[1, 2, 5]]
    assert result.metrics["source_tokens"].tolist() == [
        (mixed.labels_BS >= 0).sum() - (second >= 0).sum(),
        0,
        (second >= 0).sum(),
    ]
    assert result.metrics["source_nll"][1] == 0
    # The same fp32 numbers summed in another order.
    total = result.metrics["source_nll"].sum() / result.metrics["source_tokens"].sum()
    assert float(total) == pytest.approx(result.losses["loss"], rel=1e-6)
    alone = train_step(
        NativeBackend(model, optimizer), NextTokenObjective(PHASE, 1), [pick(batch, [1, 2, 5])], **options
    )
    expected = result.metrics["source_nll"][2] / result.metrics["source_tokens"][2]
    assert alone.losses["loss"] == pytest.approx(float(expected), rel=1e-6)


def pick(batch: Batch, rows: list[int]) -> Batch:
    return Batch(
        batch.ids_BS[rows],
        batch.labels_BS[rows],
        tuple(batch.document_lengths[row] for row in rows),
        tuple(rows),
        (0,) * len(rows),
    )


def test_votes_come_back_and_gradients_are_shown_before_clipping(tiny_data: TinyData, tmp_path: Path) -> None:
    model, optimizer, batch = make(tiny_data, tmp_path)
    seen: list[float] = []

    def look() -> None:
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        seen.append(float(torch.stack([gradient.norm() for gradient in gradients]).norm()))

    result = take_step(model, optimizer, [batch], grad_clip=1e-3, votes={"save", "preempt"}, on_gradients=look)
    assert result.votes == {"save", "preempt"}
    assert seen == [pytest.approx(result.grad_norm, rel=1e-5)]  # fp32 norms of norms
    assert take_step(model, optimizer, [batch]).votes == frozenset()
