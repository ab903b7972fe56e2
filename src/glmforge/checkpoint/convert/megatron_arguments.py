"""The model's arguments that Megatron keeps in a checkpoint (`args` in `common.pt`), compared with ours and written.

Shapes alone do not tell 32 heads of 128 from 64 of 64, nor a RoPE from another. What is not among these arguments
(LayerNorm, biases) shows in the tensors.
"""

import reprlib
from collections.abc import Mapping
from typing import Any

from glmforge.config.model import ModelConfig
from glmforge.errors import CheckpointError
from glmforge.files import shown

_NOT_COMPARED = ("max_position_embeddings", "init_method_std", "padded_vocab_size")  # change nothing in what is there


def arguments_of(config: ModelConfig, padded_vocab_size: int) -> dict[str, Any]:
    """The arguments of `pretrain_gpt.py` that make the model."""
    arguments = {
        **{"num_layers": config.num_hidden_layers, "hidden_size": config.hidden_size},
        **{"ffn_hidden_size": config.intermediate_size, "kv_channels": config.head_dim},
        **{"num_attention_heads": config.num_attention_heads, "num_query_groups": config.num_key_value_heads},
        **{"group_query_attention": True, "qk_layernorm": config.use_qk_norm, "add_qkv_bias": config.attention_bias},
        **{"position_embedding_type": "rope", "rotary_interleaved": False, "rotary_base": config.rope_theta},
        **{"rotary_percent": config.partial_rotary_factor, "max_position_embeddings": config.max_position_embeddings},
        **{"normalization": "RMSNorm", "norm_epsilon": config.rms_norm_eps, "apply_layernorm_1p": False},
        **{"swiglu": True, "add_bias_linear": False, "init_method_std": config.initializer_range},
        **{"untie_embeddings_and_output_weights": not config.tie_word_embeddings},
        **{"padded_vocab_size": padded_vocab_size, "multi_latent_attention": False},
    }
    if not config.num_moe_layers:
        return arguments
    return arguments | {
        **{"num_experts": config.n_routed_experts, "moe_ffn_hidden_size": config.moe_intermediate_size},
        **{"moe_layer_freq": [0] * config.first_k_dense_replace + [1] * config.num_moe_layers},
        **{"moe_shared_expert_intermediate_size": config.n_shared_experts * config.moe_intermediate_size},
        **{"moe_router_topk": config.num_experts_per_tok, "moe_router_score_function": "sigmoid"},
        **{"moe_router_topk_scaling_factor": config.routed_scaling_factor, "moe_router_enable_expert_bias": True},
        **({"mtp_num_layers": config.num_nextn_predict_layers} if config.num_nextn_predict_layers else {}),
        **{"moe_router_num_groups": config.n_group, "moe_router_group_topk": config.topk_group},
    }


def check_arguments(given: Mapping[str, Any], config: ModelConfig, source: str) -> None:
    """Refuse a model that is not the one of a checkpoint's arguments; those that it lacks are not compared."""
    given = dict(given)
    if not given.pop("group_query_attention", True):
        given["num_query_groups"] = given.get("num_attention_heads")
    for name, value in arguments_of(config, config.vocab_size).items():
        found = given.get(name)
        if name == "moe_layer_freq" and found == 1:
            found = [1] * config.num_hidden_layers
        if found is not None and found != value and name not in _NOT_COMPARED:
            raise CheckpointError(f"{source}: {name} is {shown(reprlib.repr(found))}, but --config implies {value}")
