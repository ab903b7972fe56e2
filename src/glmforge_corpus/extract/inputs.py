"""What is to be extracted: the inputs of a pipeline file, the files that they stand for, and how these make tasks."""

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Literal

from pydantic import Field

from glmforge.config.fields import YamlPath
from glmforge.config.model import Strict
from glmforge.data.documents.batch import score_columns
from glmforge.data.documents.compression import stem
from glmforge.data.files import printable
from glmforge.errors import DataError

Format = Literal["text", "jsonl", "parquet", "html", "warc", "pdf", "repositories", "issues"]

# fmt: off
FORMAT_OF_SUFFIX: dict[str, Format] = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet", ".warc": "warc", ".wet": "warc",
    ".html": "html", ".htm": "html", ".xhtml": "html", ".pdf": "pdf", ".txt": "text", ".md": "text", ".rst": "text",
    ".tex": "text", ".text": "text",
}
# fmt: on
"""What `format: auto` makes of a file, after .gz or .zst; other files of a directory are passed over."""

ARCHIVE_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".zip")
"""Archives that can be a repository."""

ALL_FIELDS = "*"
"""As the only name of a metadata field: every one there is."""

PERMISSIVE_LICENCES = (
    "0BSD", "Apache-2.0", "Artistic-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "ISC", "MIT", "MIT-0",
    "NCSA", "PostgreSQL", "Python-2.0", "Unlicense", "Zlib",
)  # fmt: skip
"""SPDX names of licences that ask for no more than attribution ("permissive" as in The Stack, Kocetkov et al. 2022)."""


class Input(Strict):
    """One source of documents."""

    source: str = Field(min_length=1, description="name of the source; stored with documents, and prefix of their IDs")
    path: YamlPath = Field(description="a file, a directory (read recursively), or a pattern such as crawl/*.warc.gz")
    format: Literal["auto"] | Format = Field(default="auto", description="auto: by file name")
    text_field: str = Field(default="text", description="jsonl, parquet: the field that holds the text")
    id_field: str | None = Field(default=None, description="jsonl, parquet: the field that holds the id")
    metadata: list[str] = Field(
        default=[], description="jsonl, parquet: fields to keep as metadata; ['*']: all but text and id"
    )
    language: str | None = Field(default=None, description="language of the documents, if known")
    unit: Literal["file", "repository"] = Field(
        default="file", description="repositories: one document per file, or one of all files in dependency order"
    )
    licences: list[str] = Field(
        default=list(PERMISSIVE_LICENCES), description="repositories: SPDX names of allowed licences; [] for any"
    )


@dataclass(frozen=True)
class SourceFile:
    """A file, or a repository, that is read as a whole by one task.

    Attributes:
        path: where it is.
        name: `<source>/<path relative to the input>`, `printable`; ids of documents begin with it, wherever the corpus
            lies.
        size: in bytes; with the name it stands for the content in the fingerprint of the task.
        format: how it is read.
        input: where it comes from.
        scores: columns of scores, if it is a shard of documents, which keep all that is known of them; else None.
    """

    path: Path
    name: str
    size: int
    format: Format
    input: Input
    scores: tuple[str, ...] | None = None


def list_files(source: Input) -> list[SourceFile]:
    """The files of an input, sorted by name.

    Raises:
        DataError: there is nothing at its path, or nothing that can be read.
    """
    paths = sorted(_matches(source.path))
    if not paths:
        raise DataError(f"{source.path}: no such file or directory: check the path")
    root = _root(source.path)
    if source.format == "repositories":
        files = [_repository(path, root, source) for path in _repositories(paths)]
    else:
        found = [_file(path, root, source) for top in paths for path in _walk(top)]
        files = [file for file in found if file is not None]
    if not files:
        raise DataError(f"{source.path}: no files of a known format; set 'format', or pass other files")
    return sorted(files, key=lambda file: file.name)


def group(files: Sequence[SourceFile], shard_bytes: int) -> list[tuple[SourceFile, ...]]:
    """Files in order, as tasks of about `shard_bytes`; a file is never cut, and files with other scores are apart."""
    tasks: list[list[SourceFile]] = []
    size = 0
    for file in files:
        if not tasks or size + file.size > shard_bytes or (file.scores or ()) != (tasks[-1][-1].scores or ()):
            tasks.append([])
            size = 0
        tasks[-1].append(file)
        size += file.size
    return [tuple(task) for task in tasks]


def _matches(path: Path) -> list[Path]:
    if glob.has_magic(str(path)) and not path.exists():
        return [Path(found) for found in glob.glob(str(path), recursive=True)]  # noqa: PTH207
    return [path] if path.exists() else []


def _root(path: Path) -> Path:
    """What names are relative to: the directory itself, the one of a file, the part of a pattern before its stars."""
    if path.is_dir():
        return path
    if path.exists() or not glob.has_magic(str(path)):
        return path.parent
    parts = path.parts
    fixed = next(index for index, part in enumerate(parts) if glob.has_magic(part))
    return Path(*parts[:fixed])


def _walk(top: Path) -> Iterator[Path]:
    if top.is_file():
        yield top
    else:
        yield from (path for path in top.rglob("*") if path.is_file() and not _is_hidden(path.relative_to(top)))


def _is_hidden(relative: PurePath) -> bool:
    return any(part.startswith(".") for part in relative.parts)


def _file(path: Path, root: Path, source: Input) -> SourceFile | None:
    format_ = FORMAT_OF_SUFFIX.get(Path(stem(path.name)).suffix.lower()) if source.format == "auto" else source.format
    if format_ is None:
        return None
    as_it_stands = format_ == "parquet" and (source.text_field, source.id_field, source.metadata) == ("text", None, [])
    scores = score_columns(path) if as_it_stands else None
    name = f"{source.source}/{printable(path.relative_to(root).as_posix())}"
    return SourceFile(path, name, path.stat().st_size, format_, source, scores)


def _repositories(paths: Sequence[Path]) -> Iterator[Path]:
    """Each match is a repository; in a single directory that is not one itself, each entry is."""
    if len(paths) == 1 and paths[0].is_dir() and not _looks_like_repository(paths[0]):
        paths = sorted(path for path in paths[0].iterdir() if not path.name.startswith("."))
    yield from (path for path in paths if path.is_dir() or path.name.endswith(ARCHIVE_SUFFIXES))


def _looks_like_repository(path: Path) -> bool:
    """Whether a directory is a repository, rather than one of repositories and archives."""
    files = [child.name for child in path.iterdir() if child.is_file() and not child.name.startswith(".")]
    return (path / ".git").exists() or (bool(files) and not any(name.endswith(ARCHIVE_SUFFIXES) for name in files))


def _repository(path: Path, root: Path, source: Input) -> SourceFile:
    relative = path.relative_to(root).as_posix()
    name = f"{source.source}/{printable(path.name if relative == '.' else relative)}"
    size = path.stat().st_size if path.is_file() else sum(file.stat().st_size for file in _walk(path))
    return SourceFile(path, name, size, "repositories", source)
