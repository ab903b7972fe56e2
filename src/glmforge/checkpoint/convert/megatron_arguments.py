"""A model's shape in Megatron's arguments (`args` in a checkpoint's `common.pt`), and in ours.

A dense GPT as Llama is taken as a GLM whose layers are all dense: that has the same parameters by the same names, and
computes the same. Whatever else Megatron's GPT can be (LayerNorm, biases, another router) is refused by the argument.

An argument that is absent or None has Megatron's default. Ids of tokens are the tokenizer's there, so none are known.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from glmforge.checkpoint.format.wording import describe_invalid
from glmforge.config.model import ModelConfig
from glmforge.errors import CheckpointError
from glmforge.files import shown

_FIELDS: Mapping[str, tuple[str, Any]] = {  # argument -> our field, and its default (None: must be given)
    "num_layers": ("num_hidden_layers", None),
    "hidden_size": ("hidden_size", None),
    "ffn_hidden_size": ("intermediate_size", None),
    "num_attention_heads": ("num_attention_heads", None),
    "kv_channels": ("head_dim", None),
    "max_position_embeddings": ("max_position_embeddings", None),
    "qk_layernorm": ("use_qk_norm", False),
    "add_qkv_bias": ("attention_bias", False),
    "rotary_percent": ("partial_rotary_factor", 1.0),
    "rotary_base": ("rope_theta", 10000),
    "norm_epsilon": ("rms_norm_eps", 1e-5),
    "init_method_std": ("initializer_range", 0.02),
}
_MOE_FIELDS: Mapping[str, tuple[str, Any]] = {
    "num_experts": ("n_routed_experts", None),
    "moe_ffn_hidden_size": ("moe_intermediate_size", None),
    "moe_router_topk": ("num_experts_per_tok", None),
    "moe_router_topk_scaling_factor": ("routed_scaling_factor", 1.0),
    "moe_router_num_groups": ("n_group", 1),
    "moe_router_group_topk": ("topk_group", 1),
    "mtp_num_layers": ("num_nextn_predict_layers", 0),
}
_REQUIRED: Mapping[str, Any] = {
    "swiglu": True,
    "normalization": "RMSNorm",
    "position_embedding_type": "rope",
    "add_bias_linear": False,
    "apply_layernorm_1p": False,
    "rotary_interleaved": False,
    "multi_latent_attention": False,
}
_REQUIRED_OF_MOE: Mapping[str, Any] = {
    "moe_router_score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "moe_shared_expert_gate": False,
}
_NO_EXPERTS: Mapping[str, Any] = {  # of a model without MoE layers, in which these mean nothing
    "n_routed_experts": 2,
    "n_shared_experts": 1,
    "num_experts_per_tok": 1,
    "routed_scaling_factor": 1.0,
    "moe_intermediate_size": 1,
    "num_nextn_predict_layers": 0,
}


def is_llama(config: ModelConfig) -> bool:
    """Whether a model is a Llama: all layers dense, without what only GLM has."""
    special = config.num_nextn_predict_layers or config.use_qk_norm or config.attention_bias or config.heads
    return not special and config.num_moe_layers == 0 and config.partial_rotary_factor == 1


def dense_model(fields: Mapping[str, Any], source: str) -> ModelConfig:
    """A dense model from its other fields. Raises `CheckpointError` naming `source`."""
    return _validated({**fields, **_NO_EXPERTS, "first_k_dense_replace": fields["num_hidden_layers"]}, source)


def model_from_arguments(given: Mapping[str, Any], source: str, vocab_size: int | None = None) -> ModelConfig:
    """The model of a checkpoint's `args`; `vocab_size` where they have the padded size only.

    Raises `CheckpointError` naming `source` and the argument: one is missing, or says that it is neither a GLM nor a
    Llama.
    """
    given = {name: value for name, value in given.items() if value is not None}
    is_moe = "num_experts" in given
    for name, value in (_REQUIRED | _REQUIRED_OF_MOE if is_moe else _REQUIRED).items():
        if given.get(name, value) != value:
            raise CheckpointError(f"{source}: {name} is {shown(str(given[name]))}; GLM and Llama have {value}")
    fields: dict[str, Any] = {}
    for name, (field, default) in (_FIELDS | _MOE_FIELDS if is_moe else _FIELDS).items():
        fields[field] = given.get(name, default)
        if fields[field] is None:
            raise CheckpointError(f"{source}: has no argument {name}; pass the model with --config")
    heads = "num_query_groups" if given.get("group_query_attention") else "num_attention_heads"
    fields["num_key_value_heads"] = given.get(heads)
    fields["tie_word_embeddings"] = not given.get("untie_embeddings_and_output_weights", False)
    fields["vocab_size"] = vocab_size or given.get("vocab_size") or given.get("padded_vocab_size")
    if not is_moe:
        return dense_model(fields, source)
    pattern, shared = given.get("moe_layer_freq", 1), given.get("moe_shared_expert_intermediate_size")
    if pattern != 1 and not (isinstance(pattern, list) and pattern == [0] * pattern.count(0) + [1] * pattern.count(1)):
        raise CheckpointError(f"{source}: moe_layer_freq: GLM has dense layers first and only MoE layers after them")
    fields["first_k_dense_replace"] = 0 if pattern == 1 else pattern.count(0)
    width = fields["moe_intermediate_size"]
    if type(shared) is not int or type(width) is not int or width < 1 or shared % width:
        raise CheckpointError(f"{source}: moe_shared_expert_intermediate_size: GLM's is n times moe_ffn_hidden_size")
    return _validated({**fields, "n_shared_experts": shared // width}, source)


def arguments_of_model(config: ModelConfig, padded_vocab_size: int) -> dict[str, Any]:
    """Megatron's arguments of a model, as a checkpoint's `args` have them."""
    fields = config.model_dump()
    arguments = {name: fields[field] for name, (field, _) in _FIELDS.items()} | {
        **_REQUIRED,
        "group_query_attention": True,
        "num_query_groups": config.num_key_value_heads,
        "untie_embeddings_and_output_weights": not config.tie_word_embeddings,
        "vocab_size": config.vocab_size,
        "padded_vocab_size": padded_vocab_size,
    }
    if not config.num_moe_layers:
        return arguments
    return arguments | {
        **{name: fields[field] or None for name, (field, _) in _MOE_FIELDS.items()},
        **_REQUIRED_OF_MOE,
        "moe_layer_freq": [0] * config.first_k_dense_replace + [1] * config.num_moe_layers,
        "moe_shared_expert_intermediate_size": config.n_shared_experts * config.moe_intermediate_size,
    }


def _validated(fields: Mapping[str, Any], source: str) -> ModelConfig:
    try:
        return ModelConfig.model_validate({"eos_token_id": [], "pad_token_id": None, **fields})
    except ValidationError as error:
        raise CheckpointError(f"{source}: {': '.join(describe_invalid(error))}") from None
