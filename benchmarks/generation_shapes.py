"""How many times transformers' tokens per second the engine gives, over shapes, threads and precisions.

    python benchmarks/generation_shapes.py                          # all: about a quarter of an hour
    python benchmarks/generation_shapes.py --shapes wide --threads 1

64 requests of 32 tokens each get 64 tokens more, greedily, beside transformers' `generate` with grouped experts; both
take turns, as in `generation.py`. Weights are random, as they are initialized: what is timed does not depend on them.
Beside the ratio stands the share of transformers' time that a step's matrix products alone take, each as one `torch.mm`
of weights that nobody has touched since the step before: both programs have to compute them.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from generation import OURS, PROGRAMS, Worker, Workload, summarize
from record import write_result
from train_step import CONFIG

from glmforge.checkpoint.convert.hf_export import export_hf
from glmforge.config.load import load_model_config
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import parameter_table
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--rounds", type=int, default=5, help="timed turns of each")
    parser.add_argument("--out", type=Path)
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
    """One row: both programs in turns, and the time of the matrix products."""
    config = SHAPES[shape]
    args = argparse.Namespace(model=folder, threads=threads)
    draw = random.Random(0)
    tokens = [draw.randrange(4, config.vocab_size) for _ in range(50_000)]
    workers = [
        Worker(name, PROGRAMS[name]._replace(interpreter=sys.executable), dtype, args) for name in (OURS, THEIRS)
    ]
    turns: dict[str, list[dict[str, Any]]] = {worker.name: [] for worker in workers}
    for turn in range(rounds + 1):
        for worker in workers if turn % 2 else reversed(workers):
            turns[worker.name].append(worker.run(WORKLOAD, tokens, turn))
    for worker in workers:
        worker.close()
    figures = summarize(WORKLOAD, turns)
    theirs = WORKLOAD.num_requests * WORKLOAD.new_tokens / figures[THEIRS]["tokens_per_s"]
    products = products_seconds(config, DTYPES[dtype], threads)
    row = {
        "shape": shape,
        "parameters": count_parameters(config).without_mtp.total,
        "dtype": dtype,
        "threads": threads,
        "tokens_per_s": figures[OURS]["tokens_per_s"],
        "theirs_per_s": figures[THEIRS]["tokens_per_s"],
        **{key: figures[THEIRS][key] for key in ("ours_over_it", "ours_over_it_min", "ours_over_it_max")},
        "products_of_theirs": round(products / theirs, 2),
    }
    print(row, flush=True)
    return row


def products_seconds(config: ModelConfig, dtype: torch.dtype, threads: int) -> float:
    """Of the whole workload: one `torch.mm` for each matrix and step, prompts at 512 tokens a step."""
    torch.set_num_threads(threads)
    steps = [
        (512, WORKLOAD.num_requests * WORKLOAD.prompt_tokens // 512),
        (WORKLOAD.num_requests, WORKLOAD.new_tokens - 1),
    ]
    return sum(number * _step_seconds(config, dtype, rows) for rows, number in steps)


def _step_seconds(config: ModelConfig, dtype: torch.dtype, rows: int) -> float:
    weights = []
    per_expert = max(1, rows * config.num_experts_per_tok // config.n_routed_experts)
    for parameter in parameter_table(config).values():
        *experts, out, inner = parameter.shape if len(parameter.shape) > 1 else (0, 0)
        if not out or parameter.name.endswith("embed_tokens.weight"):
            continue
        of_head = WORKLOAD.num_requests if parameter.name.startswith("lm_head") else rows
        weights += [
            (per_expert if experts else of_head, torch.randn(out, inner, dtype=dtype)) for _ in range(*experts or (1,))
        ]
    inputs = {(n, w.shape[1]): torch.randn(n, w.shape[1], dtype=dtype) for n, w in weights}
    seconds = []
    for _ in range(6):
        started = time.perf_counter()
        for n, weight in weights:
            torch.mm(inputs[n, weight.shape[1]], weight.t())
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


if __name__ == "__main__":
    main()
