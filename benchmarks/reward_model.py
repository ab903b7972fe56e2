"""A reward model on hh-rlhf's harmless-base (test split), against a bag of words on the same held-out pairs.

    python benchmarks/reward_model.py --model exports/demo-sft --data DATA

The file's pairs are divided by a hash of their first question: 60 % to train on, 15 % to choose by (when to stop, the
bag's regularisation), 25 % held out. The bag of words is a logistic regression on the difference of the two answers'
word counts, tf-idf or as they are; that of lengths knows only the difference of the answers' lengths.
"""

import argparse
import gzip
import hashlib
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import SHARED_DATA, arguments
from record import write_result
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from glmforge.checkpoint.convert import hf_model_config
from glmforge.config.schema import RunConfig
from glmforge.evaluate.statistics import estimate
from glmforge.observe.record_files import read_jsonl
from glmforge.recipes.train import train

FILE = "safety/harmless-base-test.jsonl.gz"
CODE = (
    "src/glmforge/data/preferences",
    "src/glmforge/objectives/reward.py",
    "src/glmforge/objectives/pairs.py",
    "src/glmforge/evaluate/preferences.py",
    "src/glmforge/recipes/preferences.py",
)
UP_TO = {"train": 154, "choose": 192, "held_out": 256}
"""The parts, by the first byte of the hash."""
SETTINGS = {"seq_len": 1024, "batch_size": 16, "lr": 5e-4}


def main() -> None:
    args = parse_arguments()
    with tempfile.TemporaryDirectory() as directory:
        files = divide(args.data / FILE, Path(directory))
        found = {"settings": SETTINGS | {"epochs": args.epochs}, "pairs": {n: len(pairs(f)) for n, f in files.items()}}
        found |= {"bag_of_words": bag_of_words(files), "lengths": lengths(files)}
        print(json.dumps(found, indent=1), flush=True)
        found["reward_model"] = reward_model(args.model, files, Path(directory), args.epochs)
    print(json.dumps(found["reward_model"], indent=1))
    if not args.quick:
        write_result("reward_model", found, code=CODE, libraries=("scikit-learn",), out=args.out)


def parse_arguments() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--model", type=Path, required=True, help="an export with its tokenizer")
    parser.add_argument("--data", type=Path, default=SHARED_DATA, help="directory of the real data")
    parser.add_argument("--epochs", type=float, default=2.0)
    parser.add_argument("--quick", action="store_true", help="a trial that writes no result")
    return parser.parse_args()


def divide(path: Path, directory: Path) -> dict[str, Path]:
    """Files of the parts. Pairs without an answer on one side, which no stage reads, are left out of all of them."""
    parts: dict[str, list[bytes]] = {name: [] for name in UP_TO}
    for line in gzip.decompress(path.read_bytes()).splitlines(keepends=True):
        chosen, rejected = (json.loads(line)[side] for side in ("chosen", "rejected"))
        if "" in (answer(chosen), answer(rejected)) or answer(chosen) == answer(rejected):
            continue
        question = chosen.split("\n\nAssistant:")[0]
        byte = hashlib.sha256(question.encode()).digest()[0]
        parts[next(name for name, stop in UP_TO.items() if byte < stop)].append(line)
    files = {name: directory / f"{name}.jsonl" for name in parts}
    for name, file in files.items():
        file.write_bytes(b"".join(parts[name]))
    return files


def answer(dialogue: str) -> str:
    return dialogue.rsplit("\n\nAssistant:", 1)[1].strip()


def pairs(file: Path) -> list[tuple[str, str]]:
    records = map(json.loads, file.read_text("utf-8").splitlines())
    return [(answer(record["chosen"]), answer(record["rejected"])) for record in records]


