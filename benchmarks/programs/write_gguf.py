"""A GLM model in Hugging Face format as a GGUF file for llama.cpp, without tokenizer and MTP layers.

    python benchmarks/programs/write_gguf.py EXPORT FILE {fp32,bf16}

Needs the packages gguf and safetensors, and an export in fp32. Norms, biases and the router stay fp32, as llama.cpp's
own converter leaves them. The file has no vocabulary: requests are token ids.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors import safe_open

NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate": "ffn_gate_inp",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}
EXPERTS = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}
EXPERT = re.compile(r"(model\.layers\.\d+\.mlp)\.experts\.0\.(\w+)\.weight")
LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
CORRECTION_BIAS = re.compile(r"model\.layers\.(\d+)\.mlp\.gate\.e_score_correction_bias")


class Export:
    """The tensors of a directory in Hugging Face format, by name."""

    def __init__(self, directory: Path) -> None:
        self._files = [safe_open(file, framework="np") for file in sorted(directory.glob("*.safetensors"))]
        self._places = {name: file for file in self._files for name in file.keys()}  # noqa: SIM118 - no mapping

    def names(self) -> list[str]:
        return sorted(self._places)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._places[name].get_tensor(name)


def main() -> None:
    source, target, dtype = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    config = json.loads((source / "config.json").read_text("utf-8"))
    writer = gguf.GGUFWriter(target, "glm4moe")
    add_settings(writer, config)
    export = Export(source)
    for name in export.names():
        if target_name := gguf_name(name):
            add_tensor(writer, target_name, export[name], dtype)
        elif match := EXPERT.fullmatch(name):
            layer = match[1].split(".")[2]
            experts = [
                export[f"{match[1]}.experts.{expert}.{match[2]}.weight"] for expert in range(config["n_routed_experts"])
            ]
            add_tensor(writer, f"blk.{layer}.{EXPERTS[match[2]]}.weight", np.stack(experts), dtype)
        elif ".experts." not in name:
            raise SystemExit(f"{source}: no name in GGUF is known for {name}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_name(name: str) -> str | None:
    """None for the weights of routed experts, which are packed."""
    if name in NAMES:
        return NAMES[name]
    if match := CORRECTION_BIAS.fullmatch(name):
        return f"blk.{match[1]}.exp_probs_b.bias"
    match = LAYER.fullmatch(name)
    if match is None or match[2] not in LAYER_NAMES:
        return None
    return f"blk.{match[1]}.{LAYER_NAMES[match[2]]}.{match[3]}"


def add_tensor(writer: gguf.GGUFWriter, name: str, tensor: np.ndarray, dtype: str) -> None:
    tensor = np.ascontiguousarray(tensor, dtype=np.float32)
    if dtype == "fp32" or tensor.ndim == 1 or "ffn_gate_inp" in name:
        writer.add_tensor(name, tensor)
        return
    kind = gguf.GGMLQuantizationType.BF16
    writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)


def add_settings(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(int(config["head_dim"] * config["partial_rotary_factor"]))
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_weights_norm(config["norm_topk_prob"])
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


if __name__ == "__main__":
    main()
