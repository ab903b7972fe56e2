"""Semantic deduplication from shards to shards."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from glmforge.data.documents.batch import BatchWriter, DocumentBatch, read_batches
from glmforge_corpus.deduplicate.semantic import COPIES, Semantic
from glmforge_corpus.pipeline.stage import DOCUMENTS, StageContext
from glmforge_corpus.pipeline.statistics import Statistics
from glmforge_corpus.pipeline.task import PlannedStep, run_task

Shard = Sequence[tuple[str, str, float]]


def text_of(topic: int, seed: int, changed: int = 0) -> str:
    """120 words about a topic, some of them changed."""
    words = [f"t{topic}w{random.Random(topic * 1000 + i).randrange(500)}" for i in range(120)]
    for i in random.Random(seed).sample(range(120), changed):
        words[i] = f"new{seed}"
    return " ".join(words)


# Topics 0-9: copies of each with up to three words changed; topics 10-29 alone.
CORPUS: Shard = [
    *((f"t{topic}-{n}", text_of(topic, 10 * topic + n, n), 0.1 * n) for n in range(3) for topic in range(10)),
    *((f"t{topic}", text_of(topic, topic), 0.5) for topic in range(10, 30)),
]


def write_shards(directory: Path, corpus: Shard, num_shards: int) -> list[Path]:
    directory.mkdir()
    size = -(-len(corpus) // num_shards)
    paths = []
    for number in range(num_shards):
        ids, texts, scores = zip(*corpus[number * size : (number + 1) * size], strict=True)
        batch = DocumentBatch.from_columns(ids, texts, "web", scores={"quality": np.array(scores)})
        paths.append(directory / f"{number}.parquet")
        with BatchWriter(paths[-1]) as writer:
            writer.write(batch)
    return paths


def run(stage: Semantic, directory: Path, shards: list[Path]) -> tuple[list[str], Statistics]:
    """(ids that are left, what all tasks counted)."""
    steps = stage.check().steps(StageContext(directory, shards, seed=0))
    total = Statistics()
    for step in steps:
        planned = PlannedStep(step, directory, "same")
        for task in range(step.num_tasks):
            run_task(planned, task)
            total.merge(planned.statistics(task))
    last = [directory / steps[-1].name / f"{task:05d}" / DOCUMENTS for task in range(steps[-1].num_tasks)]
    return [name for path in last for batch in read_batches(path) for name in batch.ids], total


@pytest.mark.parametrize("num_shards", [1, 3, 25])
def test_the_first_of_each_group_is_kept_however_the_corpus_is_cut(tmp_path: Path, num_shards: int) -> None:
    shards = write_shards(tmp_path / "in", CORPUS, num_shards)
    kept, total = run(Semantic(threshold=0.85), tmp_path / "stage", shards)
    assert kept == [name for name, _, _ in CORPUS if not name.endswith(("-1", "-2"))]
    assert total.removed["says the same as another"].documents == 20
    assert (total.counts["documents that are copies"], total.counts["groups of copies"]) == (20, 10)
    tables = [parquet.read_table(tmp_path / "stage" / "pairs" / f"{i:05d}" / COPIES) for i in range(num_shards)]
    pairs = {(row["document"], row["kept_document"]) for table in tables for row in table.to_pylist()}
    assert pairs == {(f"t{topic}-{copy}", f"t{topic}-0") for topic in range(10) for copy in (1, 2)}


def test_the_best_of_each_group_is_kept(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "in", CORPUS, 3)
    kept, _ = run(Semantic(threshold=0.85, keep="best"), tmp_path / "stage", shards)
    assert kept == [name for name, _, _ in CORPUS if not name.endswith(("-0", "-1"))]


def test_the_farthest_from_the_centroid_is_kept(tmp_path: Path) -> None:
    # One cluster whose centroid is near topic 0: of that topic the most changed copy is farthest from it.
    corpus = [("a", text_of(0, 0), 0.0), ("b", text_of(0, 0), 0.0), ("c", text_of(0, 5, 6), 0.0)]
    shards = write_shards(tmp_path / "in", corpus, 1)
    kept, _ = run(Semantic(threshold=0.8, keep="farthest"), tmp_path / "stage", shards)
    assert kept == ["c"]


def test_check_only_reports_and_keeps_all(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "in", CORPUS, 2)
    kept, total = run(Semantic(threshold=0.85, check_only=True), tmp_path / "stage", shards)
    assert kept == [name for name, _, _ in CORPUS]
    assert total.counts["copies, left in"] == 20
    assert not total.removed


def test_with_many_clusters_near_documents_still_meet(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "in", CORPUS, 3)
    kept, total = run(Semantic(threshold=0.85, num_clusters=8), tmp_path / "stage", shards)
    assert total.counts["clusters"] == 8
    assert len(kept) <= 32  # of 50, 20 are copies; a pair may lie astride a border


def test_an_empty_shard_and_texts_without_words_pass(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "in", [("a", "?!", 0.0), ("b", "?!", 0.0), ("c", text_of(1, 1), 0.0)], 1)
    empty = tmp_path / "in" / "empty.parquet"
    with BatchWriter(empty):
        pass
    kept, _ = run(Semantic(), tmp_path / "stage", [empty, *shards])
    assert kept == ["a", "b", "c"]
    assert run(Semantic(), tmp_path / "nothing", [empty])[0] == []


def test_finished_embeddings_are_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = write_shards(tmp_path / "in", CORPUS, 3)
    stage = Semantic(threshold=0.85)
    first, *_ = stage.steps(StageContext(tmp_path / "stage", shards))
    planned = PlannedStep(first, tmp_path / "stage", "same")
    run_task(planned, 1)
    before = (planned.task_directory(1) / "embeddings.npy").stat()
    run(stage, tmp_path / "stage", shards)
    after = (planned.task_directory(1) / "embeddings.npy").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
