"""JSON lines to documents, some hundred megabytes per CPU second.

Blocks of whole lines go through one compiled pass that takes the text and the id out of each record, without a Python
object per record (`json_kernels.py`). A line that it does not take, and every line where metadata is wanted or the
block is not UTF-8, goes through a complete JSON parser on its own, and is put aside with its reason if it is bad. Both
roads come to the same documents.
"""

import codecs
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from glmforge.data.documents.batch import DocumentBatch, concatenate
from glmforge.data.documents.compression import chunks_of
from glmforge.errors import DataError
from glmforge_corpus.extract.inputs import ALL_FIELDS, Input, SourceFile
from glmforge_corpus.extract.json_kernels import count_newlines, parse_lines
from glmforge_corpus.extract.json_stream import as_json_lines
from glmforge_corpus.extract.records import Context, dump_metadata

BLOCK_BYTES = 8 << 20

_LINES_AFTER = 64
"""Lines that go one by one where one had to: damage and odd fields rarely come alone, and each change of road costs."""

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
        batch = concatenate(_batches(block, file, context))
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
    return LineBlock(number, data, count_newlines(np.frombuffer(data, np.uint8)))


def _batches(block: LineBlock, file: SourceFile, context: Context) -> Iterator[DocumentBatch]:
    """The documents of a block in order, in parts that took the one road or the other."""
    source, data = file.input, block.data
    assert data is not None
    if source.metadata or source.id_field in ("", source.text_field) or not _is_utf8(data):
        yield _by_line(block, file, context)
        return
    number, place, num_lines = block.number, 0, block.num_newlines + 1
    while place < len(data):
        batch, place, taken = _fast(data, place, number, num_lines, file, context.max_document_bytes)
        yield batch
        if place == len(data):
            return
        number += taken
        end = _after_lines(data, place, _LINES_AFTER)
        odd = _block(number, data[place:end])
        yield _by_line(odd, file, context)
        number, place = number + odd.num_newlines, end


def _is_utf8(data: bytes) -> bool:
    borders = pa.py_buffer(np.array([0, len(data)]))
    try:
        pa.Array.from_buffers(pa.large_string(), 1, [None, borders, pa.py_buffer(data)]).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _fast(
    data: bytes, place: int, number: int, num_lines: int, file: SourceFile, max_document_bytes: int
) -> tuple[DocumentBatch, int, int]:
    """The documents from `place`, in line `number`, up to the first line out of the ordinary: (they, its place, lines
    before it)."""
    source, room = file.input, len(data) - place
    texts, text_offsets = np.empty(room, np.uint8), np.empty(num_lines + 1, np.int64)
    ids, id_offsets = np.empty(room if source.id_field else 0, np.uint8), np.empty(num_lines + 1, np.int32)
    lines = np.empty(num_lines, np.int64)
    keys = (np.frombuffer((name or "").encode(), np.uint8) for name in (source.text_field, source.id_field))
    place, taken, rows = parse_lines(
        np.frombuffer(data, np.uint8), place, *keys, max_document_bytes, texts, text_offsets, ids, id_offsets, lines
    )
    if source.id_field is None:
        names = pc.binary_join_element_wise(file.name, pa.array(lines[:rows] + number).cast(pa.string()), ":")
    else:
        names = _strings(pa.string(), ids, id_offsets, rows)
    languages = pa.repeat(pa.scalar(source.language, pa.string()), rows)
    texts = _strings(pa.large_string(), texts, text_offsets, rows)
    return DocumentBatch.from_columns(names, texts, source.source, languages=languages), place, taken


def _strings(kind: pa.DataType, data: NDArray[np.uint8], offsets: NDArray[np.signedinteger], rows: int) -> pa.Array:
    """A column of the first `rows` strings, without a copy of their bytes."""
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(offsets[: rows + 1].copy()), pa.py_buffer(data)])


def _after_lines(data: bytes, place: int, count: int) -> int:
    """Where the line begins that comes `count` lines after the one at `place`, or the end."""
    for _ in range(count):
        place = data.find(b"\n", place) + 1
        if not place:
            return len(data)
    return place


def _by_line(block: LineBlock, file: SourceFile, context: Context) -> DocumentBatch:
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
