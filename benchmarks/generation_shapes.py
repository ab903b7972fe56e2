"""How many times transformers' tokens per second the engine gives, over shapes, threads and precisions.

    python benchmarks/generation_shapes.py                          # all: about a quarter of an hour
    python benchmarks/generation_shapes.py --shapes wide --threads 1

64 requests of 32 tokens each get 64 tokens more, greedily, beside transformers' `generate` with grouped experts; both
take turns, as in `generation.py`. Weights are random, as they are initialized: what is timed does not depend on them.
"""

import argparse
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from generation import OURS, PROGRAMS, Worker, Workload, summarize, take_turns
from harness import arguments
from record import write_result
from train_step import CONFIG

from glmforge.checkpoint.convert.hf_export import export_hf
from glmforge.config.load import load_model_config
from glmforge.config.model import ModelConfig
from glmforge.kernels.allocator import keep_large_blocks
from glmforge.model.init import InitialWeights
from glmforge.plan.counts.parameters import count_parameters

CODE = (
    "src/glmforge/generate",
    "src/glmforge/kernels",
    "src/glmforge/model",
    "benchmarks/generation.py",
    "benchmarks/programs",
)
THEIRS = "transformers grouped_mm"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
WORKLOAD = Workload(64, 32, 64)
SHAPES: dict[str, ModelConfig] = {
    "demo": load_model_config("demo").model_copy(update={"num_nextn_predict_layers": 0}),
    "deep": CONFIG,
    "wide": CONFIG.model_copy(
        update={
            "vocab_size": 16_384,
            "hidden_size": 384,
            "num_hidden_layers": 4,
            "intermediate_size": 1024,
            "moe_intermediate_size": 160,
        }
    ),
}


def main() -> None:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    args = parser.parse_args()
    keep_large_blocks()
    rows = []
    for shape in args.shapes:
        with tempfile.TemporaryDirectory() as folder:
            for dtype in args.dtypes:
                write_model(SHAPES[shape], Path(folder) / f"hf-{dtype}", dtype)
                rows += [measure(shape, dtype, threads, Path(folder), args.rounds) for threads in args.threads]
    ratios = {dtype: [row["ours_over_it"] for row in rows if row["dtype"] == dtype] for dtype in args.dtypes}
    ranges = {dtype: {"lowest": min(found), "highest": max(found)} for dtype, found in ratios.items()}
    content = {"workload": WORKLOAD.name, "rows": rows, "range": ranges}
    write_result("generation_shapes", content, code=CODE, libraries=("transformers",), out=args.out)


def write_model(config: ModelConfig, out: Path, dtype: str) -> None:
    """With initial weights, in Hugging Face format."""
    export_hf(InitialWeights(config, seed=0), config, out, dtype=DTYPES[dtype], with_mtp=False)


def measure(shape: str, dtype: str, threads: int, folder: Path, rounds: int) -> dict[str, Any]:
    """One row: both programs in turns."""
    config = SHAPES[shape]
    args = argparse.Namespace(model=folder, threads=threads, rounds=rounds, seconds=0.0, patience=float("inf"))
    draw = random.Random(0)
    tokens = [draw.randrange(4, config.vocab_size) for _ in range(50_000)]
    workers = [
        Worker(name, PROGRAMS[name]._replace(interpreter=sys.executable), dtype, args) for name in (OURS, THEIRS)
    ]
    turns = take_turns(WORKLOAD, workers, tokens, args)
    for worker in workers:
        worker.close()
    figures = summarize(WORKLOAD, turns)
    row = {
        "shape": shape,
        "parameters": count_parameters(config).without_mtp.total,
        "dtype": dtype,
        "threads": threads,
        "tokens_per_s": figures[OURS]["tokens_per_s"],
        "theirs_per_s": figures[THEIRS]["tokens_per_s"],
        **{key: figures[THEIRS][key] for key in ("ours_over_it", "ours_over_it_min", "ours_over_it_max")},
    }
    print(row, flush=True)
    return row


if __name__ == "__main__":
    main()
