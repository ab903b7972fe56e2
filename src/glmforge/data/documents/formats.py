"""The texts of one file, for each kind of file.

Every reader yields `(label, text)` per record, where the label tells records of one file apart. A record that
cannot be read comes as a `DataError` in place of its text, so that the caller may go on to the next; a file
that cannot be read at all raises one.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from glmforge.data.documents.compression import chunks_of
from glmforge.data.files import arrow_input
from glmforge.errors import DataError
from glmforge.extras import needed_for

__all__ = ["SKIP_HINT", "is_record_file", "lines_of", "read_file"]

Record = tuple[str, str | DataError]

SKIP_HINT = ", or skip such records with --on-error skip"
"""End of the errors of records that may be omitted."""

_FIX = f"fix it{SKIP_HINT}"
_CONVERT = "expected one record per line; convert it (jq -c '.[]'), or use 'glmforge data extract', which reads arrays"


def read_file(path: Path, text_field: str) -> Iterator[Record]:
    """The texts of a file, by its suffix; a file of no record format is one text.

    Raises:
        DataError: the file is damaged, lacks the column, or cannot be opened.
        MissingPackageError: .parquet without pyarrow, .jsonl.zst without zstandard.
    """
    reader = next((reader for suffix, reader in _READERS.items() if path.name.endswith(suffix)), None)
    try:
        yield from [_whole_text(path)] if reader is None else reader(path, text_field)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error}); is the file complete and readable?") from error


def is_record_file(path: Path) -> bool:
    """Whether the file holds many records rather than one text."""
    return path.name.endswith(tuple(_READERS))


def _whole_text(path: Path) -> Record:
    return "", _decode(path.read_bytes(), str(path))


def _jsonl(path: Path, text_field: str) -> Iterator[Record]:
    yield from _json_records(chunks_of(path), path, text_field)


def _parquet(path: Path, text_field: str) -> Iterator[Record]:
    with needed_for(f"{path}:"):
        import pyarrow
        from pyarrow import parquet
    try:
        with arrow_input(path) as opened, parquet.ParquetFile(opened) as table:
            if text_field not in table.schema_arrow.names:
                raise DataError(_missing_field(str(path), "column", text_field, table.schema_arrow.names))
            rows = (value for batch in table.iter_batches(columns=[text_field]) for value in batch.column(0))
            for number, value in enumerate(rows, start=1):
                yield f":{number}", _checked_text(value.as_py(), f"{path}, row {number:,}", text_field)
    except pyarrow.ArrowException as error:
        raise DataError(f"{path}: not readable as Parquet ({error}); is the file complete?") from error


_READERS: dict[str, Callable[[Path, str], Iterator[Record]]] = {
    ".jsonl": _jsonl,
    ".jsonl.gz": _jsonl,
    ".jsonl.zst": _jsonl,
    ".parquet": _parquet,
}


def lines_of(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a file that comes in chunks, without their ends."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
    if rest:
        yield rest


def _json_records(chunks: Iterator[bytes], path: Path, text_field: str) -> Iterator[Record]:
    for number, line in enumerate(lines_of(chunks), start=1):
        if line.strip():
            yield f":{number}", _json_text(line, f"{path}, line {number:,}", text_field)


def _json_text(line: bytes, where: str, text_field: str) -> str | DataError:
    decoded = _decode(line, where)
    if isinstance(decoded, DataError):
        return decoded
    try:
        record = json.loads(decoded)
    except (json.JSONDecodeError, RecursionError) as error:
        fix = _CONVERT if line.strip() in (b"[", b"{") or line.lstrip().startswith((b"[{", b"[ ")) else _FIX
        return DataError(f"{where}: not JSON ({error}): {fix}")
    if not isinstance(record, dict):
        fix = _CONVERT if isinstance(record, list) else _FIX
        return DataError(f"{where}: not a JSON object but {type(record).__name__}: {fix}")
    if text_field not in record:
        return DataError(_missing_field(where, "field", text_field, record))
    return _checked_text(record[text_field], where, text_field)


def _checked_text(value: object, where: str, text_field: str) -> str | DataError:
    if not isinstance(value, str):
        return DataError(f"{where}: '{text_field}' is {type(value).__name__}, not text: {_FIX}")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # JSON can spell half a surrogate pair
        return DataError(f"{where}: '{text_field}' has a lone surrogate at position {error.start}: {_FIX}")
    return value


def _decode(data: bytes, where: str) -> str | DataError:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return DataError(
            f"{where}: invalid UTF-8 at byte offset {error.start} (0x{data[error.start]:02x}): convert it to "
            f"UTF-8{SKIP_HINT}"
        )


def _missing_field(where: str, kind: str, text_field: str, present: Iterable[str]) -> str:
    names = ", ".join(present) or "none"
    return f"{where}: no {kind} '{text_field}' (there are: {names}); select one with --text-field"
