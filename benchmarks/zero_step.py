"""A training step of native FSDP2 against DeepSpeed's ZeRO-3 and ZeRO-2: time and memory on the ranks of this machine.

    python benchmarks/zero_step.py                 # two ranks, three rounds, some five minutes on two idle cores

All train the same GLM-shaped model of about 23 million parameters (MTP on) in fp32 from the same weights on the same
rows with AdamW, by the trainer's own step. Variants take turns, each turn in new processes: build, two steps to warm
up, then the timed ones. `bytes` is the most that a rank's process held above what it held before the model was built.
The losses must agree to 1e-3, or the run fails. (A script named deepspeed.py would be imported in place of DeepSpeed.)
"""

import resource
import statistics
import time
from collections import defaultdict
from typing import Any

import torch
import torch.distributed as dist
from gloo_ranks import Ranks
from harness import alternating, arguments
from measured_layouts import joined
from record import write_result
from train_step import BATCH_SIZE, CONFIG, SEQ_LEN

from glmforge.config.schema import RunConfig
from glmforge.data.stream.batch import Batch
from glmforge.objectives.next_token import NextTokenObjective
from glmforge.training.step import train_step

CODE = ("src/glmforge/backend", "src/glmforge/parallel", "src/glmforge/model", "src/glmforge/optim")
NUM_RANKS, WARM_UP, NUM_STEPS = 2, 2, 6
STAGES: dict[str, int | None] = {"native": None, "zero3": 3, "zero2": 2}


def main() -> None:
    args = arguments(__doc__, rounds=3).parse_args()
    turns: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for name in alternating(list(STAGES), args.rounds):
        with Ranks(NUM_RANKS, time_limit_s=600) as ranks:
            turns[name].append(slowest(ranks.run(measure, STAGES[name])))
            print(name, turns[name][-1], flush=True)
    losses = {name: of_variant[0]["losses"] for name, of_variant in turns.items()}
    apart = max(abs(a - b) for of in losses.values() for a, b in zip(of, losses["native"], strict=True))
    if apart > 1e-3:
        raise RuntimeError(f"losses are {apart:.1e} apart: not the same training")
    variants = {
        name: {
            "seconds": round(statistics.median(s for turn in of_variant for s in turn["seconds"]), 3),
            "fastest": round(min(s for turn in of_variant for s in turn["seconds"]), 3),
            "bytes": max(turn["bytes"] for turn in of_variant),
        }
        for name, of_variant in turns.items()
    }
    native = variants["native"]
    ratios = {
        name: {key: round(variants[name][key] / native[key], 3) for key in ("seconds", "bytes")}
        for name in variants
        if name != "native"
    }
    content = {
        "ranks": NUM_RANKS,
        "rounds": args.rounds,
        "steps_per_turn": NUM_STEPS,
        "batch": [BATCH_SIZE, SEQ_LEN],
        "losses_apart": apart,
        "variants": variants,
        "times_native": ratios,
    }
    write_result("deepspeed", content, code=CODE, libraries=("deepspeed",), out=args.out)


def slowest(of_ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """A step takes as long as on the slowest rank, and memory is that of the fullest."""
    seconds = [max(of_step) for of_step in zip(*(rank["seconds"] for rank in of_ranks), strict=True)]
    return of_ranks[0] | {"seconds": seconds, "bytes": max(rank["bytes"] for rank in of_ranks)}


def measure(stage: int | None) -> dict[str, Any]:
    """Seconds of each step, the most bytes in use, and the losses, on this rank."""
    from glmforge.backend.deepspeed.backend import DeepSpeedBackend
    from glmforge.backend.native import NativeBackend

    config = run()
    phase = config.phases[0]
    with joined(config) as world:
        before = used_bytes()
        backend = (
            NativeBackend.build(config, world)
            if stage is None
            else DeepSpeedBackend.build_under(settings(stage, config), config, world)
        )
        backend.train()
        objective = NextTokenObjective(phase, config.model.num_nextn_predict_layers)
        share = BATCH_SIZE // world.layout.data_ranks
        rows = batch().rows(world.data_rank * share, (world.data_rank + 1) * share)
        seconds, losses = [], []
        for _ in range(WARM_UP + NUM_STEPS):
            dist.barrier()
            started = time.perf_counter()
            outcome = train_step(
                backend, objective, [rows], lr=config.optim.lr, grad_clip=1.0, router_bias_rate=phase.router_bias_rate
            )
            seconds.append(time.perf_counter() - started)
            losses.append(outcome.main_loss)
        return {"seconds": seconds[WARM_UP:], "bytes": used_bytes() - before, "losses": losses}


def run() -> RunConfig:
    model = CONFIG.model_dump() | {"num_nextn_predict_layers": 1}
    return RunConfig.model_validate(
        {
            "name": "deepspeed",
            "model": model,
            "data": {"tokenizer": "none", "sources": [{"name": "none", "path": "none"}]},
            "phases": [{"name": "main", "steps": 10, "seq_len": SEQ_LEN, "batch_size": BATCH_SIZE}],
            "optim": {"matrix_optimizer": "adamw", "lr": 3e-4},
            "precision": {"compute": "fp32"},
        }
    )


def settings(stage: int, config: RunConfig) -> dict[str, Any]:
    optim = config.optim
    params = {"lr": optim.lr, "betas": optim.betas, "eps": optim.eps, "weight_decay": optim.weight_decay}
    return {"optimizer": {"type": "AdamW", "params": params}, "zero_optimization": {"stage": stage}}


def batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, CONFIG.vocab_size, (BATCH_SIZE, SEQ_LEN + 1), generator=generator)
    lengths = ((SEQ_LEN,),) * BATCH_SIZE
    return Batch(ids[:, :-1], ids[:, 1:].clone(), lengths, tuple(range(BATCH_SIZE)), (0,) * BATCH_SIZE)


def used_bytes() -> int:
    """The most that this process has had in memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
