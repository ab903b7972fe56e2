"""The models that a run of stage `rl` holds beside its policy, as configurations of their own.

All have the policy's layers, on its layout. `init_from` of each is where its weights come from.
"""

from pathlib import Path

from glmforge.config.model import ModelConfig
from glmforge.config.optim import ParameterRule
from glmforge.config.rl import RlConfig
from glmforge.config.schema import RunConfig


def models_beside(config: RunConfig) -> dict[str, RunConfig]:
    """By their roles, "reference", "reward" and "critic"; a policy with adapters is its own reference."""
    settings = config.stage_settings(RlConfig)
    found: dict[str, RunConfig] = {}
    if settings.needs_reference and config.lora is None:
        found["reference"] = _frozen(_with_model(config, config.init_from))
    if settings.reward_model is not None:
        found["reward"] = _frozen(_with_model(config, settings.reward_model, head="score"))
    if settings.critic is not None:
        found["critic"] = _with_model(config, settings.critic.init_from or config.init_from, head="value")
    return found


def _with_model(config: RunConfig, init_from: Path | None, head: str | None = None) -> RunConfig:
    """Without layers that predict further ahead, and with `head` in place of the vocabulary."""
    changes: dict[str, object] = {"num_nextn_predict_layers": 0}
    if head is not None:
        changes |= {"heads": {head: 1}, "lm_head": False, "tie_word_embeddings": False}
    model = ModelConfig.model_validate(config.model.model_dump() | changes)
    return config.model_copy(update={"model": model, "init_from": init_from})


def _frozen(config: RunConfig) -> RunConfig:
    """For forward passes alone."""
    held = "fp32" if config.precision.compute == "fp32" else "bf16"
    changes = {
        "lora": None,
        "optim": config.optim.model_copy(update={"rules": [ParameterRule(match="*", lr_scale=0.0)]}),
        "precision": config.precision.model_copy(update={"frozen": held}),
    }
    return config.model_copy(update=changes)
