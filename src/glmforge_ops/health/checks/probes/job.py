"""A small training run over several nodes, one process on each; one of them is killed if that is asked for."""

import json
import os
import random
import shutil
import signal
import subprocess
import time

from glmforge_ops.health.checks.probes.network import interface_to

_GRACE_S = 20.0
_POLL_S = 0.1
_MODEL = {
    "vocab_size": 320,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "first_k_dense_replace": 1,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "use_qk_norm": True,
    "rope_theta": 1e6,
    "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 1,
    "max_position_embeddings": 64,
    "eos_token_id": [284],
    "pad_token_id": 284,
}


def prepare(cluster: dict, arguments: dict) -> dict:
    """A text, its tokenizer and its tokens in a directory that all nodes share."""
    folder = arguments["folder"]
    os.makedirs(folder)
    with open(os.path.join(folder, "corpus.txt"), "w", encoding="utf-8") as file:
        words, numbers = ["expert", "router", "token", "shard", "layer", "rank", "step", "loss"], random.Random(0)
        file.write("\n".join(" ".join(numbers.choices(words, k=12)) for _ in range(400)))
    for words in (
        ["tokenizer", "corpus.txt", "--vocab-size", "320", "--out", "tokenizer"],
        ["tokenize", "corpus.txt", "--tokenizer", "tokenizer", "--out", "train"],
    ):
        done = subprocess.run(
            [cluster["python"], "-m", "glmforge", "data", *words],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        if done.returncode != 0:
            return {"reason": last_line(done.stderr) or f"status {done.returncode}"}
    return {"reason": None}


def settings(folder: str, run: str, world: int, steps: int) -> dict:
    return {
        "name": run,
        "output_dir": os.path.join(folder, run),
        "model": _MODEL,
        "data": {
            "tokenizer": os.path.join(folder, "tokenizer"),
            "sources": [{"name": "text", "path": os.path.join(folder, "train")}],
        },
        "phases": [{"name": "main", "steps": steps, "seq_len": 32, "batch_size": 2 * world}],
        "optim": {"lr": 1e-3, "warmup_steps": 0},
        "parallel": {"dp_shard": world},
        "precision": {"compute": "fp32"},
        "checkpoint": {"every_steps": 2},
        "observe": {"progress": False, "tensorboard": False},
    }


def train(cluster: dict, arguments: dict) -> dict:
    """One rank, to its end: its status, its last words, and whether it was killed as planned."""
    folder, run, rank, world = (arguments[name] for name in ("folder", "run", "rank", "world"))
    config = os.path.join(folder, f"{run}-{rank}.yaml")
    with open(config, "w", encoding="utf-8") as file:
        json.dump(settings(folder, run, world, arguments["steps"]), file)
    interface = cluster["interface"] or interface_to(arguments["address"])
    launch = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    launch.update({"MASTER_ADDR": arguments["address"], "MASTER_PORT": arguments["port"], "OMP_NUM_THREADS": 1})
    environment = dict(os.environ, **{name: str(value) for name, value in launch.items()})
    if interface:
        environment.update({"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface})
    with open(os.path.join(folder, f"{run}-{rank}.log"), "wb") as log:
        process = subprocess.Popen(
            [cluster["python"], "-m", "glmforge", "train", config],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        killed, waited = _watch(process, arguments)
    finally:
        process.kill()
        process.wait()
    with open(os.path.join(folder, f"{run}-{rank}.log"), "rb") as log:
        said = last_line(log.read()[-4000:])
    return {"status": process.returncode, "killed": killed, "waited": waited, "said": said}


def _watch(process: subprocess.Popen, arguments: dict) -> "tuple[bool, bool]":
    """Until it ends; the rank to be killed is, as soon as there is a checkpoint; the others end some time after.

    Whether it was killed as planned, and whether it still ran when another had ended badly and its time was up.
    """
    folder, run, victim = arguments["folder"], arguments["run"], arguments["victim"]
    mark = os.path.join(folder, f"{run}.failed" if victim is None else f"{run}.killed")  # a run resumed is another one
    deadline = time.monotonic() + arguments["seconds"]
    is_told = False
    while process.poll() is None and time.monotonic() < deadline:
        if victim == arguments["rank"] and has_checkpoint(os.path.join(folder, run)):
            process.send_signal(signal.SIGKILL)
            process.wait()
            open(mark, "w").close()
            return True, False
        if not is_told and os.path.exists(mark):
            deadline = min(deadline, time.monotonic() + _GRACE_S)
            is_told = True
        time.sleep(_POLL_S)
    if process.poll() not in (None, 0):
        open(mark, "w").close()
    return False, is_told and process.poll() is None


def has_checkpoint(run: str) -> bool:
    folder = os.path.join(run, "checkpoints")
    return os.path.isdir(folder) and any(name.startswith("step-") for name in os.listdir(folder))


def losses(cluster: dict, arguments: dict) -> dict:
    """Loss of each step, as the run recorded it last; exact, as JSON writes a double."""
    found = {}
    for run in arguments["runs"]:
        of_run: dict = {}
        try:
            with open(os.path.join(arguments["folder"], run, "metrics.jsonl"), encoding="utf-8") as file:
                for line in file:
                    record = json.loads(line)
                    if "loss" in record:
                        of_run[str(record["step"])] = repr(record["loss"])
        except (OSError, ValueError):
            of_run = {}
        found[run] = of_run
    return found


def remove(cluster: dict, arguments: dict) -> dict:
    shutil.rmtree(arguments["folder"], ignore_errors=True)
    return {"removed": True}


def last_line(said: bytes) -> "str | None":
    lines = [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:500] if lines else None
