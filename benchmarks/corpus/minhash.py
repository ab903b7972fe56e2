"""Near-deduplication of 100,000 documents with known similarities, beside datatrove, datasketch, rensa, text-dedup.

    python benchmarks/corpus/minhash.py                  # a quarter of an hour; writes results/data_minhash.json
    python benchmarks/corpus/minhash.py --quick          # our arms, once each; writes nothing

`dedup/` of `--data` has `documents.jsonl.zst` (id = line number) and `pairs.npz`: all pairs with an exact Jaccard
similarity of at least 0.5 over sets of 5 lower-case, whitespace-separated words.

Every arm gets the same bands, those that our stage derives from the threshold 0.8, and 5-word shingles. An arm is a
process that first works through 500 documents (imports, compilation, caches), then measures its own user and system
time over everything from opening the file to knowing what to remove; "with writing" goes on to the files of what is
left. Arms take turns; of each the least and the median of its repeats are kept. Ours verify candidates by exact
Jaccard similarity; the others, as they are, remove what shares a band, rensa's CMinHashDeduplicator what its estimate
says. datatrove splits words by `str.split` in one arm; its own splitter (spaCy) and text-dedup would take too long and
get the first 2,000 and 20,000 documents, which flatters nobody: their time is per document.

recall: share of the pairs with J >= 0.8 of which at least one member was removed, and ("found") of which both are in
one cluster. precision: share of removed documents that have a partner with J >= 0.8. Expected before measuring: recall
0.995 or more (bands of 17 x 7 find a pair at J = 0.8 with probability 0.98, at 0.85 with 0.999), precision 1 by
construction, 60,000 documents per CPU-second from Parquet; the peers as in their own documentation, 10 to 40
times less.

The peers need a place of their own:

    python -m venv /some/dir && /some/dir/bin/pip install --no-deps text-dedup
    /some/dir/bin/pip install datasketch rensa spacy datatrove datasets click-option-group bitarray pybloom-live
    /some/dir/bin/pip install 'xxhash<4'
    echo SITE_PACKAGES_OF_GLMFORGE > /some/dir/lib/python3.11/site-packages/glmforge.pth     # and its src directory
    /some/dir/bin/python benchmarks/corpus/minhash.py

A peer that cannot be imported is named and left out.
"""

import importlib.util
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import zstandard
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness import data_arguments, json_lines
from record import write_result

NEEDED = ("dedup/documents.jsonl.zst", "dedup/pairs.npz")
THRESHOLD, BANDS, ROWS, SHINGLE = 0.8, 17, 7, 5
NUM_WARM = 500


class Laps:
    """CPU seconds of this process, and of those that it started and has waited for, per step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.last = self._now()

    @staticmethod
    def _now() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + children.ru_utime + children.ru_stime

    def lap(self, name: str) -> None:
        now = self._now()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self.last
        self.last = now


Clusters = NDArray[np.int64]
"""`[n]` the first document of each one's cluster; itself where it stays for want of a partner."""

Run = Callable[[Path, Path, Laps], Clusters]


def clusters_of(edges: Iterator[tuple[int, int]], count: int) -> Clusters:
    parent = list(range(count))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for a, b in edges:
        x, y = root(a), root(b)
        parent[max(x, y)] = min(x, y)
    return np.array([root(node) for node in range(count)])


# Ours


def ours(path: Path, work: Path, laps: Laps) -> Clusters:
    """From a Parquet shard of documents."""
    from pyarrow import parquet

    from glmforge_corpus.deduplicate.minhash import MinHash
    from glmforge_corpus.pipeline.stage import StageContext
    from glmforge_corpus.pipeline.task import PlannedStep, run_task

    stage = MinHash(threshold=THRESHOLD)
    assert tuple(stage.banding()) == (BANDS, ROWS)
    count = parquet.ParquetFile(path).metadata.num_rows
    laps.lap("none")
    for step in stage.steps(StageContext(work, [path])):
        for task in range(step.num_tasks):
            run_task(PlannedStep(step, work, "benchmark"), task)
        laps.lap(step.name)
    found = parquet.read_table(work / "clusters" / "00000" / "clusters.parquet")
    clusters = np.arange(count)
    clusters[np.array(found["id"].to_pylist(), np.int64)] = np.array(found["cluster"].to_pylist(), np.int64)
    return clusters


