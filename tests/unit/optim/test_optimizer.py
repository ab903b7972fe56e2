import copy
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from glmforge.config.optim import OptimConfig, ParameterRule
from glmforge.errors import CheckpointError
from glmforge.optim import ownership as ownership_module
from glmforge.optim.optimizer import Optimizer, build_optimizer
from glmforge.parallel.world import World
from helpers.parameters import table_of

NUM_EXPERTS, INNER, HIDDEN = 3, 5, 8
SHAPES = {
    "model.embed_tokens.weight": (13, HIDDEN),
    "model.layers.0.self_attn.q_proj.weight": (12, HIDDEN),
    "model.layers.0.self_attn.q_proj.bias": (12,),
    "model.layers.0.self_attn.o_proj.weight": (HIDDEN, 12),
    "model.layers.0.input_layernorm.weight": (HIDDEN,),
    "model.layers.1.self_attn.q_proj.weight": (12, HIDDEN),
    "model.layers.1.mlp.gate.weight": (NUM_EXPERTS, HIDDEN),
    "model.layers.1.mlp.experts.gate_up_proj": (NUM_EXPERTS, 2 * INNER, HIDDEN),
    "model.layers.1.mlp.experts.down_proj": (NUM_EXPERTS, HIDDEN, INNER),
    "lm_head.weight": (13, HIDDEN),
}
CONFIG = OptimConfig(lr=0.02, weight_decay=0.1)


def random_like(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def parameters_of(shapes: dict[str, tuple[int, ...]]) -> dict[str, Parameter]:
    return {name: Parameter(value) for name, value in random_like(shapes, seed=0).items()}


def build(parameters: dict[str, Parameter], config: OptimConfig, **options: Any) -> Optimizer:
    table = table_of({name: tuple(parameter.shape) for name, parameter in parameters.items()})
    return build_optimizer(parameters.items(), table, config, **options)


def train(optimizer: Optimizer, parameters: dict[str, Parameter], steps: range) -> None:
    for step in steps:
        gradients = random_like({name: tuple(p.shape) for name, p in parameters.items()}, seed=100 + step)
        for name, parameter in parameters.items():
            parameter.grad = gradients[name]
        optimizer.set_lr(0.02 / (1 + step))
        optimizer.step()


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("shape", [(12, 8), (8, 12), (8, 8)])
def test_a_matrix_is_trained_as_by_torchs_muon(shape, nesterov):
    name = "model.layers.0.self_attn.q_proj.weight"
    ours, theirs = parameters_of({name: shape}), parameters_of({name: shape})
    config = OptimConfig(lr=0.02, weight_decay=0.1, muon_nesterov=nesterov)
    reference = torch.optim.Muon(
        theirs.values(), lr=0.02, weight_decay=0.1, nesterov=nesterov, adjust_lr_fn="match_rms_adamw"
    )
    train(build(ours, config), ours, range(4))
    for step in range(4):
        theirs[name].grad = random_like({name: shape}, seed=100 + step)[name]
        reference.param_groups[0]["lr"] = 0.02 / (1 + step)
        reference.step()
    # Both iterate in bf16 and normalise differently, so that single roundings differ: 2^-8 of an update of
    # at most 0.2 * sqrt(12) * 1.2 per element, over steps of 0.02 * (1 + 1/2 + 1/3 + 1/4), and amplified by
    # the iteration
    torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=2e-3)
    moved = (theirs[name] - parameters_of({name: shape})[name]).abs().max()
    assert moved > 0.02


def test_vectors_and_embeddings_are_trained_as_by_torchs_adamw():
    shapes = {
        "model.embed_tokens.weight": (13, HIDDEN),
        "model.layers.0.self_attn.q_proj.bias": (12,),
        "model.norm.weight": (HIDDEN,),
    }
    ours, theirs = parameters_of(shapes), parameters_of(shapes)
    embedding, *vectors = theirs.values()
    groups = [
        {"params": [embedding], "weight_decay": 0.1},
        {"params": vectors, "weight_decay": 0.0},
    ]
    reference = torch.optim.AdamW(groups, lr=0.02, betas=(0.9, 0.95), eps=1e-8, fused=True)
    train(build(ours, CONFIG), ours, range(1))
    for name, gradient in random_like(shapes, seed=100).items():
        theirs[name].grad = gradient
    reference.step()
    for name in shapes:
        assert torch.equal(ours[name], theirs[name])


