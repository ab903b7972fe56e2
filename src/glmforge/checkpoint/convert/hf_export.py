"""Write a Hugging Face checkpoint: safetensors shards, their index, the configurations, the tokenizer.

The shards are planned from shapes alone and written one by one, so no more than one shard and one tensor of
the model are in memory; `state` may be a mapping that reads its tensors when asked (`StoredTensors`). The
directory appears under its name when it is complete.

transformers' own model has no MTP layers. It passes over them in silence at the published depths (layers 46
and 92) and reports them as unexpected at any other; the trunk loads right at every depth. Engines that do use
them read `num_nextn_predict_layers`, so an export without MTP layers says 0 there: llama.cpp refuses it
otherwise.
"""

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from glmforge.checkpoint.convert.hf_config import hf_config, hf_generation_config
from glmforge.checkpoint.convert.hf_names import (
    INDEX_FILE,
    Piece,
    disk_dtype,
    mtp_duplicates,
    mtp_prefixes,
    packed_shapes,
    published_pieces,
)
from glmforge.checkpoint.durable import fsync_file, write_durably
from glmforge.checkpoint.store import make_partial, publish
from glmforge.checkpoint.wording import describe_os_error, list_some
from glmforge.config.model import ModelConfig
from glmforge.errors import CheckpointError

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def export_hf(
    state: Mapping[str, Tensor],
    config: ModelConfig,
    out_dir: Path,
    *,
    dtype: torch.dtype = torch.bfloat16,
    with_mtp: bool = True,
    duplicate_mtp_head: bool = False,
    tokenizer_dir: Path | None = None,
    max_shard_bytes: int = 5_000_000_000,
    overwrite: bool = False,
) -> None:
    """Write `state`, plain tensors with names and shapes of `packed_shapes(config)`, into `out_dir`.

    `with_mtp=False` leaves the MTP layers out and says so in the configuration. `duplicate_mtp_head=True`
    repeats embedding and head in each MTP layer, as GLM-4.5 does and GLM-4.6 does not. `overwrite` replaces
    an earlier export, and nothing else. Raises `CheckpointError` if the tensors do not fit `config`, the
    tokenizer does not fit the vocabulary, `out_dir` is taken, or the disk refuses.
    """
    _check_state(state, config)
    _check_target(out_dir, overwrite)
    if tokenizer_dir is not None:
        _check_tokenizer(tokenizer_dir, config)
    if not with_mtp:
        config = config.model_copy(update={"num_nextn_predict_layers": 0})
    pieces = _pieces(config, duplicate_mtp_head)
    try:
        partial = make_partial(out_dir)
        try:
            _write_shards(partial, state, pieces, dtype, max_shard_bytes)
            _write_json(partial / "config.json", hf_config(config, dtype))
            _write_json(partial / "generation_config.json", hf_generation_config(config))
            if tokenizer_dir is not None:
                _copy_tokenizer(tokenizer_dir, partial)
            publish(partial, out_dir)
        finally:
            shutil.rmtree(partial, ignore_errors=True)  # gone already if it was published
    except OSError as error:
        raise CheckpointError(f"{out_dir} was not written: {describe_os_error(error)}") from error


def _check_state(state: Mapping[str, Tensor], config: ModelConfig) -> None:
    expected = packed_shapes(config)
    if missing := [name for name in expected if name not in state]:
        raise CheckpointError(f"the model to export lacks {list_some(missing)}, which its configuration asks for")
    if unexpected := [name for name in state if name not in expected]:
        raise CheckpointError(f"the model to export has {list_some(unexpected)}, unknown to its configuration")


def _check_target(out_dir: Path, overwrite: bool) -> None:
    if not out_dir.exists() or (overwrite and (out_dir / INDEX_FILE).exists()):
        return
    if overwrite:
        raise CheckpointError(f"{out_dir}: exists and is no earlier export; choose another directory")
    raise CheckpointError(f"{out_dir}: exists; remove it or choose another directory")


