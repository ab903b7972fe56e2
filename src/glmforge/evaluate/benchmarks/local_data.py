"""Benchmark data on the disk: found by name, read, checked.

Files are those that the authors publish: JSON Lines (.jsonl, .jsonl.gz), JSON, CSV, single or in a zip archive. They
are from outside: every row is checked for the fields that its benchmark reads.
"""

import csv
import gzip
import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmforge.data.files import disk_errors
from glmforge.errors import DataError
from glmforge.files import kind_of, parse_json, shown

Row = dict[str, Any]
Fields = Mapping[str, type | tuple[type, ...]]
MAX_FILE_BYTES = 1 << 30
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, UnicodeDecodeError, csv.Error, NotImplementedError, RuntimeError)
"""What reading an archive raises; the last two for an unknown compression and for encrypted members."""


@dataclass(frozen=True)
class Source:
    """Where data are: `files` are names in the data directory, of which the first that exists is read."""

    files: tuple[str, ...]
    url: str

    def find(self, directory: Path | None, benchmark: str) -> Path:
        """Raises `DataError` that says which file to put where."""
        if directory is None:
            raise DataError(f"{benchmark}: needs its data; put {self.files[0]} ({self.url}) in a directory, --data DIR")
        if kind_of(directory, error=DataError) != "directory":
            raise DataError(f"--data {shown(directory)}: no such directory")
        for name in self.files:
            if kind_of(path := directory / name, error=DataError) == "file":
                return path
        raise DataError(f"{benchmark}: {shown(directory)} has no {' or '.join(self.files)}; get it from {self.url}")


def read_rows(path: Path, fields: Fields, *, is_lines: bool | None = None) -> list[Row]:
    """The rows of a file. Raises `DataError` for a row without these fields, or with one of another type.

    Args:
        is_lines: JSON Lines; None decides by the name.
    """
    content = _content(path)
    if not content.strip():
        raise DataError(f"{path}: has no rows; download it again")
    if is_lines is None:
        is_lines = not path.name.removesuffix(".gz").endswith((".json", ".csv"))
    if is_lines:
        lines = ((f"{path}:{n}", line) for n, line in enumerate(content.split("\n"), start=1) if line.strip())
        rows = [(place, parse_json(line, dict, source=place, error=DataError)) for place, line in lines]
    else:
        rows = [(f"{path}, row {n}", row) for n, row in enumerate(_table(path, content), start=1)]
    for place, row in rows:
        if not isinstance(row, dict):
            raise DataError(f"{place}: expected an object")
        if wrong := next((name for name, kind in fields.items() if not isinstance(row.get(name), kind)), None):
            fault = "is missing or of the wrong type; this is not the benchmark's file"
            raise DataError(f"{place}: field '{wrong}' {fault}")
    return [row for _, row in rows]


def read_archive(path: Path) -> Iterator[tuple[str, list[list[str]]]]:
    """Name and rows of each CSV file in a zip archive, in the order of the names."""
    try:
        with disk_errors(path), zipfile.ZipFile(path) as archive:
            members = sorted(name for name in archive.namelist() if name.endswith(".csv"))
            if sum(archive.getinfo(name).file_size for name in members) > MAX_FILE_BYTES:
                raise DataError(f"{path}: more than {MAX_FILE_BYTES:,} bytes; this is not the benchmark")
            for name in members:
                yield name, list(csv.reader(io.TextIOWrapper(archive.open(name), "utf-8", newline="")))
    except _DAMAGED as error:
        raise DataError(f"{path}: damaged archive ({error}); download it again") from None


def digest_of(rows: Sequence[Row]) -> str:
    """SHA-256 of rows, for the fingerprint of a result."""
    return hashlib.sha256(json.dumps(rows, sort_keys=True, default=str).encode(errors="replace")).hexdigest()


def _table(path: Path, content: str) -> list[Any]:
    """The rows of a CSV or JSON file."""
    if path.name.removesuffix(".gz").endswith(".csv"):
        try:
            return list(csv.DictReader(io.StringIO(content, newline="")))
        except csv.Error as error:
            raise DataError(f"{path}: not valid CSV ({error})") from None
    parsed = parse_json(content, object, source=str(path), error=DataError)
    rows = parsed.get("examples") if isinstance(parsed, dict) else parsed
    if not isinstance(rows, list):
        raise DataError(f"{path}: expected a list of objects")
    return rows


def _content(path: Path) -> str:
    with disk_errors(path), path.open("rb") as file:
        try:
            content = (gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file).read(MAX_FILE_BYTES + 1)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"{path}: damaged file ({error}); download it again") from None
    if len(content) > MAX_FILE_BYTES:
        raise DataError(f"{path}: more than {MAX_FILE_BYTES:,} bytes; this is not the benchmark")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 ({error.reason} at byte {error.start:,})") from None
