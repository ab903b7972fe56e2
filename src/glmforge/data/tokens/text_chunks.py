"""Documents on their way to an encoder: many texts at once, as UTF-8 end to end.

A corpus is taken apart into units of work of about a megabyte or more, in its order: texts that were read already, or
a row group of a shard of documents (what the corpus pipeline writes), which the worker reads itself, without
a Python string per document. A `Selection` says which documents take part, by a hash of their ids.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from glmforge.data.documents.document import Document, is_held_out
from glmforge.data.documents.read import Corpus
from glmforge.data.files import arrow_input
from glmforge.errors import DataError

CHUNK_CHARACTERS = 1 << 20


class Selection(Protocol):
    """Which documents take part; a pure function of the id."""

    def __call__(self, document_id: str) -> bool: ...


@dataclass(frozen=True)
class HeldOut:
    """The documents that `split_held_out` sets aside, or the others."""

    fraction: float
    held_out: bool
    seed: int = 0

    def __call__(self, document_id: str) -> bool:
        return is_held_out(document_id, self.fraction, self.seed) == self.held_out


class TextChunk(NamedTuple):
    """Texts end to end.

    Attributes:
        data: UTF-8, uint8.
        offsets: int64 `[n + 1]`, text i is `data[offsets[i]:offsets[i + 1]]`.
        ids: of the documents.
        languages: of the documents, None where unknown.
    """

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    ids: Sequence[str]
    languages: Sequence[str | None]

    @property
    def num_bytes(self) -> int:
        return int(self.offsets[-1] - self.offsets[0])

    def texts(self) -> list[str]:
        pairs = pairwise(self.offsets.tolist())
        return [self.data[first:last].tobytes().decode() for first, last in pairs]

    def read(self) -> "TextChunk":
        """Itself: it is read already."""
        return self


class RowGroup(NamedTuple):
    """A row group of a shard of documents, read by the worker that encodes it."""

    path: Path
    group: int
    selection: Selection | None

    def read(self) -> TextChunk:
        """Read the row group's texts; documents without text are skipped."""
        import pyarrow as pa
        from pyarrow import parquet

        from glmforge.data.documents.batch import DocumentBatch

        try:
            with arrow_input(self.path) as opened, parquet.ParquetFile(opened) as file:
                table = file.read_row_group(self.group, [n for n in _COLUMNS if n in file.schema_arrow.names])
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{self.path}: not readable as a document shard ({error}); create it again") from error
        batches = table.combine_chunks().to_batches()
        if not batches:
            return chunk_of_texts([])
        batch = DocumentBatch(batches[0])
        ids = batch.ids
        wanted = batch.text_lengths > 0
        if self.selection is not None:
            wanted &= np.fromiter(map(self.selection, ids), bool, len(ids))
        if not wanted.all():
            batch = batch.keep(wanted)
            ids = batch.ids
        languages = batch.table.column("language").to_pylist() if "language" in batch.table.schema.names else None
        return TextChunk(batch.text_bytes, batch.text_offsets, ids, languages or [None] * len(ids))


Work = TextChunk | RowGroup
"""What `read` makes a `TextChunk` of."""

_COLUMNS = ("id", "text", "language")


def chunks_of(
    documents: Iterable[Document], selection: Selection | None = None, num_characters: int = CHUNK_CHARACTERS
) -> Iterator[Work]:
    """The documents, in order, in units of work.

    Args:
        documents: any, or a `Corpus`, whose shards of documents are not read here.
        selection: which documents take part; all if None.
        num_characters: a chunk is full with so many.

    Raises:
        DataError: a corpus has no documents at all, or cannot be read.
    """
    pending = _Pending(selection, num_characters)
    if not isinstance(documents, Corpus):
        for document in documents:
            yield from pending.add(document)
        yield from pending.flush()
        return
    empty = True
    for path, name in documents.files():
        num_groups = _num_row_groups(path, documents.text_field)
        if num_groups is None:
            for document in documents.documents_of(path, name):
                empty = False
                yield from pending.add(document)
        else:
            yield from pending.flush()
            yield from (RowGroup(path, group, selection) for group in range(num_groups))
            empty = empty and not num_groups
    if empty:
        raise documents.nothing_found()
    yield from pending.flush()


class _Pending:
    """Documents that do not make a chunk yet."""

    def __init__(self, selection: Selection | None, num_characters: int) -> None:
        self._selection, self._limit = selection, num_characters
        self._documents: list[Document] = []
        self._num_characters = 0

    def add(self, document: Document) -> Iterator[TextChunk]:
        if self._selection is not None and not self._selection(document.id):
            return
        self._documents.append(document)
        self._num_characters += len(document.text)
        if self._num_characters >= self._limit:
            yield from self.flush()

    def flush(self) -> Iterator[TextChunk]:
        if self._documents:
            ids = [document.id for document in self._documents]
            yield chunk_of_texts([document.text for document in self._documents], ids)
        self._documents, self._num_characters = [], 0


def chunk_of_texts(texts: Sequence[str], ids: Sequence[str] = ()) -> TextChunk:
    """A chunk of Python strings."""
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return TextChunk(np.frombuffer(b"".join(encoded), np.uint8), offsets, ids or [""] * len(texts), [None] * len(texts))


def _num_row_groups(path: Path, text_field: str) -> int | None:
    """Of a shard of documents; None for any other file, and for one that cannot be read, which its reader will tell."""
    if path.suffix != ".parquet" or text_field != "text":
        return None
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ModuleNotFoundError:
        return None
    try:
        with arrow_input(path) as opened, parquet.ParquetFile(opened) as file:
            schema = file.schema_arrow
            is_shard = {"id", "text", "source"} <= set(schema.names) and schema.field("text").type == pa.large_string()
            return int(file.num_row_groups) if is_shard else None
    except (pa.ArrowException, OSError):
        return None
