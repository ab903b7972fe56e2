"""The architecture out of a published `config.json`.

`ModelConfig` has the same field names, so this is a selection, with three exceptions: transformers 5 moved
the RoPE settings into `rope_parameters`, a single end token may stand without a list, and what GLM's forward
pass does not know (scaled RoPE, attention dropout) must be switched off. Every field of the architecture must
be there: the class defaults of transformers are those of no published GLM, and must not slip in.
"""

from collections.abc import Mapping
from typing import Any

from glmforge.config.model import ModelConfig
from glmforge.errors import ConfigError

_TOKEN_FIELDS = {"eos_token_id", "pad_token_id"}


def model_fields_from_hf(hf: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Fields for `ModelConfig` from the content of a `config.json`; `source` names it in errors.

    Raises `ConfigError` for another architecture, a setting that the forward pass lacks or a missing field.
    """
    if hf.get("model_type") != "glm4_moe":
        raise ConfigError(f"{source}: model_type is {hf.get('model_type')!r}; only 'glm4_moe' can be read")
    if hf.get("attention_dropout"):
        raise ConfigError(f"{source}: attention_dropout is {hf['attention_dropout']}; GLM trains with 0")
    fields = {**hf, **_rope_fields(hf, source), **_token_fields(hf)}
    missing = [name for name in ModelConfig.model_fields if name not in fields and name not in _TOKEN_FIELDS]
    if missing:
        raise ConfigError(f"{source}: {', '.join(missing)} missing; published GLM configurations have every field")
    return {name: fields[name] for name in ModelConfig.model_fields if name in fields}


def _rope_fields(hf: Mapping[str, Any], source: str) -> dict[str, Any]:
    """RoPE settings from transformers 5's nested form or from the older top-level keys."""
    nested = hf.get("rope_parameters") or {}
    kind = nested.get("rope_type", "default")
    if kind != "default" or hf.get("rope_scaling"):
        raise ConfigError(f"{source}: scaled RoPE ({hf.get('rope_scaling') or kind}) is not part of GLM-4.5/4.6")
    return {name: nested[name] for name in ("rope_theta", "partial_rotary_factor") if name in nested}


def _token_fields(hf: Mapping[str, Any]) -> dict[str, Any]:
    """End tokens as a list, and the padding token, which in every published GLM is the first end token."""
    ends = hf.get("eos_token_id")
    if ends is None:
        return {}
    ends = [ends] if isinstance(ends, int) else ends
    pad = hf.get("pad_token_id")
    return {"eos_token_id": ends, "pad_token_id": ends[0] if pad is None else pad}
