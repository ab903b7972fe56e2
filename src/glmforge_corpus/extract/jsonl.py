"""JSON lines to documents: blocks of whole lines, each parsed by orjson and put aside with its reason if it is bad.

A line is bounded before it is parsed, so that a file without line ends, or one hostile record, costs no more memory
than the longest document that is allowed. Files that are one array of records, or have records over several lines, are
split first (`as_json_lines`): each record on a line of its own, without holding the file as a whole, however large the
array. The beginning of a file decides; JSON lines pass as they are.
"""

import codecs
import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from glmforge.data.documents.batch import DocumentBatch
from glmforge.data.documents.compression import chunks_of
from glmforge.errors import DataError
from glmforge_corpus.extract.inputs import ALL_FIELDS, Input, SourceFile
from glmforge_corpus.extract.records import Context, dump_metadata

_BEGINNING = 4096
"""Bytes by which it is decided what a file is."""

_TOKEN = re.compile(rb'"|[\[\]{},\n]')
"""What matters outside of strings."""

_STRING = re.compile(rb'(?:[^"\\\n]++|\\.)*+(?:(["\n])|(\\?)\Z)', re.DOTALL)
"""The rest of a string: its end, or the backslash with which the chunk ends. A line feed cannot be in a string: the
record is damaged, and ends there."""


def as_json_lines(chunks: Iterator[bytes], path: Path) -> Iterator[bytes]:
    """The bytes of a file, each record of an array, or spread over lines, on a line of its own.

    Raises:
        DataError: after all that could be read: the file ends within a record or before the array does.
    """
    first = b""
    for chunk in chunks:
        first += chunk
        if len(first.strip()) >= _BEGINNING:
            break
    everything = itertools.chain([first], chunks)
    if not _needs_splitting(first):
        yield from everything
        return
    splitter = _Splitter()
    for number, chunk in enumerate(everything):
        yield splitter.split(chunk.removeprefix(codecs.BOM_UTF8) if number == 0 else chunk)
    if splitter.unfinished:
        raise DataError(f"{path}: the JSON is truncated; is the file complete?")


def _needs_splitting(begin: bytes) -> bool:
    """Whether a file that begins so is an array of objects, or has an object whose first line is its bracket alone."""
    text = begin.removeprefix(codecs.BOM_UTF8).lstrip()
    if text.startswith(b"["):
        return text[1:].lstrip()[:1] in (b"{", b"")
    return text.startswith(b"{") and text[1:].lstrip(b" \t\r")[:1] == b"\n"


class _Splitter:
    """Puts each record on a line of its own, from chunk to chunk; damage within a record ends with it."""

    def __init__(self) -> None:
        self._depth = self._base = 0  # brackets that are open; of these, the array around the records
        self._in_string = self._escaped = self._pending = False  # pending: something was written since the last line
        self._out: list[bytes] = []

    @property
    def unfinished(self) -> bool:
        return self._depth > 0 or self._in_string

    def split(self, data: bytes) -> bytes:
        """What becomes of the next chunk."""
        self._out, place = [], 0
        while place < len(data):
            if self._in_string:
                place = self._string(data, place)
                continue
            token = _TOKEN.search(data, place)
            stop = token.start() if token else len(data)
            if self._pending or data[place:stop].strip():
                self._write(data[place:stop])
            if token:
                self._token(token[0])
            place = stop + 1
        return b"".join(self._out)

    def _string(self, data: bytes, place: int) -> int:
        """The string from `place` on; the end of it."""
        found = _STRING.match(data, place + self._escaped)
        assert found is not None, "the rest of a chunk always matches"
        self._write(data[place : found.end()])
        self._in_string, self._escaped = found[1] is None, bool(found[2])
        return found.end()

    def _token(self, token: bytes) -> None:
        if token == b"[" and self._depth == 0:
            self._depth = self._base = 1
        elif token == b"]" and self._depth == self._base == 1:
            self._depth = self._base = 0
            self._end_line()
        elif token == b"\n":
            if self._pending:
                self._write(b" ")
        elif token == b"," and self._depth == self._base:
            self._end_line()
        else:
            self._write(token)
            self._in_string = token == b'"'
            self._depth += token in (b"[", b"{")
            if token in (b"]", b"}"):
                self._depth = max(self._depth - 1, self._base)
                if self._depth == self._base:
                    self._end_line()

    def _write(self, data: bytes) -> None:
        self._out.append(data)
        self._pending = True

    def _end_line(self) -> None:
        if self._pending:
            self._out.append(b"\n")
            self._pending = False


BLOCK_BYTES = 8 << 20

_BLANKS = " \t\n\r\v\f"


class LineBlock(NamedTuple):
    """Whole lines; `data` is None for one that is too long, of which `begin` is the start.

    Attributes:
        number: of the first line, from 1.
        num_newlines: as many as there are lines, but for the last line of a file.
    """

    number: int
    data: bytes | None
    num_newlines: int = 0
    begin: bytes = b""


