"""The command that serves a model with an engine: our own, vLLM, SGLang, llama.cpp.

Each gets the same decisions (`plan.serving.scenario`) in its own words. Options are those of vLLM 0.32, SGLang 0.5 and
llama.cpp's llama-server; what an engine decides well by itself is left to it. GLM's parsers of reasoning and tool calls
are named, since no engine finds them by itself. A key goes through the environment, so that no process list shows it;
SGLang only takes it as an option.
"""

import json
import math
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Literal, get_args

from glmforge.errors import GlmforgeError
from glmforge.plan.serving.deployment import MEMORY_SHARE
from glmforge.plan.serving.scenario import ServingPlan

EngineName = Literal["native", "vllm", "sglang", "llama.cpp"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)
OTHERS = ENGINES[1:]
KEY_VARIABLES = {"native": "GLMFORGE_API_KEYS", "vllm": "VLLM_API_KEY", "llama.cpp": "LLAMA_API_KEY"}
"""Environment variables that the engines read a key from."""

_PARSER = "glm45"


def engine_command(engine: EngineName, model: str, name: str, plan: ServingPlan, *, host: str, port: int) -> list[str]:
    """The words of the command.

    Args:
        model: a directory; for llama.cpp a GGUF file.
        name: of the model, in requests.
    """
    words = {"vllm": _vllm, "sglang": _sglang, "llama.cpp": _llama_cpp}[engine](model, name, plan)
    return [*words, "--host", host, "--port", str(port)]


def refuse_missing(engine: EngineName) -> None:
    """Raises `GlmforgeError` if the engine is not installed here."""
    if engine == "llama.cpp" and shutil.which("llama-server") is None:
        raise GlmforgeError("llama-server: not on PATH; install llama.cpp, or use --dry-run to see the command alone")
    if engine in ("vllm", "sglang") and find_spec(engine) is None:
        raise GlmforgeError(
            f"{engine}: not installed beside this Python ({sys.executable}); install it there, or use --dry-run to see "
            "the command alone"
        )


def as_shell(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """As one would type it, an option a line."""
    words = [f"{name}={shlex.quote(value)}" for name, value in (environment or {}).items()]
    lines, line = [], " ".join(words)
    for word in command:
        if word.startswith("--"):
            lines.append(line)
            line = f"    {word}"
        else:
            line = f"{line} {shlex.quote(word)}".strip() if not line.startswith(" ") else f"{line} {shlex.quote(word)}"
    return " \\\n".join([*lines, line])


def _vllm(model: str, name: str, plan: ServingPlan) -> Iterator[str]:
    """`python -m`, since builds for CPUs bring no command of this name."""
    served = plan.deployment
    yield from (sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model)
    yield from ("--served-model-name", name, "--tensor-parallel-size", str(served.num_gpus))
    if served.num_gpus > served.machine.ranks_per_node:
        yield from ("--distributed-executor-backend", "ray")
    if plan.num_copies > 1:
        yield from ("--data-parallel-size", str(plan.num_copies), "--enable-expert-parallel")
    yield from ("--max-model-len", str(plan.context), "--max-num-seqs", str(plan.max_sequences))
    yield from ("--max-num-batched-tokens", str(plan.chunk), "--gpu-memory-utilization", str(MEMORY_SHARE))
    yield from ("--enable-prefix-caching", "--enable-chunked-prefill")
    if served.cache == "fp8":
        yield from ("--kv-cache-dtype", "fp8")
    if served.is_drafting:
        yield from ("--speculative-config", json.dumps({"method": "mtp", "num_speculative_tokens": 1}))
    yield from ("--reasoning-parser", _PARSER, "--tool-call-parser", _PARSER, "--enable-auto-tool-choice")


def _sglang(model: str, name: str, plan: ServingPlan) -> Iterator[str]:
    """It caches prefixes and cuts prompts into chunks by default. MTP is its EAGLE with the model's own layer."""
    served = plan.deployment
    yield from (sys.executable, "-m", "sglang.launch_server", "--model-path", model, "--served-model-name", name)
    yield from ("--tp-size", str(served.num_gpus))
    if (nodes := math.ceil(served.num_gpus / served.machine.ranks_per_node)) > 1:
        yield from ("--nnodes", str(nodes))
    if plan.num_copies > 1:
        yield from ("--dp-size", str(plan.num_copies))
    yield from ("--context-length", str(plan.context), "--max-running-requests", str(plan.max_sequences))
    yield from ("--chunked-prefill-size", str(plan.chunk), "--mem-fraction-static", str(MEMORY_SHARE))
    if served.cache == "fp8":
        yield from ("--kv-cache-dtype", "fp8_e4m3")
    if served.is_drafting:
        yield from ("--speculative-algorithm", "EAGLE", "--speculative-num-steps", "1")
        yield from ("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "2")
    yield from ("--reasoning-parser", _PARSER, "--tool-call-parser", _PARSER, "--enable-metrics")


def _llama_cpp(model: str, name: str, plan: ServingPlan) -> Iterator[str]:
    """Each of its slots has room for the longest sequence, so there are fewer of them than elsewhere."""
    slots = min(plan.max_sequences, plan.deployment.max_sequences(plan.context))
    yield from ("llama-server", "--model", model, "--alias", name)
    yield from ("--parallel", str(slots), "--ctx-size", str(slots * plan.context))
    yield from ("--batch-size", str(plan.chunk), "--n-gpu-layers", "999")
    if plan.deployment.cache == "fp8":
        yield from ("--flash-attn", "on", "--cache-type-k", "q8_0", "--cache-type-v", "q8_0")
    yield from ("--jinja", "--metrics")
