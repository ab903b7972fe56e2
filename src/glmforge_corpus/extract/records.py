"""What readers hand on: documents one by one, or whole batches where a format allows it; and plain text files."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from glmforge.data.documents.batch import BATCH_BYTES, BATCH_DOCUMENTS, DocumentBatch
from glmforge.data.documents.compression import chunks_of
from glmforge.data.files import printable
from glmforge.errors import DataError
from glmforge_corpus.extract.inputs import SourceFile


class UnsuitableFileError(DataError):
    """A file is whole, and holds no documents in a form that we read."""


class Record(NamedTuple):
    """A document as a reader finds it.

    Attributes:
        label: tells the documents of one file apart; empty for the only one.
        text: UTF-8.
        metadata: what else the source said.
        language: if the reader knows; else that of the input.
    """

    label: str
    text: bytes
    metadata: dict[str, Any] | None = None
    language: str | None = None


class Reject(Protocol):
    """`TaskOutput.quarantine`."""

    def __call__(self, reason: str, where: str, data: bytes, detail: str, num_records: int = 1) -> None: ...


@dataclass(frozen=True)
class Context:
    """What a reader is given beside the file.

    Attributes:
        reject: puts aside what is no document.
        count: adds one to a count of the task's statistics.
        max_document_bytes: a longer document is put aside.
        page_seconds: a web page that takes more CPU time is put aside.
        recall_first: keep all running text of web pages.
    """

    reject: Reject
    count: Callable[[str], None]
    max_document_bytes: int
    page_seconds: float = 10.0
    recall_first: bool = False


def gather(records: Iterable[Record], file: SourceFile, context: Context) -> Iterator[DocumentBatch]:
    """Batches of the records that have text and are not too long; the others are put aside."""
    kept: list[Record] = []
    size = 0
    for record in records:
        if not record.text.strip():
            context.reject("empty text", file.name + record.label, b"", "")
        elif len(record.text) > context.max_document_bytes:
            detail = f"{len(record.text):,} bytes are more than max_document_bytes = {context.max_document_bytes:,}"
            context.reject("too long", file.name + record.label, record.text[:1000], detail)
        else:
            kept.append(record)
            size += len(record.text)
        if size >= BATCH_BYTES or len(kept) >= BATCH_DOCUMENTS:
            yield _batch(kept, file)
            kept, size = [], 0
    if kept:
        yield _batch(kept, file)


def _batch(records: list[Record], file: SourceFile) -> DocumentBatch:
    texts = pa.array([record.text for record in records], pa.large_binary()).view(pa.large_string())
    return DocumentBatch.from_columns(
        [file.name + printable(record.label) for record in records],
        texts,
        file.input.source,
        languages=[record.language or file.input.language for record in records],
        metadata=[dump_metadata(record.metadata) for record in records],
    )


def blank_rows(texts: pa.Array) -> NDArray[np.bool_]:
    """`[n]`: texts (large binary or string, without nulls) of nothing but ASCII white space."""
    if not len(texts):
        return np.zeros(0, np.bool_)
    offsets = np.frombuffer(texts.buffers()[1], np.int64, len(texts) + 1, 8 * texts.offset)
    blank: NDArray[np.bool_] = offsets[1:] == offsets[:-1]
    filled = np.flatnonzero(~blank)
    if not len(filled):  # there may be no bytes to look at
        return blank
    view = np.frombuffer(texts.buffers()[2], np.uint8)
    for row in filled[view[offsets[filled]] <= 32]:
        blank[row] = not bytes(view[offsets[row] : offsets[row + 1]]).strip()
    return blank


def dump_metadata(metadata: dict[str, Any] | None) -> str | None:
    """Metadata in one form only: keys sorted, None without any; what is no Unicode text stands there as `\\xff`."""
    if not metadata:
        return None
    options = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
    try:
        return orjson.dumps(metadata, option=options, default=str).decode()
    except TypeError:  # half a character, as in file names of old archives
        return orjson.dumps(_printable_values(metadata), option=options, default=str).decode()


def _printable_values(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {_printable_values(key): _printable_values(item) for key, item in value.items()}
    return [_printable_values(item) for item in value] if isinstance(value, list | tuple) else value


def read_text(file: SourceFile, context: Context) -> Iterator[Record]:
    """The text of a file. It must be UTF-8, or begin with the byte order mark of UTF-16: nothing is guessed."""
    data = read_whole(file, context)
    if data is None:
        return
    encoding = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    try:
        yield Record("", data.decode(encoding).encode())
    except UnicodeDecodeError as error:
        context.reject("invalid UTF-8", file.name, data[:1000], str(error))


def read_whole(file: SourceFile, context: Context) -> bytes | None:
    """The bytes of a file, decompressed; None, and it is put aside, if they are too many.

    Raises:
        DataError: the file is damaged.
    """
    parts, size = list[bytes](), 0
    for chunk in chunks_of(file.path):
        parts.append(chunk)
        size += len(chunk)
        if size > context.max_document_bytes:
            detail = f"more than max_document_bytes = {context.max_document_bytes:,}"
            context.reject("too long", file.name, b"".join(parts)[:1000], detail)
            return None
    return b"".join(parts)
