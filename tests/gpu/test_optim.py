"""Optimizer steps on a device against the CPU's, and copies of their state to the host."""

import pytest
import torch

from glmforge.checkpoint.policy.staging import Staging
from glmforge.config.optim import OptimConfig
from glmforge.config.parameters import parameter_table
from glmforge.model import GlmMoe
from glmforge.optim.optimizer import Optimizer, build_optimizer
from helpers.devices import DEVICES, on, relative_error
from helpers.models import randomize_, tiny_config


def stepped(device: str, optimizer: str, dtype: torch.dtype) -> tuple[GlmMoe, Optimizer]:
    """The model after two steps along the same random gradients."""
    config = tiny_config()
    model = GlmMoe(config)
    randomize_(model)
    model.to(device)
    settings = OptimConfig(matrix_optimizer=optimizer, lr=1e-2)
    made = build_optimizer(model.named_parameters(), parameter_table(config), settings, compute_dtype=dtype)
    generator = torch.Generator().manual_seed(3)
    for _ in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(device)
        made.step()
    return model, made


@pytest.mark.parametrize(
    ("device", "dtype", "tolerance"),
    # bf16 leaves the singular values of an update some per cent off; the weights move by a hundredth of themselves.
    [on("cpu", torch.bfloat16, 1e-2), on("cuda", torch.float32, 1e-4), on("cuda", torch.bfloat16, 1e-2)],
)
@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_two_steps(device: str, dtype: torch.dtype, tolerance: float, optimizer: str) -> None:
    expected, _ = stepped("cpu", optimizer, torch.float32)
    actual, _ = stepped(device, optimizer, dtype)
    for name, parameter in actual.named_parameters():
        assert relative_error(parameter, expected.get_parameter(name)) < tolerance, name


@pytest.mark.parametrize("device", DEVICES)
def test_a_staged_copy_is_of_the_moment_it_was_started(device: str) -> None:
    _, optimizer = stepped(device, "muon", torch.float32)
    state, staging = optimizer.state_dict(), Staging()
    for _ in range(2):  # buffers are used again
        expected = {name: tensor.clone() for name, tensor in state.items()}
        copy = staging.start(state)
        copies = copy.finish()
        copy.wait()
        for name, tensor in state.items():
            assert torch.equal(copies[name], expected[name].cpu()), name
            assert copies[name].is_pinned() == (device == "cuda")
            tensor.add_(1)
