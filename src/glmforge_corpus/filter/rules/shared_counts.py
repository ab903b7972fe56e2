"""Counts that several blocks of a chain need of the same texts, made once.

A batch that goes down a chain loses documents and keeps the order of the others. So the counts of the last batch are
kept with its texts, and a batch whose texts are all among those, in order and byte by byte, is given their rows;
comparing costs a hundredth of counting. Any other batch is counted anew: results never depend on what came before.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from glmforge.data.bytes_kernels import equal_bytes
from glmforge.data.compiled import compiled
from glmforge.data.documents.batch import DocumentBatch
from glmforge_corpus.filter.rules.repetition import count_lines
from glmforge_corpus.words.characters import character_table
from glmforge_corpus.words.split import Words, split_words


@compiled
def match_rows(text: Any, offsets: Any, part: Any, part_offsets: Any) -> Any:
    """Rows of `text` that are the texts of `part`, in order; shorter than `part` at the first that is not there."""
    num_texts, num_parts = len(offsets) - 1, len(part_offsets) - 1
    rows = np.empty(num_parts, np.int64)
    row = 0
    for index in range(num_parts):
        size = part_offsets[index + 1] - part_offsets[index]
        while row < num_texts and (
            offsets[row + 1] - offsets[row] != size
            or not equal_bytes(text, offsets[row], part, part_offsets[index], size)
        ):
            row += 1
        if row == num_texts:
            return rows[:index]
        rows[index] = row
        row += 1
    return rows


_Counts = TypeVar("_Counts")


@dataclass(frozen=True)
class _Counted(Generic[_Counts]):
    """The texts counted last and what was found. `text` owns the memory that `text_bytes` is a view of."""

    text: pa.Array
    text_bytes: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    counts: _Counts


_last = threading.local()


def words_of_batch(batch: DocumentBatch) -> tuple[Words, NDArray[np.int64]]:
    """(words, rows `[n]`): the words of document i are those of text `rows[i]`."""
    return _counted("words", batch, split_words)


def lines_of_batch(batch: DocumentBatch, short_line: int) -> NDArray[np.int64]:
    """`[n, NUM_LINE_COUNTS]`: what `repetition` counts in the documents of a batch."""
    counts, rows = _counted(
        f"lines {short_line}", batch, lambda text, offsets: count_lines(text, offsets, short_line, character_table())
    )
    return np.asarray(counts[rows], np.int64)


def _counted(
    what: str, batch: DocumentBatch, count: Callable[[NDArray[np.uint8], NDArray[np.int64]], _Counts]
) -> tuple[_Counts, NDArray[np.int64]]:
    text_bytes, offsets = batch.text_bytes, batch.text_offsets
    last: _Counted[_Counts] | None = getattr(_last, what, None)
    if last is not None:
        rows = match_rows(last.text_bytes, last.offsets, text_bytes, offsets)
        if len(rows) == len(batch):
            return last.counts, rows
    counted = _Counted(batch.table.column("text"), text_bytes, offsets, count(text_bytes, offsets))
    setattr(_last, what, counted)
    return counted.counts, np.arange(len(batch))


def forget() -> None:
    """Let go of what is kept; for measurements, and for memory."""
    _last.__dict__.clear()
