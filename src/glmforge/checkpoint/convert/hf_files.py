"""What a Hugging Face directory holds, compared with what its `config.json` promises before a tensor is read.

Published checkpoints, this project's exports and what transformers saves: from the shards' headers alone, missing,
unknown and mis-shaped tensors are errors that name them.

Two freedoms of the format are taken as they are: experts may lie packed or one by one, and MTP layers that
`config.json` announces may be absent altogether, as in everything transformers saves, which is answered with a
configuration without them.
"""

import logging
import reprlib
import threading
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

from glmforge.checkpoint.convert.hf_names import (
    INDEX_FILE,
    Piece,
    duplicates,
    mtp_prefixes,
    published_pieces,
    whole_piece,
)
from glmforge.checkpoint.format.safetensors_header import StoredTensor, read_header
from glmforge.checkpoint.format.safetensors_read import TensorFile
from glmforge.checkpoint.format.wording import list_some
from glmforge.config import ModelConfig, load_model_config
from glmforge.config.parameters import HEAD, parameter_table
from glmforge.errors import CheckpointError
from glmforge.files import kind_of, read_json, shown

SINGLE_FILE = "model.safetensors"

_MAX_INDEX_BYTES = 1 << 24  # that of GLM-4.5 has 5 MB
_MISSING_NAMED = 3

Plan = dict[str, list[Piece]]  # name in memory -> the tensors on disk that it is assembled from

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class HfFiles:
    """A directory whose files fit its configuration.

    Attributes:
        config: of what the files hold, so without MTP layers if they hold none.
        shards: the tensors on disk, by name.
        plan: for every tensor of `parameter_table(config)`, the tensors on disk that it is assembled from.
    """

    config: ModelConfig
    shards: "Shards"
    plan: Plan


def open_hf(directory: Path, *, thorough: bool = True, config: ModelConfig | None = None) -> HfFiles:
    """Open a directory and compare names and shapes with its `config.json`; no tensor is read.

    `thorough=False` believes the index and opens no shard, for ranks beside one that has looked into all. `config`
    stands in for `config.json`. Raises `CheckpointError`, `ConfigError` for `config.json`.
    """
    config = config or load_model_config(directory)
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
            "%s: config.json lists %d MTP layers but the files contain none; the model is built without",
            directory,
            len(prefixes),
        )
    return config.model_copy(update={"num_nextn_predict_layers": 0})


def _plan(config: ModelConfig, shards: "Shards", directory: Path) -> Plan:
    """Ends at the first few missing tensors: `config.json` may promise more than anybody could list."""
    names = shards.names()
    plan: Plan = {}
    missing: list[str] = []
    for name, row in parameter_table(config).items():
        pieces = iter([whole_piece(row)]) if name in names else published_pieces(row)
        plan[name] = []
        for piece in pieces:
            plan[name].append(piece)
            if piece.disk_name not in names:
                missing.append(piece.disk_name)
            if len(missing) > _MISSING_NAMED:
                break
        if len(missing) > _MISSING_NAMED:
            break
    if missing:
        more = " and more" if len(missing) > _MISSING_NAMED else ""
        raise CheckpointError(
            f"{shown(directory)}: {', '.join(missing[:_MISSING_NAMED])}{more} missing, required by config.json; is "
            "the download complete?"
        )
    return plan


def _check_unexpected(config: ModelConfig, shards: "Shards", plan: Plan, directory: Path) -> None:
    known = {piece.disk_name for pieces in plan.values() for piece in pieces} | duplicates(config).keys()
    if unexpected := sorted(shards.names() - known):
        named = list_some([shown(name) for name in unexpected])
        raise CheckpointError(
            f"{shown(directory)}: {named} in the files, but not in config.json's model "
            f"(num_hidden_layers {config.num_hidden_layers}, num_nextn_predict_layers "
            f"{config.num_nextn_predict_layers}; quantized checkpoints cannot be read)"
        )


def _check_shapes(shards: "Shards", plan: Plan) -> None:
    for piece in (piece for pieces in plan.values() for piece in pieces):
        if (shape := shards.shape(piece.disk_name)) != piece.shape:
            raise CheckpointError(
                f"{shown(shards.file(piece.disk_name))}: {piece.disk_name} is {list(shape)}, but config.json implies "
                f"{list(piece.shape)}; the files belong to different models"
            )


