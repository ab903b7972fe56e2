"""Scenarios of `glmforge serve` against each other, and against vLLM and llama.cpp, at 1, 8 and 64 users.

    python benchmarks/serving.py --model runs/sft/export                                  # the four scenarios
    python benchmarks/serving.py --model runs/sft/export --vllm VENV/bin/python           # and vLLM
    python benchmarks/serving.py --model ... --llama VENV/bin/python --gguf model.gguf    # and llama.cpp, 1 user
    python benchmarks/serving.py --model runs/sft/export --quick                          # a trial, without result

Each server runs alone, on one core of this machine, clients on another one; all compute in fp32. Servers take turns,
and a level of a server is the median of its turns by tokens per second of processor time of the server: of a machine
that does other things, too, this is what holds. First one request without counting.
"""

import argparse
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil
from harness import arguments, table
from record import ROOT, write_result

from glmforge.deploy.inference_profile import Level, Load, profile_server

USERS = (1, 8, 64)
SCENARIOS = ("high-throughput", "balanced", "low-latency", "memory-constrained")
CODE = ("src/glmforge/deploy/serve", "src/glmforge/generate", "src/glmforge/protocol")
_PATIENCE_S = 300.0


def main() -> None:
    args = parse_arguments()
    commands = {scenario: ours(args.model, scenario) for scenario in SCENARIOS}
    if args.vllm is not None:
        commands["vLLM"] = vllm(args.vllm, args.model)
    if args.llama is not None:
        commands["llama.cpp"] = llama_cpp(args.llama, args.gguf)
    found: dict[str, dict[int, list[dict[str, Any]]]] = {name: {} for name in commands}
    for turn in range(args.rounds):
        for name, command in list(commands.items())[:: -1 if turn % 2 else 1]:
            for level in measured(command, args, users=USERS[:1] if name == "llama.cpp" else USERS):
                found[name].setdefault(level["users"], []).append(level)
                print(turn, name, level["users"], f"{level['tokens_per_cpu_second']:,.0f} tokens per CPU-s", flush=True)
    rows = [row(name, middle(turns)) for name, levels in found.items() for turns in levels.values()]
    header = ("server", "users", "tokens/CPU-s", "tokens/s", "first token, ms", "between, ms", "GB")
    print(table(header, rows))
    if not args.quick:
        content = {name: [middle(turns) for turns in levels.values()] for name, levels in found.items()}
        write_result("serving", {"rounds": args.rounds, "servers": content}, code=CODE, out=args.out)


def parse_arguments() -> argparse.Namespace:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--model", type=Path, required=True, help="an export with its tokenizer")
    parser.add_argument("--vllm", help="Python of an environment with vLLM for processors")
    parser.add_argument("--llama", help="Python of an environment with llama-cpp-python[server]")
    parser.add_argument("--gguf", type=Path, help="the model for llama.cpp, F32")
    parser.add_argument("--quick", action="store_true", help="a trial that writes no result")
    return parser.parse_args()


def ours(model: Path, scenario: str) -> list[str]:
    words = [sys.executable, "-m", "glmforge", "serve", str(model), "--scenario", scenario]
    return [*words, *(() if scenario == "memory-constrained" else ("--dtype", "fp32"))]


def vllm(python: str, model: Path) -> list[str]:
    words = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--dtype", "float32"]
    return [*words, "--max-model-len", "512", "--max-num-seqs", "64", "--enforce-eager"]


def llama_cpp(python: str, model: Path) -> list[str]:
    return [python, "-m", "llama_cpp.server", "--model", str(model), "--n_ctx", "512", "--n_threads", "1"]


def measured(command: list[str], args: argparse.Namespace, users: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    load = Load(prompt_words=64, output_tokens=64, requests=1 if args.quick else 3)
    with running(command) as (url, process):
        for number in users:
            before = cpu_seconds(process)
            (level,) = profile_server(url, load, [number]).levels
            used = cpu_seconds(process) - before
            memory = sum(one.memory_info().rss for one in family(process))
            yield figures(level, used, memory, load)


def figures(level: Level, cpu_s: float, memory: int, load: Load) -> dict[str, Any]:
    """Processor time is that of the level with the requests before and behind it, so all their tokens count."""
    others = 1 + 2 * max(3, load.requests)
    num_tokens = (level.num_answers + others) * level.output_tokens
    return {
        "users": level.num_users,
        "tokens_per_cpu_second": num_tokens / cpu_s,
        "tokens_per_second": level.tokens_per_second,
        "first_token_ms": [1000 * one for one in level.first_token],
        "between_ms": [1000 * one for one in level.between],
        "user_tokens_per_second": level.user_tokens_per_second,
        "memory_gb": memory / 1e9,
        "errors": level.errors,
    }


@contextmanager
def running(command: list[str]) -> Iterator[tuple[str, psutil.Process]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["taskset", "-c", "0", *command, "--host", "127.0.0.1", "--port", str(port)]
    settings = {"OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    environment = {**os.environ, **settings, "HF_HUB_OFFLINE": "1"}
    server = subprocess.Popen(words, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(url, server)
        yield url, psutil.Process(server.pid)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end and server.poll() is None:
        try:
            if httpx2.get(f"{url}/v1/models", timeout=5).status_code == 200:
                return
        except httpx2.HTTPError:
            time.sleep(0.2)
    raise SystemExit(f"{' '.join(map(str, server.args[:6]))} ... did not start")  # type: ignore[index]


def family(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def cpu_seconds(process: psutil.Process) -> float:
    return sum(one.cpu_times().user + one.cpu_times().system for one in family(process))


def middle(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """The turn in the middle, and the range of all."""
    rates = [one["tokens_per_cpu_second"] for one in turns]
    chosen = min(turns, key=lambda one: abs(one["tokens_per_cpu_second"] - statistics.median(rates)))
    return chosen | {"lowest": min(rates), "highest": max(rates)}


def row(name: str, found: dict[str, Any]) -> tuple[object, ...]:
    return (
        name,
        found["users"],
        f"{found['tokens_per_cpu_second']:,.0f} ({found['lowest']:,.0f} to {found['highest']:,.0f})",
        f"{found['tokens_per_second']:,.0f}",
        f"{found['first_token_ms'][0]:,.0f}",
        f"{found['between_ms'][0]:,.1f}",
        f"{found['memory_gb']:,.2f}",
    )


if __name__ == "__main__":
    main()
