"""Documents in columns: the form in which the corpus pipeline passes them on.

A batch is an Arrow record batch of some megabytes with one row per document:

    id         string        names the document in its corpus; the same on every machine
    text       large_string  UTF-8, never empty in what a stage writes
    source     string        the name of the input that it came from, such as "web"
    language   string        ISO 639 code, "code" for programs, null before detection
    metadata   string        a JSON object, or null: what else the source said (URL, date, licence, path)
    score_*    float32       any number of columns, null if absent

Compiled loops read a batch's text through `text_bytes` and `text_offsets`, which are views of Arrow's own memory:
no Python string is made for a document unless requested. On disk a batch is a row group of a Parquet
file; the writer cuts them by bytes of text, so that any task's memory is bounded by its largest document.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import parquet

from glmforge.data.files import arrow_input
from glmforge.errors import DataError

CORE_FIELDS = (
    pa.field("id", pa.string(), nullable=False),
    pa.field("text", pa.large_string(), nullable=False),
    pa.field("source", pa.string(), nullable=False),
    pa.field("language", pa.string()),
    pa.field("metadata", pa.string()),
)
SCORE_PREFIX = "score_"

BATCH_BYTES = 16 << 20
"""Text per batch and row group: enough for vector code, little enough for many workers on one machine."""

BATCH_DOCUMENTS = 1 << 15
"""Documents per batch at most; ids and metadata take room, too."""


@dataclass(frozen=True, slots=True)
class DocumentBatch:
    """Documents as one Arrow record batch of the schema above. Make one with `from_columns`.

    Attributes:
        table: the columns.
    """

    table: pa.RecordBatch

    @staticmethod
    def from_columns(
        ids: Sequence[str] | pa.Array,
        texts: Sequence[str] | pa.Array,
        source: str | Sequence[str] | pa.Array,
        *,
        languages: Sequence[str | None] | pa.Array | None = None,
        metadata: Sequence[str | None] | pa.Array | None = None,
        scores: Mapping[str, NDArray[np.floating]] | None = None,
    ) -> "DocumentBatch":
        """A batch of equally long columns; `source` may be one name for all, `scores` are named without prefix."""
        columns = {
            "id": ids,
            "text": texts,
            "source": pa.repeat(source, len(ids)) if isinstance(source, str) else source,
            "language": pa.nulls(len(ids), pa.string()) if languages is None else languages,
            "metadata": pa.nulls(len(ids), pa.string()) if metadata is None else metadata,
        }
        arrays = [_as_array(columns[field.name], field.type) for field in CORE_FIELDS]
        batch = DocumentBatch(pa.RecordBatch.from_arrays(arrays, schema=pa.schema(CORE_FIELDS)))
        for name, values in (scores or {}).items():
            batch = batch.with_score(name, values)
        return batch

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def ids(self) -> list[str]:
        return self.table.column("id").to_pylist()  # type: ignore[no-any-return]

    @property
    def texts(self) -> list[str]:
        """The texts as Python strings: costs a copy of each; compiled code takes `text_bytes`."""
        return self.table.column("text").to_pylist()  # type: ignore[no-any-return]

    @property
    def text_offsets(self) -> NDArray[np.int64]:
        """`[n + 1]`: text i is `text_bytes[text_offsets[i]:text_offsets[i + 1]]`. Starts at 0 only by chance."""
        text = self.table.column("text")
        buffer = text.buffers()[1]
        return np.frombuffer(buffer, np.int64, len(text) + 1, 8 * text.offset) if buffer else np.zeros(1, np.int64)

    @property
    def text_bytes(self) -> NDArray[np.uint8]:
        """UTF-8 of all texts end to end, read-only and not copied."""
        buffer = self.table.column("text").buffers()[2]
        return np.frombuffer(buffer, np.uint8) if buffer else np.zeros(0, np.uint8)

    @property
    def text_lengths(self) -> NDArray[np.int64]:
        """`[n]`: bytes of each text."""
        return np.diff(self.text_offsets)

    @property
    def score_names(self) -> list[str]:
        return [name.removeprefix(SCORE_PREFIX) for name in self.table.schema.names if name.startswith(SCORE_PREFIX)]

    def score(self, name: str) -> NDArray[np.float32]:
        """`[n]`, NaN where a document has none.

        Raises:
            DataError: no block before has given documents this score.
        """
        if SCORE_PREFIX + name not in self.table.schema.names:
            have = ", ".join(self.score_names) or "none"
            raise DataError(
                f"score '{name}': documents have no such score (available: {have}); add its block before this one"
            )
        column = self.table.column(SCORE_PREFIX + name)
        return column.to_numpy(zero_copy_only=False).astype(np.float32, copy=False)  # type: ignore[no-any-return]

    def with_score(self, name: str, values: NDArray[np.floating]) -> "DocumentBatch":
        """The batch with a score more, or another one of that name; NaN means none."""
        array = pa.array(np.asarray(values, np.float32), pa.float32(), from_pandas=True)
        return self._with(pa.field(SCORE_PREFIX + name, pa.float32()), array)

    def with_ids(self, ids: Sequence[str] | pa.Array) -> "DocumentBatch":
        return self._with(CORE_FIELDS[0], _as_array(ids, pa.string()))

    def with_texts(self, texts: Sequence[str] | pa.Array) -> "DocumentBatch":
        return self._with(CORE_FIELDS[1], _as_array(texts, pa.large_string()))

    def with_text_buffers(self, text_bytes: NDArray[np.uint8], offsets: NDArray[np.int64]) -> "DocumentBatch":
        """The batch with the texts that a compiled loop wrote; the bytes must be UTF-8."""
        offsets = np.ascontiguousarray(offsets, np.int64)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(text_bytes))]
        return self._with(CORE_FIELDS[1], pa.Array.from_buffers(pa.large_string(), len(offsets) - 1, buffers))

    def with_languages(self, languages: Sequence[str | None] | pa.Array) -> "DocumentBatch":
        return self._with(CORE_FIELDS[3], _as_array(languages, pa.string()))

    def with_metadata(self, metadata: Sequence[str | None] | pa.Array) -> "DocumentBatch":
        return self._with(CORE_FIELDS[4], _as_array(metadata, pa.string()))

    def keep(self, mask: NDArray[np.bool_]) -> "DocumentBatch":
        """The documents where `mask` is true."""
        return self if mask.all() else DocumentBatch(self.table.filter(pa.array(mask)))

    def take(self, indices: NDArray[np.integer]) -> "DocumentBatch":
        return DocumentBatch(self.table.take(pa.array(indices)))

    def slice(self, start: int, stop: int) -> "DocumentBatch":
        return DocumentBatch(self.table.slice(start, stop - start))

    def _with(self, field: pa.Field, array: pa.Array) -> "DocumentBatch":
        index = self.table.schema.get_field_index(field.name)
        if index < 0:
            return DocumentBatch(self.table.append_column(field, array))
        return DocumentBatch(self.table.set_column(index, field, array))


def _as_array(values: Sequence[str | None] | pa.Array, kind: pa.DataType) -> pa.Array:
    array = values if isinstance(values, pa.Array) else pa.array(values, kind)
    return array if array.type == kind else pc.cast(array, kind)


def score_columns(path: Path) -> tuple[str, ...] | None:
    """The columns of scores of a shard of documents; None for any other file."""
    try:
        with arrow_input(path) as source:
            schema = parquet.read_schema(source)
    except (pa.ArrowException, OSError):
        return None
    if any(schema.get_field_index(field.name) < 0 for field in CORE_FIELDS):
        return None
    if any(schema.field(field.name).type != field.type for field in CORE_FIELDS):
        return None
    return tuple(name for name in schema.names if name.startswith(SCORE_PREFIX))


def read_batches(path: Path, columns: Sequence[str] | None = None) -> Iterator[DocumentBatch]:
    """The batches of a shard, in order; with `columns`, those only (`text`, `score_quality`).

    Raises:
        DataError: the shard is damaged or has no such column.
    """
    try:
        with parquet.ParquetFile(path) as file:
            missing = [name for name in columns or () if name not in file.schema_arrow.names]
            if missing:
                raise DataError(f"{path}: no column '{missing[0]}': it has {', '.join(file.schema_arrow.names)}")
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, None if columns is None else list(columns)).combine_chunks()
                for batch in table.to_batches():
                    yield DocumentBatch(batch)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not readable as a document shard ({error}); create it again") from error


class BatchWriter:
    """Writes batches to one Parquet file, in row groups of about `BATCH_BYTES` of text for any input.

    The bytes of the file depend on the sequence of documents alone, not on how it was cut into batches, provided
    that every batch has the same columns. Leaving the `with` block without an error finishes the file; the caller
    sees to it that a file left unfinished is not mistaken for a shard.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: parquet.ParquetWriter | None = None
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = self._pending_documents = 0
        self.num_documents = 0

    def write(self, batch: DocumentBatch) -> None:
        """Add documents to the file."""
        start, lengths = 0, batch.text_lengths
        ends = np.cumsum(lengths)
        while start < len(batch):
            done = int(ends[start - 1]) if start else 0
            room = BATCH_BYTES - self._pending_bytes
            stop = max(int(np.searchsorted(ends, done + room)) + 1, start + 1)  # the one that reaches the limit, too
            stop = min(stop, len(batch), start + BATCH_DOCUMENTS - self._pending_documents)
            part = batch.slice(start, stop)
            self._pending.append(part.table)
            self._pending_documents += stop - start
            self._pending_bytes += int(ends[stop - 1]) - done
            if self._pending_bytes >= BATCH_BYTES or self._pending_documents >= BATCH_DOCUMENTS:
                self._flush()
            start = stop

    def _flush(self, schema: pa.Schema | None = None) -> None:
        schema = self._pending[0].schema if self._pending else schema or pa.schema(CORE_FIELDS)
        if self._writer is None:
            self._writer = parquet.ParquetWriter(
                self._path, schema, compression="zstd", compression_level=1, use_dictionary=["source", "language"]
            )
        if self._pending:
            table = pa.Table.from_batches(self._pending, self._writer.schema).combine_chunks()
            self._writer.write_table(table, row_group_size=BATCH_DOCUMENTS)
        self.num_documents += self._pending_documents
        self._pending, self._pending_bytes, self._pending_documents = [], 0, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._flush()
        if self._writer is not None:
            self._writer.close()


def concatenate(batches: Iterable[DocumentBatch]) -> DocumentBatch:
    """Batches of equal columns as one."""
    tables = [batch.table for batch in batches]
    if not tables:
        return DocumentBatch.from_columns([], [], [])
    found = pa.Table.from_batches(tables).combine_chunks().to_batches()
    return DocumentBatch(found[0] if found else tables[0])