def read_jsonl(file: SourceFile, context: Context) -> Iterator[DocumentBatch]:
    """The documents of a file of JSON lines, or of an array of records; plain or compressed.

    Raises:
        DataError: after all that could be read: the rest of the file is damaged.
    """
    chunks = as_json_lines(chunks_of(file.path), file.path)
    for block in line_blocks(chunks, context.max_document_bytes):
        if block.data is None:
            detail = f"a line of more than max_document_bytes = {context.max_document_bytes:,}"
            context.reject("too long", f"{file.name}:{block.number}", block.begin, detail)
            continue
        if block.number == 1 and block.data.startswith(codecs.BOM_UTF8):
            block = block._replace(data=block.data.removeprefix(codecs.BOM_UTF8))
        batch = _documents(block, file, context)
        if len(batch):
            yield batch


def line_blocks(chunks: Iterable[bytes], max_line_bytes: int) -> Iterator[LineBlock]:
    """Lines in blocks of about `BLOCK_BYTES`; before an error of `chunks` passes, what came before it.

    A line of more than `max_line_bytes` is too long, unless it is within `BLOCK_BYTES`; no chunk is longer than that.
    """
    limit = max(max_line_bytes, BLOCK_BYTES)
    number, pending, size, unended = 1, list[bytes](), 0, 0  # the last `unended` bytes are of a line without its end
    skipping, failure = False, None
    iterator = iter(chunks)
    while True:
        try:
            chunk = next(iterator, None)
        except DataError as error:
            chunk, failure = None, error
        if chunk is None:
            break
        end = chunk.find(b"\n")
        if not skipping and unended + (len(chunk) if end < 0 else end) > limit:
            data = b"".join((*pending, chunk))
            cut = size - unended
            if cut:
                block = _block(number, data[:cut])
                yield block
                number += block.num_newlines
            yield LineBlock(number, None, begin=data[cut : cut + 1000])
            pending, size, unended, skipping = [], 0, 0, True
        if skipping:  # in the middle of a line that is too long
            if end < 0:
                continue
            chunk, skipping, number = chunk[end + 1 :], False, number + 1
        pending.append(chunk)
        size += len(chunk)
        last = chunk.rfind(b"\n") + 1
        unended = len(chunk) - last if last else unended + len(chunk)
        if last and size >= BLOCK_BYTES:
            block = _block(number, b"".join((*pending[:-1], chunk[:last])))
            yield block
            number += block.num_newlines
            pending, size = [chunk[last:]], unended
    if size:
        yield _block(number, b"".join(pending))
    if failure is not None:
        raise failure


def _block(number: int, data: bytes) -> LineBlock:
    return LineBlock(number, data, data.count(b"\n"))


def _documents(block: LineBlock, file: SourceFile, context: Context) -> DocumentBatch:
    """The documents of a block, each line parsed on its own."""
    source = file.input
    assert block.data is not None
    ids, texts, metadata = list[str](), list[str](), list[str | None]()
    for number, line in enumerate(block.data.split(b"\n"), start=block.number):
        if not line.strip():
            continue
        record, reason, detail = _parse(line, source.text_field, source.id_field, context.max_document_bytes)
        if record is None:
            context.reject(reason, f"{file.name}:{number}", line[:1000], detail)
            continue
        texts.append(record[source.text_field])
        ids.append(f"{file.name}:{number}" if source.id_field is None else str(record[source.id_field]))
        metadata.append(dump_metadata(_metadata(record, source)))
    languages = [source.language] * len(ids)
    return DocumentBatch.from_columns(ids, texts, source.source, languages=languages, metadata=metadata)


def _metadata(record: dict[str, Any], source: Input) -> dict[str, Any]:
    """The fields that are kept: those named, or with "*" all but the text and the id."""
    if source.metadata == [ALL_FIELDS]:
        return {key: value for key, value in record.items() if key not in (source.text_field, source.id_field)}
    return {key: record[key] for key in source.metadata if key in record}


def _parse(
    line: bytes, text_field: str, id_field: str | None, max_document_bytes: int
) -> tuple[dict[str, str] | None, str, str]:
    """(record, "", "") or (None, reason, detail)."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return None, *_why_not_json(line, str(error))
    if not isinstance(record, dict):
        return None, "not a JSON object", type(record).__name__
    for field in (text_field, *([] if id_field is None else [id_field])):
        if field not in record:
            return None, "no such field", f"no '{field}' (there are: {', '.join(record) or 'none'})"
    text = record[text_field]
    if not isinstance(text, str):
        return None, "not text", f"'{text_field}' is {type(text).__name__}"
    if id_field is not None and (not isinstance(record[id_field], str | int) or record[id_field] == ""):
        return None, "not an id", f"'{id_field}' is {record[id_field]!r}"
    if not text.strip(_BLANKS):
        return None, "empty text", ""
    if len(text) > max_document_bytes // 4 and (size := len(text.encode())) > max_document_bytes:
        return None, "too long", f"{size:,} bytes are more than max_document_bytes = {max_document_bytes:,}"
    return record, "", ""


def _why_not_json(line: bytes, detail: str) -> tuple[str, str]:
    try:
        line.decode()
    except UnicodeDecodeError as error:
        return "invalid UTF-8", str(error)
    return ("lone surrogate" if "surrogate" in detail else "not JSON"), detail
