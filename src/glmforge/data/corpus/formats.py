"""The texts of one file, for each kind of file.

Every reader yields `(label, text)` per record, where the label tells records of one file apart. A record that
cannot be read comes as a `DataError` in place of its text, so that the caller may go on to the next; a file
that cannot be read at all raises one.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from glmforge.errors import DataError

Record = tuple[str, str | DataError]

_CHUNK_BYTES = 1 << 20
_SKIP_HINT = "mend it, or leave such records out with --on-error skip"


class MissingPackageError(DataError):
    """A kind of file that needs an optional package."""


def read_file(path: Path, text_field: str) -> Iterator[Record]:
    """The texts of a file, by its suffix; a file of no record format is one text.

    Raises:
        DataError: the file is damaged, lacks the column, or cannot be opened.
        MissingPackageError: .parquet without pyarrow, .jsonl.zst without zstandard.
    """
    reader = next((reader for suffix, reader in _READERS.items() if path.name.endswith(suffix)), None)
    try:
        yield from [_whole_text(path)] if reader is None else reader(path, text_field)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}): is the file whole and readable?") from error


def is_record_file(path: Path) -> bool:
    """Whether the file holds many records rather than one text."""
    return path.name.endswith(tuple(_READERS))


def _whole_text(path: Path) -> Record:
    return "", _decode(path.read_bytes(), str(path))


def _plain_jsonl(path: Path, text_field: str) -> Iterator[Record]:
    with path.open("rb") as file:
        yield from _json_records(_chunks(file), path, text_field)


def _gzip_jsonl(path: Path, text_field: str) -> Iterator[Record]:
    with gzip.open(path) as file:
        yield from _json_records(iter(lambda: file.read(_CHUNK_BYTES), b""), path, text_field)


def _zstandard_jsonl(path: Path, text_field: str) -> Iterator[Record]:
    with path.open("rb") as file:
        yield from _json_records(_decompress_zstandard(file, path), path, text_field)


def _parquet(path: Path, text_field: str) -> Iterator[Record]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingPackageError(_missing_package(path, "pyarrow")) from error
    try:
        with parquet.ParquetFile(path) as table:
            if text_field not in table.schema_arrow.names:
                raise DataError(_missing_field(str(path), "column", text_field, table.schema_arrow.names))
            rows = (value for batch in table.iter_batches(columns=[text_field]) for value in batch.column(0))
            for number, value in enumerate(rows, start=1):
                yield f":{number}", _checked_text(value.as_py(), f"{path}, row {number:,}", text_field)
    except pyarrow.ArrowException as error:
        raise DataError(f"{path}: not readable as Parquet ({error}): is the file whole?") from error


_READERS: dict[str, Callable[[Path, str], Iterator[Record]]] = {
    ".jsonl": _plain_jsonl,
    ".jsonl.gz": _gzip_jsonl,
    ".jsonl.zst": _zstandard_jsonl,
    ".parquet": _parquet,
}


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    return iter(lambda: file.read(_CHUNK_BYTES), b"")


def _decompress_zstandard(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """The library's stream reader ends quietly at a cut-off frame; its decompression object tells."""
    try:
        import zstandard
    except ImportError as error:
        raise MissingPackageError(_missing_package(path, "zstandard")) from error
    frame = None
    try:
        for chunk in _chunks(file):
            rest = chunk
            while rest:
                frame = frame or zstandard.ZstdDecompressor().decompressobj()
                yield frame.decompress(rest)
                rest = frame.unused_data if frame.eof else b""
                frame = None if frame.eof else frame
    except zstandard.ZstdError as error:
        raise DataError(f"{path}: not readable as Zstandard ({error}): is the file whole?") from error
    if frame is not None:
        raise DataError(f"{path}: ends in the middle of a Zstandard frame; the copy was cut off: fetch it again")


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
    if rest:
        yield rest


def _json_records(chunks: Iterator[bytes], path: Path, text_field: str) -> Iterator[Record]:
    for number, line in enumerate(_lines(chunks), start=1):
        if line.strip():
            yield f":{number}", _json_text(line, f"{path}, line {number:,}", text_field)


def _json_text(line: bytes, where: str, text_field: str) -> str | DataError:
    decoded = _decode(line, where)
    if isinstance(decoded, DataError):
        return decoded
    try:
        record = json.loads(decoded)
    except (json.JSONDecodeError, RecursionError) as error:
        return DataError(f"{where}: not JSON ({error}): {_SKIP_HINT}")
    if not isinstance(record, dict):
        return DataError(f"{where}: not a JSON object but {type(record).__name__}: {_SKIP_HINT}")
    if text_field not in record:
        return DataError(_missing_field(where, "field", text_field, record))
    return _checked_text(record[text_field], where, text_field)


def _checked_text(value: object, where: str, text_field: str) -> str | DataError:
    if not isinstance(value, str):
        return DataError(f"{where}: '{text_field}' is {type(value).__name__}, not text: {_SKIP_HINT}")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # JSON can spell half a surrogate pair
        return DataError(f"{where}: '{text_field}' has half a character at position {error.start}: {_SKIP_HINT}")
    return value


def _decode(data: bytes, where: str) -> str | DataError:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return DataError(
            f"{where}: invalid UTF-8 at byte offset {error.start} (0x{data[error.start]:02x}): convert it to "
            "UTF-8, or leave such records out with --on-error skip"
        )


def _missing_field(where: str, kind: str, text_field: str, present: Iterable[str]) -> str:
    names = ", ".join(present) or "none"
    return f"{where}: no {kind} '{text_field}' (there are: {names}): name the right one with --text-field"


def _missing_package(path: Path, package: str) -> str:
    return f"{path}: needs the package {package}: pip install 'glmforge[data]'"
