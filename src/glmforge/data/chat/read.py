"""Records of files, one at a time, each with its place: JSON lines, JSON arrays and Parquet.

Text files are distinguished by their first character, since files called .json are of either kind: `[` begins an array,
which is read as a whole and taken apart record by record, everything else is one record a line. Both may be compressed
(.gz, .zst). What the text of a record says is only looked at when it is requested, by whichever process does.

A record that is wrong is an error of its own; a file that cannot be read on (cut off, an array that is no JSON) is one
of the file.
"""

import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from glmforge.config.chat import CONVERSATION_SUFFIXES, is_conversation_file
from glmforge.data.chat.records import RECORD_FIELDS
from glmforge.data.documents.compression import chunks_of
from glmforge.data.documents.formats import lines_of
from glmforge.data.files import arrow_input
from glmforge.errors import DataError
from glmforge.extras import needed_for
from glmforge.files import escaped, parse_json, shown

MAX_ARRAY_BYTES = 256 << 20
MAX_LINE_BYTES = 16 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # what some programs begin UTF-8 with
_MAX_SPACE = 1 << 20  # before an array; after more of it, the file is one of lines

_SPACE = re.compile(r"[ \t\n\r]*")


class RawRecord(NamedTuple):
    """A record as the file has it. `where` is its file and line (of Parquet the row)."""

    where: str
    content: bytes | str | Mapping[str, Any]

    @property
    def num_bytes(self) -> int:
        """About how much text it is."""
        return len(self.content) if isinstance(self.content, bytes | str) else len(str(self.content))

    def parse(self) -> Mapping[str, Any]:
        """Its fields. Raises `DataError`, in one line with its place."""
        if isinstance(self.content, Mapping):
            return self.content
        try:
            text = self.content.decode() if isinstance(self.content, bytes) else self.content
        except UnicodeDecodeError as error:
            raise DataError(f"{self.where}: not UTF-8 text (byte {error.start:,} of the line)") from error
        return parse_json(text, dict, source=self.where, error=DataError)


def read_records(paths: Sequence[Path], fields: Sequence[str] = RECORD_FIELDS) -> Iterator[RawRecord]:
    """The records of files and directories in order; of a directory all files of a known kind, by name. Of Parquet only
    the columns `fields` are read.

    Raises:
        DataError: a file is missing, of an unknown kind, or cannot be read on.
        MissingPackageError: .parquet without pyarrow, .zst without zstandard.
    """
    for path in (file for given in paths for file in _files(given)):
        yield from _parquet(path, fields) if path.name.endswith(".parquet") else _text_records(path)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        found = [Path(root, name) for root, _, names in os.walk(path) for name in names if not name.startswith(".")]
        files = sorted(file for file in found if is_conversation_file(file))
        if not files:
            raise DataError(
                f"{path}: contains no conversation files ({', '.join(CONVERSATION_SUFFIXES)}): check the path"
            )
        return files
    if not path.is_file():
        raise DataError(f"{path}: no such file or directory: check the path")
    if not is_conversation_file(path):
        raise DataError(
            f"{path}: not a conversation file; supported are {', '.join(CONVERSATION_SUFFIXES)} (also .gz, .zst)"
        )
    return [path]


def _text_records(path: Path) -> Iterator[RawRecord]:
    name, chunks = escaped(str(path)), chunks_of(path)
    first = b""
    for chunk in chunks:
        first += chunk
        if first.strip() or len(first) > _MAX_SPACE:
            break
    first = first.removeprefix(_BYTE_ORDER_MARK)
    whole = itertools.chain([first], chunks)
    if first.lstrip().startswith(b"["):
        yield from _array(_whole(whole, path), name)
        return
    for number, line in enumerate(lines_of(_bounded_lines(whole, path)), start=1):
        if line.strip():
            yield RawRecord(f"{name}:{number}", line)


def _bounded_lines(chunks: Iterable[bytes], path: Path) -> Iterator[bytes]:
    """The same chunks, as long as no line is too long: a small archive can unpack to endless text."""
    length = 0
    for chunk in chunks:
        length = len(chunk) - chunk.rfind(b"\n") - 1 if b"\n" in chunk else length + len(chunk)
        if length > MAX_LINE_BYTES:
            raise DataError(f"{path}: a line of over {MAX_LINE_BYTES:,} bytes: is it a file of conversations?")
        yield chunk


def _whole(chunks: Iterator[bytes], path: Path) -> str:
    content = bytearray()
    for chunk in chunks:
        content += chunk
        if len(content) > MAX_ARRAY_BYTES:
            raise DataError(f"{path}: an array of over {MAX_ARRAY_BYTES:,} bytes: convert it (jq -c '.[]') to .jsonl")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text (byte {error.start:,})") from error


def _array(text: str, name: str) -> Iterator[RawRecord]:
    """The elements of a JSON array."""
    decoder, place = json.JSONDecoder(), _skip_space(text, text.index("[") + 1)
    line = 1 + text.count("\n", 0, place)
    more = not text.startswith("]", place)
    while more:
        try:
            _, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{name}:{line}: not valid JSON: {error}; fix the file") from error
        yield RawRecord(f"{name}:{line}", text[place:end])
        following = _skip_space(text, end)
        more = text.startswith(",", following)
        if not more and not text.startswith("]", following):
            raise DataError(f"{name}:{line}: not valid JSON: the array is not closed; is the file complete?")
        following = _skip_space(text, following + 1)
        line, place = line + text.count("\n", place, following), following


def _skip_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    assert found is not None, "the pattern matches nothing, too"
    return found.end()


def _parquet(path: Path, fields: Sequence[str]) -> Iterator[RawRecord]:
    name = escaped(str(path))
    with needed_for(f"{path}:"):
        import pyarrow
        from pyarrow import parquet
    try:
        with arrow_input(path) as opened, parquet.ParquetFile(opened) as table:
            columns = [field for field in table.schema_arrow.names if field in fields]
            if not columns:
                raise DataError(
                    f"{path}: no column of conversations (there are: {', '.join(table.schema_arrow.names)})"
                )
            rows = (row for batch in table.iter_batches(batch_size=1024, columns=columns) for row in batch.to_pylist())
            for number, row in enumerate(rows, start=1):
                yield RawRecord(f"{name}:{number}", _without_nulls(row))
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not readable as Parquet ({shown(error)}); is the file complete?") from error


def _without_nulls(value: Any) -> Any:
    """Without fields that are null: Parquet gives all structures of a column the fields of all others."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
