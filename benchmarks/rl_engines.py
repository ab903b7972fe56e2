"""Servers as the engine of reinforcement learning, on this machine: how far they are from the trainer, whether weights
arrive, what a transfer takes, and what becomes of a run whose server is killed.

    python benchmarks/rl_engines.py                                   # `glmforge serve` alone, a few minutes
    python benchmarks/rl_engines.py --vllm /path/to/venv/bin/python   # vLLM's CPU build as well

A small MoE model of random weights. The gap is the absolute difference between the log-probabilities that an engine
reports of the tokens it sampled, and the trainer's of the same tokens (experts are replayed where the engine reports
them). `stale` is the gap with weights that were changed and not sent, as it would be if an update did not arrive;
`updated` the gap behind the transfer. Peaks are a rank's resident memory above that before the transfer, of four ranks
that hold a quarter of the model each.
"""

import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from harness import arguments, result
from record import ROOT, write_result

sys.path.insert(0, str(ROOT / "tests"))

from glmforge.config.layout import resolve_layout
from glmforge.parallel.world import join_world
from glmforge.rl.samples import Answer
from helpers.distributed import free_port, run_ranks
from helpers.rl_engines import COMMAND, Policy, facts, one_policy, run_config, vllm_command
from helpers.tiny_data import make_tiny_data

