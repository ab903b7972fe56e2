"""Files of `torch.save` read as data, for checkpoints of other programs.

Their pickles may name any class of the program that wrote them. Nothing is imported or called (`inert_pickle`), and
what nobody asks for is not looked at: containers are opened one level at a time, since a pickle may hold one list a
billion times over. The functions raise `InertPickleError`, which `reading` turns into an error that names the file.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple, cast

from torch import Tensor

from glmforge.checkpoint.format.inert_pickle import AnyName, InertPickleError, Made, Name, Pairs, parse
from glmforge.checkpoint.format.stored_part import Archive, StoredPart, extent
from glmforge.errors import CheckpointError
from glmforge.files import open_regular, shown
from glmforge.runtime.os_errors import describe_os_error

_MAX_PICKLE_BYTES = 64 << 20
_WRAPPERS = {Name("torch._tensor", "_rebuild_from_type_v2"), Name("torch._utils", "_rebuild_parameter")}


@contextmanager
def reading(path: Path) -> Iterator[BufferedReader]:
    """The open file. Raises `CheckpointError` for whatever is found wrong with it meanwhile."""
    try:
        with open_regular(path) as file:
            yield cast(BufferedReader, file)
    except InertPickleError as error:
        raise CheckpointError(f"{shown(path)}: {error}; it is damaged, or not supported") from error
    except OSError as error:
        raise CheckpointError(f"{shown(path)}: {describe_os_error(error)}") from error


class StoredTensor(NamedTuple):
    """A tensor of a file."""

    path: Path
    part: StoredPart

    def read(self, start: int | None = None, num_elements: int = 0) -> Tensor:
        """All of it, or some elements of a vector."""
        with reading(self.path) as file:
            if start is None:
                return self.part.read(file, (0,) * len(self.part.shape), self.part.shape)
            if len(self.part.shape) != 1:
                raise InertPickleError(f"a tensor of shape {list(self.part.shape)} where a vector is expected")
            return self.part.read(file, (start,), (num_elements,))


class TorchFile:
    """What an open file holds: `root` is the object in it, as `inert_pickle.parse` gives it."""

    def __init__(self, path: Path, file: BufferedReader) -> None:
        self._path, self._archive = path, Archive(file, 0, file.seek(0, 2))
        self.root = parse(self._archive.pickle(_MAX_PICKLE_BYTES), AnyName())

    def tensor(self, value: Any) -> StoredTensor:
        """The tensor or parameter that is an item of a container, without its attributes."""
        while type(value) is Made and value.maker in _WRAPPERS and value.args:
            first, *rest = value.args
            value = Made(first, rest[1]) if len(rest) == 3 and type(rest[1]) is tuple else first
        part = self._archive.part(value)
        if math.prod(part.shape) and extent(part.shape, part.strides) < math.prod(part.shape):
            raise InertPickleError("a tensor larger than its storage")
        return StoredTensor(self._path, part)


def field(value: Any, *keys: str | int) -> Any:
    """What lies under `keys` in dicts and lists within each other."""
    for key in keys:
        fields: dict[str | int, Any] = dict(enumerate(value)) if type(value) is list else fields_of(value)
        if key not in fields:
            raise InertPickleError(f"has no {key!r}")
        value = fields[key]
    return value


def fields_of(value: Any) -> dict[str | int, Any]:
    """A dict, an OrderedDict (which may have attributes, too) or an object's fields."""
    if type(value) is Made:
        value = value.pairs or value.state or value.pairs
    if type(value) is not Pairs or any(type(key) not in (str, int) for key, _ in value):
        raise InertPickleError("has another value where a dict is expected")
    return dict(value)


def count_of(value: Any) -> int:
    """A number from 0 on."""
    if type(value) is not int or value < 0:
        raise InertPickleError("has another value where a number is expected")
    return value
