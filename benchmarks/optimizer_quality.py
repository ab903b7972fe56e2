"""What Muon and loss-free balance bring, on a small GLM and real text.

    python benchmarks/optimizer_quality.py               # some 20 minutes on two quiet cores
    python benchmarks/optimizer_quality.py --draw        # only the plots, from the results as they are

**Muon against AdamW.** A GLM of 1.3 million parameters on the sources of Python's standard library, every run with the
same batches, warm-up, cosine to a tenth, weight decay, betas and clipping. Each optimizer is run at the best learning
rate of its own sweep, by final held-out loss; AdamW's sweep is the larger one, and is prolonged where its best value is
the outermost. Then both are run with further seeds (initial weights and order of data). What is reported is the
number of steps after which Muon has AdamW's FINAL loss, held-out and in training (moving mean). Muon's learning rate
has not decayed by then, so the number flatters AdamW.

**Loss-free balance.** The same runs with Muon under four ways to balance the experts, and the largest load over the
mean load minus 1 ("max violation") of every layer and step. Short runs need faster biases than the report's 1e-3 per
step: 1e-2 in the first half, 3e-3 in the second. Reported are mean, 95th percentile and maximum over the second half,
and `summed`: the violation of the loads summed over all its steps, which sampling a batch does not blur.

Every run is a process of its own with one thread, and two run at a time. Results and curves are in
`results/optimizer_quality.json`, the plots in `docs/pictures`.
"""

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from record import RESULTS, write_result

import glmforge
from glmforge.data.documents.document import split_held_out
from glmforge.data.tokens.bpe import train_tokenizer
from glmforge.data.tokens.tokenize import tokenize_corpus
from glmforge.observe.record_files import read_jsonl
from glmforge.observe.run import RunDirectory
from glmforge.recipes.demo.standard_library import standard_library_documents
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer

OUT = RESULTS / "optimizer_quality.json"
CODE = ("src/glmforge/optim", "src/glmforge/model", "src/glmforge/training/step.py", "configs/demo.yaml")
VOCAB_SIZE = 2048
SEQ_LEN, NUM_ROWS = 256, 8
MODEL = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 96,
    "num_hidden_layers": 4,
    "first_k_dense_replace": 1,
    "intermediate_size": 288,
    "moe_intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "use_qk_norm": True,
    "rope_theta": 1e4,
    "max_position_embeddings": SEQ_LEN,
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 0,
    "eos_token_id": [VOCAB_SIZE - 36],
    "pad_token_id": VOCAB_SIZE - 36,
}
SWEEPS = {"adamw": [1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2], "muon": [5e-3, 1e-2, 2e-2]}
MOST_PROLONGATIONS = 2  # of AdamW's sweep, by a factor of two each
SEEDS = (1, 2, 3)  # the sweeps run with the first
BIAS_RATES = (1e-2, 3e-3)  # in the two halves of a run
REPORTS_BALANCE = "bias and aux 1e-4"
BALANCES: dict[str, dict[str, Any]] = {
    "bias": {"balance": "bias", "aux_loss_weight": 0.0},
    REPORTS_BALANCE: {"balance": "bias", "aux_loss_weight": 1e-4},
    "aux 1e-2": {"balance": "aux", "aux_loss_weight": 1e-2},
    "none": {"balance": "bias", "aux_loss_weight": 0.0, "router_bias_rate": 0.0},
}


