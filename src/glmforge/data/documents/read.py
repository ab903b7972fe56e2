"""Documents from files and directories.

`read_documents` reads .txt, .jsonl (plain, gzip, Zstandard), .parquet and directories of these and of source
files; lazily, in an order that depends on names only. What cannot be read is an error that names file, line
or byte, and fix. With `on_error="skip"` it is omitted instead, and counted; nothing is ever repaired,
because guessed text teaches a model to guess.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from glmforge.data.documents.document import Document
from glmforge.data.documents.formats import SKIP_HINT, is_record_file, read_file
from glmforge.data.files import printable
from glmforge.errors import DataError

OnError = Literal["stop", "skip"]

# fmt: off
TEXT_SUFFIXES = frozenset({
    ".txt", ".md", ".rst", ".tex", ".html", ".css", ".yaml", ".yml", ".toml", ".proto", ".sql", ".cmake",
    ".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".hpp", ".cu", ".cuh", ".rs", ".go", ".java", ".kt", ".scala",
    ".swift", ".js", ".jsx", ".ts", ".tsx", ".sh", ".pl", ".rb", ".php", ".lua", ".r", ".jl", ".hs", ".ml",
    ".ex", ".erl", ".clj", ".cs", ".fs",
})
# fmt: on
"""Files of a directory that are one document each."""

MAX_SOURCE_BYTES = 1 << 20
"""In a directory, a larger source file is generated or data, rarely written by people, and omitted. Text
files (.txt), record files and files that are named one by one may have any size."""

_NUM_PROBLEMS_KEPT = 10


def read_documents(
    paths: str | Path | Sequence[str | Path], text_field: str = "text", on_error: OnError = "stop"
) -> "Corpus":
    """The documents of files and directories, as a `Corpus` to iterate over.

    A record of .jsonl or .parquet is a document, any other file is one. Of a directory, files of a known kind
    are read, recursively and sorted by path; hidden, binary and very large ones are not. Empty texts are no
    documents.

    Args:
        paths: files and directories, read in this order.
        text_field: the JSON field or Parquet column that holds the text.
        on_error: "stop" raises at the first record that cannot be read, "skip" leaves it out and counts it
            in the corpus's `num_skipped` and `problems`.

    Raises:
        DataError: a path does not exist; while iterating: a record cannot be read, or there is no document at
            all.
    """
    listed = [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    for path in listed:
        if not path.exists():
            raise DataError(f"{path}: no such file or directory: check the path")
    return Corpus(listed, text_field, on_error)


@dataclass
class Corpus:
    """Documents of some files, read again at each iteration. Made by `read_documents`.

    Attributes:
        num_skipped: records and files that the latest iteration omitted.
        problems: what was wrong with the first of them.
    """

    paths: list[Path]
    text_field: str
    on_error: OnError
    num_skipped: int = field(default=0, init=False)
    problems: list[str] = field(default_factory=list, init=False)

    def __iter__(self) -> Iterator[Document]:
        empty = True
        for path, name in self.files():
            for document in self.documents_of(path, name):
                empty = False
                yield document
        if empty:
            raise self.nothing_found()

    def files(self) -> Iterator[tuple[Path, str]]:
        """(path, name) of the files, in order, for a new reading of them."""
        self.num_skipped, self.problems = 0, []
        for root in self.paths:
            yield from _files(root)

    def nothing_found(self) -> DataError:
        """What to raise if the files had no document."""
        return DataError(f"{', '.join(map(str, self.paths))}: no documents: {self._why_empty()}")

    def _why_empty(self) -> str:
        if self.num_skipped:
            return f"none of the records could be read ({self.num_skipped:,} skipped); the first: {self.problems[0]}"
        return "the files are empty or of unknown types; pass others"

    def documents_of(self, path: Path, name: str) -> Iterator[Document]:
        """The documents of one of the files."""
        try:
            for label, text in read_file(path, self.text_field):
                if isinstance(text, DataError):
                    self._skip(text)
                elif text:
                    yield Document(name + label, text, printable(str(path)))
        except DataError as error:
            self._skip(error)

    def _skip(self, problem: DataError) -> None:
        if self.on_error == "stop":
            raise problem
        self.num_skipped += 1
        if len(self.problems) < _NUM_PROBLEMS_KEPT:
            self.problems.append(printable(str(problem)).removesuffix(SKIP_HINT))


def _files(root: Path) -> Iterator[tuple[Path, str]]:
    """(path, name) of what is to be read; names are relative to `root`: they move with the corpus."""
    if root.is_file():
        yield root, printable(root.name)
        return
    for directory, subdirectories, filenames in os.walk(root):
        subdirectories[:] = sorted(name for name in subdirectories if not name.startswith("."))
        for filename in sorted(filenames):
            path = Path(directory) / filename
            if _is_wanted(path):
                yield path, printable(path.relative_to(root).as_posix())


def _is_wanted(path: Path) -> bool:
    if path.name.startswith(".") or not path.is_file():
        return False
    if is_record_file(path):
        return True
    if path.suffix.lower() not in TEXT_SUFFIXES:
        return False
    return (path.suffix == ".txt" or path.stat().st_size <= MAX_SOURCE_BYTES) and not _is_binary(path)


def _is_binary(path: Path) -> bool:
    with path.open("rb") as file:
        return b"\0" in file.read(8192)
