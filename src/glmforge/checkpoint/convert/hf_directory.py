"""What a Hugging Face directory consists of, planned from shapes alone, and the files beside its tensors.

transformers' own model has no MTP layers. It passes over them in silence at the published depths (layers 46
and 92) and reports them as unexpected at any other; the trunk loads right at every depth. Engines that do use
them read `num_nextn_predict_layers`, so an export without MTP layers says 0 there: llama.cpp refuses it
otherwise.
"""

import json
import math
import shutil
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from glmforge.checkpoint.convert.hf_config import hf_config, hf_generation_config
from glmforge.checkpoint.convert.hf_names import (
    INDEX_FILE,
    Piece,
    mtp_duplicates,
    mtp_prefixes,
    published_pieces,
)
from glmforge.checkpoint.format.safetensors_header import STATE_TYPES, read_header
from glmforge.checkpoint.format.safetensors_read import TensorFile
from glmforge.checkpoint.format.wording import list_some
from glmforge.config.hf import SCORE
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import parameter_table
from glmforge.data.tokens.model_ids import with_ids_of
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import CheckpointError, DataError
from glmforge.runtime.durable import fsync_file, write_durably

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


@dataclass(frozen=True)
class ExportPlan:
    """What is written.

    Attributes:
        config: of the model as it is exported.
        dtype: of all tensors but the correction biases, which stay fp32.
        shards: the tensors of each file, in their order.
    """

    config: ModelConfig
    dtype: torch.dtype
    shards: Sequence[Sequence[Piece]]

    def file(self, shard: int) -> str:
        """Name of a shard's file."""
        return f"model-{shard + 1:05d}-of-{len(self.shards):05d}.safetensors"

    def write_rest(self, directory: Path, tokenizer_dir: Path | None) -> None:
        """Write all but the shards: their index, the configurations, the tokenizer."""
        files = {piece.disk_name: self.file(n) for n, shard in enumerate(self.shards) for piece in shard}
        total_bytes = sum(num_bytes(piece, self.dtype) for shard in self.shards for piece in shard)
        index = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(files.items()))}
        _write_json(directory / INDEX_FILE, index)
        _write_json(directory / "config.json", hf_config(self.config, self.dtype))
        if self.config.lm_head:
            _write_json(directory / "generation_config.json", hf_generation_config(self.config))
        if tokenizer_dir is not None:
            copy_tokenizer(tokenizer_dir, directory)


def plan_export(
    config: ModelConfig, *, dtype: torch.dtype, with_mtp: bool, duplicate_mtp_head: bool, max_shard_bytes: int
) -> ExportPlan:
    """Which tensors lie in which file, in the order of the layers."""
    if not with_mtp:
        config = config.model_copy(update={"num_nextn_predict_layers": 0})
    table = parameter_table(config)
    pieces = [piece for row in table.values() for piece in published_pieces(row)]
    if duplicate_mtp_head:
        if not mtp_prefixes(config):
            raise ValueError("duplicate_mtp_head needs MTP layers to be exported")
        pieces += [Piece(copy, name, (), table[name].shape) for copy, name in mtp_duplicates(config).items()]
    return ExportPlan(config, dtype, _fill_shards(pieces, dtype, max_shard_bytes))


def num_bytes(piece: Piece, dtype: torch.dtype) -> int:
    """Bytes of a tensor on disk."""
    return math.prod(piece.shape) * piece.dtype(dtype).itemsize


def check_names(names: Collection[str], config: ModelConfig) -> None:
    """Refuse a model that is not the one of `config`."""
    expected = parameter_table(config)
    if missing := [name for name in expected if name not in names]:
        raise CheckpointError(f"the model to export lacks {list_some(missing)}, which its configuration requires")
    if unexpected := [name for name in names if name not in expected]:
        raise CheckpointError(f"the model to export has {list_some(unexpected)}, unknown to its configuration")


def check_files(out_dir: Path, config: ModelConfig, *, overwrite: bool, tokenizer_dir: Path | None) -> ModelConfig:
    """`config` with the end tokens of the tokenizer that goes along, if one does.

    Raises `CheckpointError` for a directory that is taken, heads that the published format has no place for, and a
    tokenizer that cannot be read or has more tokens than the model.
    """
    if config.heads and (config.lm_head or config.heads.keys() != {SCORE}):
        raise CheckpointError(
            f"the model has heads ({', '.join(config.heads)}) that cannot be exported together with lm_head; only a "
            f"model with the single head '{SCORE}' and model.lm_head false can be exported (sequence classification)"
        )
    _check_target(out_dir, overwrite)
    return config if tokenizer_dir is None else _fit_tokenizer(tokenizer_dir, config)


def write_shard(file: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file, force it to the disk, read it again and compare it bit by bit.

    Raises `CheckpointError` for what the disk refuses, naming the first tensor that comes back different, or that has
    become infinite in fp16.
    """
    for name, tensor in tensors.items():
        if tensor.dtype == torch.float16 and torch.isinf(tensor).any():
            raise CheckpointError(f"{name}: has values above 65,504, too large for fp16; write bf16 or fp32")
    try:
        save_file(tensors, file, metadata={"format": "pt"})
    except SafetensorError as error:  # what the operating system refused is in its text only
        raise CheckpointError(f"{file} was not written: {error}; free space or choose another place") from error
    fsync_file(file)
    with closing(TensorFile(file)) as written:
        header = read_header(file, STATE_TYPES)
        for name, tensor in tensors.items():
            again = written.read(header[name], tuple(slice(0, size) for size in tensor.shape))
            if again.dtype != tensor.dtype or not _same_bits(again, tensor):
                raise CheckpointError(f"{file}: {name} was read back different from what was written; check the disk")


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """NaN equals itself, and 0 does not equal -0."""
    return torch.equal(a.flatten().view(torch.uint8), b.contiguous().flatten().view(torch.uint8))


def copy_tokenizer(source: Path, target: Path) -> list[str]:
    """Copy what a tokenizer consists of, and force it to the disk; the names of the files."""
    names = [name for name in _TOKENIZER_FILES if (source / name).exists()]
    for name in names:
        shutil.copyfile(source / name, target / name)
        fsync_file(target / name)
    return names


def _check_target(out_dir: Path, overwrite: bool) -> None:
    if not out_dir.exists() or (overwrite and (out_dir / INDEX_FILE).exists()):
        return
    if overwrite:
        raise CheckpointError(f"{out_dir}: exists and is not an earlier export; choose another directory")
    raise CheckpointError(f"{out_dir}: exists; choose another directory, or replace an earlier export with --force")


def _fit_tokenizer(directory: Path, config: ModelConfig) -> ModelConfig:
    try:
        tokenizer = Tokenizer.load(directory)
    except DataError as error:  # of the kind that all ranks of an export hear of
        raise CheckpointError(str(error)) from error
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{directory}: the tokenizer has {tokenizer.vocab_size:,} tokens, the model only {config.vocab_size:,} "
            "(vocab_size); give the tokenizer that the model was trained with"
        )
    return with_ids_of(config, tokenizer)


def _fill_shards(pieces: Sequence[Piece], dtype: torch.dtype, max_shard_bytes: int) -> list[list[Piece]]:
    """Fill one shard after the other; a tensor larger than a shard gets one of its own."""
    shards: list[list[Piece]] = [[]]
    filled = 0
    for piece in pieces:
        size = num_bytes(piece, dtype)
        if shards[-1] and filled + size > max_shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(piece)
        filled += size
    return shards


def _write_json(file: Path, content: object) -> None:
    write_durably(file, json.dumps(content, indent=2, ensure_ascii=False))
