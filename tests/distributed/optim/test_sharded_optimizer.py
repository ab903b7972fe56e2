"""Training on any layout equals one process: the same weights and state after the same gradients."""

import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from glmforge.config.layout import Layout
from glmforge.config.optim import OptimConfig, ParameterRule
from glmforge.optim import muon as muon_module
from glmforge.optim import ownership as ownership_module
from glmforge.optim.clip import clip_grad_norm_
from glmforge.optim.optimizer import Optimizer, build_optimizer
from glmforge.parallel.world import World
from helpers.distributed import run_ranks
from helpers.parameters import table_of

# Rows are uneven over the ranks (10, 14), fewer than the ranks (2, 1), or even (12).
NUM_EXPERTS, INNER, HIDDEN = 4, 6, 12
SHAPES = {
    "model.embed_tokens.weight": (14, HIDDEN),
    "model.layers.0.self_attn.q_proj.weight": (10, HIDDEN),
    "model.layers.0.self_attn.q_proj.bias": (10,),
    "model.layers.0.self_attn.k_proj.weight": (2, HIDDEN),
    "model.layers.0.self_attn.k_proj.bias": (2,),
    "model.layers.0.self_attn.o_proj.weight": (HIDDEN, 10),
    "model.layers.0.input_layernorm.weight": (HIDDEN,),
    "model.layers.0.mlp.down_proj.weight": (HIDDEN, 8),
    "model.layers.1.self_attn.q_proj.weight": (10, HIDDEN),
    "model.layers.1.self_attn.o_proj.weight": (HIDDEN, 10),
    "model.layers.1.mlp.gate.weight": (NUM_EXPERTS, HIDDEN),
    "model.layers.1.mlp.experts.gate_up_proj": (NUM_EXPERTS, 2 * INNER, HIDDEN),
    "model.layers.1.mlp.experts.down_proj": (NUM_EXPERTS, HIDDEN, INNER),
    "model.layers.2.eh_proj.weight": (HIDDEN, 2 * HIDDEN),
    "model.layers.2.mlp.experts.gate_up_proj": (NUM_EXPERTS, 2 * INNER, HIDDEN),
    "lm_head.weight": (14, HIDDEN),
}
NUM_MATRICES = 10 + 3 * NUM_EXPERTS + 2 * NUM_EXPERTS - 1  # Muon's; the embedding is AdamW's
TABLE = table_of(SHAPES)  # of two layers and an MTP layer
STAGE_1 = ("model.layers.1", "model.layers.2", "lm_head")
WITHOUT_GRADIENT_AT_STEP_1 = ("model.layers.2", "model.layers.0.self_attn.k_proj.bias")
TP_DIMS = {"q_proj": 0, "k_proj": 0, "o_proj": 1, "down_proj": 1, "embed_tokens": 0, "lm_head": 0}
CONFIG = OptimConfig(lr=0.02, weight_decay=0.1, newton_schulz="polar_express")
CONFIGS = {
    "muon": CONFIG,
    "lamb": OptimConfig(lr=0.02, weight_decay=0.1, matrix_optimizer="lamb"),
    # LAMB for experts and a strided shard, Muon for the rest, other rates in each layer, some frozen
    "mixed": OptimConfig(
        weight_decay=0.1,
        newton_schulz="polar_express",
        layer_lr_decay=0.7,
        rules=[
            ParameterRule(match="*.experts.*", optimizer="lamb", weight_decay=0.3),
            ParameterRule(match="*.0.self_attn.o_proj.weight", optimizer="lamb", lr_scale=2.0),
            ParameterRule(match="*.0.self_attn.k_proj.*", lr_scale=0.0),
            ParameterRule(match="lm_head.weight", optimizer="adamw"),
        ],
    ),
}
NUM_STEPS = 3
MAX_NORM = 1.0

LAYOUTS = {
    "fsdp": Layout(dp_shard=4),
    "fsdp, uneven": Layout(dp_shard=3),
    "hsdp": Layout(dp_replicate=2, dp_shard=2),
    "replicas only": Layout(dp_replicate=3),
    "tp": Layout(tp=2),
    "tp, fsdp": Layout(dp_shard=2, tp=2),
    "tp, hsdp": Layout(dp_replicate=2, dp_shard=2, tp=2),
    "cp, tp": Layout(cp=2, tp=2),
    "ep": Layout(dp_shard=2, ep=2),
    "ep, replicas": Layout(dp_replicate=2, dp_shard=2, ep=2),
    "ep, efsdp over experts": Layout(dp_shard=4, ep=2),
    "ep, efsdp over rows": Layout(dp_shard=8, ep=2),
    "ep, efsdp over rows, not at the border of gate and up": Layout(dp_shard=3, tp=2, ep=2),
    "ep, tp": Layout(dp_shard=2, tp=2, ep=4),
    "ep, efsdp, tp, replicas": Layout(dp_replicate=2, dp_shard=2, tp=2, ep=2),
    "pp": Layout(pp=2),
    "pp, tp, ep": Layout(pp=2, dp_shard=2, tp=2, ep=2),
}


