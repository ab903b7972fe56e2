"""A checkpoint of adapters: safetensors files with slices, and `metadata.json`, which says what lies in which of them.

    step-00000100/
      adapter_model.rank0.safetensors      rank 0's slices of the trained parameters
      training_state.rank0.safetensors     its slices of the optimizer's states, and its generator's state (mode full)
      metadata.json                        the tensors, the slices of each file, the base weights' fingerprint
      adapter_config.json                  as PEFT reads it, of the adapter that `glmforge adapter merge` makes of it
      meta.json, manifest.json             position and configuration; checksums: as in every checkpoint

DCP's format is not used here because its plan is made by all ranks together, at every save. Which rank writes which
slice of an adapter does not change during a run, so these files are written without a word between ranks. For whoever
reads them the difference ends here: `metadata.json` and the headers of the files become the same `Metadata` that DCP's
file becomes (`shard_metadata`), and reading on any layout, comparing and verifying are the same code.

The files name parameters as PEFT does, "base_model.model.<parameter>", with the shapes that they have here.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveInt, ValidationError
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from glmforge.checkpoint.format.safetensors_header import STATE_TYPES, StoredTensor, read_header
from glmforge.checkpoint.format.shard_metadata import fill
from glmforge.checkpoint.format.wording import describe_invalid
from glmforge.config.lora import LoraConfig
from glmforge.config.model import ModelConfig, Strict
from glmforge.errors import CheckpointError
from glmforge.files import read_bytes, shown

DESCRIPTION_FILE = "metadata.json"
CONFIG_FILE = "adapter_config.json"
FORMAT_VERSION = 1

PARAMETER_PREFIX = "model."
PEFT_PREFIX = "base_model.model."

Mode = Literal["lite", "full"]

_MAX_BYTES = 64 << 20
_MAX_DIMS = 8


class BaseWeights(Strict):
    """What the adapters were trained on."""

    source: str
    """Where they lay, in words."""
    fingerprint: str
    num_tensors: NonNegativeInt
    covers: Literal["samples", "all"] = "samples"
    """What the fingerprint is of: earlier versions did not say, and took samples of each tensor."""


class TensorInfo(Strict):
    """A whole tensor."""

    dtype: Literal[tuple(STATE_TYPES)]  # type: ignore[valid-type]
    shape: list[NonNegativeInt] = Field(max_length=_MAX_DIMS)


class Slice(Strict):
    """Where a part of a tensor lies in it."""

    offsets: list[NonNegativeInt] = Field(max_length=_MAX_DIMS)
    sizes: list[NonNegativeInt] = Field(max_length=_MAX_DIMS)


class Shard(Strict):
    """What one rank has written: name of a tensor -> its slice."""

    rank: NonNegativeInt
    slices: dict[str, Slice]


class ShardedAdapter(Strict):
    """The contents of `metadata.json`. Tensors have the names that a run asks for: "model.<parameter>"."""

    format: Literal["sharded_lora"] = "sharded_lora"
    format_version: PositiveInt = FORMAT_VERSION
    mode: Mode
    step: NonNegativeInt
    num_shards: PositiveInt
    """Ranks that have written, each its files."""
    model: ModelConfig
    """Of the base weights."""
    lora: LoraConfig
    base: BaseWeights
    tensors: dict[str, TensorInfo]
    shards: list[Shard]


def is_sharded_adapter(directory: Path) -> bool:
    """Whether the checkpoint is one of adapters in slices."""
    return (directory / DESCRIPTION_FILE).exists()


def read_adapter(directory: Path) -> ShardedAdapter:
    """What a checkpoint of adapters says of itself. Raises `CheckpointError`, also for one of a whole model."""
    if not is_sharded_adapter(directory):
        raise CheckpointError(f"{directory}: has no adapters; use 'glmforge export' to write its weights")
    return read_description(directory)


def is_lite(directory: Path) -> bool:
    """Whether it is one of adapters without optimizer states. Raises `CheckpointError`."""
    return is_sharded_adapter(directory) and read_description(directory).mode == "lite"


def read_description(directory: Path) -> ShardedAdapter:
    """Read `metadata.json`. Raises `CheckpointError`."""
    file = directory / DESCRIPTION_FILE
    content = read_bytes(file, error=CheckpointError, max_bytes=_MAX_BYTES)
    try:
        description = ShardedAdapter.model_validate_json(content)
    except ValidationError as error:
        where, message = describe_invalid(error)
        raise CheckpointError(f"{file}: {where}: {message}; damaged, or from another glmforge version") from error
    if description.format_version != FORMAT_VERSION:
        raise CheckpointError(
            f"{file}: format {shown(description.format_version)}, but this glmforge reads {FORMAT_VERSION}; use a "
            f"newer glmforge"
        )
    ranks = {shard.rank for shard in description.shards}
    if len(ranks) != len(description.shards) or len(ranks) != description.num_shards:
        raise CheckpointError(
            f"{file}: describes {len(ranks)} shards, but num_shards is {description.num_shards}; it is damaged"
        )
    return description


def file_of(name: str, rank: int) -> str:
    """The file that a rank's slice of a tensor lies in."""
    kind = "adapter_model" if name.startswith(PARAMETER_PREFIX) else "training_state"
    return f"{kind}.rank{rank}.safetensors"


