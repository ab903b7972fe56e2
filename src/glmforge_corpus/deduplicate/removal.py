"""The step that passes on what a deduplication leaves of each shard."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from glmforge.data.documents.batch import read_batches
from glmforge_corpus.deduplicate.places import dense_mask, rows_in_shard
from glmforge_corpus.pipeline.stage import Step, TaskOutput


@dataclass(frozen=True)
class Removal(Step):
    """Documents without those whose places stand in files of sorted places.

    Attributes:
        shards: what comes in.
        removed: reason -> file; the files of two reasons have no place in common.
        first_shard: the number that the first of `shards` has in these places.
    """

    shards: Sequence[Path]
    removed: dict[str, Path]
    first_shard: int = 0
    name: str = "documents"

    @property
    def num_tasks(self) -> int:  # type: ignore[override]
        return len(self.shards)

    def run(self, task: int, output: TaskOutput) -> None:
        rows = {reason: rows_in_shard(path, self.first_shard + task) for reason, path in self.removed.items()}
        start = 0
        with output.documents() as writer:
            for batch in read_batches(self.shards[task]):
                output.statistics.add_read(batch)
                gone = {reason: dense_mask(part, start, len(batch)) for reason, part in rows.items()}
                start += len(batch)
                kept = batch
                for reason, mask in gone.items():
                    output.statistics.add_removed(reason, batch, mask.nonzero()[0])
                if gone:
                    kept = batch.keep(~sum(gone.values()).astype(bool))  # type: ignore[union-attr]
                output.statistics.add_written(kept)
                writer.write(kept)