def random_tensors(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def lay_out(name: str, value: Tensor, world: World) -> nn.Parameter:
    """A parameter placed as by the parallel package: tp or ep first, fsdp or efsdp within."""
    layout, holder = world.layout, nn.Module()
    is_expert = ".experts." in name and layout.ep * layout.tp > 1
    tp_dim = next((dim for part, dim in TP_DIMS.items() if part in name and ".experts." not in name), None)
    if is_expert and layout.ep > 1:
        value = distribute_tensor(value, world.meshes["expert"]["ep"], [Shard(0)])
    elif layout.tp > 1 and tp_dim is not None:
        value = distribute_tensor(value, world.meshes["dense"]["tp"], [Shard(tp_dim)])
    holder.register_parameter("value", nn.Parameter(value))
    view, axis = ("expert", "efsdp") if is_expert else ("dense", "fsdp")
    local_experts, size = NUM_EXPERTS // layout.ep, layout.size(axis)
    shard_dim = 1 if is_expert and local_experts % size else 0
    if size * layout.dp_replicate > 1:
        axes = ("dp_replicate", axis) if layout.dp_replicate > 1 else axis
        fully_shard(holder, mesh=world.meshes[view][axes], shard_placement_fn=lambda parameter: Shard(shard_dim))
    return holder.value


def offsets(tensor: Tensor) -> tuple[int, ...]:
    if not isinstance(tensor, DTensor):
        return (0,) * tensor.ndim
    _, found = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tuple(found)


def part_at(whole: Tensor, shape: tuple[int, ...], start: tuple[int, ...]) -> Tensor:
    return whole[tuple(slice(a, a + length) for a, length in zip(start, shape, strict=True))]


def like(parameter: Tensor, whole: Tensor) -> Tensor:
    """This rank's part of a global tensor, placed like `parameter`."""
    if not isinstance(parameter, DTensor):
        return whole
    part = part_at(whole, parameter.to_local().shape, offsets(parameter)).contiguous()
    mesh, placements = parameter.device_mesh, parameter.placements
    return DTensor.from_local(part, mesh, placements, shape=whole.shape, stride=whole.stride(), run_check=False)


def train(
    parameters: dict[str, nn.Parameter],
    optimizer: Optimizer,
    world: World | None,
    steps: range,
    max_norm: float | None = MAX_NORM,
) -> list[Tensor]:
    """Returns the norm of each step's gradients."""
    norms = []
    for step in steps:
        optimizer.set_lr(0.02 / (1 + step))
        gradients = random_tensors(seed=100 + step)
        for name, parameter in parameters.items():
            is_idle = step == 1 and name.startswith(WITHOUT_GRADIENT_AT_STEP_1)
            parameter.grad = None if is_idle or not parameter.requires_grad else like(parameter, gradients[name])
        norms.append(clip_grad_norm_(parameters.values(), max_norm, world))
        optimizer.step()
    return norms


def build(
    world: World | None, dtype: torch.dtype, config: OptimConfig = CONFIG
) -> tuple[dict[str, nn.Parameter], Optimizer]:
    values = random_tensors(seed=0)
    if world is None:
        parameters = {name: nn.Parameter(value) for name, value in values.items()}
    else:
        stage = world.axis_rank("pp")
        mine = [name for name in SHAPES if world.layout.pp == 1 or name.startswith(STAGE_1) == bool(stage)]
        parameters = {name: lay_out(name, values[name], world) for name in mine}
    optimizer = build_optimizer(parameters.items(), TABLE, config, world=world, compute_dtype=dtype)
    return parameters, optimizer


@cache
def train_alone(dtype: torch.dtype = torch.float32, config: str = "muon") -> tuple[dict[str, Tensor], list[Tensor]]:
    parameters, optimizer = build(None, dtype, CONFIGS[config])
    norms = train(parameters, optimizer, None, range(NUM_STEPS))
    tensors = {name: parameter.detach() for name, parameter in parameters.items()}
    return tensors | optimizer.state_dict(), norms


def train_sharded(layout: Layout, batch_elements: int, dtype: torch.dtype, config: str = "muon") -> dict[str, Any]:
    """This rank's parts and where they lie, the norms, and what was done in the last step."""
    ownership_module.batch_elements = lambda device: batch_elements
    world = World.join(layout, torch.device("cpu"))
    parameters, optimizer = build(world, dtype, CONFIGS[config])
    norms = train(parameters, optimizer, world, range(NUM_STEPS - 1))
    counts = count_calls()
    norms += train(parameters, optimizer, world, range(NUM_STEPS - 1, NUM_STEPS))
    tensors = {name: parameter.detach() for name, parameter in parameters.items()} | optimizer.state_dict()
    parts = {
        name: (tensor.to_local() if isinstance(tensor, DTensor) else tensor, offsets(tensor))
        for name, tensor in tensors.items()
    }
    return {"parts": parts, "norms": norms, **counts}


@cache
def trained_ranks(name: str) -> list[dict[str, Any]]:
    return run_ranks(train_sharded, LAYOUTS[name].world_size, LAYOUTS[name], 2**20, torch.float32)


def count_calls() -> dict[str, int]:
    """Counts, from now on, of matrices orthogonalised, elements exchanged and all-reduces on this rank."""
    counts = {"matrices": 0, "elements_sent": 0, "all_reduces": 0}

    def counting(module: Any, name: str, key: str, number: Any) -> None:
        original = getattr(module, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            counts[key] += number(args)
            return original(*args, **kwargs)

        setattr(module, name, counted)

    counting(muon_module, "newton_schulz", "matrices", lambda args: len(args[0]))
    counting(dist, "all_to_all_single", "elements_sent", lambda args: args[1].numel())
    counting(dist, "all_reduce", "all_reduces", lambda args: 1)
    return counts


def assert_equal_to_one_process(ranks: list[dict[str, Any]], expected: dict[str, Tensor], atol: float) -> None:
    """Every part of every tensor lies on some rank and is right; copies on other ranks are equal to the bit."""
    seen: dict[tuple[str, tuple[int, ...]], Tensor] = {}
    for rank in ranks:
        for name, (part, start) in rank["parts"].items():
            if part.numel():
                torch.testing.assert_close(
                    part,
                    part_at(expected[name], part.shape, start),
                    rtol=0,
                    atol=atol,
                    msg=lambda m, n=name: f"{n}: {m}",
                )
                assert torch.equal(part, seen.setdefault((name, start), part)), name
    for name, whole in expected.items():
        assert sum(part.numel() for (other, _), part in seen.items() if other == name) == whole.numel()


QUICK = (
    *("fsdp", "hsdp", "replicas only", "tp", "ep", "pp", "fsdp, uneven"),
    *("ep, efsdp, tp, replicas", "ep, efsdp over rows, not at the border of gate and up"),
)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.full) for name in LAYOUTS]
)
def test_weights_state_and_norms_equal_one_process(name):
    expected, norms = train_alone()
    ranks = trained_ranks(name)
    # Only the batching of fp32 products differs. Rounding (6e-8) is amplified in directions of small singular values;
    # 1e-6 of the largest weight, about 3, is not reached.
    assert_equal_to_one_process(ranks, expected, atol=3e-6)
    for rank in ranks:
        # fp32 sums in another order
        torch.testing.assert_close(torch.stack(rank["norms"]), torch.stack(norms), rtol=1e-6, atol=0)
        assert rank["norms"] == ranks[0]["norms"]
        assert rank["all_reduces"] == 1
    assert sum(rank["matrices"] for rank in ranks) == NUM_MATRICES


