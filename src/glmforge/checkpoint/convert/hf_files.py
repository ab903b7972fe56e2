"""What a Hugging Face directory holds, compared with what its `config.json` promises before a tensor is read.

Published checkpoints, this project's exports and what transformers saves: from the shards' headers alone, missing,
unknown and mis-shaped tensors are errors that name them.

Two freedoms of the format are taken as they are: experts may lie packed or one by one, and MTP layers that
`config.json` announces may be absent altogether, as in everything transformers saves, which is answered with a
configuration without them.
"""

import json
import logging
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from glmforge.checkpoint.convert.hf_names import (
    INDEX_FILE,
    Piece,
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


@dataclass(frozen=True)
class HfFiles:
    """A directory whose files fit its configuration.

    Attributes:
        config: of what the files hold, so without MTP layers if they hold none.
        shards: the tensors on disk, by name.
        plan: for every tensor of `packed_shapes(config)`, the tensors on disk that it is put together from.
    """

    config: ModelConfig
    shards: "Shards"
    plan: Plan


def open_hf(directory: Path, *, thorough: bool = True) -> HfFiles:
    """Open a directory and compare names and shapes with its `config.json`; no tensor is read.

    `thorough=False` believes the index and opens no shard, for ranks beside one that has looked into all. Raises
    `CheckpointError`, `ConfigError` for `config.json`.
    """
    config = load_model_config(directory)
    shards = Shards(directory, thorough=thorough)
    config = _without_absent_mtp(config, shards, directory, say_so=thorough)
    plan = _plan(config, shards, directory)
    _check_unexpected(config, shards, plan, directory)
    if thorough:
        _check_shapes(shards, plan)
    return HfFiles(config, shards, plan)


def _without_absent_mtp(config: ModelConfig, shards: "Shards", directory: Path, *, say_so: bool) -> ModelConfig:
    prefixes = mtp_prefixes(config)
    if not prefixes or any(name.startswith(prefixes) for name in shards.names()):
        return config
    if say_so:
        logger.warning(
            "%s: config.json announces %d MTP layers but the files hold none; the model has none either",
            directory,
            len(prefixes),
        )
    return config.model_copy(update={"num_nextn_predict_layers": 0})


def _plan(config: ModelConfig, shards: "Shards", directory: Path) -> Plan:
    names = shards.names()
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


def _check_unexpected(config: ModelConfig, shards: "Shards", plan: Plan, directory: Path) -> None:
    known = {piece.disk_name for pieces in plan.values() for piece in pieces} | mtp_duplicates(config).keys()
    if unexpected := sorted(shards.names() - known):
        raise CheckpointError(
            f"{directory}: {list_some(unexpected)} in the files, but not in the model of config.json "
            f"(num_hidden_layers {config.num_hidden_layers}, num_nextn_predict_layers "
            f"{config.num_nextn_predict_layers}; quantized checkpoints cannot be read)"
        )


def _check_shapes(shards: "Shards", plan: Plan) -> None:
    for piece in (piece for pieces in plan.values() for piece in pieces):
        if (shape := shards.shape(piece.disk_name)) != piece.shape:
            raise CheckpointError(
                f"{shards.file(piece.disk_name)}: {piece.disk_name} is {list(shape)}, config.json makes it "
                f"{list(piece.shape)}; the two are not of one model"
            )


def check_types(shards: "Shards", pieces: Sequence[Piece]) -> None:
    """Refuse pieces of one packed tensor that are stored in several types; only headers are read."""
    first, first_dtype = pieces[0], shards.dtype(pieces[0].disk_name)
    for piece in pieces[1:]:
        if (dtype := shards.dtype(piece.disk_name)) != first_dtype:
            raise CheckpointError(
                f"{shards.file(piece.disk_name)}: {piece.disk_name} is {dtype}, {first.disk_name} is {first_dtype}; "
                "the experts of a layer must be of one type"
            )


def different_duplicate(shards: "Shards", copy: str, name: str) -> CheckpointError:
    """The error for a repeated embedding or head that is not the main one."""
    return CheckpointError(
        f"{shards.file(copy)}: {copy} differs from {name}; GLM shares the two: read it without MTP layers "
        "(with_mtp=False, or into a model that has none)"
    )


class Shards:
    """The tensors of all shards of a directory by name; a shard is opened when it is first needed."""

    def __init__(self, directory: Path, *, thorough: bool = True) -> None:
        self._open: dict[Path, Any] = {}
        self._file_of_tensor = self._locate(directory, thorough)

    def names(self) -> Set[str]:
        return self._file_of_tensor.keys()

    def file(self, name: str) -> Path:
        return self._file_of_tensor[name]

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._handle(self.file(name)).get_slice(name).get_shape())

    def read(self, name: str) -> Tensor:
        tensor: Tensor = self._handle(self.file(name)).get_tensor(name)
        return tensor

    def read_part(self, name: str, index: tuple[slice, ...]) -> Tensor:
        """`self.read(name)[index]`, but nothing else of the tensor is read."""
        part: Tensor = self._handle(self.file(name)).get_slice(name)[index]
        return part

    def dtype(self, name: str) -> torch.dtype:
        """Type of a tensor, without reading it."""
        return self.read_part(name, (slice(0, 0),)).dtype

    def _locate(self, directory: Path, thorough: bool) -> dict[str, Path]:
        index = directory / INDEX_FILE
        if not index.exists():
            single = directory / SINGLE_FILE
            return dict.fromkeys(self._handle(single).keys(), single)
        try:
            weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{index}: is no index of safetensors shards; download it again") from error
        file_of_tensor = {name: directory / file for name, file in weight_map.items()}
        if thorough:
            self._check_index(file_of_tensor)
        return file_of_tensor

    def _check_index(self, file_of_tensor: Mapping[str, Path]) -> None:
        held = {file: set(self._handle(file).keys()) for file in set(file_of_tensor.values())}
        for name, file in file_of_tensor.items():
            if name not in held[file]:
                raise CheckpointError(f"{file}: lacks {name}, which {INDEX_FILE} places there; download it again")

    def _handle(self, file: Path) -> Any:  # safetensors has no types
        if file not in self._open:
            try:
                self._open[file] = safe_open(file, framework="pt")
            except FileNotFoundError as error:
                raise CheckpointError(f"{file}: missing; download it, or export the model again") from error
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"{file}: cannot be read ({error}); it is damaged or cut off") from error
        return self._open[file]
