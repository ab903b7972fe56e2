"""Memory, disk and time of near-deduplication on ten million documents.

    python benchmarks/corpus/minhash_memory.py          # a quarter of an hour; writes results/data_minhash_memory.json
    python benchmarks/corpus/minhash_memory.py --documents 200000 --shards 8               # a trial, writes nothing

The documents are made up: 40 to 110 words drawn from 50,000. One in ten is an earlier document, anywhere in the
corpus, with one word replaced, and one in a hundred is the same text every time: a cluster of 100,000. All steps run
in two worker processes; every 50 ms the resident memory of all processes is added up, both as the kernel counts it and
without the pages of mapped files, which it takes back when it needs them. The text is made before the clock starts.
Expected before measuring: under 1.5 GB, because no task holds more than one shard's keys and one batch of texts.
"""

import argparse
import json
import multiprocessing
import shutil
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import psutil
from numpy.typing import NDArray
from record import write_result

from glmforge.data.documents.batch import BatchWriter, DocumentBatch
from glmforge_corpus.deduplicate.minhash import MinHash
from glmforge_corpus.deduplicate.places import rows_of, shards_of
from glmforge_corpus.pipeline.stage import StageContext
from glmforge_corpus.pipeline.task import PlannedStep, run_task

CODE = ("src/glmforge_corpus/deduplicate", "src/glmforge_corpus/words")
LIMIT_GB = 4.0
VOCABULARY = 50_000
FEWEST_WORDS, MOST_WORDS = 40, 110
COPY_EVERY, SAME_EVERY = 10, 100
PART = 1 << 14


def words() -> list[bytes]:
    """Distinct words of 3 to 9 letters."""
    generator = np.random.default_rng(0)
    letters = generator.integers(ord("a"), ord("z") + 1, (2 * VOCABULARY, 9)).astype(np.uint8)
    lengths = generator.integers(3, 10, 2 * VOCABULARY)
    made = sorted({bytes(row[:length]) for row, length in zip(letters, lengths, strict=True)})
    return [made[k] for k in generator.permutation(len(made))[:VOCABULARY]]


def scramble(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Random numbers as a function of their number (splitmix64)."""
    x = x * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x632BE59BD9B4E019)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)


def texts_of(documents: NDArray[np.uint64], vocabulary: list[bytes]) -> list[str]:
    drawn = scramble(scramble(documents))
    same, copies = documents % SAME_EVERY == 7, is_copy(documents)
    origins = np.where(copies, drawn % np.maximum(documents // COPY_EVERY, 1) * COPY_EVERY, documents)
    origins = np.where(same, 7, origins).astype(np.uint64)
    numbers = scramble(origins[:, None] * np.uint64(128) + np.arange(MOST_WORDS, dtype=np.uint64)) % VOCABULARY
    lengths = (FEWEST_WORDS + scramble(origins) % (MOST_WORDS - FEWEST_WORDS + 1)).astype(np.int64)
    rows = np.flatnonzero(copies)
    changed = (drawn[rows] >> np.uint64(32)) % lengths[rows].astype(np.uint64)
    numbers[rows, changed.astype(np.int64)] = scramble(drawn[rows]) % VOCABULARY
    pairs = zip(numbers.tolist(), lengths.tolist(), strict=True)
    return [b" ".join([vocabulary[k] for k in row[:length]]).decode() for row, length in pairs]


def is_copy(documents: NDArray[np.uint64]) -> NDArray[np.bool_]:
    return (documents % COPY_EVERY == 3) & (documents > COPY_EVERY) & (documents % SAME_EVERY != 7)


def write_shard(path: Path, first: int, count: int) -> None:
    vocabulary = words()
    with BatchWriter(path) as writer:
        for start in range(first, first + count, PART):
            part = np.arange(start, min(start + PART, first + count), dtype=np.uint64)
            ids = [f"d{document}" for document in part]
            writer.write(DocumentBatch.from_columns(ids, texts_of(part, vocabulary), "synthetic"))


class Watch(threading.Thread):
    """The most memory that this process and its children had at once."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.total = self.anonymous = 0
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.05):
            total = anonymous = 0
            for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
                try:
                    memory = process.memory_info()
                except psutil.Error:
                    continue
                total, anonymous = total + memory.rss, anonymous + memory.rss - memory.shared
            self.total, self.anonymous = max(self.total, total), max(self.anonymous, anonymous)