@pytest.mark.parametrize(
    "name",
    [
        "fsdp, uneven",
        *(pytest.param(name, marks=pytest.mark.full) for name in ("hsdp", "tp, fsdp", "ep", "pp")),
        "ep, efsdp over rows, not at the border of gate and up",
        pytest.param("ep, efsdp, tp, replicas", marks=pytest.mark.full),
        "pp, tp, ep",
    ],
)
def test_lamb_equals_one_process(name):
    expected, _ = train_alone(config="lamb")
    layout = LAYOUTS[name]
    ranks = run_ranks(train_sharded, layout.world_size, layout, 2**20, torch.float32, "lamb")
    # Norms are summed in fp64: what is left are single roundings of 6e-8 of weights up to 4
    assert_equal_to_one_process(ranks, expected, atol=1e-6)
    # One for clipping, and one of all norms over the ranks of a pipeline stage
    assert all(rank["all_reduces"] == 1 + (layout.stage_ranks > 1) for rank in ranks)


@pytest.mark.parametrize(
    "name", ["fsdp, uneven", "ep, efsdp over rows, not at the border of gate and up", "pp, tp, ep"]
)
def test_methods_and_rates_of_single_parameters_equal_one_process(name):
    expected, _ = train_alone(config="mixed")
    ranks = run_ranks(train_sharded, LAYOUTS[name].world_size, LAYOUTS[name], 2**20, torch.float32, "mixed")
    assert_equal_to_one_process(ranks, expected, atol=3e-6)  # as for Muon


