"""The trainable classifier, the quality heuristic, word lists and PII masking: rates and quality beside peers.

    python benchmarks/corpus/quality.py [--data ../shared/data] [--repeats 3]   # minutes

writes benchmarks/results/data_quality.json. Peers that can be imported take part: fastText and scikit-learn (a build of
fastText that trains clashes with the language detector's, so make an environment beside ours), datatrove.

    python -m venv peers && peers/bin/pip install scikit-learn==1.9.1 fasttext-wheel==0.9.2
    echo "$PWD/.venv/lib/python3.11/site-packages" > peers/lib/python3.11/site-packages/ours.pth
    PYTHONPATH=src peers/bin/python benchmarks/corpus/quality.py

Rates are MB of UTF-8 per CPU second (user + system) of this process on one thread, data in memory, everything compiled
and loaded before; arms alternate. Classifiers learn from the same documents, and are scored on the same held-out ones:

* collection: does a passage of 120 words come from the kernel's manual? (split by document; easy)
* requests: harmful requests against ordinary instructions (easy: they differ in style, too)
* replies: the rejected against the chosen reply of harmlessness preference pairs, split by pair (hard: both are
  replies to the same provocation, and people disagree)

Expected before measuring: scoring at 80 MB/CPU-s and more, four times fastText; AUC within 0.01 of fastText's; PII
masking at 100 MB/CPU-s, eight times datatrove's formatter, which knows e-mail and IP only.
"""

import argparse
import csv
import gzip
import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import zstandard
from record import write_result

from glmforge.data.documents.batch import DocumentBatch
from glmforge.errors import DataError
from glmforge_corpus.filter.linear.classifier import Features, train_classifier
from glmforge_corpus.filter.linear.hashed_features import hash_features
from glmforge_corpus.filter.linear.training import area_under_curve
from glmforge_corpus.filter.pii.block import PII
from glmforge_corpus.filter.quality import Quality
from glmforge_corpus.filter.toxicity import Toxicity

FILTERS = "src/glmforge_corpus/filter"
CODE = [
    f"{FILTERS}/{part}"
    for part in ("linear", "pii", "quality.py", "quality_heuristic.py", "toxicity.py", "word_lists.py")
]
PACKAGES = ("numba", "hyperscan", "fasttext-wheel", "scikit-learn", "datatrove")
PASSAGE_WORDS = 120
Task = tuple[list[str], np.ndarray, np.ndarray]
"""Texts, labels, and which are held out."""


def batch_of(texts: list[str], languages: list[str | None] | None = None) -> DocumentBatch:
    return DocumentBatch.from_columns([str(n) for n in range(len(texts))], texts, "benchmark", languages=languages)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        raise DataError(f"{path}: no such file: give the directory of test data with --data")
    if path.suffix == ".gz":
        lines = gzip.decompress(path.read_bytes())
    else:
        with path.open("rb") as file:
            lines = zstandard.ZstdDecompressor().stream_reader(file).read()
    return [json.loads(line) for line in lines.splitlines()]