def test_packed_experts_are_trained_as_separate_matrices():
    packed = parameters_of({name: shape for name, shape in SHAPES.items() if "experts" in name})
    separate = {}
    for expert in range(NUM_EXPERTS):
        gate_up, down = (parameter[expert].detach().clone() for parameter in packed.values())
        separate[f"{expert}.gate"] = Parameter(gate_up[:INNER])
        separate[f"{expert}.up"] = Parameter(gate_up[INNER:])
        separate[f"{expert}.down"] = Parameter(down)
    optimizers = [build(parameters, CONFIG, compute_dtype=torch.float32) for parameters in (packed, separate)]
    for step in range(3):
        gate_up, down = random_like({name: tuple(p.shape) for name, p in packed.items()}, seed=step).values()
        for parameter, gradient in zip(packed.values(), (gate_up, down), strict=True):
            parameter.grad = gradient
        for expert in range(NUM_EXPERTS):
            separate[f"{expert}.gate"].grad = gate_up[expert, :INNER]
            separate[f"{expert}.up"].grad = gate_up[expert, INNER:]
            separate[f"{expert}.down"].grad = down[expert]
        for optimizer in optimizers:
            optimizer.step()
    gate_up, down = packed.values()
    # The order of batches differs, nothing else: fp32 rounding
    for expert in range(NUM_EXPERTS):
        rejoined = torch.cat([separate[f"{expert}.gate"], separate[f"{expert}.up"]])
        torch.testing.assert_close(gate_up[expert], rejoined, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(down[expert], separate[f"{expert}.down"], rtol=1e-5, atol=1e-5)


def test_batch_size_changes_no_numbers(monkeypatch):
    results = []
    for size in (2**26, 2 * INNER * HIDDEN, 1):
        monkeypatch.setattr(ownership_module, "batch_elements", lambda device, size=size: size)
        parameters = parameters_of(SHAPES)
        train(
            build(parameters, CONFIG, compute_dtype=torch.float32),
            parameters,
            range(3),
        )
        results.append(parameters)
    for name in SHAPES:  # fp32 rounding
        torch.testing.assert_close(results[1][name], results[0][name], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(results[2][name], results[0][name], rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_parameters_in_host_memory_are_orthogonalised_on_the_device():
    expected, offloaded = parameters_of(SHAPES), parameters_of(SHAPES)
    for parameters, world in ((expected, None), (offloaded, World.single("cuda"))):
        optimizer = build(parameters, CONFIG, world=world, compute_dtype=torch.float32)
        train(optimizer, parameters, range(3))
    for name in SHAPES:
        assert offloaded[name].device.type == "cpu"
        # fp32 products in another order, amplified by the iteration
        torch.testing.assert_close(offloaded[name], expected[name], rtol=1e-5, atol=1e-5)


def test_frozen_parameters_and_those_without_gradient_stay():
    parameters = parameters_of(SHAPES)
    frozen, idle = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.input_layernorm.weight"
    idle_matrix = "model.layers.1.mlp.experts.down_proj"
    parameters[frozen].requires_grad_(False)
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    optimizer = build(parameters, CONFIG)
    assert not any(name.endswith(frozen) for name in optimizer.state_dict())
    for name, gradient in random_like(SHAPES, seed=1).items():
        parameters[name].grad = None if name in (frozen, idle, idle_matrix) else gradient
    optimizer.step()
    for name in SHAPES:
        assert torch.equal(parameters[name], before[name]) == (name in (frozen, idle, idle_matrix))
    assert optimizer.state_dict()[f"step.{idle}"] == 0
    optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in parameters.values())


def test_update_has_the_root_mean_square_of_adamws():
    name, shape = "model.layers.0.self_attn.q_proj.weight", (64, 96)
    parameters = parameters_of({name: shape})
    before = parameters[name].detach().clone()
    config = OptimConfig(lr=0.5, weight_decay=0.0, newton_schulz="polar_express", newton_schulz_steps=8)
    optimizer = build(parameters, config, compute_dtype=torch.float32)
    parameters[name].grad = torch.randn(shape)
    optimizer.step()
    rms = (parameters[name] - before).square().mean().sqrt() / 0.5
    # An orthogonal [64, 96] matrix has RMS 1 / sqrt(96), exactly
    assert rms.item() == pytest.approx(0.2, rel=1e-4)


def linear_maps(name: str, tensor: torch.Tensor) -> list[torch.Tensor]:
    """Views of the matrices of a parameter: of every expert gate, up and down."""
    if "experts" not in name:
        return [tensor]
    halves = tensor.split(INNER, dim=1) if name.endswith("gate_up_proj") else [tensor]
    return [half[expert] for half in halves for expert in range(NUM_EXPERTS)]


def lamb_reference(config: OptimConfig, steps: range) -> dict[str, torch.Tensor]:
    """Algorithm 2 of the paper with decay in the update, in float64, matrix by matrix."""
    weights = {name: value.double() for name, value in random_like(SHAPES, seed=0).items()}
    (beta1, beta2), moments = config.betas, {name: [torch.zeros(s).double()] * 2 for name, s in SHAPES.items()}
    for step in steps:
        for name, gradient in random_like(SHAPES, seed=100 + step).items():
            g = gradient.double()
            m, v = moments[name]
            m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
            moments[name] = [m, v]
            r = (m / (1 - beta1 ** (step + 1))) / ((v / (1 - beta2 ** (step + 1))).sqrt() + config.eps)
            is_vector = g.ndim == 1
            update = r if is_vector else r + config.weight_decay * weights[name]
            for w, u in zip(linear_maps(name, weights[name]), linear_maps(name, update), strict=True):
                ratio = 1.0 if is_vector else w.norm() / u.norm()
                w -= 0.02 / (1 + step) * ratio * u
    return weights


def test_lamb_scales_every_linear_map_by_its_own_trust_ratio():
    config = OptimConfig(lr=0.02, weight_decay=0.1, matrix_optimizer="lamb")
    parameters = parameters_of(SHAPES)
    train(build(parameters, config), parameters, range(4))
    for name, expected in lamb_reference(config, range(4)).items():
        # fp32 against fp64: a few roundings of 6e-8 of weights up to 4
        torch.testing.assert_close(parameters[name].double(), expected, rtol=0, atol=2e-6)


def test_lamb_takes_whole_steps_where_a_norm_is_zero():
    name, shape = "model.layers.1.mlp.experts.down_proj", (3, HIDDEN, INNER)
    config = OptimConfig(matrix_optimizer="lamb", weight_decay=0.0)
    parameters, gradient = parameters_of({name: shape}), torch.randn(shape)
    with torch.no_grad():
        parameters[name][0] = 0  # no weight: the ratio is 1
    gradient[1] = 0  # no update: the weight stays
    before = parameters[name].detach().clone()
    parameters[name].grad = gradient
    optimizer = build(parameters, config)
    optimizer.set_lr(0.5)
    optimizer.step()
    # Adam's first step is the sign of the gradient, but for eps
    torch.testing.assert_close(parameters[name][0], -0.5 * gradient[0].sign(), rtol=1e-4, atol=1e-4)
    assert torch.equal(parameters[name][1], before[1])
    moved = (parameters[name][2] - before[2]).norm() / before[2].norm()
    assert moved.item() == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize("method", ["muon", "lamb", "adamw"])
def test_a_scale_of_the_learning_rate_is_another_learning_rate(method):
    rule = ParameterRule(match="model.layers.0.*", lr_scale=0.5)
    config = OptimConfig(matrix_optimizer=method, weight_decay=0.1)
    scaled, plain, halved = (parameters_of(SHAPES) for _ in range(3))
    optimizers = [
        build(scaled, config.model_copy(update={"rules": [rule]})),
        build(plain, config),
        build(halved, config),
    ]
    for parameters, optimizer, lr in zip((scaled, plain, halved), optimizers, (0.02, 0.02, 0.01), strict=True):
        for name, gradient in random_like(SHAPES, seed=100).items():
            parameters[name].grad = gradient
        optimizer.set_lr(lr)
        optimizer.step()
    for name in SHAPES:
        expected = halved if name.startswith("model.layers.0.") else plain
        assert torch.equal(scaled[name], expected[name]), name


def test_lower_layers_learn_slower():
    config = OptimConfig(layer_lr_decay=0.5, weight_decay=0.0, matrix_optimizer="adamw")
    parameters = parameters_of(SHAPES)
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    optimizer = build(parameters, config)
    for parameter in parameters.values():
        parameter.grad = torch.ones_like(parameter)
    optimizer.set_lr(0.8)
    optimizer.step()
    moved = {name: (before[name] - parameters[name]).max().item() for name in SHAPES}
    expected = {"model.embed": 0.1, "model.layers.0": 0.2, "model.layers.1": 0.4, "lm_head": 0.8}
    for name, distance in moved.items():
        # Adam's first step is the learning rate, subtracted from weights of up to 4
        assert distance == pytest.approx(next(d for part, d in expected.items() if part in name), abs=1e-6)


@pytest.mark.parametrize("method", ["muon", "lamb", "adamw"])
def test_a_scale_of_zero_freezes_without_gradient_decay_or_state(method):
    frozen = [name for name in SHAPES if name.startswith("model.layers.0.self_attn")]
    rule = ParameterRule(match="model.layers.0.self_attn.*", lr_scale=0.0)
    parameters = parameters_of(SHAPES)
    optimizer = build(parameters, OptimConfig(matrix_optimizer=method, rules=[rule]))
    assert {name for name, parameter in parameters.items() if not parameter.requires_grad} == set(frozen)
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    train(optimizer, parameters, range(1))
    assert [name for name in SHAPES if torch.equal(parameters[name], before[name])] == frozen
    assert not any("layers.0.self_attn" in key for key in optimizer.state_dict())


@pytest.mark.parametrize("state_dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("method", ["muon", "lamb", "adamw"])
def test_training_goes_on_bit_equal_from_a_loaded_state(method, state_dtype):
    config = OptimConfig(matrix_optimizer=method, state_dtype=state_dtype)
    straight = parameters_of(SHAPES)
    train(build(straight, config), straight, range(6))

    parameters = parameters_of(SHAPES)
    optimizer = build(parameters, config)
    train(optimizer, parameters, range(3))
    saved = copy.deepcopy(optimizer.state_dict())

    resumed = {name: Parameter(parameter.detach().clone()) for name, parameter in parameters.items()}
    fresh = build(resumed, config)
    fresh.load_state_dict(saved)
    train(fresh, resumed, range(3, 6))
    for name in SHAPES:
        assert torch.equal(resumed[name], straight[name])


def test_state_is_whole_before_the_first_step_and_named_by_parameter():
    parameters = parameters_of(SHAPES)
    state = build(parameters, CONFIG).state_dict()
    matrices = [name for name, shape in SHAPES.items() if len(shape) > 1 and "embed" not in name]
    others = [name for name in SHAPES if name not in matrices]
    kinds = ("exp_avg", "exp_avg_sq", "step")
    expected = {f"momentum.{name}" for name in matrices} | {f"{kind}.{name}" for kind in kinds for name in others}
    assert state.keys() == expected
    lamb = build(parameters, OptimConfig(matrix_optimizer="lamb")).state_dict()
    assert lamb.keys() == {f"{kind}.{name}" for kind in kinds for name in SHAPES}
    assert not any(tensor.requires_grad for tensor in state.values())


def test_a_state_that_does_not_fit_is_refused():
    parameters = parameters_of(SHAPES)
    optimizer = build(parameters, CONFIG)
    other = build(parameters, OptimConfig(lm_head="adamw")).state_dict()
    with pytest.raises(CheckpointError, match=r"1 tensors missing \['momentum.lm_head.weight'\], 3 unexpected"):
        optimizer.load_state_dict(other)
    state = optimizer.state_dict() | {"momentum.lm_head.weight": torch.zeros(7, HIDDEN)}
    with pytest.raises(CheckpointError, match=r"'momentum.lm_head.weight' has shape \[7, 8\].* needs \[13, 8\]"):
        optimizer.load_state_dict(state)