def stored_name(name: str) -> str:
    """What a tensor is called in its file."""
    return PEFT_PREFIX + name.removeprefix(PARAMETER_PREFIX) if name.startswith(PARAMETER_PREFIX) else name


def read_slice_metadata(directory: Path) -> Metadata:
    """`metadata.json` and the headers of the files as DCP's metadata: checked as `read_shard_metadata` checks those.

    Raises `CheckpointError`.
    """
    description = read_description(directory)
    chunks: dict[str, list[ChunkStorageMetadata]] = {name: [] for name in description.tensors}
    places: dict[MetadataIndex, _StorageInfo] = {}
    for shard in description.shards:
        for name, part, file, stored in _stored_slices(directory, description, shard):
            offsets, sizes = torch.Size(part.offsets), torch.Size(part.sizes)
            chunks[name].append(ChunkStorageMetadata(offsets, sizes))
            num_bytes = math.prod(sizes) * stored.dtype.itemsize
            places[MetadataIndex(name, offsets)] = _StorageInfo(file, stored.start, num_bytes)
    tensors: dict[str, TensorStorageMetadata] = {}
    for name, info in description.tensors.items():
        if not fill(tuple(info.shape), [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in chunks[name]]):
            raise _damaged(directory, f"the slices of {shown(name)} do not make up {info.shape}")
        properties = TensorProperties(STATE_TYPES[info.dtype])
        tensors[name] = TensorStorageMetadata(properties, torch.Size(info.shape), chunks[name])
    return Metadata(state_dict_metadata=dict(tensors), storage_data=places)


def _stored_slices(
    directory: Path, description: ShardedAdapter, shard: Shard
) -> Iterator[tuple[str, Slice, str, StoredTensor]]:
    """A rank's slices with their files, as far as the two agree."""
    headers: dict[str, dict[str, StoredTensor]] = {}
    for name, part in shard.slices.items():
        file = file_of(name, shard.rank)
        if file not in headers:
            headers[file] = read_header(directory / file, STATE_TYPES)
        info, stored = description.tensors.get(name), headers[file].pop(stored_name(name), None)
        if info is None or stored is None:
            raise _damaged(directory, f"{shown(name)} is not a tensor in {file}")
        if (stored.shape, stored.dtype) != (tuple(part.sizes), STATE_TYPES[info.dtype]):
            raise _damaged(directory, f"{shown(name)} in {file} is {list(stored.shape)} of {stored.dtype}")
        yield name, part, file, stored
    for file, left in headers.items():
        if left:
            raise _damaged(directory, f"{file} holds {shown(next(iter(left)))} too")


def _damaged(directory: Path, how: str) -> CheckpointError:
    return CheckpointError(
        f"{directory / DESCRIPTION_FILE}: does not match the files next to it ({how}); use an older checkpoint"
    )
