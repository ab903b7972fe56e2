"""Files of `torch.save` read as data, for checkpoints of other programs.

Their pickles may name any class of the program that wrote them. Nothing is imported or called (`inert_pickle`), and
what nobody asks for is not looked at: containers are opened one level at a time, since a pickle may nest without end or
hold one list a billion times over.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

from torch import Tensor

from glmforge.checkpoint.format.inert_pickle import InertPickleError, Made, Name, Pairs, parse
from glmforge.checkpoint.format.stored_part import Archive, StoredPart, extent
from glmforge.errors import CheckpointError
from glmforge.files import open_regular, shown
from glmforge.runtime.os_errors import describe_os_error

_MAX_PICKLE_BYTES = 64 << 20
_PARAMETER = Name("torch._utils", "_rebuild_parameter")
_WITH_STATE = Name("torch._tensor", "_rebuild_from_type_v2")


class _AnyName:
    """Names are not looked up, so all are allowed."""

    def __contains__(self, name: Name) -> bool:
        return True


@contextmanager
def reading(path: Path) -> Iterator[BufferedReader]:
    """The open file; what is wrong with it is raised as `CheckpointError` that names it."""
    try:
        with open_regular(path) as file:
            yield cast(BufferedReader, file)
    except InertPickleError as error:
        raise CheckpointError(f"{shown(path)}: {error}; it is damaged, or another kind of file") from error
    except OSError as error:
        raise CheckpointError(f"{shown(path)}: {describe_os_error(error)}") from error


class StoredTensor(NamedTuple):
    """A tensor of a file, read when requested."""

    path: Path
    part: StoredPart

    def read(self, start: int, num_elements: int) -> Tensor:
        """Some elements of a vector."""
        return self._read((start,), (num_elements,))

    def whole(self) -> Tensor:
        """All of it."""
        return self._read((0,) * len(self.part.shape), self.part.shape)

    def _read(self, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Tensor:
        with reading(self.path) as file:
            if len(offsets) != len(self.part.shape):
                raise InertPickleError(f"a tensor of shape {list(self.part.shape)} where a vector is expected")
            return self.part.read(file, offsets, sizes)


class TorchFile:
    """An open file. `root` is the object in it, as `inert_pickle.parse` gives it."""

    def __init__(self, path: Path, file: BufferedReader) -> None:
        self.path = path
        self._archive = Archive(file, 0, file.seek(0, 2))
        self.root = parse(self._archive.pickle(_MAX_PICKLE_BYTES), _AnyName())

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[Self]:
        """Open `path`. `InertPickleError` within the block is raised as `CheckpointError` that names the file."""
        with reading(path) as file:
            yield cls(path, file)

    def tensor(self, value: object) -> StoredTensor:
        """The tensor that is an item of a container."""
        if type(value) is Made and value.maker == _WITH_STATE and [type(a) for a in value.args[:3]] == [Name, Name, tuple]:
            value = Made(value.args[0], value.args[2])  # a tensor with attributes, as ZeRO gives them
        if type(value) is Made and value.maker == _PARAMETER and value.args:
            value = value.args[0]
        part = self._archive.part(value)
        if math.prod(part.shape) and extent(part.shape, part.strides) < math.prod(part.shape):
            raise InertPickleError("a tensor larger than its storage")
        return StoredTensor(self.path, part)


def field(value: object, *keys: str | int) -> Any:
    """What lies under `keys` in dicts and lists within each other. Raises `InertPickleError`."""
    for key in keys:
        fields = dict(enumerate(value)) if type(value) is list else fields_of(value)
        if key not in fields:
            raise InertPickleError(f"has no {key!r}")
        value = fields[key]
    return value


def fields_of(value: object) -> dict[str | int, Any]:
    """A dict, an OrderedDict or an object's fields. Raises `InertPickleError`."""
    if type(value) is Made:
        value = value.pairs or value.state or value.pairs  # an OrderedDict of modules has both
    if type(value) is not Pairs or any(type(key) not in (str, int) for key, _ in value):
        raise InertPickleError("has another value where a dict is expected")
    return dict(value)


def count_of(value: object) -> int:
    """A number from 0 on. Raises `InertPickleError`."""
    if type(value) is not int or value < 0:
        raise InertPickleError("has another value where a number is expected")
    return value
