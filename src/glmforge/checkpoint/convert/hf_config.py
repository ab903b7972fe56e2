"""`config.json` and `generation_config.json` as transformers, vLLM, SGLang and llama.cpp read them.

Every field is written, because the defaults of transformers' class are those of no published GLM. Settings
that changed their place are written in both: RoPE at the top level (transformers 4, the engines) and in
`rope_parameters` (transformers 5), the type as `torch_dtype` and as `dtype`. Reading a `config.json` is
`glmforge.config.load_model_config`, which every command that takes a model uses.
"""

from typing import Any

import torch

from glmforge.config.hf import SCORE, SEQUENCE_CLASSIFICATION
from glmforge.config.model import ModelConfig


def hf_config(config: ModelConfig, dtype: torch.dtype) -> dict[str, Any]:
    """Content of `config.json` for weights stored as `dtype`."""
    dtype_name = str(dtype).removeprefix("torch.")
    return {
        **_architecture(config),
        "model_type": "glm4_moe",
        **config.model_dump(mode="json", exclude={"heads", "lm_head"}),
        "eos_token_id": config.eos_token_id or None,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": config.rope_theta,
            "partial_rotary_factor": config.partial_rotary_factor,
        },
        "rope_scaling": None,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "output_router_logits": False,
        "use_cache": True,
        "dtype": dtype_name,
        "torch_dtype": dtype_name,
    }


def _architecture(config: ModelConfig) -> dict[str, Any]:
    """What the model is for. transformers has no class for sequence classification with this model, but names weights
    and settings of all such classes alike."""
    if config.lm_head:
        return {"architectures": ["Glm4MoeForCausalLM"]}
    labels = [f"LABEL_{index}" for index in range(config.heads[SCORE])]
    return {
        "architectures": [SEQUENCE_CLASSIFICATION],
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
    }


def hf_generation_config(config: ModelConfig) -> dict[str, Any]:
    """Content of `generation_config.json`: on which tokens generation stops, and sampling by default."""
    return {
        "_from_model_config": True,
        "do_sample": True,
        "eos_token_id": config.eos_token_id or None,
        "pad_token_id": config.pad_token_id,
    }
