"""DCP's `.metadata`, which tensors are stored in which parts and where, read as data and checked against the files.

The file is a pickle of torch's own classes; `inert_pickle` reads it without running it, and only what a checkpoint of
tensors consists of is taken: shapes, types, the parts of each tensor with their places. Objects that are no tensors,
which DCP would unpickle at loading, are refused. What is returned has been checked: the parts of a tensor lie within
it, do not overlap and fill it; each is stored once, inside a file that is there, in no fewer bytes than it needs. So
no tensor is larger than what the files hold.

`verify` reads it too. Parsing and checking take some 70 us for each stored part on one core of a busy machine, so about
14 s for 3,000 tensors cut into 64 parts each.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from glmforge.checkpoint.format.inert_pickle import MAX_BYTES, AnyName, InertPickleError, Made, Name, Pairs, parse
from glmforge.errors import CheckpointError
from glmforge.files import shown

METADATA_FILE = ".metadata"

DTYPES = {
    Name("torch", str(dtype).removeprefix("torch.")): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}
SIZE = Name("torch", "Size")

_DCP = "torch.distributed.checkpoint"
_METADATA = Name(f"{_DCP}.metadata", "Metadata")
_TENSOR = Name(f"{_DCP}.metadata", "TensorStorageMetadata")
_PROPERTIES = Name(f"{_DCP}.metadata", "TensorProperties")
_CHUNK = Name(f"{_DCP}.metadata", "ChunkStorageMetadata")
_INDEX = Name(f"{_DCP}.metadata", "MetadataIndex")
_PLACE = Name(f"{_DCP}.filesystem", "_StorageInfo")
_PASSED_OVER = (
    Name(f"{_DCP}.metadata", "StorageMeta"),
    Name(f"{_DCP}.metadata", "_MEM_FORMAT_ENCODING"),
    Name("torch.serialization", "_get_layout"),
    *(Name(module, kind) for module in ("pathlib", "pathlib._local") for kind in ("PosixPath", "WindowsPath")),
)
_ALLOWED = frozenset((_METADATA, _TENSOR, _PROPERTIES, _CHUNK, _INDEX, _PLACE, SIZE, *DTYPES, *_PASSED_OVER))

_MAX_DIMS = 8
_MAX_IRREGULAR_PARTS = 2048

_Box = tuple[tuple[int, ...], tuple[int, ...]]  # offsets and sizes


def read_shard_metadata(
    directory: Path, *, complete: bool = True, only: Callable[[str], bool] | None = None
) -> Metadata:
    """The metadata of the checkpoint `directory`, checked against the sizes of its files.

    `complete=False` is for a directory that lacks the files of other nodes. `only` is for checkpoints of other
    programs: the tensors whose names it accepts are taken, and all else that is stored is passed over unread. Raises
    `CheckpointError`.
    """
    file = directory / METADATA_FILE
    try:
        if file.stat().st_size > MAX_BYTES:
            raise CheckpointError(f"{file}: larger than the {MAX_BYTES:,} bytes that are read")
        root = parse(file.read_bytes(), _ALLOWED if only is None else AnyName())
        metadata = _metadata(root, only)
        if complete:
            _check_places(metadata, directory)
        return metadata
    except OSError as error:
        raise CheckpointError(f"{shown(error.filename or file)}: cannot be read ({error.strerror})") from error
    except InertPickleError as error:
        raise CheckpointError(
            f"{file}: not the metadata of a tensor checkpoint ({error}); no code from it was run; use a checkpoint "
            "from a source you trust, or an older one"
        ) from error


def state_of(value: object, maker: Name) -> dict[str, Any]:
    """The fields of an object that `maker` was to make."""
    if isinstance(value, Made) and value.maker == maker and value.args == () and isinstance(value.state, Pairs):
        return value.state.fields()
    raise InertPickleError(f"something else in place of a {maker.attribute}")


def size_of(value: object) -> tuple[int, ...]:
    """A `torch.Size`."""
    if type(value) is not Made or value.maker != SIZE or len(value.args) != 1:
        raise InertPickleError("an invalid shape")
    return numbers_of(value.args[0])


def numbers_of(value: object) -> tuple[int, ...]:
    """A tuple of numbers from 0 on, one for each dim."""
    if type(value) is not tuple or len(value) > _MAX_DIMS or any(type(n) is not int or n < 0 for n in value):
        raise InertPickleError("an invalid shape")
    return value


def _metadata(root: object, only: Callable[[str], bool] | None) -> Metadata:
    fields = state_of(root, _METADATA)
    tensors, places = fields.get("state_dict_metadata"), fields.get("storage_data")
    if type(tensors) is not Pairs or type(places) is not Pairs:
        raise InertPickleError("it lists no tensors")
    if only is None and fields.get("planner_data") is not None:
        raise InertPickleError("it is not from a glmforge checkpoint")
    taken = {name: value for name, value in tensors.fields().items() if only is None or only(name)}
    stored = {name: _tensor(name, value) for name, value in taken.items()}
    return Metadata(state_dict_metadata=dict(stored), storage_data=dict(_places(places, only)))


def _tensor(name: str, value: object) -> TensorStorageMetadata:
    fields = state_of(value, _TENSOR)
    size, chunks = size_of(fields.get("size")), fields.get("chunks")
    if type(chunks) is not list or not name.isprintable():
        raise InertPickleError(f"{name[:100]!r} has no parts")
    boxes = [_box(chunk) for chunk in chunks]
    if not fill(size, boxes):
        raise InertPickleError(f"the parts of {name} do not make up {list(size)}")
    parts = [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in boxes]
    return TensorStorageMetadata(TensorProperties(_dtype(fields.get("properties"))), torch.Size(size), parts)


def _dtype(value: object) -> torch.dtype:
    """Of a tensor's properties; the others are the same for all tensors, and deprecated."""
    state = value.state if isinstance(value, Made) and value.maker == _PROPERTIES else None
    if isinstance(state, tuple) and len(state) == 5 and isinstance(state[0], Name) and state[0] in DTYPES:
        return DTYPES[state[0]]
    raise InertPickleError("a tensor of an unknown type")


