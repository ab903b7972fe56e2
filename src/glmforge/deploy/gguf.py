"""A model as one GGUF file, which llama.cpp and what is built on it read.

The file holds the configuration as llama.cpp names it (architecture `glm4moe`), the tokenizer with its chat template,
and the tensors, a layer's experts packed by projection. Names are those of the `gguf` package's own table. Rotary
dimensions are laid out as in the published checkpoints, so no matrix is permuted. Norms, biases and the router stay
fp32, as llama.cpp's own conversion leaves them.

Tensors are read, converted and written expert by expert. Of a Hugging Face directory no more is in memory than one
matrix a few times over, of a training checkpoint one packed tensor. Then the file is read again with the package's own
reader and compared with the source, before it gets its name.

MTP layers count as blocks and are named `nextn`; llama.cpp uses one at most.
"""

import json
import math
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from glmforge.checkpoint.convert import PieceSource
from glmforge.checkpoint.convert.hf_names import Piece, published_pieces
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import parameter_table
from glmforge.data.tokens.special import END_OF_TEXT, OBSERVATION, USER
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.deploy.export import Source
from glmforge.errors import CheckpointError
from glmforge.extras import needed_for
from glmforge.runtime.durable import fsync_directory, fsync_file
from glmforge.runtime.os_errors import describe_os_error

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType, GGUFWriter

TYPES = {"f32": "F32", "f16": "F16", "bf16": "BF16", "q8_0": "Q8_0"}
"""Types of weights, and their names in the `gguf` package."""

_FULL_PRECISION = ("norm.weight", ".bias", "mlp.gate.weight", "e_score_correction_bias")
_ARCHITECTURE = "glm4moe"
_Q8_BLOCK = 32


@dataclass(frozen=True)
class _GgufTensor:
    """A tensor of the file: `pieces` of the model, stacked where they are experts."""

    name: str
    pieces: tuple[Piece, ...]
    shape: tuple[int, ...]
    type: "GGMLQuantizationType"

    @property
    def num_bytes(self) -> int:
        from gguf import GGML_QUANT_SIZES

        block, size = GGML_QUANT_SIZES[self.type]
        return math.prod(self.shape) // block * size


