"""A model's cost as labelled rows, for tables and JSON alike."""

from glmforge.config.model import ModelConfig
from glmforge.config.optim import OptimConfig
from glmforge.plan.counts.flops import train_flops_per_token
from glmforge.plan.counts.memory import kv_cache_bytes_per_token, training_state, weight_bytes
from glmforge.plan.counts.parameters import count_parameters

_SEQUENCE_LENGTHS = (4096, 8192, 32768, 131072)


def summarise(config: ModelConfig) -> dict[str, object]:
    """Everything below and the configuration itself, ready for JSON."""
    return {
        "config": config.model_dump(),
        "architecture": dict(architecture_rows(config)),
        "parameters": dict(parameter_rows(config)),
        "train_flops_per_token": [
            {"seq_len": length, "without_mtp": without, "with_mtp": with_mtp}
            for length, without, with_mtp in flop_rows(config)
        ],
        "bytes": dict(memory_rows(config)),
    }


def architecture_rows(config: ModelConfig) -> list[tuple[str, str]]:
    """What the model is made of, in words."""
    num_dense, num_mtp = config.first_k_dense_replace, config.num_nextn_predict_layers
    layers = f"{config.num_hidden_layers}: {num_dense} dense, {config.num_hidden_layers - num_dense} MoE"
    heads = f"{config.num_attention_heads}, {config.num_key_value_heads} for keys and values, {config.head_dim} wide"
    groups = f", chosen from {config.topk_group} of {config.n_group} groups" if config.n_group > 1 else ""
    experts = f"{config.n_routed_experts}, {config.num_experts_per_tok} per token{groups}, "
    return [
        ("layers", layers + (f", and {num_mtp} MTP" if num_mtp else "")),
        ("width", f"{config.hidden_size:,}"),
        ("attention heads", heads + (", QK-norm" if config.use_qk_norm else "")),
        ("routed experts", experts + f"{config.moe_intermediate_size:,} wide"),
        ("shared experts", f"{config.n_shared_experts}"),
        ("dense MLP", f"{config.intermediate_size:,} wide"),
        ("vocabulary", f"{config.vocab_size:,}"),
        ("positions", f"{config.max_position_embeddings:,}"),
    ]


def parameter_rows(config: ModelConfig) -> list[tuple[str, int]]:
    """Parts of the model and their parameters, routers' correction biases included."""
    counts = count_parameters(config)
    return [
        ("embedding", counts.embedding.total),
        ("head", counts.head.total),
        ("one expert", counts.expert.total),
        ("MoE layer", counts.moe_layer.total),
        ("MoE layer, active", counts.moe_layer_active.total),
        ("dense layer", counts.dense_layer.total),
        ("trunk + final norm", counts.trunk.total),
        ("MTP core", counts.mtp.total),
        ("trunk + embedding + head", counts.without_mtp.total),
        ("trunk + embedding + head + MTP", counts.with_mtp.total),
        ("... + copies of embedding and head in MTP", counts.with_mtp_copies.total),
        ("active: trunk", counts.trunk_active.total),
        ("active: trunk + head", counts.active.total),
        ("matmul: trunk", counts.trunk_matmul),
        ("matmul: MTP with its logits", counts.mtp_matmul),
    ]


def flop_rows(config: ModelConfig) -> list[tuple[int, float, float]]:
    """Sequence length and FLOPs per token without and with MTP, as far as the model's positions reach."""
    limit = config.max_position_embeddings
    lengths = [length for length in _SEQUENCE_LENGTHS if length <= limit] or [limit]
    return [
        (length, train_flops_per_token(config, length, False), train_flops_per_token(config, length, True))
        for length in lengths
    ]


def memory_rows(config: ModelConfig) -> list[tuple[str, int]]:
    """Bytes of the whole model, before sharding."""
    muon = training_state(config, OptimConfig())
    adamw = training_state(config, OptimConfig(matrix_optimizer="adamw"))
    return [
        ("weights, bf16", weight_bytes(config, "bf16")),
        ("weights, bf16, without MTP", weight_bytes(config, "bf16", with_mtp=False)),
        ("weights, fp32", weight_bytes(config, "fp32")),
        ("gradients, fp32", muon.gradients),
        ("optimizer state, Muon", muon.optimizer),
        ("optimizer state, AdamW", adamw.optimizer),
        ("training state, Muon", muon.total),
        ("training state, AdamW", adamw.total),
        ("KV cache per token, bf16", kv_cache_bytes_per_token(config)),
    ]