def _box(value: object) -> _Box:
    fields = state_of(value, _CHUNK)
    return size_of(fields.get("offsets")), size_of(fields.get("sizes"))


def fill(size: tuple[int, ...], boxes: list[_Box]) -> bool:
    """Whether the boxes lie within `size`, do not overlap and leave nothing out."""
    for offsets, sizes in boxes:
        if not len(offsets) == len(sizes) == len(size):
            return False
        if any(offset + length > whole for offset, length, whole in zip(offsets, sizes, size, strict=True)):
            return False
    filled = [box for box in boxes if math.prod(box[1])]
    if sum(math.prod(sizes) for _, sizes in filled) != math.prod(size):
        return False
    return _is_grid(size, filled) or (len(filled) <= _MAX_IRREGULAR_PARTS and not _any_overlap(filled))


def _is_grid(size: tuple[int, ...], boxes: list[_Box]) -> bool:
    """Whether each box ends, in each dim, where the next ones begin: then equal volume means that they fill it."""
    if len({offsets for offsets, _ in boxes}) < len(boxes):
        return False
    following = []
    for dim, whole in enumerate(size):
        starts = sorted({offsets[dim] for offsets, _ in boxes})
        following.append(dict(zip(starts, [*starts[1:], whole], strict=True)) if starts else {})
    return all(
        offsets[dim] + sizes[dim] == following[dim][offsets[dim]]
        for offsets, sizes in boxes
        for dim in range(len(size))
    )


def _any_overlap(boxes: list[_Box]) -> bool:
    return any(
        all(a < b + n and b < a + m for a, m, b, n in zip(*first, *second, strict=True))
        for i, first in enumerate(boxes)
        for second in boxes[:i]
    )


def _places(pairs: Pairs, only: Callable[[str], bool] | None) -> Iterable[tuple[MetadataIndex, _StorageInfo]]:
    for key, value in pairs:
        index = state_of(key, _INDEX)
        name, hint = index.get("fqn"), index.get("index")
        if only is not None and not (type(name) is str and only(name)):
            continue
        place = state_of(value, _PLACE)
        file = place.get("relative_path")
        offset, length = numbers_of((place.get("offset"), place.get("length")))
        if type(name) is not str or type(file) is not str or not (hint is None or type(hint) is int):
            raise InertPickleError("a part without a name or a file")
        if PurePath(file).name != file or place.get("transform_descriptors") is not None:
            raise InertPickleError(f"a part in {file[:100]!r}, which is not a file in this directory")
        yield MetadataIndex(name, size_of(index.get("offset")), hint), _StorageInfo(file, offset, length)


def _check_places(metadata: Metadata, directory: Path) -> None:
    """Each part of each tensor must have a place of enough bytes inside a file, and nothing else may have one."""
    places: Mapping[MetadataIndex, _StorageInfo] = metadata.storage_data
    sizes: dict[str, int] = {}
    found = 0
    for name, tensor in metadata.state_dict_metadata.items():
        assert isinstance(tensor, TensorStorageMetadata)
        for chunk in tensor.chunks:
            place = places.get(MetadataIndex(name, chunk.offsets))
            if place is None:
                raise InertPickleError(f"a part of {name} is stored nowhere")
            if not place.relative_path.isprintable():
                raise InertPickleError(f"a part of {name} is in a file with an invalid name")
            if place.relative_path not in sizes:
                sizes[place.relative_path] = (directory / place.relative_path).stat().st_size
            needed = math.prod(chunk.sizes) * tensor.properties.dtype.itemsize
            if place.length < needed or place.offset + place.length > sizes[place.relative_path]:
                raise InertPickleError(f"a part of {name} has no room in {place.relative_path}")
            found += 1
    if found != len(places):
        raise InertPickleError("parts of tensors that it does not have")
