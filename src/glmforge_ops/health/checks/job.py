"""A job that really runs: a small model trained over the nodes for six steps, one process on each, with checkpoints.

Then it trains again, kills one process as soon as there is a checkpoint, runs the same command again, and expects the
losses of the undisturbed run, bit for bit. Nodes need glmforge at `python` of cluster.yaml, and a directory that they
share.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import shutil
import subprocess
import time
from typing import Any

from glmforge_ops.health.checks.check import Facts, Outcome, Session, act, failed, held, judge_each, name_of, skipped
from glmforge_ops.health.checks.network import interface, interface_to
from glmforge_ops.health.checks.node import call, last_line

_STEPS, _MOST_NODES, _SECONDS = 6, 64, 300.0
GRACE_S = 20.0
"""How long a process may go on after another one has failed."""
_MODEL = {
    "vocab_size": 320, "hidden_size": 32, "num_hidden_layers": 2, "first_k_dense_replace": 1, "intermediate_size": 64,
    "moe_intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
    "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "use_qk_norm": True, "rope_theta": 1e6,
    "routed_scaling_factor": 2.5, "num_nextn_predict_layers": 1, "max_position_embeddings": 64, "eos_token_id": [284],
    "pad_token_id": 284,
}  # fmt: skip


def prepare(cluster: Facts, arguments: Facts) -> dict[str, Any]:
    """A text, its tokenizer and its tokens in a directory that all nodes share."""
    folder, python = arguments["folder"], [cluster["python"], "-m", "glmforge", "data"]
    os.makedirs(folder)
    text, numbers = f"{folder}/corpus.txt", random.Random(0)
    with open(text, "w", encoding="utf-8") as file:
        words = ["expert", "router", "token", "shard", "layer", "rank", "step", "loss"]
        file.write("\n".join(" ".join(numbers.choices(words, k=12)) for _ in range(400)))
    tokenizer = f"{folder}/tokenizer"
    for command in (["tokenizer", text, "--vocab-size", "320", "--out", tokenizer],
                    ["tokenize", text, "--tokenizer", tokenizer, "--out", f"{folder}/train"]):  # fmt: skip
        status, _, said = call(*python, *command, limit_s=_SECONDS)
        if status != 0:
            raise ValueError(said or f"status {status}")
    return {}


def settings(folder: str, run: str, world: int) -> dict[str, Any]:
    """The run's configuration."""
    return {
        "name": run,
        "output_dir": f"{folder}/{run}",
        "model": _MODEL,
        "data": {"tokenizer": f"{folder}/tokenizer", "sources": [{"name": "text", "path": f"{folder}/train"}]},
        "phases": [{"name": "main", "steps": _STEPS, "seq_len": 32, "batch_size": 2 * world}],
        "optim": {"lr": 1e-3, "warmup_steps": 0},
        "parallel": {"dp_shard": world},
        "precision": {"compute": "fp32"},
        "checkpoint": {"every_steps": 2},
        "observe": {"progress": False, "tensorboard": False},
    }


def train(cluster: Facts, arguments: Facts) -> dict[str, Any]:
    """One rank, to its end: its status, its last words, whether it was killed as planned or waited for another."""
    folder, run, rank, world = (arguments[name] for name in ("folder", "run", "rank", "world"))
    config, log = f"{folder}/{run}-{rank}.yaml", f"{folder}/{run}-{rank}.log"
    with open(config, "w", encoding="utf-8") as file:
        json.dump(settings(folder, run, world), file)
    launch = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "OMP_NUM_THREADS": 1,
              "MASTER_ADDR": arguments["address"], "MASTER_PORT": cluster["master_port"]}  # fmt: skip
    name = cluster["interface"] or interface_to(arguments["address"])
    launch |= {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name} if name else {}
    environment = os.environ | {key: str(value) for key, value in launch.items()}
    command = [cluster["python"], "-m", "glmforge", "train", config]
    with open(log, "wb") as stream:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream)
    try:
        killed, waited = watch(process, arguments)
    finally:
        process.kill()
        process.wait()
    with open(log, "rb") as stream:
        words = last_line(stream.read()[-4000:].decode(errors="replace"))
    return {"status": process.returncode, "killed": killed, "waited": waited, "said": words}


def watch(process: subprocess.Popen[bytes], arguments: Facts) -> tuple[bool, bool]:
    """Until it ends; the rank to be killed is, as soon as there is a checkpoint; the others end some time after.

    Returns whether it was killed as planned, and whether it still ran when another had failed and its time was up.
    """
    folder, run, victim = arguments["folder"], arguments["run"], arguments["victim"]
    mark = (
        f"{folder}/{run}.failed" if victim is None else f"{folder}/{run}.killed"
    )  # a resumed run has marks of its own
    deadline, others_failed = time.monotonic() + _SECONDS, False
    while process.poll() is None and time.monotonic() < deadline:
        if victim == arguments["rank"] and has_checkpoint(f"{folder}/{run}"):
            process.kill()
            process.wait()
            open(mark, "w").close()
            return True, False
        if not others_failed and os.path.exists(mark):
            deadline, others_failed = min(deadline, time.monotonic() + GRACE_S), True
        time.sleep(0.1)
    if process.poll() not in (None, 0):
        open(mark, "w").close()
    return False, others_failed and process.poll() is None


