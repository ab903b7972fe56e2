"""The penalty of elastic weight consolidation against its definition, differentiated by autograd."""

import pytest
import torch

from glmforge.config.layout import resolve_layout
from glmforge.optim.elastic import FISHER, START, ElasticPenalty
from glmforge.optim.sharding import chunks_of
from glmforge.parallel.world import World
from helpers.hooks import fake_config

STRENGTH = 3.0


def _module() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3))


def _penalty(module: torch.nn.Module) -> ElasticPenalty:
    world = World(0, 1, torch.device("cpu"), resolve_layout(fake_config(), 1))
    penalty = ElasticPenalty({n: p for n, p in module.named_parameters() if p.requires_grad}, STRENGTH, world)
    for tensor in penalty.tensors.values():
        tensor.uniform_()
    return penalty


def add_gradients(penalty: ElasticPenalty, module: torch.nn.Module) -> torch.Tensor:
    return penalty.add_gradients(chunks_of(module.named_parameters(), penalty.world.layout))


def test_value_and_gradient_are_those_of_the_definition() -> None:
    module = _module()
    penalty = _penalty(module)
    terms = [
        (penalty.tensors[FISHER + name] * (parameter - penalty.tensors[START + name]).square()).sum()
        for name, parameter in module.named_parameters()
    ]
    value = STRENGTH / 2 * torch.stack(terms).sum()
    expected = torch.autograd.grad(value, list(module.parameters()))
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    assert float(add_gradients(penalty, module)) == pytest.approx(value.item(), rel=1e-6)
    for parameter, gradient in zip(module.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, 1 + gradient)


def test_what_is_frozen_or_has_no_gradient_has_no_part() -> None:
    module = _module()
    frozen, unused = module.get_parameter("0.weight"), module.get_parameter("1.weight")
    frozen.requires_grad_(False)
    penalty = _penalty(module)
    assert FISHER + "0.weight" not in penalty.tensors
    for parameter in module.parameters():
        if parameter is not unused and parameter is not frozen:
            parameter.grad = torch.zeros_like(parameter)
    add_gradients(penalty, module)
    assert unused.grad is None
    assert frozen.grad is None
    assert module.get_parameter("0.bias").grad.any()
