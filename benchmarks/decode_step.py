"""A step of the generation engine at 1, 8 and 64 sequences, and what bounds it.

    python benchmarks/decode_step.py                        # about 3 minutes
    python benchmarks/decode_step.py --dtypes fp32 --sequences 1

The model of `train_step.py`, about 23 million parameters with random weights, greedy, each sequence with a context of
`--context` tokens of its own. Two engines take turns, a few steps each, so that whatever else the machine does falls on
both: one by the native kernels, one module by module.

Of a native step: `layers_ms` and `head_ms` are spent in the kernels, `python_ms` is all the rest (scheduling, tensors,
embedding, choosing tokens). `read_ms` is what reading takes at the rate at which a sum over a large tensor reads
memory: the weights that a step of so many tokens needs on average (an expert that no token chose is not read), and
their keys and values. `multiply_ms` is what the products take at the best rate of a large square matmul.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from record import write_result
from train_step import CONFIG

from glmforge.generate import native
from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine
from glmforge.generate.params import SamplingParams
from glmforge.generate.runner import WholeModel
from glmforge.model.transformer import GlmMoe

CODE = ("src/glmforge/generate", "src/glmforge/kernels/native", "src/glmforge/model", "src/glmforge/config/model.py")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PAGE_SIZE = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtypes", nargs="+", choices=tuple(DTYPES), default=list(DTYPES))
    parser.add_argument("--sequences", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument("--context", type=int, default=256, help="tokens of each prompt")
    parser.add_argument("--rounds", type=int, default=12, help="turns of each engine")
    parser.add_argument("--steps", type=int, default=16, help="steps in one turn")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    result: dict[str, Any] = {"threads": args.threads, "context": args.context}
    for dtype in args.dtypes:
        model = GlmMoe.create(CONFIG).to(DTYPES[dtype]).eval()
        model.compute_dtype = DTYPES[dtype]
        rates = {"read_gb_s": read_rate(), "multiply_gflop_s": multiply_rate(DTYPES[dtype])}
        steps = {str(number): compare(model, number, args, rates) for number in args.sequences}
        result[dtype] = rates | steps
        print(dtype, json.dumps(result[dtype], indent=1), flush=True)
    write_result("decode_step", result, code=CODE, out=args.out)


def compare(model: GlmMoe, number: int, args: argparse.Namespace, rates: dict[str, float]) -> dict[str, float]:
    """Milliseconds of a step of `number` sequences by both engines, and of the parts of a native one."""
    num_steps = args.steps * args.rounds + 8
    engines = [engine_of(model, number, args.context, num_steps, is_native) for is_native in (True, False)]
    parts = Parts()
    seconds: list[list[float]] = [[], []]
    for turn in range(args.rounds):
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            start = time.perf_counter()
            for _ in range(args.steps):
                engines[which].step()
            seconds[which].append((time.perf_counter() - start) / args.steps)
    parts.stop()
    step, by_modules = (1000 * statistics.median(values) for values in seconds)
    layers, head = (1000 * statistics.median(values) for values in (parts.layers, parts.head))
    length = args.context + num_steps / 2
    return {
        "step_ms": step,
        "tokens_s": 1000 * number / step,
        "by_modules_ms": by_modules,
        "ratio": statistics.median(slow / fast for fast, slow in zip(*seconds, strict=True)),
        "layers_ms": layers,
        "head_ms": head,
        "python_ms": step - layers - head,
        "read_ms": bytes_read(model, number, length) / rates["read_gb_s"] / 1e6,
        "multiply_ms": number * flops_of_token(length) / rates["multiply_gflop_s"] / 1e6,
    }


def engine_of(model: GlmMoe, number: int, context: int, num_steps: int, is_native: bool) -> Engine:
    """An engine whose prompts are computed and whose sequences go on for `num_steps` steps at least."""
    runner = WholeModel(model, native=is_native)
    num_pages = number * (-(-(context + 2 * num_steps) // PAGE_SIZE) + 1)
    config = EngineConfig(num_pages * runner.page_bytes(PAGE_SIZE), PAGE_SIZE, max_sequences=number)
    engine = Engine(runner, config)
    generator = torch.Generator().manual_seed(0)
    for prompt in torch.randint(CONFIG.vocab_size, (number, context), generator=generator).tolist():
        engine.add(prompt, SamplingParams(max_new_tokens=2 * num_steps))
    while engine.scheduler.waiting or any(one.num_pending > 1 for one in engine.scheduler.running):
        engine.step()
    for _ in range(8):
        engine.step()
    return engine


class Parts:
    """Takes the time of the native kernels' two calls until `stop`."""

    def __init__(self) -> None:
        self.layers: list[float] = []
        self.head: list[float] = []
        self._kept = native.run_layers, native.run_head
        native.run_layers = self._timed(native.run_layers, self.layers)
        native.run_head = self._timed(native.run_head, self.head)

    def stop(self) -> None:
        native.run_layers, native.run_head = self._kept

    @staticmethod
    def _timed(function: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            start = time.perf_counter()
            result = function(*args)
            seconds.append(time.perf_counter() - start)
            return result

        return call


def bytes_read(model: GlmMoe, number: int, length: float) -> float:
    """Weights that `number` tokens need if every expert is as likely, and keys and values of their contexts."""
    share = 1 - (1 - CONFIG.num_experts_per_tok / CONFIG.n_routed_experts) ** number
    parameters = dict(model.named_parameters())
    del parameters["model.embed_tokens.weight"]
    weights = sum(parameter.nbytes * (share if ".experts." in name else 1.0) for name, parameter in parameters.items())
    width = CONFIG.num_key_value_heads * CONFIG.head_dim
    cache = 2 * CONFIG.num_hidden_layers * width * length * model.compute_dtype.itemsize
    return weights + number * cache


def flops_of_token(length: float) -> float:
    """Two for each weight that a token meets, and those of attention."""
    c = CONFIG
    attention = c.hidden_size * c.head_dim * (2 * c.num_attention_heads + 2 * c.num_key_value_heads)
    experts = 3 * c.hidden_size * c.moe_intermediate_size * (c.num_experts_per_tok + c.n_shared_experts)
    sparse = c.num_hidden_layers - c.first_k_dense_replace
    dense = 3 * c.hidden_size * c.intermediate_size * c.first_k_dense_replace
    weights = c.num_hidden_layers * attention + sparse * experts + dense + c.vocab_size * c.hidden_size
    return 2 * weights + 4 * c.num_hidden_layers * c.num_attention_heads * c.head_dim * length


def read_rate() -> float:
    """Bytes per second, in 10^9, at which a sum over 1 GiB reads memory."""
    numbers = torch.ones(1 << 28)
    return numbers.nbytes / best_seconds(lambda: numbers.sum()) / 1e9


def multiply_rate(dtype: torch.dtype) -> float:
    matrix = torch.randn(2048, 2048).to(dtype)
    return 2 * 2048**3 / best_seconds(lambda: matrix @ matrix) / 1e9


def best_seconds(function: Callable[[], object]) -> float:
    def once() -> float:
        start = time.perf_counter()
        function()
        return time.perf_counter() - start

    return min(once() for _ in range(7))


if __name__ == "__main__":
    main()
