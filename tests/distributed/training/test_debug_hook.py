"""Norms per layer do not depend on the layout; what the hook switches on it switches off again."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from glmforge.backend.native import NativeBackend
from glmforge.config.layout import Layout
from glmforge.config.observe import DebugConfig
from glmforge.config.schema import RunConfig
from glmforge.optim.clip import global_norm
from glmforge.parallel.world import World
from glmforge.training.hooks.debug import DebugHook
from helpers.distributed import run_ranks
from helpers.hooks import FakeTrainer, fake_config


def with_weights_as_gradients(config: RunConfig, world: World) -> NativeBackend:
    """Initial weights do not depend on the layout, so they are gradients that all layouts agree on."""
    backend = NativeBackend.build(config, world)
    for name, parameter in backend.model.named_parameters():
        if "layers.1.input_layernorm" not in name:  # a parameter that got no gradient
            parameter.grad = parameter.detach().clone()
    return backend


def config_of(**parallel: Any) -> RunConfig:
    return fake_config(parallel=parallel)


def rank_norms(config: RunConfig, layout: Layout) -> Tensor:
    return with_weights_as_gradients(config, World.join(layout, torch.device("cpu"))).grad_norms()


@pytest.fixture(scope="module")
def expected() -> Tensor:
    return with_weights_as_gradients(config_of(), World.single("cpu")).grad_norms()


def test_norms_are_those_of_the_layers(expected: Tensor) -> None:
    model = with_weights_as_gradients(config_of(), World.single("cpu")).model
    assert len(expected) == model.config.num_hidden_layers + model.config.num_nextn_predict_layers == 4
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    for layer, norm in enumerate(expected):
        of_layer = [gradient for name, gradient in gradients.items() if f"layers.{layer}." in name]
        # The same fp32 sums in another order.
        torch.testing.assert_close(norm, global_norm(of_layer), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("parallel", "layout"),
    [
        ({"dp_replicate": 2, "dp_shard": 2, "ep": 2}, Layout(dp_replicate=2, dp_shard=2, ep=2)),
        ({"dp_shard": 2, "tp": 2, "ep": 2}, Layout(dp_shard=2, tp=2, ep=2)),
    ],
    ids=["hsdp + ep", "fsdp + tp + ep"],
)
def test_the_layout_does_not_matter(expected: Tensor, parallel: dict[str, int], layout: Layout) -> None:
    for norms in run_ranks(rank_norms, layout.world_size, config_of(**parallel), layout):
        # fp32 sums in another order; a missing or doubled part would be off by percents.
        torch.testing.assert_close(norms, expected, rtol=1e-5, atol=0)


def test_norms_on_logging_steps() -> None:
    taken = []
    hook = DebugHook(DebugConfig(layer_grad_norms=True))
    trainer: Any = FakeTrainer(config=fake_config(observe={"log_every": 3}))
    trainer.backend = SimpleNamespace(grad_norms=lambda: torch.tensor([3.0, 4.0]))
    for _ in range(4):
        hook.on_gradients(trainer)
        taken.append(trainer.recorded())
        trainer.state.step += 1
    assert taken == [{}, {}, {"layer_grad_norms": [3.0, 4.0]}, {}]


def test_nothing_is_taken_unasked() -> None:
    hook = DebugHook(DebugConfig())
    trainer: Any = FakeTrainer()
    hook.on_gradients(trainer)
    assert trainer.recorded() == {}


def test_what_is_switched_on_is_switched_off() -> None:
    log = logging.getLogger("glmforge")
    before = log.level
    hook = DebugHook(DebugConfig(detect_anomaly=True, log_level="error"))
    FakeTrainer(hook).start()
    assert torch.is_anomaly_enabled()
    assert log.level == logging.ERROR
    with pytest.raises(RuntimeError, match="SqrtBackward0"):
        (torch.zeros(1, requires_grad=True).sqrt() * 0).sum().backward()
    hook.close()
    hook.close()
    assert not torch.is_anomaly_enabled()
    assert log.level == before
