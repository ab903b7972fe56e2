"""One rank's training step now against an earlier revision of this repository, taking turns on this machine.

    python benchmarks/against_revision.py 20e40f3                # compare with that commit, fp32 and bf16, 5 minutes
    python benchmarks/against_revision.py HEAD~1 --rounds 3

Both run the trainer itself (`measure_step_seconds`: batch, forward, backward, clipping, Muon and AdamW, balance) on the
model of `train_step.py` with MTP and the auxiliary loss on. The earlier revision is taken from git into a temporary
folder; each side lives in a process of its own, and neighbouring turns are compared.
"""

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from record import write_result
from train_step import CODE, CONFIG, describe_run

ROOT = Path(__file__).parent.parent
MODULES = (
    "argparse",
    "ast",
    "calendar",
    "codecs",
    "decimal",
    "_pydecimal",
    "inspect",
    "pathlib",
    "pickle",
    "subprocess",
)
WORKER = """
import json, sys
from glmforge.config import load_config
from glmforge.recipes.train import measure_step_seconds
import torch
torch.set_num_threads(int(sys.argv[2]))
config = load_config(sys.argv[1])
for line in sys.stdin:
    print(json.dumps(measure_step_seconds(config, int(line))), flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revision")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=6, help="timed steps of a turn, after one to warm up")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    result: dict[str, Any] = describe_run(args.threads) | {"against": revision_name(args.revision)}
    with tempfile.TemporaryDirectory() as folder:
        earlier = extract(args.revision, Path(folder) / "earlier")
        for dtype in ("fp32", "bf16"):
            config = write_run(Path(folder), dtype)
            result[dtype] = compare({"now": ROOT / "src", "earlier": earlier / "src"}, config, args)
            print(dtype, json.dumps(result[dtype], indent=2), flush=True)
    write_result("one_rank_step", result, code=CODE, out=args.out)


def compare(sources: dict[str, Path], config: Path, args: argparse.Namespace) -> dict[str, Any]:
    workers = {name: start(source, config, args.threads) for name, source in sources.items()}
    turns: dict[str, list[float]] = {name: [] for name in workers}
    for number in range(args.rounds + 1):  # the first turn warms up
        for name in workers if number % 2 else reversed(workers):
            seconds = take_turn(workers[name], args.steps)
            if number:
                turns[name].append(seconds)
    for worker in workers.values():
        worker.communicate()
    ratios = sorted(earlier / now for earlier, now in zip(turns["earlier"], turns["now"], strict=True))
    return {
        "median_seconds": {name: round(statistics.median(seconds), 4) for name, seconds in turns.items()},
        "min_seconds": {name: round(min(seconds), 4) for name, seconds in turns.items()},
        "earlier_over_now": {
            "median": round(statistics.median(ratios), 3),
            "min": round(ratios[0], 3),
            "max": round(ratios[-1], 3),
            "of_fastest": round(min(turns["earlier"]) / min(turns["now"]), 3),
        },
    }


def start(source: Path, config: Path, threads: int) -> "subprocess.Popen[str]":
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-c", WORKER, str(config), str(threads)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def take_turn(worker: "subprocess.Popen[str]", steps: int) -> float:
    assert worker.stdin is not None
    assert worker.stdout is not None
    print(steps, file=worker.stdin, flush=True)
    answer = worker.stdout.readline()
    if not answer:
        raise RuntimeError("a worker died; its error stands above")
    return float(json.loads(answer))


def extract(revision: str, target: Path) -> Path:
    archive = subprocess.run(["git", "archive", revision, "src"], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(target, filter="data")
    return target


def revision_name(revision: str) -> str:
    command = ["git", "rev-parse", "--short", revision]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout.strip()


def write_run(folder: Path, dtype: str) -> Path:
    """A run's file, with a tokenizer and a shard made of some of Python's own modules."""
    from glmforge.data.documents.document import Document
    from glmforge.data.tokens.bpe import train_tokenizer
    from glmforge.data.tokens.tokenize import tokenize_corpus

    library = Path(sysconfig.get_path("stdlib"))
    paths = [library / f"{module}.py" for module in MODULES]
    documents = [Document(path.name, path.read_text(encoding="utf-8"), str(path)) for path in paths]
    if not (folder / "tokenizer").exists():
        train_tokenizer((document.text for document in documents), 4096, folder / "tokenizer")
        tokenize_corpus(documents, folder / "tokenizer", folder / "train")
    run = {
        "name": "benchmark",
        "output_dir": str(folder / "run"),
        "model": CONFIG.model_dump(mode="json") | {"num_nextn_predict_layers": 1},
        "data": {"tokenizer": str(folder / "tokenizer"), "sources": [{"name": "text", "path": str(folder / "train")}]},
        "phases": [{"name": "main", "steps": 100, "seq_len": 256, "batch_size": 8}],
        "precision": {"compute": dtype},
    }
    path = folder / f"{dtype}.yaml"
    path.write_text(json.dumps(run))  # JSON is YAML
    return path


if __name__ == "__main__":
    main()
