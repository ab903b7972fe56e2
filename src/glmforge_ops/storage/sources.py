"""What is to be staged: the files of directories, of shards and single ones, and where each goes.

A directory that holds a `config.json` is a model and stays together; of others each folder has a place of its own, as
runs expect it of shards (`glmforge.runtime.place`). What begins with a dot is left out.

A source is read as a stranger's: only regular files are copied, under names that fit in one line; a link is followed if
it leads to a file below the source, or to where huggingface_hub keeps the files of that model. Everything else is
refused by name, before anything is sent.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from glmforge.errors import HostError
from glmforge.files import shown
from glmforge.runtime.place import place_name

MAX_FILES = 200_000
_IN_PROGRESS = ".partial"


@dataclass(frozen=True)
class SourceFile:
    """A file to copy: `directory` and `name` say where it goes below the target."""

    original: Path
    directory: str
    name: str
    size: int


def list_sources(sources: Sequence[Path], *, follow_links: bool = False) -> list[SourceFile]:
    """The files of all sources, each once, in the order of their names.

    Args:
        sources: directories, files, or the prefix of a shard (PREFIX.bin, PREFIX.idx and what belongs to them).
        follow_links: also links that lead out of their source.

    Raises:
        HostError: a source is missing or holds nothing, or something in it cannot be copied.
    """
    found: dict[tuple[str, str], SourceFile] = {}
    for source in sources:
        before = len(found)
        for file in _files_of(Path(os.path.abspath(source)), follow_links):  # noqa: PTH100 - links stay
            found[file.directory, file.name] = file
            if len(found) > MAX_FILES:
                raise HostError(f"{shown(source)}: more than {MAX_FILES:,} files; pack them, or name fewer")
        if len(found) == before and source.is_dir():
            raise HostError(f"{shown(source)}: holds no files; name the directory of shards or weights")
    return [found[key] for key in sorted(found)]


def _files_of(source: Path, follow_links: bool) -> Iterator[SourceFile]:
    if source.is_dir():
        keeps_together = (source / "config.json").is_file()
        for path in _walk(source):
            yield _describe(path, source, keeps_together, follow_links)
        return
    paths = [source] if source.exists() else sorted(_shard(source))
    if not paths:
        raise HostError(f"{shown(source)}: no such file or directory, and no shard ({source.name}.bin) of that name")
    for path in paths:
        yield _describe(path, source.parent, False, follow_links)


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
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))
        else:
            yield Path(entry.path)


def _describe(path: Path, source: Path, keeps_together: bool, follow_links: bool) -> SourceFile:
    if not str(path).isprintable() or "\\" in str(path.relative_to(source)):  # a lone surrogate is not printable
        raise HostError(f"{shown(path)}: invalid file name: control characters, backslashes or not Unicode; rename it")
    if path.name.endswith(_IN_PROGRESS):
        raise HostError(f"{shown(path)}: is not finished; wait until it is, or remove it")
    try:
        status = path.stat()
    except OSError as error:
        raise HostError(f"{shown(path)}: cannot be read ({error.strerror}); fix or remove it") from None
    if not stat.S_ISREG(status.st_mode):
        raise HostError(f"{shown(path)}: is not a regular file; only files are staged: move it away, or name files")
    if path.is_symlink() and not follow_links and not _leads_inside(path, source):
        raise HostError(
            f"{shown(path)}: is a link that leads out of {shown(source)}; copy the file there, or give --follow-links"
        )
    if keeps_together:
        directory = Path(place_name(source), path.parent.relative_to(source))
    else:
        directory = Path(place_name(path.parent))
    return SourceFile(path, str(directory), path.name, status.st_size)


def _leads_inside(path: Path, source: Path) -> bool:
    target, root = path.resolve(), source.resolve()
    allowed = [root]
    if root.parent.name == "snapshots":  # models--NAME/snapshots/REVISION holds links to models--NAME/blobs
        allowed.append(root.parent.parent / "blobs")
    return any(target.is_relative_to(place) for place in allowed)
