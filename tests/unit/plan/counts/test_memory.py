import pytest
import torch

from glmforge.config import OptimConfig, load_model_config
from glmforge.config.optim import ParameterRule
from glmforge.model import GlmMoe
from glmforge.plan.counts.memory import kv_cache_bytes_per_token, training_state, weight_bytes


@pytest.mark.parametrize(("model", "size"), [("glm46_355b", 376_832), ("glm45_air_106b", 188_416)])
def test_kv_cache(model: str, size: int) -> None:
    config = load_model_config(model)
    assert kv_cache_bytes_per_token(config) == size
    assert kv_cache_bytes_per_token(config, "fp32") == 2 * size


def test_weights() -> None:
    config = load_model_config("glm46_355b")
    num_routers = 89 + 1
    buffers = num_routers * 160
    assert weight_bytes(config, "fp32") == 4 * 356_785_898_816
    assert weight_bytes(config, "bf16") == 2 * (356_785_898_816 - buffers) + 4 * buffers
    assert weight_bytes(config, "bf16", with_mtp=False) == 2 * (352_797_829_024 - 89 * 160) + 4 * 89 * 160


@pytest.mark.parametrize(
    ("optim", "not_in_muon"),
    [
        (OptimConfig(), ["embed_tokens"]),
        (OptimConfig(lm_head="adamw"), ["embed_tokens", "lm_head"]),
        (OptimConfig(matrix_optimizer="adamw"), [""]),
        (OptimConfig(matrix_optimizer="lamb"), [""]),
        (OptimConfig(rules=[ParameterRule(match="*.gate.*", optimizer="lamb")]), ["embed_tokens", ".gate."]),
    ],
    ids=["muon", "head in adamw", "adamw", "lamb", "a rule"],
)
def test_training_state_is_what_the_optimizers_keep(optim: OptimConfig, not_in_muon: list[str]) -> None:
    config = load_model_config("tiny")
    with torch.device("meta"):
        parameters = dict(GlmMoe(config).named_parameters())
    moments = {
        name: 1 if p.ndim >= 2 and not any(part in name for part in not_in_muon) else 2
        for name, p in parameters.items()
    }
    state = training_state(config, optim)
    assert state.gradients == sum(4 * p.numel() for p in parameters.values())
    assert state.weights == weight_bytes(config, "fp32")
    assert state.optimizer == sum(4 * p.numel() * moments[name] for name, p in parameters.items())
    assert state.total == state.weights + state.gradients + state.optimizer


@pytest.mark.parametrize("method", ["muon", "adamw", "lamb"])
def test_bf16_states_take_half(method: str) -> None:
    config = load_model_config("tiny")
    usual, half = (
        training_state(config, OptimConfig(matrix_optimizer=method, state_dtype=dtype)) for dtype in ("fp32", "bf16")
    )
    assert (half.weights, half.gradients, 2 * half.optimizer) == (usual.weights, usual.gradients, usual.optimizer)


def test_what_is_frozen_has_weights_only() -> None:
    config = load_model_config("tiny")
    table = config.vocab_size * config.hidden_size
    usual = training_state(config, OptimConfig())
    frozen = training_state(config, OptimConfig(rules=[ParameterRule(match="*embed_tokens*", lr_scale=0.0)]))
    assert frozen.weights == usual.weights
    assert frozen.gradients == usual.gradients - 4 * table
    assert frozen.optimizer == usual.optimizer - 8 * table
