"""The header of a safetensors file, read and checked by itself.

A file is 8 bytes with the length of the header, the header in JSON (name -> type, shape, place of the bytes), and the
tensors. What is read of a tensor is read at the place that is found here: it is known beforehand that the file is a
regular one, that its header is of sensible size and form, and that it is exactly as long as its header says. Names,
shapes and types are taken from here too, so that a directory can be compared with its `config.json` without reading a
single tensor.
"""

import math
import os
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import torch

from glmforge.errors import CheckpointError
from glmforge.files import kind_of, parse_json, shown

MAX_HEADER_BYTES = 1 << 24
"""Forty times that of a published shard; one file with all experts of GLM-4.5 would have half of it."""

TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Types of weights that can be read; the others are those of quantized ones."""

STATE_TYPES = TYPES | {"I64": torch.int64, "I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool}
"""Those of optimizer and generator states too."""

QUANTISED_TYPES = TYPES | {"F8_E4M3": torch.float8_e4m3fn, "I32": torch.int32, "I64": torch.int64}
"""Those of weights that `glmforge.deploy.quantize` writes."""

_LENGTH_BYTES = 8
_MAX_DIMS = 8


@dataclass(frozen=True)
class StoredTensor:
    """What a header says of one tensor; its bytes, row by row, begin at byte `start` of the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int


def read_header(file: Path, types: Mapping[str, torch.dtype] = TYPES) -> dict[str, StoredTensor]:
    """Name -> tensor. Raises `CheckpointError` naming the file if it is missing, damaged or cut off."""
    kind = kind_of(file, error=CheckpointError)
    if kind is None:
        raise CheckpointError(f"{shown(file)}: missing; download it, or export the model again")
    if kind != "file":
        raise CheckpointError(f"{shown(file)}: is not a regular file; download it, or export the model again")
    try:
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            if size < _LENGTH_BYTES or length > min(size - _LENGTH_BYTES, MAX_HEADER_BYTES):
                raise _damaged(file, f"a header of {length:,} bytes in a file of {size:,} bytes")
            text = stream.read(length)
    except OSError as error:
        raise CheckpointError(f"{shown(file)}: cannot be read: {error.strerror}") from error
    header = _parse(file, text)
    header.pop("__metadata__", None)
    end = max([0, *(_place(file, name, entry) for name, entry in header.items())])
    if _LENGTH_BYTES + length + end != size:
        raise _damaged(file, f"{size:,} bytes, but its header implies {_LENGTH_BYTES + length + end:,}")
    first = _LENGTH_BYTES + length
    return {name: _tensor(file, name, entry, types, first) for name, entry in header.items()}


def _parse(file: Path, text: bytes) -> dict[str, Any]:
    try:
        return parse_json(text.decode("utf-8"), dict, source=f"{shown(file)}: its header", error=CheckpointError)
    except UnicodeDecodeError:
        raise _damaged(file, "its header is not UTF-8 text") from None


def _place(file: Path, name: str, entry: object) -> int:
    """Where the tensor's bytes end, if the entry has all that an entry must have."""
    if not isinstance(entry, dict):
        raise _damaged(file, f"its header has {reprlib.repr(entry)} for {shown(name)}")
    place, shape = entry.get("data_offsets"), entry.get("shape")
    if not _are_counts(place) or len(place) != 2 or not _are_counts(shape) or len(shape) > _MAX_DIMS:
        raise _damaged(
            file, f"shape or offsets of {shown(name)} are invalid: {reprlib.repr(shape)}, {reprlib.repr(place)}"
        )
    return int(place[1])


def _tensor(file: Path, name: str, entry: dict[str, Any], types: Mapping[str, torch.dtype], first: int) -> StoredTensor:
    found, shape, (start, stop) = entry.get("dtype"), entry["shape"], entry["data_offsets"]
    dtype = types.get(found) if isinstance(found, str) else None
    if dtype is None:
        raise CheckpointError(
            f"{shown(file)}: {shown(name)} is of type {reprlib.repr(found)}; only {', '.join(types)} are supported, "
            "and no quantized weights"
        )
    if math.prod(shape) * dtype.itemsize != stop - start:
        raise _damaged(file, f"{shown(name)} has {stop - start:,} bytes for {dtype} {shape}")
    return StoredTensor(dtype, tuple(shape), first + start)


def _are_counts(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _damaged(file: Path, how: str) -> CheckpointError:
    return CheckpointError(f"{shown(file)}: is damaged or truncated ({how}); download it, or export the model again")