def export_gguf(
    source: Source,
    out: Path,
    *,
    type_name: str = "bf16",
    with_mtp: bool = True,
    tokenizer_dir: Path | None = None,
    overwrite: bool = False,
) -> list[str]:
    """Write the model `source` as the file `out`; the names of tensors that are F16 because Q8_0 needs rows of a
    multiple of 32.

    Args:
        type_name: of the weights, one of `TYPES`.
        with_mtp: keep the MTP layers.
        tokenizer_dir: instead of the source's own.
        overwrite: replace a file of this name.

    Raises `CheckpointError` if the model or its tokenizer has no form in GGUF, `out` exists, the disk refuses, or what
    is read back is not what was to be written; then there is no file.
    """
    with needed_for("export to GGUF"):
        import gguf
    if out.exists() and (out.is_dir() or not overwrite):
        fix = "name a file" if out.is_dir() else "choose another file, or replace it with --force"
        raise CheckpointError(f"{out}: exists; {fix}")
    config = source.model if with_mtp else source.model.model_copy(update={"num_nextn_predict_layers": 0})
    _check_model(config)
    directory = tokenizer_dir or source.tokenizer
    if directory is None:
        raise CheckpointError(f"{source.path}: has no tokenizer, which GGUF contains; pass one with --tokenizer")
    tokenizer = Tokenizer.load(directory)
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{directory}: the tokenizer has {tokenizer.vocab_size:,} tokens, but the model embeds "
            f"{config.vocab_size:,}; pass the tokenizer it was trained with (--tokenizer)"
        )
    tensors = list(_tensors(config, gguf.GGMLQuantizationType[TYPES[type_name]]))
    partial = out.with_name(f".{out.name}.partial-{socket.gethostname()}-{os.getpid()}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        writer = gguf.GGUFWriter(partial, _ARCHITECTURE)
        try:
            _add_metadata(writer, config, source.path.name, type_name)
            _add_tokenizer(writer, tokenizer, config.vocab_size)
            _write_tensors(writer, tensors, PieceSource(source.weights))
            writer.close()
            fsync_file(partial)
            _compare(partial, tensors, PieceSource(source.weights))
            partial.rename(out)
            fsync_directory(out.parent)
        finally:
            writer.close()
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(f"{out} was not written: {describe_os_error(error)}") from error
    return [each.name for each in tensors if type_name == "q8_0" and each.type.name == "F16"]


def _check_model(config: ModelConfig) -> None:
    if not config.lm_head or config.heads:
        raise CheckpointError("GGUF has no place for the model's heads; only a language model can be exported")
    if config.n_group != 1:
        raise CheckpointError(f"n_group {config.n_group}: llama.cpp's GLM routes in one group only")
    if config.first_k_dense_replace >= config.num_hidden_layers:
        raise CheckpointError("llama.cpp loads GLM with experts only; this model has none")


def _tensors(config: ModelConfig, usual: "GGMLQuantizationType") -> Iterator[_GgufTensor]:
    import gguf

    num_blocks = config.num_hidden_layers + config.num_nextn_predict_layers
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GLM4_MOE, num_blocks)
    for row in parameter_table(config).values():
        pieces = list(published_pieces(row))
        groups: dict[str, list[Piece]] = {}
        for piece in pieces:  # model.layers.1.mlp.experts.7.up_proj.weight -> model.layers.1.mlp.experts.up_proj.weight
            parts = piece.disk_name.split(".")
            groups.setdefault(".".join(parts[:5] + parts[6:]) if row.expert_parts else row.name, []).append(piece)
        for name, group in groups.items():
            shape = (len(group), *group[0].shape) if row.expert_parts else group[0].shape
            yield _GgufTensor(_gguf_name(names, name), tuple(group), shape, _type_of(name, shape, usual))


def _gguf_name(names: Any, name: str) -> str:
    if name.endswith("e_score_correction_bias"):  # not a module's bias in the model, but one to GGUF
        name = name.removesuffix("_bias") + ".bias"
    found = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert found is not None, f"{name} has no name in GGUF"
    return str(found)


def _type_of(name: str, shape: tuple[int, ...], usual: "GGMLQuantizationType") -> "GGMLQuantizationType":
    import gguf

    if name.endswith(_FULL_PRECISION):
        return gguf.GGMLQuantizationType.F32
    if usual == gguf.GGMLQuantizationType.Q8_0 and shape[-1] % _Q8_BLOCK:
        return gguf.GGMLQuantizationType.F16
    return usual


