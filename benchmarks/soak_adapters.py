"""Does a run with adapters that saves and evaluates all the time stay as large as it was?

    python benchmarks/soak_adapters.py --minutes 30     # an hour: half of it with each kind of storage
    python benchmarks/soak_adapters.py --minutes 60 --ranks 1 --together    # an hour of each, at the same time

A small GLM with adapters on all linear maps is trained on gloo ranks, each with a copy of the model: every 4 steps an
ephemeral checkpoint in the background, every 20 a lasting one and an evaluation. Twice: with checkpoints on storage
that the ranks share, where the last one publishes, and on a disk of each rank's own. Every rank notes its resident
memory, open files and threads every few seconds, and how many checkpoints there are, hidden folders included.

The first fifth of the time is for warming up. Of the rest a straight line is fitted to each rank's memory, and its rise
over that time given with the share of the median that it is. Results are in `results/soak_adapters.json`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from statistics import linear_regression, median
from typing import Any

import psutil
from record import write_result
from small_runs import small_run

import glmforge
from glmforge.checkpoint.node_local.parts_of_ranks import local_root
from glmforge.config import RunConfig, dump_config, load_config
from glmforge.data.tokens.bpe import train_tokenizer
from glmforge.data.tokens.tokenize import tokenize_corpus
from glmforge.deploy.export import export_run
from glmforge.observe.record_files import read_jsonl
from glmforge.recipes.demo.standard_library import standard_library_documents
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer

CODE = ["src/glmforge/checkpoint", "src/glmforge/training", "src/glmforge/adapt", "src/glmforge/evaluate"]
FLAT = 0.01
"""Rise of memory over the time measured, as a share of the median, up to which it is called flat."""
WARM_UP = 0.2
EVERY_S = 5.0
MIB = 1 << 20
SMALLER = {"vocab_size": 512, "num_hidden_layers": 3, "num_nextn_predict_layers": 0, "hidden_size": 64}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="with each kind of storage")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--together", action="store_true", help="both kinds of storage at the same time")
    parser.add_argument("--out", type=Path, help="another file than results/soak_adapters.json")
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        run_rank(arguments.rank, arguments.minutes)
        return
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        directory = Path(name)
        make_base(directory)
        storages = ("shared", "local")
        with ThreadPoolExecutor(len(storages) if arguments.together else 1) as pool:
            results = pool.map(lambda storage: soak(directory, storage, arguments.ranks, arguments.minutes), storages)
            found = dict(zip(storages, results, strict=True))
    print(write_result("soak_adapters", {"flat": FLAT, **found}, code=CODE, out=arguments.out))


def make_base(directory: Path) -> None:
    """Tokenizer, shards, and a model in Hugging Face's format that has been trained for some steps."""
    documents = list(islice(standard_library_documents(), 100))
    train_tokenizer((each.text for each in documents), 512, directory / "tokenizer")
    tokenize_corpus(documents[:90], directory / "tokenizer", directory / "train")
    tokenize_corpus(documents[90:], directory / "tokenizer", directory / "held-out")
    glmforge.train(config_of(directory, "base", steps=5))
    export_run(directory / "base", directory / "hf", dtype="bf16")


def config_of(directory: Path, name: str, steps: int, **sections: Any) -> RunConfig:
    settings: dict[str, Any] = {
        "name": name,
        "output_dir": str(directory / name),
        "model": small_run("small", {}).model.model_dump() | SMALLER,
        "data": {
            "tokenizer": str(directory / "tokenizer"),
            "sources": [{"name": "text", "path": str(directory / "train")}],
            "held_out": [{"name": "held-out", "path": str(directory / "held-out")}],
        },
        "phases": [{"name": "main", "steps": steps, "seq_len": 32, "batch_size": 4}],
        "optim": {"lr": 1e-4, "warmup_steps": 0},
        # oneDNN keeps what it has compiled for each number of tokens of an expert, in bf16 the first 1,024 of them.
        "precision": {"compute": "fp32"},
        "observe": {"progress": False, "tensorboard": False, "evaluate_every": 20, "evaluate_tokens": 1024},
    }
    return RunConfig.model_validate(settings | sections)