def timed_task(planned: PlannedStep, task: int) -> float:
    started = time.process_time()
    run_task(planned, task)
    return time.process_time() - started


def run_stage(stage: MinHash, shards: list[Path], directory: Path, pool: ProcessPoolExecutor) -> dict[str, Any]:
    """CPU seconds and disk of each step."""
    steps = {}
    for step in stage.steps(StageContext(directory, shards)):
        planned = PlannedStep(step, directory, "benchmark")
        seconds = sum(pool.map(timed_task, [planned] * step.num_tasks, range(step.num_tasks)))
        size = sum(path.stat().st_size for path in (directory / step.name).rglob("*") if path.is_file())
        steps[step.name] = {"cpu_seconds": round(seconds, 1), "disk_MB": round(size / 1e6)}
        print(step.name, steps[step.name], flush=True)
    return steps


def planted(num_documents: int, directory: Path) -> dict[str, Any]:
    """How many of the copies were removed."""
    removed = np.load(directory / "clusters" / "00000" / "removed.npy")
    per_shard = num_documents // len(list((directory / "signatures").iterdir()))
    document = shards_of(removed) * per_shard + rows_of(removed)
    everything = np.arange(num_documents, dtype=np.uint64)
    same, copies = everything % SAME_EVERY == 7, is_copy(everything)
    found = np.zeros(num_documents, bool)
    found[document] = True
    return {
        "copies_with_one_word_changed": int(copies.sum()),
        "of_these_removed_percent": round(100 * float(found[copies].mean()), 2),
        "cluster_of_equal_texts": int(same.sum()),
        "of_these_kept": int((same & ~found).sum()),
        "others_removed": int((found & ~same & ~copies).sum()),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=10_000_000)
    parser.add_argument("--shards", type=int, default=40)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    per_shard = arguments.documents // arguments.shards
    directory = Path(tempfile.mkdtemp(prefix="minhash-memory."))
    try:
        (directory / "in").mkdir()
        shards = [directory / "in" / f"{shard:05d}.parquet" for shard in range(arguments.shards)]
        with ProcessPoolExecutor(arguments.workers, multiprocessing.get_context("spawn")) as pool:
            firsts = range(0, per_shard * arguments.shards, per_shard)
            list(pool.map(write_shard, shards, firsts, [per_shard] * arguments.shards))
        stage, watch = MinHash(threshold=0.8), Watch()
        with ProcessPoolExecutor(arguments.workers, multiprocessing.get_context("spawn")) as pool:
            watch.start()
            started = time.perf_counter()
            steps = run_stage(stage, shards, directory / "stage", pool)
            wall = time.perf_counter() - started
            watch.done.set()
        cpu = sum(step["cpu_seconds"] for step in steps.values())
        total = per_shard * arguments.shards
        result = {
            "warnings": ["a shared machine: seconds move by a quarter between runs, memory does not"],
            "documents": total,
            "shards": arguments.shards,
            "workers": arguments.workers,
            "stage": stage.describe(),
            "input_MB": round(sum(path.stat().st_size for path in shards) / 1e6),
            "steps": steps,
            "cpu_seconds": round(cpu, 1),
            "documents_per_cpu_second": round(total / cpu),
            "wall_seconds": round(wall, 1),
            "peak_memory_GB_all_processes": round(watch.total / 1e9, 2),
            "peak_memory_GB_without_mapped_files": round(watch.anonymous / 1e9, 2),
            "limit_GB": LIMIT_GB,
            "planted": planted(total, directory / "stage"),
        }
        print(json.dumps(result, indent=1))
        if arguments.documents >= 10_000_000:
            write_result("data_minhash_memory", result, code=CODE, libraries=["numba", "pyarrow"])
        assert watch.total / 1e9 < LIMIT_GB, f"{watch.total / 1e9:.2f} GB is not under {LIMIT_GB}"
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
