"""A Llama as a GLM whose layers are all dense: that has the same parameters by the same names, and computes the same.

Only weights are converted by this: how RoPE is scaled (Llama 3.1) changes none of them, and `config.json` keeps it.
"""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from glmforge.checkpoint.format.wording import describe_invalid
from glmforge.config.hf import DEFAULTS
from glmforge.config.model import ModelConfig
from glmforge.errors import ConfigError
from glmforge.files import read_json, shown

_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


def read_llama(directory: Path) -> tuple[ModelConfig, dict[str, Any]] | None:
    """The model in `config.json`, and what the file holds; None of another architecture. Raises `ConfigError`."""
    content, source = read_json(directory / "config.json", dict, error=ConfigError), f"{shown(directory)}/config.json"
    if content.get("model_type") != "llama":
        return None
    if wrong := [name for name in _SIZES if type(content.get(name)) is not int or content[name] < 1]:
        raise ConfigError(f"{source}: {wrong[0]} must be a positive number")
    if content.get("attention_bias") or content.get("mlp_bias"):
        raise ConfigError(f"{source}: attention_bias and mlp_bias cannot be converted")
    heads, rope = content["num_attention_heads"], content.get("rope_parameters")
    fields: dict[str, Any] = {
        **{**DEFAULTS, "num_key_value_heads": heads, "head_dim": content["hidden_size"] // heads, "rms_norm_eps": 1e-6},
        **{name: value for name, value in content.items() if name in ModelConfig.model_fields and value is not None},
        **{"first_k_dense_replace": content["num_hidden_layers"], "num_nextn_predict_layers": 0},
        **{"rope_theta": (rope if isinstance(rope, dict) else content).get("rope_theta", 10000.0)},
        **{"partial_rotary_factor": 1.0, "eos_token_id": [], "pad_token_id": None},
    }
    try:
        return ModelConfig.model_validate(fields), content
    except ValidationError as error:
        raise ConfigError(f"{source}: {', '.join(describe_invalid(error))}") from None