CODE = ("src/glmforge/rl", "src/glmforge/deploy/serve", "src/glmforge/generate", "src/glmforge/protocol/tokens.py")
MODEL = {"hidden_size": 128, "head_dim": 32, "moe_intermediate_size": 64, "intermediate_size": 256}
LARGE = {"hidden_size": 1024, "moe_intermediate_size": 512, "intermediate_size": 1024, "num_hidden_layers": 8}
PROMPTS, NEW_TOKENS, KILLS, RANKS = 32, 40, 10, 4
BUCKETS = (4 << 20, 32 << 20)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--vllm", help="the Python of an environment with vLLM's CPU build")
    parser.add_argument("--only", default="", help="only parts whose name has this; the others stay as they were")
    args = parser.parse_args()
    found = result("rl_engines") | {"prompts": PROMPTS, "group_size": 4, "new_tokens": NEW_TOKENS}
    found.pop("measured", None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer = make_tiny_data(folder / "data").tokenizer
        parts: dict[str, Callable[[], Any]] = {
            f"transfer {size >> 20} MiB": partial(transfer, folder / f"{size}", tokenizer, size) for size in BUCKETS
        }
        parts["kills"] = partial(kills, folder / "kills", tokenizer)
        for kind, way in [("glmforge", "")] + ([("vllm", " restart"), ("vllm", " reload")] if args.vllm else []):
            for dtype in ("fp32",) if way == " reload" else ("fp32", "bf16"):
                part = f"{kind} {dtype}{way}"
                parts[part] = partial(gaps, folder / part, tokenizer, args.vllm, kind, dtype, way == " restart")
        for part, measure in parts.items():
            if args.only in part:
                found[part] = measure()
                print(part, json.dumps(found[part]), flush=True)
                write_result("rl_engines", found, code=CODE, out=args.out)


def gaps(folder: Path, tokenizer: Path, vllm: str, kind: str, dtype: str, restart: bool) -> dict[str, Any]:
    """Of the native engine and of a server, with the same prompts; and of weights that were not sent."""
    command = COMMAND
    if kind == "vllm":
        command = vllm_command(vllm, {"fp32": "float32", "bf16": "bfloat16"}[dtype])
    engine = {"kind": kind, "urls": [f"http://127.0.0.1:{free_port()}"], "command": command, "dtype": dtype}
    engine["restart"] = restart
    found: dict[str, Any] = {}
    sections = {"model": tiny(MODEL), "precision": {"compute": dtype}}
    with one_policy(folder, tokenizer, engine, sections=sections, max_new_tokens=NEW_TOKENS) as policy:
        for version in range(2):
            remote = policy.answers(policy.remote, version, PROMPTS)
            native = policy.answers(policy.native, version, PROMPTS)
            found[f"version {version}"] = {
                "native": gap(policy, native),
                "server": gap(policy, remote),
                "same_answers": sum(a[2] == b[2] for a, b in zip(facts(remote), facts(native), strict=True)),
            }
            if version:
                break
            policy.perturb(1)
            found["stale"] = gap(policy, remote)
        found["transfer_seconds"] = policy.remote.metrics()["transfer_seconds"]
    return found


def gap(policy: Policy, answers: list[Answer]) -> dict[str, float]:
    """Between the engine's and the trainer's log-probabilities, in nats."""
    found = policy.gaps(answers)
    return {"mean": float(found.mean()), "p99": float(np.quantile(found, 0.99)), "max": float(found.max())}


def kills(folder: Path, tokenizer: Path) -> dict[str, Any]:
    """A server is killed at a random moment of each rollout."""
    engine = {"urls": [f"http://127.0.0.1:{free_port()}"], "command": COMMAND, "max_restarts": KILLS}
    generator, same, seconds = random.Random(0), 0, list[float]()
    with one_policy(folder, tokenizer, engine, sections={"model": tiny(MODEL)}, max_new_tokens=NEW_TOKENS) as policy:
        policy.answers(policy.remote, 0, PROMPTS)
        started = time.perf_counter()
        policy.answers(policy.remote, 1, PROMPTS)
        usual = time.perf_counter() - started
        for version in range(2, KILLS + 2):
            (process,) = policy.fleet.processes
            assert process.process is not None
            killer = threading.Timer(generator.random() * usual, os.kill, (process.process.pid, signal.SIGKILL))
            started = time.perf_counter()
            killer.start()
            answers = policy.answers(policy.remote, version, PROMPTS)
            seconds.append(round(time.perf_counter() - started, 2))
            killer.join()
            same += facts(answers) == facts(policy.answers(policy.native, version, PROMPTS))
            policy.perturb(version)
        policy.answers(policy.remote, KILLS + 2, PROMPTS)
        restarts = policy.remote.metrics()["engine_restarts"]
    return {
        "kills": KILLS,
        "restarts": restarts,
        "same_answers": same,
        "usual_seconds": round(usual, 2),
        "seconds": seconds,
    }


def transfer(folder: Path, tokenizer: Path, bucket_bytes: int) -> dict[str, Any]:
    """Weights from four ranks to one server, the second time: peak memory of each rank, and speed."""
    engine = {"urls": [f"http://127.0.0.1:{free_port()}"], "command": COMMAND, "bucket_bytes": bucket_bytes}
    results = run_ranks(_transfer_on_rank, RANKS, folder, tokenizer, engine, timeout_s=600)
    sizes, peaks, seconds, speeds = zip(*results, strict=True)
    return {
        "model_bytes": sum(sizes),
        "bucket_bytes": bucket_bytes,
        "peak_bytes_of_ranks": list(peaks),
        "seconds": seconds[0],
        "bytes_per_second": speeds[0],
    }


def _transfer_on_rank(folder: Path, tokenizer: Path, engine: dict[str, Any]) -> tuple[int, int, float, float]:
    config = run_config(folder, tokenizer, {"dp_shard": RANKS}, model=tiny(LARGE))
    with join_world(resolve_layout(config, dist.get_world_size()), timeout_s=300) as world:
        policy = Policy(config, world, engine)
        try:
            peak = policy.peak_of_an_update()
            metrics = policy.remote.metrics()
        finally:
            policy.fleet.close()
        return policy.own_bytes(), peak, metrics["transfer_seconds"], metrics["transfer_bytes_per_second"]


def tiny(sizes: dict[str, int]) -> dict[str, Any]:
    from helpers.models import tiny_config

    return tiny_config(**sizes, num_nextn_predict_layers=0).model_dump()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
