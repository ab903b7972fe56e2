"""What is to be staged: the files of directories, of shards and single ones, and where each goes.

A directory that holds a `config.json` is a model and stays together; of others each folder has a place of its own, as
runs expect it of shards (`glmforge.runtime.place`). What begins with a dot is left out. Links to files are followed, as
a run would follow them. Names must fit in one line of a list of checksums.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from glmforge.errors import HostError
from glmforge.files import shown
from glmforge.runtime.place import place_name

_IN_PROGRESS = ".partial"


@dataclass(frozen=True)
class SourceFile:
    """A file to copy: `directory` and `name` say where it goes below the target. `changed`: seconds since 1970."""

    original: Path
    directory: str
    name: str
    size: int
    changed: int


def list_sources(sources: Sequence[Path]) -> list[SourceFile]:
    """The files of all sources, each once, in the order of their names.

    Args:
        sources: directories, files, or the prefix of a shard (PREFIX.bin, PREFIX.idx and what belongs to them).

    Raises:
        HostError: a source is missing or empty, or something in it cannot be copied.
    """
    found: dict[tuple[str, str], SourceFile] = {}
    for source in sources:
        files = list(_files_of(Path(os.path.abspath(source))))  # noqa: PTH100 - links stay
        if not files:
            raise HostError(f"{shown(source)}: holds no files; name the directory of shards or weights")
        found |= {(file.directory, file.name): file for file in files}
    return [found[key] for key in sorted(found)]


def _files_of(source: Path) -> Iterator[SourceFile]:
    if source.is_dir():
        is_model = (source / "config.json").is_file()
        for path in _walk(source):
            yield _describe(path, source if is_model else path.parent)
        return
    paths = [source] if source.exists() else sorted(_shard(source))
    if not paths:
        raise HostError(f"{shown(source)}: no such file or directory, and no shard ({source.name}.bin) of that name")
    for path in paths:
        yield _describe(path, path.parent)


def _shard(prefix: Path) -> list[Path]:
    """The files of a shard: PREFIX.bin, PREFIX.idx, PREFIX.json, PREFIX.loss..."""
    if not prefix.with_name(prefix.name + ".bin").exists():
        return []
    beside = (path for path in prefix.parent.iterdir() if path.name.startswith(prefix.name + "."))
    return [path for path in beside if not path.name.endswith(_IN_PROGRESS)]


def _walk(directory: Path) -> Iterator[Path]:
    """Everything but directories below, in the order of names; what begins with a dot is left out."""
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError as error:
        raise HostError(f"{shown(directory)}: cannot be read ({error.strerror}); make it readable") from None
    for entry in entries:
        if not entry.name.startswith("."):
            is_directory = entry.is_dir(follow_symlinks=False)
            yield from _walk(Path(entry.path)) if is_directory else [Path(entry.path)]


def _describe(path: Path, together: Path) -> SourceFile:
    """`together`: the directory whose files have one place."""
    inside = path.relative_to(together)
    if not str(path).isprintable() or "\\" in str(inside):  # a lone surrogate is not printable
        raise HostError(f"{shown(path)}: invalid file name: control characters, backslashes or not Unicode; rename it")
    if path.name.endswith(_IN_PROGRESS):
        raise HostError(f"{shown(path)}: is not complete; wait until it is, or remove it")
    try:
        status = path.stat()
    except OSError as error:
        raise HostError(f"{shown(path)}: cannot be read ({error.strerror}); fix or remove it") from None
    if not stat.S_ISREG(status.st_mode):
        raise HostError(f"{shown(path)}: not a regular file; only files are staged: move it away, or name files")
    directory = Path(place_name(together), inside.parent)
    return SourceFile(path, str(directory), path.name, status.st_size, int(status.st_mtime))