def bag_of_words(files: dict[str, Path]) -> dict[str, Any]:
    """The best on "choose" of some vectorizers and strengths of regularisation, on "held_out"."""
    texts = {name: pairs(file) for name, file in files.items()}
    best: tuple[float, str, Any, Any] | None = None
    for kind in (CountVectorizer, TfidfVectorizer):
        for grams in (1, 2):
            vectorizer = kind(ngram_range=(1, grams), min_df=2).fit([side for pair in texts["train"] for side in pair])
            x = gaps(vectorizer, texts["train"])
            for strength in (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0):
                model = fitted(x, strength)
                chosen_by = float(right(model, gaps(vectorizer, texts["choose"])).mean())
                name = f"{kind.__name__}, {grams}-grams, C {strength:g}"
                if best is None or chosen_by > best[0]:
                    best = chosen_by, name, vectorizer, model
    assert best is not None
    chosen_by, name, vectorizer, model = best
    scores = right(model, gaps(vectorizer, texts["held_out"]))
    return {"kind": name, "choose": chosen_by, "held_out": interval(scores)}


def gaps(vectorizer: Any, texts: Sequence[tuple[str, str]]) -> Any:
    chosen, rejected = zip(*texts, strict=True)
    return vectorizer.transform(chosen) - vectorizer.transform(rejected)


def fitted(x: Any, strength: float) -> Any:
    """Each pair both ways round, so that no side is favoured."""
    from scipy import sparse

    both = sparse.vstack([x, -x]) if sparse.issparse(x) else np.concatenate([x, -x])
    labels = np.repeat([1, 0], x.shape[0])
    return LogisticRegression(C=strength, fit_intercept=False, max_iter=2000).fit(both, labels)


def right(model: Any, x: Any) -> np.ndarray:
    return (model.decision_function(x) > 0).astype(float)


def lengths(files: dict[str, Path]) -> dict[str, Any]:
    x = {n: np.array([[len(c) - len(r)] for c, r in pairs(file)]) / 100 for n, file in files.items()}
    return {"held_out": interval(right(fitted(x["train"], 1.0), x["held_out"]))}


def interval(scores: np.ndarray) -> dict[str, float]:
    found = estimate(scores)
    return {"accuracy": found.mean, "low": found.low, "high": found.high, "pairs": found.num_items}


def reward_model(model: Path, files: dict[str, Path], directory: Path, epochs: float) -> dict[str, Any]:
    """Trained, and evaluated several times an epoch; the evaluation with the least loss on "choose" counts."""
    config = hf_model_config(model).model_dump() | {"heads": {"score": 1}, "lm_head": False}
    sources = {name: {"name": name, "path": str(file)} for name, file in files.items()}
    run = RunConfig.model_validate(
        {
            "name": "reward",
            "stage": "reward",
            "output_dir": str(directory / "run"),
            "init_from": str(model),
            "model": config | {"num_nextn_predict_layers": 0},
            "data": {
                "tokenizer": str(model),
                "sources": [sources["train"]],
                "held_out": [sources["choose"], sources["held_out"]],
            },
            "phases": [
                {
                    "name": "main",
                    "epochs": epochs,
                    "seq_len": SETTINGS["seq_len"],
                    "batch_size": SETTINGS["batch_size"],
                }
            ],
            "optim": {"lr": SETTINGS["lr"], "warmup_steps": 5, "matrix_optimizer": "adamw"},
            "precision": {"compute": "fp32"},
            "parallel": {"micro_batch_size": 2},
            "observe": {"evaluate_every": 20, "tensorboard": False, "progress": False},
            "checkpoint": {"every_steps": None},
        }
    )
    started = time.process_time()
    state = train(run)
    records = read_jsonl(run.output_dir / "evaluation.jsonl")
    by_step = {r["step"]: {q["source"]: q for q in records if q["step"] == r["step"]} for r in records}
    best = min(by_step, key=lambda step: by_step[step]["choose"]["held_out_pair_loss"])
    return {
        "cpu_seconds": time.process_time() - started,
        "steps": state.step,
        "best_step": best,
        "best": by_step[best],
        "held_out_accuracy_by_step": {s: r["held_out"]["held_out_pair_accuracy"] for s, r in by_step.items()},
        "train_accuracy_last": read_jsonl(run.output_dir / "metrics.jsonl")[-1]["pair_accuracy"]["train"],
    }


if __name__ == "__main__":
    main()
