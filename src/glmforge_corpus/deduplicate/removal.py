"""What deduplication leaves: shards without documents, texts without passages."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from glmforge.data.compiled import compiled
from glmforge.data.documents.batch import DocumentBatch
from glmforge_corpus.deduplicate.places import dense_mask, rows_in_shard
from glmforge_corpus.pipeline.stage import ShardStep, TaskOutput, pass_on


@dataclass(frozen=True)
class Removal(ShardStep):
    """Documents without those whose places stand in files of sorted places.

    Attributes:
        removed: reason -> file; the files of two reasons have no place in common.
        first_shard: the number that the first of `shards` has in these places.
    """

    removed: dict[str, Path]
    first_shard: int = 0
    name: str = "documents"

    def run(self, task: int, output: TaskOutput) -> None:
        rows = {reason: rows_in_shard(path, self.first_shard + task) for reason, path in self.removed.items()}

        def left(batch: DocumentBatch, start: int) -> DocumentBatch:
            gone = np.zeros(len(batch), np.bool_)
            for reason, part in rows.items():
                mask = dense_mask(part, start, len(batch))
                output.statistics.add_removed(reason, batch, mask.nonzero()[0])
                gone |= mask
            return batch.keep(~gone) if rows else batch

        pass_on(self.shards[task], output, left)


def cut(
    text_bytes: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    borders: NDArray[np.int64],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The texts without some passages; a text that loses its end loses the spaces before it, too.

    Args:
        text_bytes: UTF-8 of all texts.
        offsets: `[n + 1]` borders of texts in it.
        borders: `[n + 1]` borders of texts among the passages.
        starts, stops: of each passage in `text_bytes`, in order, on borders of characters and without overlap.

    Returns:
        bytes and offsets of the texts that remain.
    """
    out = np.empty(int(offsets[-1] - offsets[0]), np.uint8)
    out_offsets = np.zeros(len(offsets), np.int64)
    _cut(text_bytes, offsets, borders, starts, stops, out, out_offsets)
    return out[: out_offsets[-1]], out_offsets


@compiled
def _cut(text: Any, offsets: Any, borders: Any, starts: Any, stops: Any, out: Any, out_offsets: Any) -> None:
    size = 0
    for row in range(len(offsets) - 1):
        place = offsets[row]
        for k in range(borders[row], borders[row + 1]):
            length = starts[k] - place
            out[size : size + length] = text[place : starts[k]]
            size, place = size + length, stops[k]
        length = offsets[row + 1] - place
        out[size : size + length] = text[place : offsets[row + 1]]
        size += length
        if length == 0 and borders[row + 1] > borders[row]:
            while size > out_offsets[row] and (out[size - 1] == 32 or 9 <= out[size - 1] <= 13):
                size -= 1
        out_offsets[row + 1] = size


def is_blank(batch: DocumentBatch) -> NDArray[np.bool_]:
    """`[n]`: which texts have nothing but space in them."""
    trimmed = pc.utf8_length(pc.utf8_trim_whitespace(batch.table.column("text")))
    return trimmed.to_numpy(zero_copy_only=False) == 0  # type: ignore[no-any-return]