def ours_from_jsonl(path: Path, work: Path, laps: Laps) -> Clusters:
    """From compressed JSON lines, of which the extract stage makes a shard first."""
    from glmforge_corpus.extract.inputs import Input
    from glmforge_corpus.extract.stage import Extract
    from glmforge_corpus.pipeline.stage import StageContext
    from glmforge_corpus.pipeline.task import PlannedStep, run_task

    laps.lap("none")
    extract = Extract(inputs=(Input(source="benchmark", path=path, id_field="id"),))
    context = StageContext(work / "extract", [])
    (step,) = extract.steps(context)
    run_task(PlannedStep(step, context.directory, "benchmark"), 0)
    laps.lap("extract")
    return ours(context.task_directory(step.name, 0) / "documents.parquet", work / "minhash", laps)


# Peers


def texts_of(path: Path) -> list[str]:
    return [record["text"] for record in json_lines(path)]


def shingles_of(text: str) -> list[str]:
    words = text.lower().split()
    return [" ".join(words[i : i + SHINGLE]) for i in range(max(1, len(words) - SHINGLE + 1))]


def datasketch(path: Path, work: Path, laps: Laps) -> Clusters:
    import xxhash
    from datasketch import MinHash, MinHashLSH

    def hash32(data: bytes) -> int:
        return xxhash.xxh32_intdigest(data)

    laps.lap("none")
    texts = texts_of(path)
    laps.lap("read")
    index, edges = MinHashLSH(num_perm=BANDS * ROWS, params=(BANDS, ROWS)), []
    sets = ([shingle.encode() for shingle in shingles_of(text)] for text in texts)
    for number, sketch in enumerate(MinHash.generator(sets, num_perm=BANDS * ROWS, hashfunc=hash32)):
        edges += [(int(other), number) for other in index.query(sketch)]
        index.insert(number, sketch)
    clusters = clusters_of(iter(edges), len(texts))
    laps.lap("deduplicate")
    return clusters


def rensa(path: Path, work: Path, laps: Laps) -> Clusters:
    from rensa import RMinHash, RMinHashLSH

    laps.lap("none")
    texts = texts_of(path)
    laps.lap("read")
    index, edges = RMinHashLSH(THRESHOLD, BANDS * ROWS, BANDS), []
    for number, text in enumerate(texts):
        sketch = RMinHash(BANDS * ROWS, 42)
        sketch.update(shingles_of(text))
        edges += [(int(other), number) for other in index.query(sketch)]
        index.insert(number, sketch)
    clusters = clusters_of(iter(edges), len(texts))
    laps.lap("deduplicate")
    return clusters


def rensa_verified(path: Path, work: Path, laps: Laps) -> Clusters:
    from rensa import CMinHash, CMinHashDeduplicator

    laps.lap("none")
    texts = texts_of(path)
    laps.lap("read")
    index, kept = CMinHashDeduplicator(THRESHOLD, BANDS * ROWS, 42), []
    for number, text in enumerate(texts):
        sketch = CMinHash(BANDS * ROWS, 42)
        sketch.update(shingles_of(text))
        if index.add(str(number), sketch):
            kept.append(number)
    laps.lap("deduplicate")
    return from_kept(np.array(kept), len(texts))


def text_dedup(path: Path, work: Path, laps: Laps) -> Clusters:
    import datasets
    from text_dedup.minhash import main

    laps.lap("none")
    arguments = (
        f"--path json --data_files {path} --split train --cache_dir {work}/cache --output {work}/out --column text"
    )
    arguments += f" --ngram {SHINGLE} --min_length 1 --num_perm {BANDS * ROWS} --b {BANDS} --r {ROWS}"
    arguments += " --hash_func xxh3 --num_proc 1 --batch_size 10000"
    main(arguments.split(), standalone_mode=False)
    laps.lap("deduplicate, write")
    kept = np.array([int(document) for document in datasets.load_from_disk(f"{work}/out")["id"]])
    return from_kept(kept, len(texts_of(path)))


def from_kept(kept: NDArray[np.int64], count: int) -> Clusters:
    """Without saying whose copy a removed document is: -1."""
    clusters = np.full(count, -1)
    clusters[kept] = kept
    return clusters


def datatrove(path: Path, work: Path, laps: Laps) -> Clusters:
    import datatrove.utils.word_tokenizers as tokenizers

    class Split(tokenizers.WordTokenizer):
        def word_tokenize(self, text: str) -> list[str]:
            return text.split()

        def sent_tokenize(self, text: str) -> list[str]:
            return [text]

        def span_tokenize(self, text: str) -> list[tuple[int, int]]:
            return []

    import datatrove.pipeline.dedup.minhash as module

    module.load_word_tokenizer = lambda language: Split()
    return datatrove_stock(path, work, laps)


