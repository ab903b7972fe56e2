"""What must be known of documents that are candidates: their shingles, what they weigh, their ids.

Candidates are a part of a corpus, so their texts are read and cut once more instead of keeping everybody's shingles,
which would take more room than the texts. A shard's file of hashes is written batch by batch and mapped by the code
that compares: no task holds more than a batch of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from glmforge.data.documents.batch import DocumentBatch, read_batches
from glmforge_corpus.deduplicate.places import dense_mask, open_array, open_raw, rows_in_shard
from glmforge_corpus.deduplicate.signatures import Shingling, shingle_hashes
from glmforge_corpus.pipeline.stage import ShardStep, TaskOutput

HASHES, BORDERS, ROWS, WEIGHTS, IDS = "hashes.u64", "borders.npy", "rows.npy", "weights.npy", "ids.arrow"


@dataclass(frozen=True)
class Sets(ShardStep):
    """A task per shard: rows, weights, ids and, if wanted, shingle hashes of the documents that are needed.

    Attributes:
        needed: files of sorted places; None: all documents.
        shingling: None: no hashes are wanted.
        weigh_by: "bytes", the name of a score, or "" for nothing.
    """

    first_shard: int
    needed: Sequence[Path] | None
    shingling: Shingling | None
    weigh_by: str
    name: str = "sets"

    def run(self, task: int, output: TaskOutput) -> None:
        rows = None if self.needed is None else self._needed_rows(task)
        found, weights, counts, start = [], [], [np.zeros(1, np.int64)], 0
        sink = pa.OSFile(str(output.directory / IDS), "wb")
        with sink, pa.ipc.new_file(sink, _ID_SCHEMA) as ids, (output.directory / HASHES).open("wb") as hashes:
            for batch in [] if rows is not None and not len(rows) else read_batches(self.shards[task], self._columns()):
                mask = np.ones(len(batch), np.bool_) if rows is None else dense_mask(rows, start, len(batch))
                chosen = mask.nonzero()[0]
                found.append(start + chosen)
                start += len(batch)
                ids.write_batch(pa.record_batch([batch.table.column("id").take(pa.array(chosen))], schema=_ID_SCHEMA))
                weights.append(self._weights(batch)[chosen])
                if self.shingling is not None:
                    made, borders = shingle_hashes(batch.text_bytes, batch.text_offsets, chosen, self.shingling)
                    hashes.write(made.data)
                    counts.append(np.diff(borders))
        np.save(output.directory / ROWS, np.concatenate([np.zeros(0, np.int64), *found]))
        np.save(output.directory / WEIGHTS, np.concatenate([np.zeros(0), *weights]))
        np.save(output.directory / BORDERS, np.cumsum(np.concatenate(counts)))

    def _needed_rows(self, task: int) -> NDArray[np.int64]:
        assert self.needed is not None
        parts = [rows_in_shard(path, self.first_shard + task) for path in self.needed]
        return np.unique(np.concatenate(parts))

    def _columns(self) -> list[str]:
        text = ["text"] if self.shingling is not None or self.weigh_by == "bytes" else []
        return ["id", *text, *([f"score_{self.weigh_by}"] if self.weigh_by not in ("", "bytes") else [])]

    def _weights(self, batch: DocumentBatch) -> NDArray[np.float64]:
        if self.weigh_by == "bytes":
            return batch.text_lengths.astype(np.float64)
        return batch.score(self.weigh_by).astype(np.float64) if self.weigh_by else np.zeros(len(batch))


_ID_SCHEMA = pa.schema([pa.field("id", pa.string())])


def open_sets(directory: Path) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """(hashes, borders) of the documents of a task of `Sets`."""
    return open_raw(directory / HASHES, np.uint64), open_array(directory / BORDERS)


def positions(directory: Path, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where rows of the shard, which must be there, stand among the documents of a task of `Sets`."""
    return np.searchsorted(open_array(directory / ROWS), rows).astype(np.int64)


def ids_at(directory: Path, where: NDArray[np.int64]) -> list[str]:
    """The ids at some positions."""
    with pa.memory_map(str(directory / IDS)) as source:
        column = pa.ipc.open_file(source).read_all().column("id")
        return column.take(pa.array(where)).to_pylist()  # type: ignore[no-any-return]


def weights_at(directory: Path, where: NDArray[np.int64]) -> NDArray[np.float64]:
    """The weights at some positions."""
    return open_array(directory / WEIGHTS)[where]