@dataclass(frozen=True)
class Run:
    """One training run; `balance` is a key of `BALANCES`."""

    optimizer: str
    lr: float
    seed: int
    steps: int
    balance: str = REPORTS_BALANCE

    @property
    def name(self) -> str:
        return f"{self.optimizer}-{self.lr:g}-{self.seed}-{list(BALANCES).index(self.balance)}"

    def config(self, directory: Path) -> dict[str, Any]:
        """The run as YAML would give it."""
        halves = (
            ("first half", self.steps // 2, BIAS_RATES[0]),
            ("second half", self.steps - self.steps // 2, BIAS_RATES[1]),
        )
        balance = BALANCES[self.balance]
        rated = balance["balance"] == "bias" and "router_bias_rate" not in balance
        phases = [
            {"name": name, "steps": steps, "seq_len": SEQ_LEN, "batch_size": NUM_ROWS}
            | balance
            | ({"router_bias_rate": rate} if rated else {})
            for name, steps, rate in halves
        ]
        return {
            "name": self.name,
            "output_dir": str(directory / self.name),
            "seed": self.seed,
            "model": MODEL,
            "data": {
                "tokenizer": str(directory / "tokenizer"),
                "sources": [{"name": "text", "path": str(directory / "train")}],
                "held_out": [{"name": "held_out", "path": str(directory / "held_out")}],
            },
            "phases": phases,
            "optim": {
                "matrix_optimizer": self.optimizer,
                "lr": self.lr,
                "min_lr": self.lr / 10,
                "warmup_steps": max(1, self.steps // 20),
            },
            "precision": {"compute": "fp32"},
            "checkpoint": {"save_final": False},
            "observe": {
                "evaluate_every": max(1, self.steps // 20),
                "evaluate_tokens": 16_384,
                "progress": False,
                "tensorboard": False,
                "anomalies": None,
            },
        }


class Recorder(Hook):
    """Loss, and tokens of every expert, of every step."""

    name = "recorder"

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.counts: list[np.ndarray] = []

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        self.losses.append(result.losses["loss"])
        self.counts.append(result.counts_LE.numpy().astype(np.float64))

    def result(self) -> dict[str, Any]:
        second_half = np.sum(self.counts[len(self.counts) // 2 :], axis=0)
        return {
            "losses": self.losses,
            "violation_KL": [violation(counts_LE).tolist() for counts_LE in self.counts],  # K steps, L layers
            "summed_L": violation(second_half).tolist(),
        }


def violation(counts_LE: np.ndarray) -> np.ndarray:
    """The busiest expert's load over the mean load, minus 1, of each layer."""
    result: np.ndarray = counts_LE.max(axis=1) / counts_LE.mean(axis=1) - 1
    return result


def train(run: Run, directory: Path) -> None:
    """Run it in this process and leave `<name>.json`."""
    config_file, started = directory / f"{run.name}.yaml", time.monotonic()
    config_file.write_text(json.dumps(run.config(directory)))
    config, recorder = glmforge.load_config(config_file), Recorder()
    shutil.rmtree(config.output_dir, ignore_errors=True)  # of a study that was killed; its record is gone
    glmforge.train(config, hooks=[recorder])
    evaluations = read_jsonl(RunDirectory(config.output_dir).evaluation)
    held_out = [[record["step"], record["nll"]] for record in evaluations]
    result = asdict(run) | recorder.result() | {"held_out": held_out, "seconds": time.monotonic() - started}
    unfinished = directory / f"{run.name}.unfinished"
    unfinished.write_text(json.dumps(result))
    unfinished.rename(directory / f"{run.name}.json")


def train_all(runs: Iterable[Run], directory: Path, at_once: int) -> list[dict[str, Any]]:
    """Each in a process of its own; those whose result lies in `directory` are not run again."""

    def result_of(run: Run) -> dict[str, Any]:
        path = directory / f"{run.name}.json"
        if not path.exists():
            command = [sys.executable, __file__, "--directory", str(directory), "--run", json.dumps(asdict(run))]
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        result: dict[str, Any] = json.loads(path.read_text())
        if result["steps"] != run.steps:
            raise SystemExit(f"{path}: of a study of {result['steps']} steps; give an empty --directory")
        print(f"{run.name:28} held-out {final(result):.4f}  {result['seconds']:.0f} s", flush=True)
        return result

    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(result_of, runs))


def make_data(directory: Path) -> None:
    """Tokenizer, training shard and held-out shard."""
    if (directory / "held_out.idx").exists():
        return
    train_documents, held_out = split_held_out(standard_library_documents(), 0.02)
    train_tokenizer(
        (document.text for document in train_documents), VOCAB_SIZE, directory / "tokenizer", overwrite=True
    )
    tokenize_corpus(train_documents, directory / "tokenizer", directory / "train", overwrite=True)
    tokenize_corpus(held_out, directory / "tokenizer", directory / "held_out", overwrite=True)


def final(result: dict[str, Any]) -> float:
    """Held-out loss at the end."""
    return float(result["held_out"][-1][1])


def smoothed(losses: Sequence[float], window: int = 20) -> list[list[float]]:
    """[step, mean of the last `window` losses], from step `window` on."""
    sums = np.cumsum([0.0, *losses])
    window = min(window, len(losses))
    return [[step, float((sums[step] - sums[step - window]) / window)] for step in range(window, len(losses) + 1)]


def steps_to_reach(curve: Sequence[Sequence[float]], target: float) -> float | None:
    """Where the curve, a line between its points [step, loss], first comes down to `target`; None if it does not."""
    for (step, loss), (next_step, next_loss) in itertools.pairwise(curve):
        if loss <= target:
            return step
        if next_loss <= target:
            return step + (next_step - step) * (loss - target) / (loss - next_loss)
    return None


def sweep(steps: int, directory: Path, at_once: int) -> dict[str, dict[float, float]]:
    """Final held-out loss by learning rate of each optimizer."""
    runs = [Run(optimizer, lr, SEEDS[0], steps) for optimizer, rates in SWEEPS.items() for lr in rates]
    losses: dict[str, dict[float, float]] = {optimizer: {} for optimizer in SWEEPS}
    for run, result in zip(runs, train_all(runs, directory, at_once), strict=True):
        losses[run.optimizer][run.lr] = final(result)
    for _ in range(MOST_PROLONGATIONS):
        best, rates = best_rate(losses["adamw"]), sorted(losses["adamw"])
        if best not in (rates[0], rates[-1]):
            break
        lr = best / 2 if best == rates[0] else best * 2
        (result,) = train_all([Run("adamw", lr, SEEDS[0], steps)], directory, at_once)
        losses["adamw"][lr] = final(result)
    return losses


def best_rate(losses: dict[float, float]) -> float:
    return min(losses, key=losses.__getitem__)


def compare_optimizers(adamw: list[dict[str, Any]], muon: list[dict[str, Any]]) -> dict[str, Any]:
    """By seed: final losses, and after how many steps Muon has AdamW's."""
    rows = []
    for ours, theirs in zip(muon, adamw, strict=True):
        training = smoothed(theirs["losses"])[-1][1]
        rows.append(
            {
                "seed": ours["seed"],
                "adamw_held_out": final(theirs),
                "muon_held_out": final(ours),
                "muon_steps_to_adamws_held_out": steps_to_reach(ours["held_out"], final(theirs)),
                "adamw_training": training,
                "muon_training": smoothed(ours["losses"])[-1][1],
                "muon_steps_to_adamws_training": steps_to_reach(smoothed(ours["losses"]), training),
            }
        )
    return {"steps": muon[0]["steps"], "seeds": rows}


def compare_balance(results: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Max violation over the second half of the run, by way to balance; over all seeds, and by layer."""
    table = {}
    for balance, runs in results.items():
        half = np.array([run["violation_KL"][run["steps"] // 2 :] for run in runs])  # [seeds, steps, layers]
        table[balance] = {
            "mean": half.mean(),
            "percentile_95": np.percentile(half, 95),
            "max": half.max(),
            "mean_by_layer": half.mean(axis=(0, 1)).tolist(),
            "max_by_layer": half.max(axis=(0, 1)).tolist(),
            "summed_by_layer": np.mean([run["summed_L"] for run in runs], axis=0).tolist(),
            "held_out": mean(final(run) for run in runs),
        }
    return table


def study(steps: int, seeds: Sequence[int], directory: Path, at_once: int) -> dict[str, Any]:
    started = time.monotonic()
    make_data(directory)
    sweeps = sweep(steps, directory, at_once)
    best = {optimizer: best_rate(losses) for optimizer, losses in sweeps.items()}
    runs = [Run(optimizer, best[optimizer], seed, steps) for optimizer in SWEEPS for seed in seeds]
    others = [balance for balance in BALANCES if balance != REPORTS_BALANCE]
    runs += [Run("muon", best["muon"], seed, steps, balance) for balance in others for seed in seeds]
    results = iter(train_all(runs, directory, at_once))
    adamw, muon = ([next(results) for _ in seeds] for _ in SWEEPS)
    by_balance = {REPORTS_BALANCE: muon} | {balance: [next(results) for _ in seeds] for balance in others}
    by_balance = {balance: by_balance[balance] for balance in BALANCES}
    return {
        "sweep_held_out": {name: {f"{lr:g}": losses[lr] for lr in sorted(losses)} for name, losses in sweeps.items()},
        "optimizers": compare_optimizers(adamw, muon),
        "balance": compare_balance(by_balance),
        "tokens_per_step": NUM_ROWS * SEQ_LEN,
        "bias_rates": BIAS_RATES,
        "minutes": (time.monotonic() - started) / 60,
        "curves": {
            "held_out": {"adamw": [run["held_out"] for run in adamw], "muon": [run["held_out"] for run in muon]},
            "violation_worst_layer": {  # per seed and step, of the worst layer
                balance: [np.max(run["violation_KL"], axis=1).tolist() for run in runs]
                for balance, runs in by_balance.items()
            },
        },
    }


def rounded(value: Any) -> Any:
    """Five significant digits."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(inner) for inner in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="of each run")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--at-once", type=int, default=2, help="processes")
    parser.add_argument("--directory", type=Path, help="where runs lie and, after a kill, are taken up; else temporary")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--draw", action="store_true", help="draw --out as it is")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        train(Run(**json.loads(arguments.run)), arguments.directory)
        return
    if not arguments.draw:
        with tempfile.TemporaryDirectory() as temporary:
            directory = arguments.directory or Path(temporary)
            directory.mkdir(parents=True, exist_ok=True)
            result = rounded(study(arguments.steps, SEEDS[: arguments.seeds], directory, arguments.at_once))
        write_result("optimizer_quality", result, code=CODE, out=arguments.out)
        print(json.dumps({key: value for key, value in result.items() if key != "curves"}, indent=2))
    from optimizer_quality_plots import draw  # matplotlib is not needed to train

    draw(json.loads(arguments.out.read_text()), beside=arguments.out != OUT and arguments.out.parent)


if __name__ == "__main__":
    main()