def datatrove_stock(path: Path, work: Path, laps: Laps) -> Clusters:
    from datatrove.pipeline.dedup import minhash as steps
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers.jsonl import JsonlWriter
    from datatrove.utils.hashing import HashConfig

    laps.lap("none")
    config = steps.MinhashConfig(SHINGLE, BANDS, ROWS, hash_config=HashConfig(precision=64))
    names = [str(work / name) for name in ("signatures", "buckets", "remove", "out")]

    def documents() -> JsonlReader:
        return JsonlReader(str(path.parent), glob_pattern=path.name, compression="zstd")

    steps.MinhashDedupSignature(names[0], config).run(documents().run(), 0, 1)
    for bucket in range(BANDS):
        steps.MinhashDedupBuckets(names[0], names[1], config=config).run(None, bucket, BANDS)
    steps.MinhashDedupCluster(names[1], names[2], config=config).run(None, 0, 1)
    laps.lap("deduplicate")
    writer = JsonlWriter(names[3], compression=None, output_filename="out.jsonl")
    for _ in writer.run(steps.MinhashDedupFilter(names[2]).run(documents().run(), 0, 1), 0, 1):
        pass
    laps.lap("documents")
    with Path(names[3], "out.jsonl").open("rb") as file:
        kept = np.array([int(orjson.loads(line)["id"]) for line in file])
    return from_kept(kept, len(texts_of(path)))


class Arm(NamedTuple):
    """How an engine is run: `count` first documents (0: all), some times."""

    run: Run
    package: str
    repeats: int
    count: int = 0


ARMS = {
    "ours, from Parquet": Arm(ours, "glmforge", 5),
    "ours, from JSONL.zst": Arm(ours_from_jsonl, "glmforge", 5),
    "rensa RMinHash + LSH": Arm(rensa, "rensa", 2),
    "rensa CMinHashDeduplicator": Arm(rensa_verified, "rensa", 2),
    "datasketch": Arm(datasketch, "datasketch", 2),
    "datatrove, str.split": Arm(datatrove, "datatrove", 1),
    "text-dedup, 20,000 documents": Arm(text_dedup, "text_dedup", 1, 20_000),
    "datatrove as it is (spaCy), 2,000 documents": Arm(datatrove_stock, "spacy", 1, 2_000),
}
WRITING = ("documents", "deduplicate, write")


def run_arm(name: str, data: Path, warm: Path, out: Path) -> None:
    """In a process of its own: warm up, measure, leave clusters and seconds in `out`."""
    arm = ARMS[name].run
    with tempfile.TemporaryDirectory() as directory:
        for source, work in ((warm, Path(directory, "warm")), (data, Path(directory, "full"))):
            work.mkdir()
            laps = Laps()
            clusters = arm(source, work, laps)
    laps.seconds.pop("none")
    np.savez(out, clusters=clusters, seconds=json.dumps(laps.seconds))


def score(clusters: Clusters, pairs: dict[str, NDArray[Any]]) -> dict[str, Any]:
    inside = np.maximum(pairs["a"], pairs["b"]) < len(clusters)
    a, b, jaccard = pairs["a"][inside], pairs["b"][inside], pairs["jaccard"][inside]
    removed = clusters != np.arange(len(clusters))
    best = np.zeros(len(clusters))
    np.maximum.at(best, a, jaccard)
    np.maximum.at(best, b, jaccard)
    similar = jaccard >= THRESHOLD
    known = (clusters >= 0).all()
    return {
        "removed": int(removed.sum()),
        "recall": round(float((removed[a] | removed[b])[similar].mean()), 5),
        "recall_found": round(float((clusters[a] == clusters[b])[similar].mean()), 5) if known else None,
        "precision": round(float((best[removed] >= THRESHOLD).mean()), 5),
    }


