"""A corpus that every machine has: the sources of its own Python installation.

Several megabytes of real code with its prose (docstrings and comments) under a free licence, enough to train
a small model on without a download. Tests are omitted because they repeat themselves, and so are files that
are data in Python's clothes (code pages, generated tables).
"""

import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from glmforge.data.documents.document import Document
from glmforge.data.documents.read import read_documents
from glmforge.errors import DataError

# fmt: off
_LEFT_OUT = frozenset({
    "test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "encodings", "pydoc_data",
    "lib2to3", "distutils", "msilib", "turtledemo", "__phello__",
})
# fmt: on
_LEFT_OUT_PREFIXES = ("config-", "_sysconfigdata", "_sysconfig_vars")


@dataclass(frozen=True)
class StandardLibrary:
    """The modules of a Python installation, sorted by path; each iteration reads them again."""

    root: Path

    def __iter__(self) -> Iterator[Document]:
        for path in self._modules():
            for document in read_documents(path):
                yield Document(path.relative_to(self.root).as_posix(), document.text, document.source)

    def _modules(self) -> Iterator[Path]:
        for directory, subdirectories, filenames in os.walk(self.root):
            subdirectories[:] = sorted(name for name in subdirectories if not _is_left_out(name))
            for name in sorted(filenames):
                path = Path(directory) / name
                if path.suffix == ".py" and not _is_left_out(name) and path.stat().st_size > 0:
                    yield path


def standard_library_documents() -> StandardLibrary:
    """The running Python's own sources as documents, some 9 MB.

    Raises:
        DataError: this Python was installed without its sources.
    """
    root = Path(sysconfig.get_path("stdlib"))
    if not (root / "os.py").is_file():
        raise DataError(f"{root}: this Python has no library sources; pass your own text with --corpus")
    return StandardLibrary(root)


def _is_left_out(name: str) -> bool:
    return name in _LEFT_OUT or name.startswith(_LEFT_OUT_PREFIXES)
