"""Adapters left out of a forward: the base model answers with the same weights, and nothing stays switched off."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from glmforge.adapt.lora import adapters_of
from glmforge.config.schema import RunConfig
from glmforge.model.head import Heads
from glmforge.model.inputs import ModelInputs
from glmforge.model.transformer import GlmMoe
from glmforge.parallel.build import build_model
from glmforge.parallel.world import World
from helpers.models import randomize_, run_config

IDS_BS = torch.randint(0, 512, (2, 16), generator=torch.Generator().manual_seed(0))
INPUTS = ModelInputs.whole(IDS_BS, num_mtp_layers=1)
BASE = replace(INPUTS, adapters=False)
EVERYWHERE = {"rank": 4, "targets": ["all-linear", "gate", "embed_tokens", "lm_head"]}
DORA = {"rank": 4, "targets": ["self_attn", "shared_experts"], "dora": True}


def a_run(lora: dict[str, Any] | None, **parallel: Any) -> RunConfig:
    adapted = {} if lora is None else {"lora": lora, "init_from": Path("base")}
    return run_config(parallel=parallel, **adapted)


def model_of(lora: dict[str, Any] | None, **parallel: Any) -> GlmMoe:
    """Base weights are those of the seed; adapters add something."""
    config = a_run(lora, **parallel)
    (part,) = build_model(config, World.single("cpu"), extend=adapters_of(config)).parts
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in part.named_parameters():
            if ".lora_" in name:
                parameter.normal_(0.1, 0.3, generator=generator)
    return part


@pytest.mark.parametrize("lora", [EVERYWHERE, DORA], ids=["everywhere", "dora"])
@torch.no_grad()
def test_it_is_the_base_model_to_the_last_bit(lora: dict[str, Any]) -> None:
    adapted, base = model_of(lora), model_of(None)
    expected, actual = base(INPUTS), adapted(BASE)
    assert torch.equal(actual.main, expected.main)
    assert torch.equal(actual.mtp[0], expected.mtp[0])
    assert not torch.equal(adapted(INPUTS).main, expected.main)


def gradients(model: GlmMoe, *, with_reference: bool) -> Iterator[Tensor]:
    policy = model(INPUTS).main
    if with_reference:
        with torch.no_grad():
            model(BASE)
    policy.square().mean().backward()
    yield from (parameter.grad for parameter in model.parameters() if parameter.grad is not None)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_a_forward_between_leaves_gradients_as_they_are(recompute: str) -> None:
    plain = list(gradients(model_of(EVERYWHERE), with_reference=False))
    actual = list(gradients(model_of(EVERYWHERE, recompute=recompute), with_reference=True))
    assert len(actual) == len(plain) > 50
    assert all(torch.equal(a, b) for a, b in zip(actual, plain, strict=True))


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_what_is_computed_again_is_computed_without_adapters_too(recompute: str) -> None:
    """A weight of the base that is trained has the gradient of the base model."""
    found = []
    for model, inputs in ((model_of(EVERYWHERE, recompute=recompute), BASE), (model_of(None), INPUTS)):
        weight = model.get_parameter("model.layers.0.self_attn.q_proj.weight").requires_grad_()
        loss = model(inputs).main.square().mean()
        with torch.no_grad():
            model(INPUTS)  # what is at work when the backward pass begins is another forward's
        found += torch.autograd.grad(loss, weight)
    assert torch.equal(*found)


def test_nothing_stays_off_after_a_failure() -> None:
    def failing(h_TD: Tensor, heads: Heads, depth: int) -> Tensor:
        raise InterruptedError

    model = model_of(EVERYWHERE)
    expected = model.logits(IDS_BS)
    with pytest.raises(InterruptedError):
        model(BASE, head=failing)
    handle = model.moe_layers[1].gate.register_forward_pre_hook(interrupt)
    with pytest.raises(InterruptedError):
        model(BASE)
    handle.remove()
    assert model.adapters_on
    assert all(layer.adapters_on for layer in model.layers)
    assert torch.equal(model.logits(IDS_BS), expected)


def interrupt(*arguments: object) -> None:
    raise InterruptedError


@pytest.mark.parametrize("lora", [None, EVERYWHERE | {"modules_to_save": ["norm"]}], ids=["none", "saved"])
def test_a_model_that_holds_no_base_says_so(lora: dict[str, Any] | None) -> None:
    model = model_of(lora)
    randomize_(model)
    with pytest.raises(ValueError, match="adapters=False needs the base model's weights, which are"):
        model(BASE)
