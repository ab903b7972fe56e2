"""What a small model forgets when it goes on with a domain, and what helps: general text, EWC, lower learning rates.

    python benchmarks/forgetting.py                        # about half an hour on two quiet cores
    python benchmarks/forgetting.py --directory runs/forgetting   # kept, and continued if it was interrupted

For each of three seeds a GLM of 1.3 million parameters is trained on general text, the sources of Python's standard
library. From its weights it goes on with problems and answers of GSM8K: other words in another form. Each way to go on
(`WAYS`) has as many steps and tokens in all, so those that mix general text in see less of the domain. Reported are
the bits per byte of held-out text of both kinds as the run itself records them: of the starting weights, and of those
after the last step. "Forgotten" is the difference on general text, "learnt" that on the domain with its sign changed.

The strengths of EWC are 1 to 1000 old tokens for each new one: 3 is the ratio of the two trainings' tokens. Its
Fisher information is measured on general training text. Results are in `results/forgetting.json`.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import torch
from optimizer_quality import MODEL, NUM_ROWS, SEQ_LEN, VOCAB_SIZE
from record import ROOT, write_result

import glmforge
from glmforge.checkpoint.convert import export_hf
from glmforge.checkpoint.pretrained import open_checkpoint
from glmforge.config.schema import RunConfig
from glmforge.data.documents.document import Document, split_held_out
from glmforge.data.tokens.bpe import train_tokenizer
from glmforge.data.tokens.tokenize import tokenize_corpus
from glmforge.observe.record_files import read_jsonl
from glmforge.observe.run import RunDirectory
from glmforge.recipes.demo.standard_library import standard_library_documents
from glmforge.recipes.fisher import write_fisher

PLACES = ("optim", "model", "objectives", "training/fisher.py", "training/step.py", "evaluate/bits_per_byte.py")
CODE = ["benchmarks/optimizer_quality.py", *(f"src/glmforge/{place}" for place in PLACES)]
HELD_OUT = 0.03
SEEDS = (1, 2, 3)
BASE_STEPS, STEPS = 900, 300
FISHER_ROWS = 512
BASE_LR, LR = 1e-2, 5e-3
WAYS: dict[str, dict[str, float]] = {
    "domain alone": {},
    "30 % general": {"general": 0.3},
    "10 % general": {"general": 0.1},
    "a fifth of the learning rate": {"lr": LR / 5},
    "layer decay 0.7": {"decay": 0.7},
    "EWC 1": {"ewc": 1.0},
    "EWC 10": {"ewc": 10.0},
    "EWC 100": {"ewc": 100.0},
    "EWC 1000": {"ewc": 1000.0},
    "30 % general, layer decay 0.7": {"general": 0.3, "decay": 0.7},
    "30 % general, EWC 10": {"general": 0.3, "ewc": 10.0},
}
"""What differs from training on the domain alone: share of general text, learning rate, its decay by layer, EWC."""


def make_data(directory: Path, problems: Path) -> None:
    """A tokenizer of general text, and shards of both kinds, once."""
    if (directory / "domain-held-out.idx").exists():
        return
    domain = [
        Document(f"problem-{number}", f"{problem['question']}\n\n{problem['answer']}", str(problems))
        for number, problem in enumerate(read_jsonl(problems))
    ]
    kinds = {"general": standard_library_documents(), "domain": domain}
    for kind, documents in kinds.items():
        training, held_out = split_held_out(documents, HELD_OUT)
        if kind == "general":
            train_tokenizer((each.text for each in training), VOCAB_SIZE, directory / "tokenizer", overwrite=True)
        tokenize_corpus(training, directory / "tokenizer", directory / kind, overwrite=True)
        tokenize_corpus(held_out, directory / "tokenizer", directory / f"{kind}-held-out", overwrite=True)


def run_config(directory: Path, name: str, seed: int, **sections: Any) -> RunConfig:
    """A run on the two kinds of text; `sections` say the rest."""
    kinds = ("general", "domain")
    base: dict[str, Any] = {
        "name": name,
        "output_dir": str(directory / name),
        "seed": seed,
        "model": MODEL,
        "data": {
            "tokenizer": str(directory / "tokenizer"),
            "sources": [{"name": kind, "path": str(directory / kind)} for kind in kinds],
            "held_out": [{"name": kind, "path": str(directory / f"{kind}-held-out")} for kind in kinds],
        },
        "precision": {"compute": "fp32"},
        "observe": {"evaluate_tokens": 32_768, "progress": False, "tensorboard": False, "anomalies": None},
    }
    base["observe"]["evaluate_every"] = sum(phase["steps"] for phase in sections["phases"])
    return RunConfig.model_validate(base | sections)


def phase(steps: int, sources: dict[str, float], bias_rate: float) -> dict[str, Any]:
    shape = {"steps": steps, "seq_len": SEQ_LEN, "batch_size": NUM_ROWS, "packing": "best_fit"}
    return shape | {"name": "main", "sources": sources, "router_bias_rate": bias_rate}


def train_base(directory: Path, seed: int, steps: int) -> Path:
    """Weights trained on general text, in Hugging Face format."""
    out = directory / f"base-{seed}-weights"
    if not out.exists():
        optim = {"lr": BASE_LR, "min_lr": BASE_LR / 10, "warmup_steps": max(1, steps // 20)}
        config = run_config(directory, f"base-{seed}", seed, phases=[phase(steps, {"general": 1.0}, 1e-2)], optim=optim)
        glmforge.train(config)
        stored = open_checkpoint(config.output_dir)
        export_hf(stored.weights, stored.run.model, out, dtype=torch.float32)
    return out


def go_on(directory: Path, seed: int, way: str, weights: Path, steps: int) -> dict[str, Any]:
    """Train in one way from a seed's weights; what came out."""
    settings = WAYS[way]
    general, lr = settings.get("general", 0.0), settings.get("lr", LR)
    sources = {"domain": 1.0 - general} | ({"general": general} if general else {})
    fisher = directory / f"fisher-{seed}"
    sections: dict[str, Any] = {
        "stage": "midtrain",
        "init_from": str(weights),
        "phases": [phase(steps, sources, 0.0)],
        "optim": {
            "lr": lr,
            "min_lr": lr / 10,
            "warmup_steps": max(1, steps // 20),
            "layer_lr_decay": settings.get("decay", 1.0),
        },
    }
    if "ewc" in settings:
        if not fisher.exists():
            plain = run_config(directory, f"fisher-{seed}-run", seed, **sections)
            write_fisher(plain, directory / "general", fisher, num_rows=FISHER_ROWS)
        sections["regularization"] = {"ewc": {"fisher": str(fisher), "strength": settings["ewc"]}}
    config = run_config(directory, f"way-{list(WAYS).index(way)}-{seed}", seed, **sections)
    glmforge.train(config)
    run = RunDirectory(config.output_dir)
    last = {record["source"]: record for record in read_jsonl(run.evaluation)}
    metrics = read_jsonl(run.metrics)
    return {
        "seed": seed,
        "general": [last["general"]["bits_per_byte_at_start"], last["general"]["bits_per_byte"]],
        "domain": [last["domain"]["bits_per_byte_at_start"], last["domain"]["bits_per_byte"]],
        "loss_ewc": metrics[-1].get("loss_ewc"),
        "step_seconds": median(record["step_seconds"] for record in metrics),
    }


def study(directory: Path, seeds: Sequence[int], base_steps: int, steps: int) -> dict[str, list[dict[str, Any]]]:
    """By way, what came out with each seed."""
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for seed in seeds:
        weights = train_base(directory, seed, base_steps)
        for way, results in found.items():
            results.append(go_on(directory, seed, way, weights, steps))
            print(f"seed {seed}, {way}: {json.dumps(results[-1])}", flush=True)
    return found


def summarise(ways: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """Of each way, over its seeds: means of both kinds of text at the end, and mean and spread of the changes."""
    return {way: _of_seeds(results) for way, results in ways.items()}


def _of_seeds(results: list[dict[str, Any]]) -> dict[str, float]:
    forgotten = [end - start for start, end in (result["general"] for result in results)]
    learnt = [start - end for start, end in (result["domain"] for result in results)]
    return {
        "general": fmean(result["general"][1] for result in results),
        "forgotten": fmean(forgotten),
        "forgotten_spread": stdev(forgotten) if len(results) > 1 else 0.0,
        "domain": fmean(result["domain"][1] for result in results),
        "learnt": fmean(learnt),
        "learnt_spread": stdev(learnt) if len(results) > 1 else 0.0,
    }


def table(summary: dict[str, dict[str, float]]) -> str:
    """As Markdown; spreads are standard deviations over seeds."""
    head = "| | general, bits per byte | forgotten | domain, bits per byte | learnt |"
    rows = (
        f"| {way} | {each['general']:.3f} | {each['forgotten']:+.3f} ± {each['forgotten_spread']:.3f} "
        f"| {each['domain']:.3f} | {each['learnt']:+.3f} ± {each['learnt_spread']:.3f} |"
        for way, each in summary.items()
    )
    return "\n".join([head, "|---|---|---|---|---|", *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared/data", help="has eval/gsm8k-train.jsonl")
    parser.add_argument("--directory", type=Path, help="for the runs; a temporary one if not given")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--base-steps", type=int, default=BASE_STEPS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, help="of the results, if not benchmarks/results/forgetting.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.directory or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        make_data(directory, options.data / "eval/gsm8k-train.jsonl")
        ways = study(directory, options.seeds, options.base_steps, options.steps)
    content = {
        "base_steps": options.base_steps,
        "steps": options.steps,
        "tokens_per_step": NUM_ROWS * SEQ_LEN,
        "fisher_rows": FISHER_ROWS,
        "summary": summarise(ways),
        "ways": ways,
    }
    print(table(content["summary"]))
    print(f"{write_result('forgetting', content, code=CODE, out=options.out)}: written")


if __name__ == "__main__":
    main()