def _add_metadata(writer: "GGUFWriter", config: ModelConfig, name: str, type_name: str) -> None:
    import gguf

    writer.add_type("model")
    writer.add_name(name)
    writer.add_file_type(gguf.LlamaFileType[f"{'ALL' if type_name == 'f32' else 'MOSTLY'}_{TYPES[type_name]}"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_block_count(config.num_hidden_layers + config.num_nextn_predict_layers)
    if config.num_nextn_predict_layers:
        writer.add_nextn_predict_layers(config.num_nextn_predict_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_rope_dimension_count(int(config.head_dim * config.partial_rotary_factor))
    writer.add_vocab_size(config.vocab_size)
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_weights_norm(config.norm_topk_prob)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def _add_tokenizer(writer: "GGUFWriter", tokenizer: Tokenizer, vocab_size: int) -> None:
    """Byte-level BPE with GLM's split rule; rows of the embedding beyond the tokenizer are named and unused."""
    from gguf import TokenType

    content: Mapping[str, Any] = json.loads(tokenizer.to_json())
    tokens = [f"[PAD{index}]" for index in range(vocab_size)]
    types = [TokenType.UNUSED] * vocab_size
    for token, index in content["model"]["vocab"].items():
        tokens[index], types[index] = token, TokenType.NORMAL
    for added in content["added_tokens"]:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
    merges = content["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("glm4")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_bos_token_id(tokenizer.special_id("[gMASK]"))
    writer.add_eos_token_id(tokenizer.special_id(END_OF_TEXT))
    writer.add_pad_token_id(tokenizer.special_id(END_OF_TEXT))
    writer.add_eot_token_id(tokenizer.special_id(USER))
    writer.add_eom_token_id(tokenizer.special_id(OBSERVATION))
    writer.add_add_bos_token(False)
    writer.add_chat_template(tokenizer.chat_template)


def _write_tensors(writer: "GGUFWriter", tensors: list[_GgufTensor], source: PieceSource) -> None:
    for each in tensors:
        writer.add_tensor_info(each.name, each.shape, np.dtype(np.float32), each.num_bytes, raw_dtype=each.type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    assert writer.fout is not None
    (stream,) = writer.fout
    for each in tensors:
        writer.write_padding(stream, stream.tell())
        for piece in each.pieces:
            stream.write(_encode(_read(source, piece), each, piece).tobytes())
        writer.write_padding(stream, each.num_bytes)


def _read(source: PieceSource, piece: Piece) -> NDArray[np.float32]:
    array: NDArray[np.float32] = source.take(piece).detach().to(torch.float32).contiguous().numpy()
    return array


def _encode(values: NDArray[np.float32], tensor: _GgufTensor, piece: Piece) -> NDArray[Any]:
    from gguf.quants import quantize

    if tensor.type.name == "BF16":  # torch rounds as every exporter of checkpoints does; the package cuts subnormals
        return torch.from_numpy(values).to(torch.bfloat16).view(torch.uint8).numpy()
    if tensor.type.name == "F16" and np.abs(values).max(initial=0) > np.finfo(np.float16).max:
        raise CheckpointError(f"{piece.disk_name}: has values above 65,504, too large for f16; export bf16 or f32")
    encoded: NDArray[Any] = quantize(values, tensor.type)
    return encoded


def _compare(file: Path, tensors: list[_GgufTensor], source: PieceSource) -> None:
    """Read the file with the package's reader: exact after the cast, Q8_0 within half a step of each block."""
    from gguf import GGUFReader

    stored = {each.name: each for each in GGUFReader(file).tensors}
    for each in tensors:
        found = stored.pop(each.name, None)
        if found is None or tuple(reversed(found.shape.tolist())) != each.shape or found.tensor_type != each.type:
            raise CheckpointError(f"{file}: {each.name} was not read back as it was written; check the disk")
        rows = found.data.reshape(len(each.pieces), -1)
        for piece, row in zip(each.pieces, rows, strict=True):
            if not _agrees(row, _read(source, piece), each.type.name):
                raise CheckpointError(f"{file}: {piece.disk_name} was read back different; check the disk")
    if stored:
        raise CheckpointError(f"{file}: has {len(stored)} tensors that the model does not have")


def _agrees(stored: NDArray[Any], expected: NDArray[np.float32], type_name: str) -> bool:
    if type_name == "Q8_0":
        return _within_q8(stored, expected)
    bits = torch.from_numpy(stored.view(np.uint8).copy())
    dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[type_name]
    return torch.equal(bits, torch.from_numpy(expected).to(dtype).flatten().view(torch.uint8))


def _within_q8(stored: NDArray[Any], expected: NDArray[np.float32]) -> bool:
    """A value is off by half a step at most, and by what rounding the step to fp16 changes at 127 of them."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    values = expected.reshape(-1, _Q8_BLOCK)
    found = dequantize(stored.reshape(len(values), -1), GGMLQuantizationType.Q8_0)
    step = np.abs(values).max(axis=1, keepdims=True) / 127
    bound = step * (0.5 + 127 * 2.0**-11 + 1e-5) + 127 * 2.0**-25
    return bool((np.abs(found - values) <= bound).all())