def has_checkpoint(run: str) -> bool:
    """Whether the run has saved one."""
    folder = f"{run}/checkpoints"
    return os.path.isdir(folder) and any(name.startswith("step-") for name in os.listdir(folder))


def losses(cluster: Facts, arguments: Facts) -> dict[str, Any]:
    """Loss of each step of both runs as it was recorded last; exact, as JSON writes a double."""
    found: dict[str, Any] = {}
    for run in ("whole", "broken"):
        with open(f"{arguments['folder']}/{run}/metrics.jsonl", encoding="utf-8") as file:
            records = [json.loads(line) for line in file]
        found[run] = {f"{record['step']}": repr(record["loss"]) for record in records if "loss" in record}
    return found


def remove(cluster: Facts, arguments: Facts) -> dict[str, Any]:
    """The directory of a check."""
    shutil.rmtree(arguments["folder"], ignore_errors=True)
    return {}


@act("job.recovery", "thorough", interface, "a small training run over all nodes; the same killed and resumed")
def recovery(session: Session) -> dict[str, Outcome]:
    """On the first 64 nodes, in a directory that is removed afterwards."""
    cluster, hosts = session.context.cluster, session.hosts[:_MOST_NODES]
    shared = cluster.checkpoint_path or cluster.shared_path
    if shared is None or len(hosts) < 2:
        return session.everywhere(skipped("takes shared_path in cluster.yaml, and two nodes"))
    folder = str(shared / f".glmforge-check-{secrets.token_hex(6)}")
    try:
        ready = session.ask(prepare, {hosts[0]: {"folder": folder}}, 2 * _SECONDS)[hosts[0]]
        if isinstance(ready, Outcome):
            return session.everywhere(skipped("no data for it")) | {hosts[0]: ready}
        return session.everywhere(skipped(f"{_MOST_NODES} nodes are enough")) | _run(session, hosts, folder)
    finally:
        session.ask(remove, {hosts[0]: {"folder": folder}}, 60.0)


def _run(session: Session, hosts: list[str], folder: str) -> dict[str, Outcome]:
    """Whole, killed, resumed; the outcomes of the first one that fails."""
    link, killed = session.known(interface)[hosts[0]], set()
    known = None if isinstance(link, Outcome) else link.get("address")
    common = {"folder": folder, "world": len(hosts), "address": session.context.cluster.master_addr or known
              or name_of(hosts[0])}  # fmt: skip

    def judge_rank(host: str, facts: Facts) -> Outcome:
        killed.update([host] if facts["killed"] else [])
        if facts["waited"]:
            return skipped("waited for a process of another node, which failed")
        fix = f"see network.port, network.names, versions.* and checkpoints.write. It said: {facts['said']}"
        return held(facts["status"] == 0, f"exited with {facts['status']}", f"{_STEPS} steps, exits with 0", fix)

    for run, victim in (("whole", None), ("broken", len(hosts) - 1), ("broken", None)):
        given = {host: common | {"run": run, "victim": victim, "rank": rank} for rank, host in enumerate(hosts)}
        outcomes = judge_each(session.ask(train, given, _SECONDS + 60.0), judge_rank)
        if victim is not None and not killed:
            nothing = failed("no checkpoint appeared there", "killed after a checkpoint", "look at checkpoints.write")
            return dict.fromkeys(hosts, skipped("no process was killed")) | {hosts[-1]: nothing}
        if victim is None and any(outcome.fix for outcome in outcomes.values()):
            return outcomes

    def judge_losses(host: str, facts: Facts) -> Outcome:
        once, resumed = facts["whole"], facts["broken"]
        step = next((step for step in once if once[step] != resumed.get(step)), None)
        is_good = len(once) == _STEPS and step is None
        value = f"{_STEPS} steps, killed on {name_of(hosts[-1])}, resumed, losses equal"
        value = value if is_good else f"other loss at step {step} after the resume"
        fix = "look for a node that computes otherwise: versions.*, gpu.ecc; glmforge doctor"
        return held(is_good, value, "resumes with the same losses, bit for bit", fix)

    answers = session.ask(losses, {hosts[0]: {"folder": folder}}, 30.0)
    return dict.fromkeys(hosts, judge_each(answers, judge_losses)[hosts[0]])
