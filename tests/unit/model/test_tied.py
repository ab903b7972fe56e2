"""Tied embeddings: one parameter, whose gradient is that of both uses."""

import pytest
import torch

from glmforge.config.layout import resolve_layout
from glmforge.config.parameters import parameter_table
from glmforge.errors import ConfigError
from glmforge.model import GlmMoe
from glmforge.model.transformer import Section
from glmforge.plan.counts.parameters import count_parameters
from helpers.models import run_config, tiny_config

EMBEDDING = "model.embed_tokens.weight"
IDS = torch.randint(0, 512, (2, 9), generator=torch.Generator().manual_seed(1))


def loss_of(model: GlmMoe) -> torch.Tensor:
    logits = model.differentiable_logits(IDS)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), IDS.flatten())


def test_the_gradient_is_that_of_both_uses() -> None:
    tied = GlmMoe.create(tiny_config(tie_word_embeddings=True))
    untied = GlmMoe.create(tiny_config())
    untied.load_state_dict({**tied.state_dict(), "lm_head.weight": tied.state_dict()[EMBEDDING]})
    loss_of(tied).backward()
    loss_of(untied).backward()
    parts = [untied.model.embed_tokens.weight.grad, untied.lm_head.weight.grad]
    assert all(part.norm() > 0 for part in parts)
    # Sums of two in another order: rounding of fp32.
    torch.testing.assert_close(tied.model.embed_tokens.weight.grad, sum(parts), rtol=1e-5, atol=1e-7)


def test_there_is_one_parameter() -> None:
    config = tiny_config(tie_word_embeddings=True)
    model = GlmMoe.create(config)
    names = [name for name, _ in model.named_parameters()]
    assert EMBEDDING in names
    assert "lm_head.weight" not in names
    assert set(names) == parameter_table(config).trained().keys()
    counted = count_parameters(config).with_mtp.total
    assert counted == sum(t.numel() for t in model.state_dict().values())


def test_the_head_follows_what_becomes_of_the_embedding() -> None:
    model = GlmMoe.create(tiny_config(tie_word_embeddings=True))
    model.to(torch.float64)
    model.load_state_dict({n: torch.zeros_like(t) for n, t in model.state_dict().items()}, assign=True)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.lm_head.weight.dtype == torch.float64


def test_a_pipeline_cannot_part_them() -> None:
    config = tiny_config(tie_word_embeddings=True)
    with pytest.raises(ValueError, match="one section"):
        GlmMoe(config, Section(0, 2, first=True, last=False))
    run = run_config(model=config.model_dump(), parallel={"pp": 2, "micro_batch_size": 1})
    with pytest.raises(ConfigError, match=r"parallel\.pp: 2 stages .* tie_word_embeddings"):
        resolve_layout(run, 2)


def test_logits_with_and_without_a_graph() -> None:
    model = GlmMoe.create(tiny_config())
    assert not model.logits(IDS).requires_grad
    logits = model.differentiable_logits(IDS)
    # Without a gradient the experts of few tokens have kernels of their own, which add in another order.
    torch.testing.assert_close(logits, model.logits(IDS), rtol=1e-5, atol=1e-6)
    logits.sum().backward()
    without = [name for name, p in model.named_parameters() if p.grad is None]
    assert without
    assert all(name.startswith("model.layers.4.") for name in without)  # the MTP layer takes no part