@pytest.mark.parametrize("name", ["fsdp", pytest.param("tp, hsdp", marks=pytest.mark.full)])
def test_one_matrix_at_a_time_gives_the_same(name):
    layout = LAYOUTS[name]
    ranks = run_ranks(train_sharded, layout.world_size, layout, 1, torch.float32)
    assert_equal_to_one_process(ranks, train_alone()[0], atol=3e-6)  # as above
    assert sum(rank["matrices"] for rank in ranks) == NUM_MATRICES


def test_bf16_iteration_gives_all_copies_the_same_weights():
    layout = LAYOUTS["ep, efsdp, tp, replicas"]
    ranks = run_ranks(train_sharded, layout.world_size, layout, 2**20, torch.bfloat16)
    # A rounding of 2^-9 on updates of 0.2 * sqrt(24) * 0.02 * (1 + 1/2 + 1/3), amplified by the iteration
    assert_equal_to_one_process(ranks, train_alone(torch.bfloat16)[0], atol=2e-3)


@pytest.mark.parametrize("name", ["fsdp", "hsdp", "replicas only", "tp"])
def test_owners_share_the_work(name):
    # Costs differ between matrices, so that their numbers are even to within a few only
    most = 1.25 * NUM_MATRICES / LAYOUTS[name].world_size
    assert max(rank["matrices"] for rank in trained_ranks(name)) <= most


@pytest.mark.parametrize(
    ("name", "times_dense", "times_experts"),
    [("fsdp", 2, 0), ("ep", 2, 0), ("tp", 2, 0), ("hsdp", 3, 2), ("replicas only", 3, 3), ("pp", 0, 0)],
)
def test_each_part_goes_to_its_owner_once_and_to_all_copies_back(name, times_dense, times_experts):
    """A matrix that lies whole on one rank alone is not sent, one that owners hold whole only goes back."""
    matrices = {key: math.prod(shape) for key, shape in SHAPES.items() if len(shape) > 1 and "embed" not in key}
    experts = sum(size for key, size in matrices.items() if "experts" in key)
    dense = sum(matrices.values()) - experts
    sent = sum(rank["elements_sent"] for rank in trained_ranks(name))
    assert sent == times_dense * dense + times_experts * experts


def rounded_states(config: OptimConfig, layout: Layout | None) -> dict[str, tuple[Tensor, tuple[int, ...]]]:
    """bf16 states after unclipped steps, which are the same sums on every layout: parts and where they lie."""
    world = World.join(layout, torch.device("cpu")) if layout else None
    parameters, optimizer = build(world, torch.float32, config)
    train(parameters, optimizer, world, range(NUM_STEPS), max_norm=None)
    return {name: (part(tensor), offsets(tensor)) for name, tensor in optimizer.state_dict().items()}


@pytest.mark.parametrize("method", ["muon", "lamb", "adamw"])
@pytest.mark.parametrize(
    "name", ["fsdp, uneven", "tp, hsdp", "ep, efsdp over rows, not at the border of gate and up", "pp, tp, ep"]
)
def test_bf16_states_are_rounded_alike_on_every_layout(name, method):
    config = OptimConfig(lr=0.02, matrix_optimizer=method, state_dtype="bf16")
    expected = rounded_states(config, None)
    for rank in run_ranks(rounded_states, LAYOUTS[name].world_size, config, LAYOUTS[name]):
        for key, (found, start) in rank.items():
            assert found.dtype == (torch.float32 if key.startswith("step.") else torch.bfloat16)
            if found.numel():
                assert torch.equal(found, part_at(expected[key][0], found.shape, start)), key


def save_then_load(path: Path) -> bool:
    """Whether an optimizer that has not stepped is given the state of one that has."""
    world = World.join(Layout(dp_shard=2, tp=2), torch.device("cpu"))
    parameters, optimizer = build(world, torch.float32)
    train(parameters, optimizer, world, range(2))
    dcp.save(optimizer.state_dict(), checkpoint_id=path)
    _, fresh = build(world, torch.float32)
    dcp.load(fresh.state_dict(), checkpoint_id=path)
    _, copied = build(world, torch.float32)
    copied.load_state_dict(optimizer.state_dict())
    return all(
        torch.equal(part(tensor), part(other.state_dict()[name]))
        for other in (fresh, copied)
        for name, tensor in optimizer.state_dict().items()
    )


def part(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def test_state_is_saved_and_loaded_in_place(tmp_path):
    assert run_ranks(save_then_load, 4, tmp_path / "state") == [True] * 4


def build_without_a_world() -> str:
    world = World.join(Layout(dp_shard=2), torch.device("cpu"))
    parameter = lay_out("lm_head.weight", torch.zeros(14, HIDDEN), world)
    with pytest.raises(ValueError, match="needs their world") as refused:
        build_optimizer([("lm_head.weight", parameter)], TABLE, CONFIG)
    return str(refused.value)


def test_sharded_parameters_need_a_world():
    run_ranks(build_without_a_world, 2)