def soak(directory: Path, storage: str, num_ranks: int, minutes: float) -> dict[str, Any]:
    """Train for so long; what the ranks have noted, put together."""
    checkpoint: dict[str, Any] = {"every_steps": 20, "ephemeral_every_steps": 4, "keep_last": 2, "keep_ephemeral": 2}
    if storage == "local":
        checkpoint["local_dir"] = str(directory / "disk")  # each rank adds its number
    config = config_of(
        directory,
        storage,
        steps=1_000_000,
        init_from=str(directory / "hf"),
        lora={"rank": 16, "targets": ["all-linear"]},
        parallel={"dp_replicate": num_ranks},
        checkpoint=checkpoint,
    )
    file = directory / f"{storage}.yaml"
    file.write_text(dump_config(config))
    ranks = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    command = [*ranks, __file__, "--minutes", str(minutes), "--rank", str(file)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    subprocess.run([sys.executable, *command], env=environment, check=True)
    notes = [read_jsonl(directory / f"{storage}-{rank}.jsonl") for rank in range(num_ranks)]
    events = [record["event"] for record in read_jsonl(config.output_dir / "events.jsonl")]
    metrics = read_jsonl(config.output_dir / "metrics.jsonl")
    return {
        "minutes": minutes,
        "steps": metrics[-1]["step"],
        "saves": events.count("saved"),
        "failed_saves": events.count("save failed"),
        "evaluations": metrics[-1]["step"] // 20,
        "ranks": [summary(records) for records in notes],
    }


def run_rank(file: Path, minutes: float) -> None:
    """One rank of the run; ends it after so long."""
    rank, config = os.environ["RANK"], load_config(file)
    if config.checkpoint.local_dir is not None:
        config = load_config(file, [f"checkpoint.local_dir={config.checkpoint.local_dir}{rank}"])
    glmforge.train(config, [Watch(file.with_name(f"{file.stem}-{rank}.jsonl"), minutes * 60)])


class Watch(Hook):
    """Notes what the process has of the machine, and ends the run when its time is over."""

    name = "watch"

    def __init__(self, file: Path, seconds: float) -> None:
        self.file, self.seconds = file, seconds
        self.process = psutil.Process()
        self.started = self.last = time.monotonic()

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        now = time.monotonic()
        if now - self.started > self.seconds:
            trainer.vote("stop")
        if now - self.last < EVERY_S:
            return
        self.last = now
        config = trainer.config
        local_dir = config.checkpoint.local_dir
        directory = config.output_dir / "checkpoints" if local_dir is None else local_root(local_dir, config.name)
        record = {
            "seconds": round(now - self.started, 1),
            "step": trainer.state.step,
            "resident": self.process.memory_info().rss,
            "files": self.process.num_fds(),
            "threads": self.process.num_threads(),
            "checkpoints": sum(1 for _ in directory.iterdir()),
        }
        with self.file.open("a") as notes:
            notes.write(json.dumps(record) + "\n")


def summary(records: list[dict[str, Any]]) -> dict[str, Any]:
    """What came of one rank's notes: the fitted rise of memory in MiB, least and most of what is counted."""
    warm = [record for record in records if record["seconds"] > WARM_UP * records[-1]["seconds"]]
    seconds, resident = [r["seconds"] for r in warm], [r["resident"] / MIB for r in warm]
    slope, _ = linear_regression(seconds, resident)
    rise = slope * (seconds[-1] - seconds[0])
    found: dict[str, Any] = {
        "samples": len(warm),
        "resident_mib": {"first": resident[0], "median": median(resident), "most": max(resident), "last": resident[-1]},
        "rise_mib": rise,
        "rise_share": rise / median(resident),
        "is_flat": rise / median(resident) <= FLAT,
    }
    for name in ("files", "threads", "checkpoints"):
        values = [record[name] for record in warm]
        found[name] = {"least": min(values), "median": median(values), "most": max(values)}
    thinned = records[:: max(1, len(records) // 60)]
    return found | {"course": [[r["seconds"], r["step"], round(r["resident"] / MIB, 1)] for r in thinned]}


if __name__ == "__main__":
    main()