def held_out(groups: list[int], share: float = 0.3) -> np.ndarray:
    keys = np.array(groups, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (keys >> np.uint64(40)).astype(np.float64) / 2**24 < share


def collection(documents: list[dict[str, Any]], limit: int) -> Task:
    texts, labels, groups = [], [], []
    for number, document in enumerate(documents):
        words = document["text"].split()
        for start in range(0, len(words), PASSAGE_WORDS):
            texts.append(" ".join(words[start : start + PASSAGE_WORDS]))
            labels.append(document["id"].startswith("linux-doc"))
            groups.append(number)
    chosen = np.sort(np.random.default_rng(0).permutation(len(texts))[:limit])
    return [texts[n] for n in chosen], np.array(labels)[chosen], held_out(groups)[chosen]


def requests(data: Path) -> Task:
    with (data / "safety/harmful_behaviors.csv").open() as file:
        harmful = [row["goal"] for row in csv.DictReader(file)]
    rows = json.loads((data / "chat/alpaca_en_demo.json").read_text())
    ordinary = [f"{row['instruction']} {row['input']}" for row in rows]
    labels = np.arange(len(harmful) + len(ordinary)) < len(harmful)
    return harmful + ordinary, labels, held_out(list(range(len(labels))))


def replies(data: Path) -> Task:
    texts, labels, groups = [], [], []
    for number, row in enumerate(read_jsonl(data / "safety/harmless-base-test.jsonl.gz")):
        for label, name in ((True, "rejected"), (False, "chosen")):
            texts.append(row[name].rsplit("\n\nAssistant:", 1)[1])
            labels.append(label)
            groups.append(number)
    return texts, np.array(labels), held_out(groups)


def ours(texts: list[str], labels: np.ndarray) -> Callable[[list[str]], np.ndarray]:
    batch = batch_of(texts)
    model = train_classifier(batch.text_bytes, batch.text_offsets, labels)

    def score(unseen: list[str]) -> np.ndarray:
        batch = batch_of(unseen)
        return model.logits(batch.text_bytes, batch.text_offsets)

    return score


def fasttext_arm(texts: list[str], labels: np.ndarray, rate: float = 0.1) -> Callable[[list[str]], np.ndarray]:
    import fasttext

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "train.txt"
        lines = (f"__label__{int(label)} {' '.join(text.split())}\n" for text, label in zip(texts, labels, strict=True))
        path.write_text("".join(lines), "utf-8")
        model = fasttext.train_supervised(
            str(path), wordNgrams=2, epoch=5, lr=rate, dim=16, bucket=1 << 20, thread=1, verbose=0
        )

    def score(unseen: list[str]) -> np.ndarray:
        scores = []
        for text in unseen:  # the wrapper's own predict() breaks under numpy 2
            found = dict(map(reversed, model.f.predict(" ".join(text.split()) + "\n", 2, 0.0, "strict")))
            scores.append(found.get("__label__1", 0.0) - found.get("__label__0", 0.0))  # near 1, the other tells more
        return np.array(scores)

    return score


def sklearn_arm(texts: list[str], labels: np.ndarray) -> Callable[[list[str]], np.ndarray]:
    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.linear_model import SGDClassifier

    hashing = HashingVectorizer(ngram_range=(1, 2), n_features=1 << 20)
    model = SGDClassifier(loss="log_loss", max_iter=5, tol=None, random_state=0, class_weight="balanced")
    model.fit(hashing.transform(texts), labels)
    return lambda unseen: np.asarray(model.decision_function(hashing.transform(unseen)))


def datatrove_pii() -> Callable[[list[str]], None]:
    from datatrove.pipeline.formatters import PIIFormatter

    formatter = PIIFormatter()
    return lambda texts: [formatter.format(text) for text in texts] and None


def available(arms: dict[str, Callable[..., Any]], missing: list[str]) -> dict[str, Callable[..., Any]]:
    kept = {}
    for name, arm in arms.items():
        try:
            if name.startswith("fasttext"):
                import fasttext

                fasttext.train_supervised  # noqa: B018 - the detector's build cannot train
            elif name == "scikit-learn":
                import sklearn  # noqa: F401
            kept[name] = arm
        except (ImportError, AttributeError) as error:
            missing.append(f"{name}: {error}")
    return kept


def cpu(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


def classifiers(tasks: dict[str, Task], plain: list[str], repeats: int, missing: list[str]) -> list[dict[str, Any]]:
    candidates: dict[str, Callable[..., Any]] = {
        "glmforge": ours,
        "fasttext": fasttext_arm,
        "fasttext, lr 0.5": partial(fasttext_arm, rate=0.5),
        "scikit-learn": sklearn_arm,
    }
    arms = available(candidates, missing)
    ours(["warm", "up"] * 2, np.array([True, False] * 2))(["compile"])
    size = sum(len(text.encode()) for text in plain) / 1e6
    rows = []
    for task, (texts, labels, unseen) in tasks.items():
        seen_texts = [text for text, out in zip(texts, unseen, strict=True) if not out]
        learned = labels[~unseen]
        unseen_texts = [text for text, out in zip(texts, unseen, strict=True) if out]
        seconds: dict[str, list[list[float]]] = {name: [[], []] for name in arms}
        areas: dict[str, float] = {}
        for _ in range(repeats):
            for name, arm in arms.items():
                spent, score = cpu(partial(arm, seen_texts, learned))
                seconds[name][0].append(spent)
                areas[name] = area_under_curve(labels[unseen], score(unseen_texts))
                if task == "collection":
                    seconds[name][1].append(cpu(partial(score, plain))[0])
        for name in arms:
            row = {"task": task, "arm": name, "documents": len(seen_texts), "auc": round(areas[name], 4)}
            row["train_CPU_s"] = spread(seconds[name][0])
            if seconds[name][1]:
                row["score_MB_per_CPU_s"] = spread([size / value for value in seconds[name][1]])
            rows.append(row)
            print(row, flush=True)
    return rows


def rates(batch: DocumentBatch, lists: Path, repeats: int, missing: list[str]) -> list[dict[str, Any]]:
    weights = Features()
    model = train_classifier(batch.slice(0, 50).text_bytes, batch.slice(0, 50).text_offsets, np.arange(50) % 2 == 0)
    toxicity, every = Toxicity(lists=lists), Toxicity(lists=lists, all_lists=True)
    size, texts = float(batch.text_lengths.sum()) / 1e6, batch.texts[:1500]
    sample = sum(len(text.encode()) for text in texts) / 1e6
    arms: dict[str, tuple[float, Callable[[], Any]]] = {
        "classifier, in place": (size, lambda: model.logits(batch.text_bytes, batch.text_offsets)),
        "heuristic quality": (size, lambda: Quality(threshold=0.5).process(batch)),
        "word lists, own language": (size, lambda: toxicity.process(batch)),
        "word lists, all": (size, lambda: every.process(batch)),
        "pii": (size, lambda: PII().process(batch)),
        "pii, the formatter's sample and kinds": (
            sample,
            lambda: PII(kinds=("email", "ip")).process(batch.slice(0, 1500)),
        ),
    }
    try:
        formatter = datatrove_pii()
        arms["pii, datatrove PIIFormatter on a sample"] = (sample, lambda: formatter(texts))
    except ImportError as error:
        missing.append(f"datatrove: {error}")
    small = batch.slice(0, 20)
    for block in (Quality(threshold=0.5), toxicity, every, PII()):
        block.process(small)
    hash_features(small.text_bytes, 0, 10, *weights.kernel(), np.empty(64, np.uint32))
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(repeats):
        for name, (_, work) in arms.items():
            seconds[name].append(cpu(work)[0])
    rows = [{"arm": name, "MB_per_CPU_s": spread([arms[name][0] / s for s in seconds[name]])} for name in arms]
    for row in rows:
        print(row, flush=True)
    return rows


def spread(values: list[float]) -> dict[str, float]:
    return {"min": round(min(values), 3), "median": round(float(np.median(values)), 3), "max": round(max(values), 3)}


def main() -> None:
    """Measure all, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2].parent / "shared/data")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--passages", type=int, default=80_000, help="of the task 'collection'")
    options = parser.parse_args()
    documents = read_jsonl(options.data / "text/debian-docs-multilingual.jsonl.zst")
    batch = batch_of([document["text"] for document in documents])
    tasks = {
        "collection": collection(documents, options.passages),
        "requests": requests(options.data),
        "replies": replies(options.data),
    }
    missing: list[str] = []
    result = {"documents": len(documents), "MB": float(batch.text_lengths.sum()) / 1e6}
    result["rates"] = rates(batch, options.data / "safety/ldnoobw", options.repeats, missing)
    result["pii_found"] = dict(sorted(PII().process(batch).counts.items()))
    result["word_hits"] = dict(Toxicity(lists=options.data / "safety/ldnoobw").process(batch).counts)
    result["quality_heuristic"] = dict(Quality().process(batch).counts)
    result["classifiers"] = classifiers(tasks, batch.texts[:1500], options.repeats, missing)
    result["peers_missing"] = missing
    print(f"{write_result('data_quality', result, code=CODE, libraries=PACKAGES)}: written; missing: {missing}")


if __name__ == "__main__":
    main()
