"""A job that really runs: a small model trained over the nodes for six steps, one process on each, with checkpoints.

`job.recovery` trains again, kills one process as soon as there is a checkpoint, runs the same command again, and
expects the losses of the undisturbed run, bit for bit. Nodes need glmforge at `python` of cluster.yaml, and a directory
that they share.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable
from typing import Any

from glmforge_ops.health.checks.check import (
    Answers,
    Facts,
    Outcome,
    Session,
    act,
    failed,
    judge_each,
    name_of,
    passed,
    skipped,
)  # fmt: skip
from glmforge_ops.health.checks.network import interface, interface_to
from glmforge_ops.health.checks.node import call, last_line

_STEPS, _MOST_NODES, _SECONDS = 6, 64, 300.0
GRACE_S = 20.0
"""How long a process may go on after another one has failed."""
_ENDS, _SAME = f"{_STEPS} steps, every process exits with 0", "resumes with the same losses, bit for bit"
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
            return {"reason": said or f"status {status}"}
    return {"reason": None}


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
    with open(log, "rb") as said:
        words = last_line(said.read()[-4000:].decode(errors="replace"))
    return {"status": process.returncode, "killed": killed, "waited": waited, "said": words}


def watch(process: subprocess.Popen[bytes], arguments: Facts) -> tuple[bool, bool]:
    """Until it ends; the rank to be killed is, as soon as there is a checkpoint; the others end some time after.

    Returns whether it was killed as planned, and whether it still ran when another had failed and its time was up.
    """
    folder, run, victim = arguments["folder"], arguments["run"], arguments["victim"]
    mark = f"{folder}/{run}.failed" if victim is None else f"{folder}/{run}.killed"  # a run resumed is another one
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
    """Loss of each step of each run as it was recorded last; exact, as JSON writes a double."""
    found: dict[str, Any] = {}
    for run in arguments["runs"]:
        found[run] = {}
        try:
            with open(f"{arguments['folder']}/{run}/metrics.jsonl", encoding="utf-8") as file:
                records = [json.loads(line) for line in file]
        except (OSError, ValueError):
            continue
        found[run] = {f"{record['step']}": repr(record["loss"]) for record in records if "loss" in record}
    return found


def remove(cluster: Facts, arguments: Facts) -> dict[str, Any]:
    """The directory of a check."""
    shutil.rmtree(arguments["folder"], ignore_errors=True)
    return {}


Run = Callable[[Session, list[str], str], dict[str, Outcome]]


def _with_data(session: Session, run: Run) -> dict[str, Outcome]:
    """`run` on the first nodes, with a directory for it that is removed afterwards."""
    cluster, hosts = session.context.cluster, session.hosts[:_MOST_NODES]
    shared = cluster.checkpoint_path or cluster.shared_path
    if shared is None or len(hosts) < 2:
        no_path = skipped("no shared_path is given", "give it in cluster.yaml")
        return session.everywhere(no_path if shared is None else skipped("takes two nodes"))
    folder = str(shared / f".glmforge-check-{secrets.token_hex(6)}")
    first = {hosts[0]: {"folder": folder}}
    try:
        told, failures = session.ask(prepare, first, 2 * _SECONDS)
        reason = failures[hosts[0]].value if failures else told[hosts[0]]["reason"]
        if reason is not None:
            fix = "see environment.import and checkpoints.write"
            return session.everywhere(skipped("no data for it")) | {hosts[0]: failed(reason, _ENDS, fix)}
        return session.everywhere(skipped(f"{_MOST_NODES} nodes are enough")) | run(session, hosts, folder)
    finally:
        session.ask(remove, first, 60.0)


def _train(session: Session, hosts: list[str], folder: str, run: str, victim: int | None = None) -> Answers:
    known = session.known(interface)[0].get(hosts[0], {})
    address = session.context.cluster.master_addr or known.get("address") or name_of(hosts[0])
    common = {"folder": folder, "run": run, "world": len(hosts), "victim": victim, "address": address}
    given = {host: common | {"rank": rank} for rank, host in enumerate(hosts)}
    return session.ask(train, given, _SECONDS + 60.0)


def _judge_rank(host: str, facts: Facts) -> Outcome:
    if facts["status"] == 0:
        return passed("exited with 0", _ENDS)
    if facts["waited"]:
        return skipped("waited for a process of another node, which failed")
    fix = f"run it manually there; see network.port, network.names, environment.import. It said: {facts['said']}"
    return failed(f"exited with {facts['status']}", _ENDS, fix)


@act("job.runs", "thorough", interface, "a small training run over all nodes")
def runs(session: Session) -> dict[str, Outcome]:
    """Every node reads the same losses of every step in the run's record."""
    return _with_data(session, _run_once)


def _run_once(session: Session, hosts: list[str], folder: str) -> dict[str, Outcome]:
    outcomes = judge_each(_train(session, hosts, folder, "whole"), _judge_rank)
    if any(outcome.fix for outcome in outcomes.values()):
        return outcomes
    told = session.ask(losses, {host: {"folder": folder, "runs": ["whole"]} for host in hosts}, 30.0)
    right = told[0].get(hosts[0], {}).get("whole", {})

    def judge_losses(host: str, facts: Facts) -> Outcome:
        if len(facts["whole"]) == _STEPS and facts["whole"] == right:
            return passed(f"{_STEPS} steps over {len(hosts)} nodes, loss {right[str(_STEPS)][:8]}", _ENDS)
        fix = "look at shared.same and at the run's log"
        return failed(f"the record has {len(facts['whole'])} steps there, or other losses", _ENDS, fix)

    return judge_each(told, judge_losses)


@act("job.recovery", "thorough", interface, "the same killed and resumed, with equal losses")
def recovery(session: Session) -> dict[str, Outcome]:
    """Only what the steps after the resume depend on shows in them; `data.whole` compares all of the data."""
    return _with_data(session, _run_recovery)


def _run_recovery(session: Session, hosts: list[str], folder: str) -> dict[str, Outcome]:
    whole = judge_each(_train(session, hosts, folder, "whole"), _judge_rank)
    if any(outcome.fix for outcome in whole.values()):
        return dict.fromkeys(hosts, skipped("the run fails even without a kill: see job.runs"))
    told, _ = _train(session, hosts, folder, "broken", victim=len(hosts) - 1)
    if not told.get(hosts[-1], {}).get("killed"):
        fix = "look at checkpoints.write, and whether the run began at all: job.runs"
        nothing = failed("no checkpoint appeared there", "killed after a checkpoint", fix)
        return dict.fromkeys(hosts, skipped("nothing was killed")) | {hosts[-1]: nothing}
    again = judge_each(_train(session, hosts, folder, "broken"), _judge_rank)
    if any(outcome.fix for outcome in again.values()):
        return again
    first = {hosts[0]: {"folder": folder, "runs": ["whole", "broken"]}}

    def judge_resumed(host: str, facts: Facts) -> Outcome:
        once, resumed = facts["whole"], facts["broken"]
        if len(once) == _STEPS and once == resumed:
            return passed(f"killed on {name_of(hosts[-1])}, resumed, losses equal", _SAME)
        step = next((step for step in once if once[step] != resumed.get(step)), "?")
        fix = "look for a node that computes otherwise: versions.*, gpu.ecc; glmforge doctor"
        return failed(f"other loss at step {step} after the resume", _SAME, fix)

    return dict.fromkeys(hosts, judge_each(session.ask(losses, first, 30.0), judge_resumed)[hosts[0]])
