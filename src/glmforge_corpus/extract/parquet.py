"""Parquet files to documents, a row group at a time."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from glmforge.data.documents.batch import BATCH_DOCUMENTS, CORE_FIELDS, DocumentBatch
from glmforge.data.files import arrow_input
from glmforge.errors import DataError
from glmforge_corpus.extract.inputs import ALL_FIELDS, Input, SourceFile
from glmforge_corpus.extract.records import Context, UnsuitableFileError, blank_rows, dump_metadata

_TEXT_TYPES = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view())


def read_parquet(file: SourceFile, context: Context) -> Iterator[DocumentBatch]:
    """The documents of a file. What is left of a damaged row group is put aside, and the next one read.

    Raises:
        DataError: the file is damaged so that nothing can be read, or lacks a field.
    """
    source = file.input
    try:
        with arrow_input(file.path) as opened, parquet.ParquetFile(opened) as table:
            columns = _columns(table.schema_arrow, file)
            _check(table.schema_arrow, source.text_field, columns, file)
            row = 1
            for group in range(table.num_row_groups):
                first, num_rows = row, table.metadata.row_group(group).num_rows
                try:
                    for part in table.iter_batches(BATCH_DOCUMENTS, [group], columns, use_threads=False):
                        yield from _documents(part, row, file, context)
                        row += part.num_rows
                except (pa.ArrowException, OSError) as error:
                    lost = first + num_rows - row
                    detail = f"{lost:,} {'record' if lost == 1 else 'records'} lost: {str(error).strip()}"
                    context.reject("damaged row group", f"{file.name}:{row}-{row + lost - 1}", b"", detail, lost)
                row = first + num_rows
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file.path}: not readable as Parquet ({error}); is the file complete?") from error


def _columns(schema: pa.Schema, file: SourceFile) -> list[str]:
    """The columns to read."""
    source = file.input
    if file.scores is not None:
        return [*(field.name for field in CORE_FIELDS), *file.scores]
    names = [source.text_field, *([source.id_field] if source.id_field else []), *_metadata_columns(schema, source)]
    return list(dict.fromkeys(names))


def _metadata_columns(schema: pa.Schema, source: Input) -> list[str]:
    if source.metadata != [ALL_FIELDS]:
        return source.metadata
    return [name for name in schema.names if name not in (source.text_field, source.id_field)]


def _check(schema: pa.Schema, text_field: str, columns: list[str], file: SourceFile) -> None:
    for column in columns:
        if column not in schema.names:
            raise UnsuitableFileError(f"{file.path}: no column '{column}' (there are: {', '.join(schema.names)})")
    kind = schema.field(text_field).type
    if _plain(kind) in (*_TEXT_TYPES, pa.null()):
        return
    fix = "select a text column"
    if pa.types.is_struct(kind):
        fix = "store its text field as a separate column"
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        fix = "join each list into one text first; the separator is unknown"
    raise UnsuitableFileError(f"{file.path}: column '{text_field}' is {kind}, not text: {fix}")


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type of the values of a column, whether or not each value is stored once only."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _decoded(part: pa.RecordBatch) -> pa.RecordBatch:
    """Dictionaries and views as plain columns, so that no other code handles them (Arrow takes no rows of views)."""
    for index, field in enumerate(part.schema):
        kind = _plain(field.type)
        kind = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}.get(kind, kind)
        if kind != field.type:
            part = part.set_column(index, field.name, part.column(index).cast(kind))
    return part


def _documents(part: pa.RecordBatch, first_row: int, file: SourceFile, context: Context) -> Iterator[DocumentBatch]:
    source = file.input
    part = _decoded(part)
    raw = part.column(source.text_field).cast(pa.large_binary())
    wanted = np.ones(len(raw), np.bool_)
    for row, reason in _bad_rows(raw, context.max_document_bytes):
        wanted[row] = False
        context.reject(reason, f"{file.name}:{first_row + row}", (raw[row].as_py() or b"")[:1000], "")
    rows = np.flatnonzero(wanted)
    if not len(rows):
        return
    kept = part.take(pa.array(rows))
    texts = kept.column(source.text_field).cast(pa.large_binary()).view(pa.large_string())
    if file.scores is not None:
        yield _as_known(kept, texts, file)
        return
    if source.id_field is None:
        ids = pc.binary_join_element_wise(pa.scalar(file.name), pa.array(rows + first_row).cast(pa.string()), ":")
    else:
        ids = pc.coalesce(kept.column(source.id_field).cast(pa.string()), pa.scalar(""))
    metadata = None
    if source.metadata:
        names = _metadata_columns(part.schema, source)
        metadata = [dump_metadata(values) for values in kept.select(names).to_pylist()]
    languages = pa.repeat(pa.scalar(source.language, pa.string()), len(rows))
    yield DocumentBatch.from_columns(ids, texts, source.source, languages=languages, metadata=metadata)


def _as_known(kept: pa.RecordBatch, texts: pa.LargeStringArray, file: SourceFile) -> DocumentBatch:
    """Documents of an earlier run with their ids, sources, languages, metadata and scores."""
    known = {name: kept.column(name) for name in kept.schema.names} | {"text": texts}
    if file.input.language is not None:
        known["language"] = pc.fill_null(known["language"], file.input.language)
    assert file.scores is not None
    schema = pa.schema([*CORE_FIELDS, *(pa.field(name, pa.float32()) for name in file.scores)])
    arrays = [known[field.name].cast(field.type) for field in schema]
    return DocumentBatch(pa.RecordBatch.from_arrays(arrays, schema=schema))


def _bad_rows(raw: pa.LargeBinaryArray, max_document_bytes: int) -> Iterator[tuple[int, str]]:
    """(row, reason) of what is no document; UTF-8 is looked at row by row only where a batch has something else."""
    missing = raw.is_null().to_numpy(zero_copy_only=False)
    filled = pc.fill_null(raw, b"")
    lengths = pc.binary_length(filled).to_numpy()
    empty, long = blank_rows(filled), lengths > max_document_bytes
    try:
        filled.view(pa.large_string()).validate(full=True)
        suspects = np.flatnonzero(missing | empty | long)
    except pa.ArrowInvalid:
        suspects = np.arange(len(raw))
    for row in map(int, suspects):
        if missing[row]:
            yield row, "not text"
        elif empty[row]:
            yield row, "empty text"
        elif long[row]:
            yield row, "too long"
        elif not _is_utf8(filled[row].as_py()):
            yield row, "invalid UTF-8"


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
