"""Sharded training equals one process: the same weights after the same gradients, on any layout."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from glmforge.config.schema import OptimConfig
from glmforge.optim import Optimizer, build_optimizer
from glmforge.optim import muon as muon_module
from helpers.distributed import run_ranks

# Dim 0 is uneven over four ranks (5, 10, 13), smaller than the ranks (3, 1), or even (4, 8).
SHAPES = {
    "model.embed_tokens.weight": (13, 8),
    "model.layers.0.self_attn.q_proj.weight": (10, 8),
    "model.layers.0.self_attn.q_proj.bias": (10,),
    "model.layers.0.self_attn.k_proj.weight": (3, 8),
    "model.layers.0.self_attn.k_proj.bias": (3,),
    "model.layers.0.self_attn.v_proj.weight": (3, 8),
    "model.layers.0.self_attn.o_proj.weight": (8, 10),
    "model.layers.0.input_layernorm.weight": (8,),
    "model.layers.1.self_attn.q_proj.weight": (10, 8),
    "model.layers.1.mlp.gate.weight": (5, 8),
    "model.layers.1.mlp.experts.gate_up_proj": (5, 8, 8),
    "model.layers.1.mlp.experts.down_proj": (5, 8, 4),
    "model.layers.1.mlp.shared_experts.gate_proj.weight": (4, 8),
    "model.layers.1.mlp.shared_experts.up_proj.weight": (4, 8),
    "model.layers.2.eh_proj.weight": (8, 16),
    "model.layers.2.mlp.experts.gate_up_proj": (1, 8, 8),
    "lm_head.weight": (13, 8),
}
WITHOUT_GRADIENT_AT_STEP_1 = ("model.layers.2.eh_proj.weight", "model.layers.0.self_attn.k_proj.bias")
CONFIG = OptimConfig(lr=0.02, weight_decay=0.1, newton_schulz="polar_express")
NUM_STEPS = 5


def random_tensors(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def build_model() -> nn.Module:
    """Nested modules that hold parameters of the published names."""
    root = nn.Module()
    for path, value in random_tensors(seed=0).items():
        *folders, leaf = path.split(".")
        module = root
        for folder in folders:
            if folder not in module._modules:
                module.add_module(folder, nn.Module())
            module = module.get_submodule(folder)
        module.register_parameter(leaf, nn.Parameter(value))
    return root


def shard(model: nn.Module, num_replicas: int) -> DeviceMesh:
    shape, names = (dist.get_world_size(),), ("shard",)
    if num_replicas > 1:
        shape, names = (num_replicas, dist.get_world_size() // num_replicas), ("replicate", "shard")
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    for layer in model.get_submodule("model.layers").children():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return mesh


def train(model: nn.Module, optimizer: Optimizer, steps: range) -> None:
    for step in steps:
        optimizer.set_lr(0.02 / (1 + step))
        for name, gradient in random_tensors(seed=100 + step).items():
            parameter = model.get_parameter(name)
            if isinstance(parameter, DTensor):
                gradient = distribute_tensor(gradient, parameter.device_mesh, parameter.placements)
            parameter.grad = None if step == 1 and name in WITHOUT_GRADIENT_AT_STEP_1 else gradient
        optimizer.step()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def whole_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, torch.Tensor]:
    tensors = dict(model.named_parameters()) | optimizer.state_dict()
    return {name: whole(tensor) for name, tensor in tensors.items()}


def train_sharded(num_replicas: int, batch_elements: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    muon_module.batch_elements = lambda device: batch_elements
    model = build_model()
    shard(model, num_replicas)
    optimizer = build_optimizer(model.named_parameters(), CONFIG, newton_schulz_dtype=dtype)
    train(model, optimizer, range(NUM_STEPS))
    return whole_tensors(model, optimizer)


def train_alone(dtype: torch.dtype = torch.float32, num_steps: int = NUM_STEPS) -> dict[str, torch.Tensor]:
    model = build_model()
    optimizer = build_optimizer(model.named_parameters(), CONFIG, newton_schulz_dtype=dtype)
    train(model, optimizer, range(num_steps))
    return whole_tensors(model, optimizer)


@pytest.mark.parametrize(
    ("world_size", "num_replicas", "batch_elements"),
    [(1, 1, 2**26), (2, 1, 2**26), (4, 1, 2**26), (4, 1, 1), (4, 2, 2**26), (3, 3, 2**26)],
)
def test_weights_and_state_equal_one_process(world_size, num_replicas, batch_elements):
    expected = train_alone()
    ranks = run_ranks(train_sharded, world_size, num_replicas, batch_elements, torch.float32)
    for result in ranks:
        assert result.keys() == expected.keys()
        for name, tensor in expected.items():
            # Only the batching of fp32 products differs. Rounding (6e-8) is amplified in directions of
            # small singular values; 1e-6 of the largest weight, about 3, is not reached.
            torch.testing.assert_close(result[name], tensor, rtol=0, atol=3e-6, msg=lambda m, n=name: f"{n}: {m}")


def test_bf16_iteration_gives_all_ranks_the_same_weights():
    expected = train_alone(torch.bfloat16)
    first, *others = run_ranks(train_sharded, 4, 1, 2**26, torch.bfloat16)
    for name, tensor in expected.items():
        # A rounding of 2^-9 on updates of 0.2 * sqrt(16) * 0.02 * (1 + 1/2 + ... + 1/5), amplified by the
        # iteration
        torch.testing.assert_close(first[name], tensor, rtol=0, atol=2e-3)
        assert all(torch.equal(first[name], other[name]) for other in others)


def save_after_3_steps(path: Path) -> None:
    model = build_model()
    shard(model, num_replicas=1)
    optimizer = build_optimizer(model.named_parameters(), CONFIG, newton_schulz_dtype=torch.float32)
    train(model, optimizer, range(3))
    dcp.save(dict(model.named_parameters()) | optimizer.state_dict(), checkpoint_id=path)


def resume_for_2_steps(path: Path, save_to: Path) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """What was loaded, and what two more steps made of it."""
    model = build_model()
    shard(model, num_replicas=1)
    optimizer = build_optimizer(model.named_parameters(), CONFIG, newton_schulz_dtype=torch.float32)
    dcp.load(dict(model.named_parameters()) | optimizer.state_dict(), checkpoint_id=path)
    dcp.save(dict(model.named_parameters()) | optimizer.state_dict(), checkpoint_id=save_to)
    loaded = whole_tensors(model, optimizer)
    train(model, optimizer, range(3, NUM_STEPS))
    return loaded, whole_tensors(model, optimizer)


def test_state_goes_from_2_to_4_to_1_ranks(tmp_path):
    run_ranks(save_after_3_steps, 2, tmp_path / "two")
    on_4, trained_on_4 = run_ranks(resume_for_2_steps, 4, tmp_path / "two", tmp_path / "four")[0]
    on_1, trained_on_1 = run_ranks(resume_for_2_steps, 1, tmp_path / "four", tmp_path / "one")[0]
    expected = train_alone()
    halfway = train_alone(num_steps=3)
    for name, tensor in expected.items():
        assert torch.equal(on_4[name], on_1[name])
        # fp32 rounding as above
        torch.testing.assert_close(on_4[name], halfway[name], rtol=0, atol=3e-6)
        torch.testing.assert_close(trained_on_4[name], tensor, rtol=0, atol=3e-6)
        torch.testing.assert_close(trained_on_1[name], tensor, rtol=0, atol=3e-6)
