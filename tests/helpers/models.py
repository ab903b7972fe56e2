"""Small models for tests, and transformers' own implementation at the same weights."""

from typing import TYPE_CHECKING

import torch

from glmforge.config.model import ModelConfig
from glmforge.config.schema import RunConfig

if TYPE_CHECKING:  # it takes half a second to import, in each process that a test starts
    from transformers import Glm4MoeForCausalLM

TINY = {
    "vocab_size": 512,
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "first_k_dense_replace": 1,
    "intermediate_size": 80,
    "moe_intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "use_qk_norm": True,
    "rope_theta": 1e6,
    "max_position_embeddings": 256,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 1,
    "eos_token_id": [476],
    "pad_token_id": 476,
}


def tiny_config(**overrides: object) -> ModelConfig:
    """A GLM with every feature on and heads x head_dim different from hidden_size."""
    return ModelConfig(**(TINY | overrides))


def transformers_model(config: ModelConfig, experts: str = "eager") -> "Glm4MoeForCausalLM":
    """transformers' model of the same architecture with its own random weights, in fp32."""
    from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

    fields = config.model_dump(exclude={"partial_rotary_factor", "rope_theta", "num_nextn_predict_layers"})
    rope = {
        "rope_type": "default",
        "rope_theta": config.rope_theta,
        "partial_rotary_factor": config.partial_rotary_factor,
    }
    hf_config = Glm4MoeConfig(**fields, rope_parameters=rope, num_nextn_predict_layers=0)
    hf_config._attn_implementation = "sdpa"
    hf_config._experts_implementation = experts
    return Glm4MoeForCausalLM(hf_config).float()


def randomize_(model: torch.nn.Module, seed: int = 0) -> None:
    """Give every parameter and router bias a value that matters, so that no term is hidden by a zero or a one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if not tensor.is_floating_point() or "inv_freq" in name:
                continue
            noise = torch.empty(tensor.shape).normal_(0, 1, generator=generator)
            if name.endswith("norm.weight"):
                tensor.copy_(1 + 0.1 * noise)
            elif name.endswith("e_score_correction_bias"):
                tensor.copy_(0.05 * noise)
            else:
                tensor.copy_(noise * 0.3 / max(1.0, tensor.shape[-1] ** 0.5 / 4))


def run_config(**sections: object) -> RunConfig:
    """A run of the tiny model in fp32 whose data paths need not exist; sections are given as dictionaries."""
    base = {
        "name": "test",
        "model": tiny_config().model_dump(),
        "data": {"tokenizer": "tokenizer", "sources": [{"name": "text", "path": "text"}]},
        "phases": [{"name": "main", "steps": 4, "seq_len": 16, "batch_size": 8}],
        "precision": {"compute": "fp32"},
    }
    return RunConfig.model_validate(base | sections)
