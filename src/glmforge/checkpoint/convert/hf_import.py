"""Read a Hugging Face checkpoint: published ones, this project's exports and what transformers saves.

What is in the files is compared with what `config.json` promises before a tensor is read, from the shards'
headers alone: missing, unknown and mis-shaped tensors are errors that name them. Tensors are then read one by
one, experts packed as they come, so no more than one packed tensor is in memory beyond what the caller keeps.

Three freedoms of the format are taken as they are: experts may lie packed or one by one; MTP layers may
repeat the embedding and the head (GLM-4.5), which must then equal the main ones; and MTP layers that
`config.json` announces may be absent altogether, as in everything transformers saves, which is answered with
a configuration without them.
"""

import json
import logging
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from glmforge.checkpoint.convert.hf_names import (
    INDEX_FILE,
    Piece,
    Shape,
    disk_dtype,
    mtp_duplicates,
    mtp_prefixes,
    packed_shapes,
    published_pieces,
    whole_piece,
)
from glmforge.checkpoint.wording import list_some
from glmforge.config import ModelConfig, load_model_config
from glmforge.errors import CheckpointError

SINGLE_FILE = "model.safetensors"

Plan = dict[str, list[Piece]]  # name in memory -> the tensors on disk that it is put together from

logger = logging.getLogger(__name__)


def import_hf(
    directory: Path, *, dtype: torch.dtype | None = None, with_mtp: bool = True
) -> tuple[ModelConfig, Iterator[tuple[str, Tensor]]]:
    """The configuration, and lazily the `(name, tensor)` of all its `packed_shapes`, in that order.

    Tensors are CPU tensors of the stored type, or of `dtype`; correction biases always fp32. `with_mtp=False`
    leaves the MTP layers out of both. Raises `CheckpointError` (`ConfigError` for `config.json`) if a file is
    missing or damaged or the tensors are not those the configuration promises, and, while tensors are read,
    if a repeated embedding or head differs from the main one.
    """
    config = load_model_config(directory)
    files = _Shards(directory)
    config = _without_absent_mtp(config, files, directory)
    plan = _plan(config, files, directory)
    _check_unexpected(config, files, plan, directory)
    _check_shapes(files, plan)
    if not with_mtp:
        config = config.model_copy(update={"num_nextn_predict_layers": 0})
    return config, _read(config, files, plan, dtype)


def _without_absent_mtp(config: ModelConfig, files: "_Shards", directory: Path) -> ModelConfig:
    prefixes = mtp_prefixes(config)
    if not prefixes or any(name.startswith(prefixes) for name in files.names()):
        return config
    logger.warning(
        "%s: config.json announces %d MTP layers but the files hold none; the model has none either",
        directory,
        len(prefixes),
    )
    return config.model_copy(update={"num_nextn_predict_layers": 0})


def _plan(config: ModelConfig, files: "_Shards", directory: Path) -> Plan:
    names = files.names()
    plan = {
        name: [whole_piece(name, shape)] if name in names else published_pieces(name, shape)
        for name, shape in packed_shapes(config).items()
    }
    wanted = [piece.disk_name for pieces in plan.values() for piece in pieces]
    if missing := [name for name in wanted if name not in names]:
        raise CheckpointError(
            f"{directory}: {list_some(missing)} missing; config.json asks for them: is the download complete?"
        )
    return plan


def _check_unexpected(config: ModelConfig, files: "_Shards", plan: Plan, directory: Path) -> None:
    known = {piece.disk_name for pieces in plan.values() for piece in pieces} | mtp_duplicates(config).keys()
    if unexpected := sorted(files.names() - known):
        raise CheckpointError(
            f"{directory}: {list_some(unexpected)} in the files, but not in the model of config.json "
            f"(num_hidden_layers {config.num_hidden_layers}, num_nextn_predict_layers "
            f"{config.num_nextn_predict_layers}; quantized checkpoints cannot be read)"
        )


def _check_shapes(files: "_Shards", plan: Plan) -> None:
    for piece in (piece for pieces in plan.values() for piece in pieces):
        if (shape := files.shape(piece.disk_name)) != piece.shape:
            raise CheckpointError(
                f"{files.file(piece.disk_name)}: {piece.disk_name} is {list(shape)}, config.json makes it "
                f"{list(piece.shape)}; the two are not of one model"
            )


def _read(config: ModelConfig, files: "_Shards", plan: Plan, dtype: torch.dtype | None) -> Iterator[tuple[str, Tensor]]:
    duplicates = mtp_duplicates(config)
    for name, shape in packed_shapes(config).items():
        tensor = _assemble(files, plan[name], shape)
        for copy in (copy for copy, original in duplicates.items() if original == name):
            _check_duplicate(files, copy, name, tensor)
        yield name, tensor.to(disk_dtype(name, dtype or tensor.dtype))


def _assemble(files: "_Shards", pieces: Sequence[Piece], shape: Shape) -> Tensor:
    first = files.read(pieces[0].disk_name)
    if not pieces[0].index:
        return first
    packed = torch.empty(shape, dtype=first.dtype)
    for piece in pieces:
        part = files.read(piece.disk_name)
        if part.dtype != packed.dtype:
            raise CheckpointError(
                f"{files.file(piece.disk_name)}: {piece.disk_name} is {part.dtype}, {pieces[0].disk_name} is "
                f"{packed.dtype}; the experts of a layer must be of one type"
            )
        packed[piece.index] = part
    return packed


def _check_duplicate(files: "_Shards", copy: str, name: str, tensor: Tensor) -> None:
    if copy in files.names() and not torch.equal(files.read(copy), tensor):
        raise CheckpointError(
            f"{files.file(copy)}: {copy} differs from {name}; GLM shares the two: read it without MTP layers "
            "(with_mtp=False)"
        )


class _Shards:
    """The tensors of all shards of a directory by name; a shard is opened when it is first needed."""

    def __init__(self, directory: Path) -> None:
        self._open: dict[Path, Any] = {}
        self._file_of_tensor = self._locate(directory)

    def names(self) -> Set[str]:
        return self._file_of_tensor.keys()

    def file(self, name: str) -> Path:
        return self._file_of_tensor[name]

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._handle(self.file(name)).get_slice(name).get_shape())

    def read(self, name: str) -> Tensor:
        tensor: Tensor = self._handle(self.file(name)).get_tensor(name)
        return tensor

    def _locate(self, directory: Path) -> dict[str, Path]:
        index = directory / INDEX_FILE
        if not index.exists():
            single = directory / SINGLE_FILE
            return dict.fromkeys(self._handle(single).keys(), single)
        try:
            weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{index}: is no index of safetensors shards; download it again") from error
        file_of_tensor = {name: directory / file for name, file in weight_map.items()}
        held = {file: set(self._handle(file).keys()) for file in set(file_of_tensor.values())}
        for name, file in file_of_tensor.items():
            if name not in held[file]:
                raise CheckpointError(f"{file}: lacks {name}, which {INDEX_FILE} places there; download it again")
        return file_of_tensor

    def _handle(self, file: Path) -> Any:  # safetensors has no types
        if file not in self._open:
            try:
                self._open[file] = safe_open(file, framework="pt")
            except FileNotFoundError as error:
                raise CheckpointError(f"{file}: missing; download it, or export the model again") from error
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"{file}: cannot be read ({error}); it is damaged or cut off") from error
        return self._open[file]
