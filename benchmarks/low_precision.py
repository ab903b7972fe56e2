"""What 8-bit products and bf16 optimizer states do to the loss of a small GLM, on this machine's CPU.

    python benchmarks/low_precision.py --jobs 2     # some five minutes on two quiet cores

A GLM of 1.2 million parameters (bf16, Muon) predicts the bytes of Python's own standard library for 500 steps, with two
seeds. Every variant sees the same batches and begins with the same weights: `bf16` is the one compared with, the others
change one option each. On a CPU 8-bit products are emulated by bf16 products of rounded factors
(`glmforge.kernels.fp8`), which is what the CUDA kernels sum.

Expected before the first run: 8-bit products change the mean training loss of the last 50 steps by less than 1 %,
bf16 states by less than 0.5 %, the sign of either being chance; no run diverges. The yardstick is what another seed
changes.
"""

import argparse
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from record import write_result

from glmforge.backend.native import NativeBackend
from glmforge.config.load import load_config
from glmforge.data.stream.batch import Batch
from glmforge.objectives.next_token import NextTokenObjective
from glmforge.optim.schedule import learning_rate_schedule
from glmforge.parallel.world import World
from glmforge.recipes.demo.standard_library import standard_library_documents
from glmforge.training.source import Phase, StepInput
from glmforge.training.trainer import Trainer

SEQ_LEN, NUM_ROWS = 128, 8
RUN = """
name: low_precision
model:
  vocab_size: 256
  hidden_size: 128
  num_hidden_layers: 3
  first_k_dense_replace: 1
  intermediate_size: 384
  moe_intermediate_size: 64
  num_attention_heads: 4
  num_key_value_heads: 2
  head_dim: 32
  use_qk_norm: true
  rope_theta: 1e4
  max_position_embeddings: 128
  n_routed_experts: 16
  n_shared_experts: 1
  num_experts_per_tok: 4
  routed_scaling_factor: 2.5
  num_nextn_predict_layers: 0
  eos_token_id: [0]
  pad_token_id: 0
data: {tokenizer: none, sources: [{name: text, path: none}]}
phases: [{name: main, steps: 500, seq_len: 128, batch_size: 8, router_bias_rate: 1e-2}]
optim: {lr: 1e-2, min_lr: 1e-3, warmup_steps: 20}
"""
VARIANTS: dict[str, list[str]] = {
    "bf16": [],
    "fp8": ["precision.low_precision=fp8"],
    "mxfp8_emulated": ["precision.low_precision=mxfp8_emulated"],
    "bf16 states": ["optim.state_dtype=bf16"],
}
SEEDS = (1, 2)
LAST = 50
CODE = ("src/glmforge/kernels/fp8.py", "src/glmforge/model", "src/glmforge/optim", "src/glmforge/training/step.py")


def corpus(num_bytes: int = 4_000_000) -> np.ndarray:
    """The library's sources, one after the other, as bytes."""
    texts = (document.text.encode() for document in islice(standard_library_documents(), 600))
    return np.frombuffer(b"\0".join(texts), dtype=np.uint8)[:num_bytes].astype(np.int64)


def batch(text: np.ndarray, generator: np.random.Generator) -> Batch:
    """Rows that begin anywhere, each one document."""
    starts = generator.integers(0, len(text) - SEQ_LEN - 1, NUM_ROWS)
    ids = torch.from_numpy(np.stack([text[start : start + SEQ_LEN + 1] for start in starts]))
    return Batch(ids[:, :-1], ids[:, 1:], ((SEQ_LEN,),) * NUM_ROWS, tuple(range(NUM_ROWS)), (0,) * NUM_ROWS)


def train(variant: str, seed: int) -> list[float]:
    """The loss of each step, in a process of its own."""
    torch.set_num_threads(1)
    text, overrides = corpus(), VARIANTS[variant]
    config = load_config(RUN, [f"seed={seed}", *overrides])
    trainer = Trainer(config, NativeBackend.build(config, World.single("cpu")))
    phase = Phase("main", NextTokenObjective(config.phases[0], 0), router_bias_rate=config.phases[0].router_bias_rate)
    rate, generator = learning_rate_schedule(config), np.random.default_rng(seed)
    losses = []
    for step in range(config.num_steps):
        lr = rate(step * SEQ_LEN * NUM_ROWS)
        losses.append(trainer.step(StepInput(batch(text, generator), phase, lr=lr)).main_loss)
    return losses


def summarise(losses: dict[str, dict[int, list[float]]]) -> dict[str, Any]:
    """Mean loss of the last steps by variant and seed, and how far it is from bf16's with the same seed."""
    final = {name: {s: statistics.mean(run[-LAST:]) for s, run in runs.items()} for name, runs in losses.items()}
    usual = final["bf16"]
    return {
        name: {
            "final_loss": list(by_seed.values()),
            "relative_to_bf16": [by_seed[seed] / usual[seed] - 1 for seed in by_seed],
            "largest_gap": max(
                abs(a / b - 1)
                for seed in by_seed
                for a, b in zip(smooth(losses[name][seed]), smooth(losses["bf16"][seed]), strict=True)
            ),
        }
        for name, by_seed in final.items()
    }


def smooth(losses: Sequence[float]) -> list[float]:
    """Means of each 50 steps."""
    return [statistics.mean(losses[start : start + LAST]) for start in range(0, len(losses), LAST)]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    arguments.add_argument("--jobs", type=int, default=1, help="runs at a time, each with one thread")
    given = arguments.parse_args()
    chosen = dict.fromkeys(["bf16", *given.variants])
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        jobs = {name: {seed: pool.submit(train, name, seed) for seed in SEEDS} for name in chosen}
        losses = {name: {seed: job.result() for seed, job in runs.items()} for name, runs in jobs.items()}
    results = summarise(losses)
    for name, row in results.items():
        print(name, row)
    curves = {name: {str(seed): smooth(run) for seed, run in runs.items()} for name, runs in losses.items()}
    content = {"steps": 500, "seeds": SEEDS, "variants": results, "losses_by_50_steps": curves}
    print(write_result("low_precision", content, code=CODE))


if __name__ == "__main__":
    main()
