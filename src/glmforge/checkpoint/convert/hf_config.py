"""`config.json` and `generation_config.json` as transformers, vLLM, SGLang and llama.cpp read them.

Every field is written, because the defaults of transformers' class are those of no published GLM. Settings
that changed their place are written in both: RoPE at the top level (transformers 4, the engines) and in
`rope_parameters` (transformers 5), the type as `torch_dtype` and as `dtype`. Reading a `config.json` is
`glmforge.config.load_model_config`, which every command that takes a model uses.
"""

from typing import Any

import torch

from glmforge.config.model import ModelConfig


def hf_config(config: ModelConfig, dtype: torch.dtype) -> dict[str, Any]:
    """Content of `config.json` for weights stored as `dtype`."""
    dtype_name = str(dtype).removeprefix("torch.")
    return {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        **config.model_dump(mode="json"),
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


def hf_generation_config(config: ModelConfig) -> dict[str, Any]:
    """Content of `generation_config.json`: on which tokens generation stops, and sampling by default."""
    return {
        "_from_model_config": True,
        "do_sample": True,
        "eos_token_id": config.eos_token_id or None,
        "pad_token_id": config.pad_token_id,
    }
