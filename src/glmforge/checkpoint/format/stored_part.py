"""A stored part of a tensor: the archive that `torch.save` makes of it, read without unpickling anything.

DCP stores each part as such an archive: a zip file without compression, whose `data.pkl` says of which type, shape and
strides the tensor is, and whose `data/0` is its memory. `torch.load` would run the first (in a machine of its own that
allows some two hundred classes and functions), read all of the second, unpack it if it claims to be packed, and take
other formats that begin otherwise. Here the header is read as data and must say what `.metadata` says, and of the
memory only the bytes that are requested are read.
"""

import io
import math
import struct
import zipfile
from collections.abc import Sequence
from io import BufferedReader
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glmforge.checkpoint.format.inert_pickle import InertPickleError, Made, Name, Persistent, parse
from glmforge.checkpoint.format.shard_metadata import DTYPES, numbers_of

_STORAGES = {
    Name("torch", f"{name}Storage"): dtype
    for name, dtype in {
        **{"Double": torch.float64, "Float": torch.float32, "BFloat16": torch.bfloat16, "Half": torch.float16},
        **{"Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8},
        **{"Byte": torch.uint8, "Bool": torch.bool},
    }.items()
}
_REBUILD = Name("torch._utils", "_rebuild_tensor_v2")
_REBUILD_UNTYPED = Name("torch._utils", "_rebuild_tensor_v3")
_UNTYPED = Name("torch.storage", "UntypedStorage")
_HOOKS = Name("collections", "OrderedDict")
_ALLOWED = frozenset((_REBUILD, _REBUILD_UNTYPED, _UNTYPED, _HOOKS, *_STORAGES, *DTYPES))

_MAX_HEADER_BYTES = 1 << 14
_LOCAL_HEADER = struct.Struct("<26xHH")  # lengths of the name and of the extra field that follow


class StoredPart(NamedTuple):
    """Where the elements of a part lie. `first_byte` is that of its memory in the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    first_element: int
    first_byte: int

    def read(self, file: BufferedReader, offsets: Sequence[int], sizes: Sequence[int]) -> Tensor:
        """The elements [offsets, offsets + sizes) of the part. Raises `InertPickleError`."""
        ends = zip(offsets, sizes, self.shape, strict=True)
        if any(offset < 0 or size < 0 or offset + size > whole for offset, size, whole in ends):
            raise InertPickleError("fewer elements are stored than requested")
        if not math.prod(sizes):
            return torch.empty(*sizes, dtype=self.dtype)
        first = self.first_element + sum(n * stride for n, stride in zip(offsets, self.strides, strict=True))
        span = extent(sizes, self.strides)
        memory = np.empty(span * self.dtype.itemsize, np.uint8)
        file.seek(self.first_byte + first * self.dtype.itemsize)
        if _read_fully(file, memory) < len(memory):
            raise InertPickleError("the file is truncated")
        return torch.from_numpy(memory).view(self.dtype).as_strided(tuple(sizes), self.strides)


def plain_part(dtype: torch.dtype, shape: tuple[int, ...], first_byte: int) -> StoredPart:
    """A part that lies in a file element by element, without a header of its own."""
    strides = tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
    return StoredPart(dtype, shape, strides, 0, first_byte)


def read_part_header(file: BufferedReader, start: int, length: int) -> StoredPart:
    """The part in the archive [start, start + length) of `file`. Raises `InertPickleError`, `OSError`."""
    archive = Archive(file, start, length)
    return archive.part(parse(archive.pickle(_MAX_HEADER_BYTES), _ALLOWED))


class Archive:
    """What `torch.save` has written to [start, start + length) of `file`. Raises `InertPickleError`, `OSError`."""

    def __init__(self, file: BufferedReader, start: int, length: int) -> None:
        self._place = file, start, length
        try:
            with zipfile.ZipFile(_Window(file, start, length)) as archive:
                self._members = {info.filename.partition("/")[2]: info for info in archive.infolist()}
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, EOFError, OverflowError) as error:
            raise InertPickleError(f"not a tensor archive ({error})") from error
        first, num_bytes = self._member("byteorder")
        file.seek(first)
        if num_bytes != 6 or file.read(6) != b"little":
            raise InertPickleError("its data is big-endian")

    def pickle(self, max_bytes: int) -> bytes:
        """The pickle that says what is in it."""
        first, num_bytes = self._member("data.pkl")
        if num_bytes > max_bytes:
            raise InertPickleError("a header that is not a tensor's")
        self._place[0].seek(first)
        return self._place[0].read(num_bytes)

    def part(self, header: object) -> StoredPart:
        """The tensor that is described in the parsed pickle."""
        if type(header) is not Made or header.maker not in (_REBUILD, _REBUILD_UNTYPED) or len(header.args) < 6:
            raise InertPickleError("a header that is not a tensor's")
        storage = header.args[0]
        if type(storage) is not Persistent or type(storage.id) is not tuple or len(storage.id) != 5:
            raise InertPickleError("a tensor without storage")
        kind, storage_type, key = storage.id[:3]
        if kind != "storage" or type(storage_type) is not Name or type(key) is not str:
            raise InertPickleError("a tensor without storage")
        first_byte, num_bytes = self._member(f"data/{key}")
        if header.maker == _REBUILD:
            dtype = _STORAGES.get(storage_type)
        else:
            named = header.args[6] if len(header.args) > 6 and storage_type == _UNTYPED else None
            dtype = DTYPES.get(named) if type(named) is Name else None
        (first_element,) = numbers_of(header.args[1:2])
        shape, strides = numbers_of(header.args[2]), numbers_of(header.args[3])
        if dtype is None or len(shape) != len(strides):
            raise InertPickleError("a tensor of an unknown type")
        if math.prod(shape) and (first_element + extent(shape, strides)) * dtype.itemsize > num_bytes:
            raise InertPickleError("a tensor larger than its storage")
        return StoredPart(dtype, shape, strides, first_element, first_byte)

    def _member(self, name: str) -> tuple[int, int]:
        """First byte in `file`, and length, of a file of the archive."""
        (file, start, length), info = self._place, self._members.get(name)
        if info is None or info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise InertPickleError(f"an archive without a plain {name}")
        file.seek(start + info.header_offset)
        header = file.read(_LOCAL_HEADER.size)
        if len(header) < _LOCAL_HEADER.size:
            raise InertPickleError("it is truncated")
        first = info.header_offset + _LOCAL_HEADER.size + sum(_LOCAL_HEADER.unpack(header))
        if first + info.file_size > length:
            raise InertPickleError(f"{name} is truncated")
        return start + first, info.file_size


def extent(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """Elements of memory from the first to the last, both counted; of a tensor that is not empty."""
    return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


def _read_fully(file: BufferedReader, memory: NDArray[np.uint8]) -> int:
    view, done = memory.data, 0
    while done < len(view) and (now := file.readinto(view[done:])):
        done += now
    return done


class _Window(io.RawIOBase):
    """A part of a file as a file, for `zipfile`."""

    def __init__(self, file: BufferedReader, start: int, length: int) -> None:
        self._file, self._start, self._length, self._position = file, start, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        if base + offset < 0:
            raise ValueError("before its start")
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._length - self._position)
        self._file.seek(self._start + self._position)
        data = self._file.read(left if size is None or size < 0 else min(size, left))
        self._position += len(data)
        return data
