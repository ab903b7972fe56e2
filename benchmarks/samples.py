"""What it costs to generate texts at an evaluation, in the middle of training, on four ranks.

    python benchmarks/samples.py             # some three minutes; writes benchmarks/results/samples.json
    python benchmarks/samples.py --turns 1 --layouts "fsdp 4"

Four gloo processes of one thread each train the model of `train_step.py` (23 million parameters) in bf16, and after a
step generate 64 texts of 64 tokens, four to each of 16 prompts of 48 tokens: with all weights kept gathered for the
session, and with none, in turns. `seconds` is the median over turns, of everything between two training steps:
gathering, cache, texts. `step_seconds` is a training step of 8 x 256 tokens on the same ranks. Bytes are those of a
rank. `same_losses` is whether the losses of all steps are those, to the last bit, of the same training without texts.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from gloo_ranks import Ranks
from record import write_result

from glmforge.config.schema import RunConfig

CODE = ("src/glmforge/generate", "src/glmforge/parallel", "src/glmforge/model", "src/glmforge/kernels")
RANKS, NUM_ROWS, SEQ_LEN = 4, 8, 256
NUM_PROMPTS, SAMPLES_OF_PROMPT, PROMPT_TOKENS, NEW_TOKENS = 16, 4, 48, 64
LAYOUTS: dict[str, dict[str, Any]] = {
    "fsdp 4": {},
    "replicate 2 x fsdp 2": {"dp_replicate": 2},
    "fsdp 2 x tp 2": {"tp": 2},
    "fsdp 4, ep 4": {"ep": 4},
    "pp 2 x fsdp 2": {"pp": 2, "micro_batch_size": 2},
}
BUDGETS: dict[str, int | None] = {"kept": None, "gathered in every step": 0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found: dict[str, Any] = {}
    for name in args.layouts:
        with Ranks(RANKS) as ranks:
            with_texts = ranks.run(measure, LAYOUTS[name], args.turns)[0]
            without = ranks.run(measure, LAYOUTS[name], 0)[0]
        losses = with_texts.pop("losses")
        found[name] = with_texts | {"same_losses": losses[: len(without["losses"])] == without["losses"]}
        print(json.dumps({name: found[name]}, indent=1), flush=True)
    shape = {"ranks": RANKS, "texts": NUM_PROMPTS * SAMPLES_OF_PROMPT, "new_tokens": NEW_TOKENS}
    print(write_result("samples", shape | {"layouts": found}, code=CODE, out=args.out))


def run_config(parallel: dict[str, Any]) -> RunConfig:
    from train_step import CONFIG

    phase = {"name": "main", "steps": 8, "seq_len": SEQ_LEN, "batch_size": NUM_ROWS}
    return RunConfig.model_validate(
        {
            "name": "samples",
            "model": CONFIG.model_dump(),
            "data": {"tokenizer": "none", "sources": [{"name": "text", "path": "none"}]},
            "phases": [phase],
            "parallel": parallel,
            "precision": {"compute": "bf16"},
        }
    )


def measure(parallel: dict[str, Any], turns: int) -> dict[str, Any]:
    """On one rank: a step before and after each session, or two steps alone."""
    import torch

    from glmforge.backend.native import NativeBackend
    from glmforge.config.layout import resolve_layout
    from glmforge.data.stream.batch import Batch
    from glmforge.objectives.next_token import NextTokenObjective
    from glmforge.parallel.world import World
    from glmforge.training.step import train_step

    config = run_config(parallel)
    world = World.join(resolve_layout(config, RANKS), torch.device("cpu"))
    backend = NativeBackend.build(config, world)
    objective = NextTokenObjective(config.phases[0], config.model.num_nextn_predict_layers)
    ids = torch.randint(0, config.model.vocab_size, (NUM_ROWS, SEQ_LEN + 1), generator=torch.Generator().manual_seed(1))
    batch = Batch(ids[:, :-1], ids[:, 1:], ((SEQ_LEN,),) * NUM_ROWS, tuple(range(NUM_ROWS)), (0,) * NUM_ROWS)
    share = NUM_ROWS // world.layout.data_ranks
    mine = batch.rows(world.data_rank * share, (world.data_rank + 1) * share)
    micro_batches = mine.micro_batches(world.layout.micro_batch_size or share)
    losses, step_seconds = [], []
    found: dict[str, Any] = {name: {"seconds": []} for name in BUDGETS}

    def step() -> None:
        started = time.perf_counter()
        losses.append(
            train_step(backend, objective, micro_batches, lr=1e-3, grad_clip=1.0, router_bias_rate=1e-3).losses
        )
        step_seconds.append(time.perf_counter() - started)

    step()
    for _ in range(turns):
        for name, budget in BUDGETS.items():
            seconds, sizes = generate(backend.model, budget)
            found[name] |= sizes
            found[name]["seconds"].append(seconds)
            step()
    step()
    for of_budget in found.values() if turns else ():
        of_budget["seconds"] = round(statistics.median(of_budget["seconds"]), 2)
    return {"step_seconds": round(statistics.median(step_seconds[1:]), 2), "losses": losses, **found}


def generate(model: Any, max_weight_bytes: int | None) -> tuple[float, dict[str, int]]:
    """Seconds of a session, and the bytes that it takes on this rank."""
    import torch.distributed as dist

    from glmforge.generate.config import EngineConfig
    from glmforge.generate.engine import Engine
    from glmforge.generate.params import SamplingParams
    from glmforge.generate.sharded import ShardedModel

    dist.barrier()
    started = time.perf_counter()
    runner = ShardedModel(model, max_weight_bytes)
    mine = range(runner.share, NUM_PROMPTS, runner.num_shares)
    prompts = [
        [(index * 997 + place * 31) % model.config.vocab_size for place in range(PROMPT_TOKENS)] for index in mine
    ]
    params = [
        SamplingParams(max_new_tokens=NEW_TOKENS, temperature=1.0, seed=index, num_samples=SAMPLES_OF_PROMPT)
        for index in mine
    ]
    pages = len(prompts) * SAMPLES_OF_PROMPT * -(-(PROMPT_TOKENS + NEW_TOKENS) // 16)
    cache_bytes = pages * runner.page_bytes(16)
    with runner.session():
        answers = Engine(runner, EngineConfig(cache_bytes)).generate(prompts, params)
    dist.barrier()
    assert all(len(sample.tokens) == NEW_TOKENS for samples in answers for sample in samples)
    sizes = {"weights": runner.weight_bytes.kept, "passing": runner.weight_bytes.passing, "cache": cache_bytes}
    return time.perf_counter() - started, {f"{name}_bytes": size for name, size in sizes.items()}


if __name__ == "__main__":
    main()