def _check_tokenizer(directory: Path, config: ModelConfig) -> None:
    file = directory / "tokenizer.json"
    if not file.exists():
        raise CheckpointError(f"{file}: missing; give the directory that 'glmforge data tokenizer' wrote")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        ids = [*content["model"]["vocab"].values(), *(token["id"] for token in content["added_tokens"])]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file}: is not a BPE tokenizer as 'glmforge data tokenizer' writes it") from error
    if max(ids) >= config.vocab_size:
        raise CheckpointError(
            f"{file}: has the token id {max(ids):,}, the model only {config.vocab_size:,} (vocab_size); "
            "give the tokenizer that the model was trained with"
        )


def _pieces(config: ModelConfig, duplicate_mtp_head: bool) -> list[Piece]:
    """What is written, in this order."""
    shapes = packed_shapes(config)
    pieces = [piece for name, shape in shapes.items() for piece in published_pieces(name, shape)]
    if duplicate_mtp_head:
        if not mtp_prefixes(config):
            raise ValueError("duplicate_mtp_head needs MTP layers to be exported")
        pieces += [Piece(copy, name, (), shapes[name]) for copy, name in mtp_duplicates(config).items()]
    return pieces


def _write_shards(
    directory: Path,
    state: Mapping[str, Tensor],
    pieces: Sequence[Piece],
    dtype: torch.dtype,
    max_shard_bytes: int,
) -> None:
    shards = _plan_shards(pieces, dtype, max_shard_bytes)
    source = _Source(state)
    file_of_tensor: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        # Copies, because safetensors refuses tensors that share memory, and so that the packed one is freed.
        tensors = {
            piece.disk_name: source.take(piece).to(disk_dtype(piece.name, dtype), copy=True).contiguous()
            for piece in shard
        }
        _write_shard(directory / file, tensors)
        file_of_tensor |= dict.fromkeys(tensors, file)
    total_bytes = sum(_num_bytes(piece, dtype) for piece in pieces)
    index = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(file_of_tensor.items()))}
    _write_json(directory / INDEX_FILE, index)


def _plan_shards(pieces: Sequence[Piece], dtype: torch.dtype, max_shard_bytes: int) -> list[list[Piece]]:
    """Fill one shard after the other; a tensor larger than a shard gets one of its own."""
    shards: list[list[Piece]] = [[]]
    filled = 0
    for piece in pieces:
        size = _num_bytes(piece, dtype)
        if shards[-1] and filled + size > max_shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(piece)
        filled += size
    return shards


def _num_bytes(piece: Piece, dtype: torch.dtype) -> int:
    return math.prod(piece.shape) * disk_dtype(piece.name, dtype).itemsize


class _Source:
    """Takes pieces out of tensors, holding on to the last tensor: a layer's experts come from one."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self._state = state
        self._name = ""
        self._tensor = torch.empty(0)

    def take(self, piece: Piece) -> Tensor:
        if piece.name != self._name:
            self._tensor = self._state[piece.name].detach()
            self._name = piece.name
        part = self._tensor[piece.index]
        if part.shape != piece.shape:
            raise CheckpointError(
                f"the model to export does not fit its configuration: {piece.disk_name} would be "
                f"{list(part.shape)} and has to be {list(piece.shape)}"
            )
        return part


def _write_shard(file: Path, tensors: dict[str, Tensor]) -> None:
    try:
        save_file(tensors, file, metadata={"format": "pt"})
    except SafetensorError as error:  # what the operating system refused is in its text only
        raise CheckpointError(f"{file} was not written: {error}; free space or choose another place") from error
    fsync_file(file)


def _copy_tokenizer(source: Path, target: Path) -> None:
    for name in _TOKENIZER_FILES:
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)
            fsync_file(target / name)


def _write_json(file: Path, content: object) -> None:
    write_durably(file, json.dumps(content, indent=2, ensure_ascii=False))