def check_types(shards: "Shards", pieces: Sequence[Piece]) -> None:
    """Refuse pieces of one packed tensor that are stored in several types; only headers are read."""
    first, first_dtype = pieces[0], shards.dtype(pieces[0].disk_name)
    for piece in pieces[1:]:
        if (dtype := shards.dtype(piece.disk_name)) != first_dtype:
            raise CheckpointError(
                f"{shown(shards.file(piece.disk_name))}: {piece.disk_name} is {dtype}, {first.disk_name} is "
                f"{first_dtype}; all experts of a layer must have one dtype"
            )


def different_duplicate(shards: "Shards", copy: str, name: str) -> CheckpointError:
    """The error for a repeated embedding or head that is not the main one."""
    return CheckpointError(
        f"{shards.file(copy)}: {copy} differs from {name}, which it must equal: "
        + (
            "set tie_word_embeddings to false in config.json"
            if copy == HEAD
            else "load it without MTP layers (with_mtp=False, or into a model without them)"
        )
    )


class Shards:
    """The tensors of all shards of a directory by name; a shard is opened when it is first needed.

    Several threads may read at once. `close` it when all is read.
    """

    def __init__(self, directory: Path, *, thorough: bool = True) -> None:
        self._headers: dict[Path, dict[str, StoredTensor]] = {}
        self._open: dict[Path, TensorFile] = {}
        self._opening = threading.Lock()
        self._file_of_tensor = self._locate(directory)
        for name in self._file_of_tensor if thorough else ():
            self._stored(name)

    def names(self) -> Set[str]:
        return self._file_of_tensor.keys()

    def file(self, name: str) -> Path:
        return self._file_of_tensor[name]

    def shape(self, name: str) -> tuple[int, ...]:
        return self._stored(name).shape

    def dtype(self, name: str) -> torch.dtype:
        """Type of a tensor, without reading it."""
        return self._stored(name).dtype

    def start(self, name: str) -> int:
        """Where in its file the bytes of a tensor begin."""
        return self._stored(name).start

    def read(self, name: str) -> Tensor:
        return self.read_part(name, tuple(slice(0, size) for size in self.shape(name)))

    def read_part(self, name: str, index: tuple[slice, ...], buffer: Tensor | None = None) -> Tensor:
        """`self.read(name)[index]`; only the bytes from its first element to its last are read; see `TensorFile`."""
        stored = self._stored(name)
        return self._tensor_file(self.file(name)).read(stored, index, buffer)

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()

    def _stored(self, name: str) -> StoredTensor:
        file = self.file(name)
        stored = self._header(file).get(name)
        if stored is None:
            raise CheckpointError(
                f"{shown(file)}: lacks {shown(name)}, which {INDEX_FILE} places there; download it again"
            )
        return stored

    def _locate(self, directory: Path) -> dict[str, Path]:
        index = directory / INDEX_FILE
        if kind_of(index, error=CheckpointError) is None:
            single = directory / SINGLE_FILE
            return dict.fromkeys(self._header(single), single)
        return _read_index(index)

    def _header(self, file: Path) -> dict[str, StoredTensor]:
        if file not in self._headers:
            self._headers[file] = read_header(file)
        return self._headers[file]

    def _tensor_file(self, file: Path) -> TensorFile:
        with self._opening:
            if file not in self._open:
                self._open[file] = TensorFile(file)
            return self._open[file]


def files_to_read(directory: Path) -> list[Path]:
    """The files that loading reads, there or not: the configuration, the index, and the shards that it names.

    Raises `CheckpointError` for an invalid index.
    """
    index = directory / INDEX_FILE
    if kind_of(index, error=CheckpointError) is None:
        return [directory / "config.json", directory / SINGLE_FILE]
    return [directory / "config.json", index, *sorted(set(_read_index(index).values()))]


def _read_index(index: Path) -> dict[str, Path]:
    """Name of a tensor -> file, beside the index or below."""
    content = read_json(index, dict, error=CheckpointError, max_bytes=_MAX_INDEX_BYTES)
    weight_map = content.get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointError(
            f"{shown(index)}: is not an index of safetensors files (no weight_map); download it again"
        )
    for name, file in weight_map.items():
        if not isinstance(file, str) or PurePosixPath(file).is_absolute() or ".." in PurePosixPath(file).parts:
            raise CheckpointError(
                f"{shown(index)}: places {shown(name)} in {reprlib.repr(file)}, which is not a file beside it; "
                "download it again"
            )
    return {name: index.parent / file for name, file in weight_map.items()}
