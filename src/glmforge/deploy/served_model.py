"""What a directory or a file holds for an engine: the architecture, and what its weights are stored in."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from glmforge.checkpoint.convert import hf_model_config
from glmforge.checkpoint.convert.hf_files import Shards
from glmforge.checkpoint.find import find_checkpoint
from glmforge.checkpoint.format.meta import read_meta, stored_config
from glmforge.config.hf import model_fields_from_hf
from glmforge.config.load import load_model_config
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import EMBEDDING, parameter_table
from glmforge.config.presets import preset_names
from glmforge.errors import CheckpointError, ConfigError
from glmforge.files import kind_of, parse_json, read_text, shown

_GGUF_TYPES = {0: "bf16", 1: "bf16", 32: "bf16", 7: "q8_0", 2: "q4_0", 12: "q4_k", 14: "q4_k", 15: "q4_k"}
"""llama.cpp's types of files as the nearest format that the planner knows."""


def served_model(source: Path) -> tuple[ModelConfig, str]:
    """The architecture, and the name of the planner's format. Raises `ConfigError`."""
    if source.suffix == ".gguf":
        return _gguf(source)
    file = source / "config.json"
    if not file.is_file():
        return load_model_config(source if source.exists() else str(source)), "bf16"
    hf = parse_json(read_text(file, error=ConfigError), dict, source=str(file), error=ConfigError)
    quantised = hf.pop("quantization_config", None)
    try:
        model = ModelConfig.model_validate(model_fields_from_hf(hf, str(file)))
    except ValidationError as error:
        raise ConfigError(f"{file}: {shown(str(error.errors()[0]['msg']))}") from None
    return model, "bf16" if quantised is None else _format_of(quantised, str(file))


def stored_config_of(source: Path) -> ModelConfig:
    """The architecture of what `load_pretrained` loads; no weight is read. Raises `CheckpointError`."""
    if kind_of(source / "config.json", error=CheckpointError) is not None:
        return hf_model_config(source)
    if str(source) in preset_names("model"):
        return load_model_config(str(source))
    path = find_checkpoint(source)
    return stored_config(path, read_meta(path)).model


def stored_size(source: Path, dtype: torch.dtype | None) -> tuple[ModelConfig, int]:
    """The same, and bytes of its weights in memory, in `dtype` or as they are stored. Raises `CheckpointError`."""
    model = stored_config_of(source)
    if dtype is None:
        is_hf = kind_of(source / "config.json", error=CheckpointError) is not None
        dtype = Shards(source).dtype(EMBEDDING) if is_hf else torch.float32
    return model, sum(math.prod(row.shape) for row in parameter_table(model).values()) * dtype.itemsize


def _format_of(quantised: object, source: str) -> str:
    """Of Hugging Face's `quantization_config`: DeepSeek's fp8 or compressed-tensors'."""
    if isinstance(quantised, Mapping):
        method = quantised.get("quant_method")
        if method == "fp8":
            return "fp8"
        groups = quantised.get("config_groups")
        group: Any = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping):
            found = {(8, "float"): "fp8", (8, "int"): "int8", (4, "int"): "int4", (4, "float"): "mxfp4"}
            name = found.get((weights.get("num_bits"), weights.get("type")))  # type: ignore[arg-type]
            if name is not None:
                return name
        if method in ("gptq", "awq"):
            return "int4"
    raise ConfigError(f"{source}: quantization_config: unknown format; pass --weights")


def _gguf(file: Path) -> tuple[ModelConfig, str]:
    """From its metadata."""
    import gguf

    try:
        reader = gguf.GGUFReader(file)
        values = {name: field.contents() for name, field in reader.fields.items() if name != "tokenizer.ggml.merges"}
    except (OSError, ValueError, KeyError, IndexError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not a GGUF file that can be read: {shown(str(error))}") from None
    if values.get("general.architecture") != "glm4moe":
        raise ConfigError(f"{file}: architecture is {shown(repr(values.get('general.architecture')))}, not glm4moe")

    def of(name: str, default: object = None) -> Any:
        value = values.get(f"glm4moe.{name}", default)
        if value is None:
            raise ConfigError(f"{file}: has no glm4moe.{name}")
        return value

    num_mtp, end = of("nextn_predict_layers", 0), values.get("tokenizer.ggml.eos_token_id", 0)
    try:
        model = ModelConfig(
            vocab_size=len(values.get("tokenizer.ggml.tokens") or ()),
            num_hidden_layers=of("block_count") - num_mtp,
            num_nextn_predict_layers=num_mtp,
            hidden_size=of("embedding_length"),
            intermediate_size=of("feed_forward_length"),
            moe_intermediate_size=of("expert_feed_forward_length"),
            num_attention_heads=of("attention.head_count"),
            num_key_value_heads=of("attention.head_count_kv"),
            head_dim=of("attention.key_length"),
            n_routed_experts=of("expert_count"),
            n_shared_experts=of("expert_shared_count"),
            num_experts_per_tok=of("expert_used_count"),
            first_k_dense_replace=of("leading_dense_block_count"),
            max_position_embeddings=of("context_length"),
            rope_theta=of("rope.freq_base"),
            eos_token_id=[end],
            pad_token_id=end,
            routed_scaling_factor=of("expert_weights_scale", 1.0),
            use_qk_norm=any(tensor.name.endswith("attn_q_norm.weight") for tensor in reader.tensors),
        )
    except (ValidationError, TypeError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise ConfigError(f"{file}: metadata of no model that can be read: {shown(reason)}") from None
    kind = values.get("general.file_type")
    name = _GGUF_TYPES.get(kind) if isinstance(kind, int) else None
    if name is None:
        raise ConfigError(f"{file}: unknown type of file {shown(repr(kind))}; pass --weights")
    return model, name