def summary(runs: list[dict[str, float]], count: int) -> dict[str, Any]:
    deciding = [sum(seconds for step, seconds in run.items() if step != "documents") for run in runs]
    writing = [sum(run.values()) for run in runs]
    result: dict[str, Any] = {"repeats": len(runs)}
    if "deduplicate, write" not in runs[0]:
        result |= {
            "cpu_seconds_min": round(min(deciding), 3),
            "cpu_seconds_median": round(statistics.median(deciding), 3),
            "documents_per_cpu_second_best": round(count / min(deciding)),
            "documents_per_cpu_second_median": round(count / statistics.median(deciding)),
        }
    if any(step in run for run in runs for step in WRITING):
        result |= {
            "with_writing_cpu_seconds_median": round(statistics.median(writing), 3),
            "with_writing_documents_per_cpu_second_median": round(count / statistics.median(writing)),
        }
    steps = {step: round(statistics.median(run[step] for run in runs), 3) for step in runs[0]}
    return result | {"cpu_seconds_median_per_step": steps}


def write_inputs(data: Path, directory: Path) -> tuple[dict[str, tuple[Path, Path]], int]:
    """Per arm (documents, a few of them to warm up with), and how many documents there are."""
    from glmforge.data.documents.batch import BatchWriter, DocumentBatch

    source = data / "documents.jsonl.zst"
    texts = texts_of(source)
    for name, count in (("all", len(texts)), ("warm", NUM_WARM)):
        with BatchWriter(directory / f"{name}.parquet") as writer:
            writer.write(DocumentBatch.from_columns([str(k) for k in range(count)], texts[:count], "benchmark"))
    lines = [orjson.dumps({"id": str(k), "text": text}) + b"\n" for k, text in enumerate(texts)]
    for count in {NUM_WARM, *(arm.count for arm in ARMS.values() if arm.count)}:
        (directory / str(count)).mkdir()
        (directory / str(count) / source.name).write_bytes(zstandard.compress(b"".join(lines[:count])))
    parts = {arm.count: directory / str(arm.count) / source.name for arm in ARMS.values()} | {0: source.resolve()}
    inputs = {name: (parts[arm.count], directory / str(NUM_WARM) / source.name) for name, arm in ARMS.items()}
    inputs["ours, from Parquet"] = directory / "all.parquet", directory / "warm.parquet"
    return inputs, len(texts)


def measure(data: Path, quick: bool) -> dict[str, Any]:
    pairs = dict(np.load(data / "pairs.npz"))
    missing = sorted({arm.package for arm in ARMS.values() if importlib.util.find_spec(arm.package) is None})
    names = [name for name, arm in ARMS.items() if arm.package not in missing]
    names = [name for name in names if name.startswith("ours") or not quick]
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    scores: dict[str, Any] = {}
    environment = os.environ | {name: "1" for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "POLARS_MAX_THREADS")}
    with tempfile.TemporaryDirectory() as directory:
        inputs, count = write_inputs(data, Path(directory))
        for turn, name in itertools.product(range(1 if quick else 5), names):
            if turn >= ARMS[name].repeats:
                continue
            out = Path(directory, "out.npz")
            command = [sys.executable, __file__, "--arm", name, *map(str, inputs[name]), str(out)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if done.returncode:
                print(f"{name}: {done.stderr[-2000:]}", flush=True)
                missing.append(f"{name}: failed")
                continue
            found = np.load(out)
            runs[name].append(json.loads(str(found["seconds"])))
            print(turn, name, runs[name][-1], flush=True)
            scores[name] = score(found["clusters"], pairs)
    counts = {name: ARMS[name].count or count for name in names}
    arms = {name: summary(runs[name], counts[name]) | scores[name] for name in names if runs[name]}
    return {"documents": count, "left_out": missing, "arms": arms}


def main() -> None:
    if sys.argv[1:2] == ["--arm"]:
        name, *paths = sys.argv[2:]
        run_arm(name, *map(Path, paths))
        return
    args = data_arguments(__doc__, NEEDED)
    packages = ("numba", "numpy", "pyarrow", "datatrove", "datasketch", "rensa", "text-dedup", "spacy", "datasets")
    result = {
        "what": f"near-duplicates at J >= {THRESHOLD}, {SHINGLE}-word shingles, {BANDS} bands of {ROWS}",
        **measure(args.data / "dedup", args.quick),
        "warnings": ["a shared machine: seconds move by a quarter between runs; the ratios of one run hold better"],
    }
    print(json.dumps(result, indent=1))
    if not args.quick:
        code = ["src/glmforge_corpus/deduplicate", "src/glmforge_corpus/pipeline/task.py"]
        write_result("data_minhash", result, code=code, libraries=packages, out=args.out)


if __name__ == "__main__":
    main()
