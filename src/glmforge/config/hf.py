"""The architecture out of a `config.json`, as transformers reads it.

`ModelConfig` has the same field names, so this is a selection, with these exceptions. transformers 5 moved the RoPE
settings into `rope_parameters`; end tokens may stand without a list or be absent; `num_mtp_layers` is another name of
`num_nextn_predict_layers`; a missing `head_dim` is derived. What GLM's forward pass does not know (scaled RoPE,
quantized weights) is refused by name. A model for sequence classification has a score head in place of the
language-model head.

A field that the file omits has the default of transformers' `Glm4MoeConfig`, so that the same weights make the
same model here and there. Those are the values of no published GLM, so a warning names each of them: a published
file has every field, and one that lacks some is often cut or edited.
"""

import logging
import reprlib
from collections.abc import Mapping
from typing import Any

from glmforge.config.model import ModelConfig
from glmforge.errors import ConfigError

MODEL_TYPE = "glm4_moe"
SEQUENCE_CLASSIFICATION, SCORE = "Glm4MoeForSequenceClassification", "score"
"""Architecture and head of a model that scores sequences, as transformers calls them for other models; it has no such
class of this one."""

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 151552,
    "hidden_size": 4096,
    "num_hidden_layers": 46,
    "first_k_dense_replace": 1,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "use_qk_norm": False,
    "attention_bias": False,
    "partial_rotary_factor": 0.5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 131072,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "num_nextn_predict_layers": 1,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.02,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
"""What transformers' `Glm4MoeConfig` takes for a field that is omitted."""

_OWN_FIELDS = ("heads", "lm_head")
_OTHER_NAMES = {"num_mtp_layers": "num_nextn_predict_layers", "num_local_experts": "n_routed_experts"}

logger = logging.getLogger(__name__)


def model_fields_from_hf(hf: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Fields for `ModelConfig` from the content of a `config.json`; `source` names it in errors.

    Raises `ConfigError` for another architecture, a setting that the forward pass lacks or values of no sense.
    """
    if hf.get("model_type") != MODEL_TYPE:
        found = reprlib.repr(hf.get("model_type"))
        raise ConfigError(f"{source}: model_type is {found}; only '{MODEL_TYPE}' can be read")
    if hf.get("quantization_config") is not None:
        raise ConfigError(f"{source}: quantization_config: quantized weights cannot be read; take the bf16 checkpoint")
    _note_dropout(hf.get("attention_dropout"), source)
    given = {other: hf[name] for name, other in _OTHER_NAMES.items() if name in hf} | dict(hf)
    given |= _rope_fields(hf, source)
    given = {name: value for name, value in given.items() if name in ModelConfig.model_fields}
    absent = {name: value for name, value in DEFAULTS.items() if name not in given}
    fields = {**absent, **given, **_token_fields(hf, source)}
    if fields.get("head_dim") is None:
        absent["head_dim"] = fields["head_dim"] = _derived_head_dim(fields, source)
    if absent:
        named = ", ".join(f"{name} = {value}" for name, value in absent.items())
        logger.warning("%s: lacks keys that published GLMs have; using transformers' defaults: %s", source, named)
    return {name: fields[name] for name in ModelConfig.model_fields if name not in _OWN_FIELDS} | _heads(hf, source)


def _heads(hf: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The head of a model for sequence classification, which has one output per label and no language-model head."""
    if hf.get("architectures") != [SEQUENCE_CLASSIFICATION]:
        return {}
    labels = hf.get("id2label")
    number = len(labels) if isinstance(labels, Mapping) else hf.get("num_labels", 2)  # transformers' default
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ConfigError(f"{source}: num_labels is {reprlib.repr(number)}; must be a positive number")
    return {"heads": {SCORE: number}, "lm_head": False, "num_nextn_predict_layers": 0}


def _note_dropout(dropout: object, source: str) -> None:
    """transformers drops attention probabilities in training; here a run says so itself."""
    if dropout is None or dropout == 0:
        return
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 < dropout < 1:
        raise ConfigError(f"{source}: attention_dropout is {reprlib.repr(dropout)}; must be between 0 and 1")
    logger.warning(
        "%s: attention_dropout is %g and changes nothing here; a run that trains with it sets "
        "regularization.attention_dropout",
        source,
        dropout,
    )


def _rope_fields(hf: Mapping[str, Any], source: str) -> dict[str, Any]:
    """RoPE settings from transformers 5's nested form or from the older top-level keys."""
    fields: dict[str, Any] = {}
    for name in ("rope_scaling", "rope_parameters"):
        settings = hf.get(name)
        if settings is None:
            continue
        if not isinstance(settings, dict):
            raise ConfigError(f"{source}: {name} is {reprlib.repr(settings)}; must be an object or null")
        kind = settings.get("rope_type", settings.get("type", "default"))
        if kind != "default":
            raise ConfigError(
                f"{source}: {name}: scaled RoPE ({reprlib.repr(kind)}) is not part of GLM-4.5/4.6; long context comes "
                "from rope_theta there"
            )
        fields |= {key: settings[key] for key in ("rope_theta", "partial_rotary_factor") if key in settings}
    return fields


def _token_fields(hf: Mapping[str, Any], source: str) -> dict[str, Any]:
    """End tokens as a list, and the padding token, which in every published GLM is the first end token."""
    ends, pad = hf.get("eos_token_id"), hf.get("pad_token_id")
    ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
    return {"eos_token_id": ends, "pad_token_id": ends[0] if pad is None and ends else pad}


def _derived_head_dim(fields: Mapping[str, Any], source: str) -> int:
    hidden, heads = fields["hidden_size"], fields["num_attention_heads"]
    if not all(isinstance(size, int) and size > 0 for size in (hidden, heads)):
        raise ConfigError(
            f"{source}: head_dim is missing and hidden_size / num_attention_heads is not an integer; add it"
        )
    return int(hidden // heads)
