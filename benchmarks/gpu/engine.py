"""Part `engine`: the generation engine on the slice of Air.

Decoding reads every weight once per token and step (with a batch of some rows, all experts are met) and the cache of
the tokens before: the roofline counts these bytes.
"""

import statistics
import time
from functools import partial

import torch

from glmforge.config.parameters import parameter_table
from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine
from glmforge.generate.params import SamplingParams
from glmforge.generate.runner import WholeModel
from glmforge.model import GlmMoe
from glmforge.plan.counts.memory import kv_cache_bytes_per_token
from glmforge.plan.counts.parameters import count_parameters
from gpu.bench import Bench
from gpu.results import Figure
from gpu.slice_runs import fill_, load
from gpu.step import synchronize

SHAPES = {
    "8 prompts of 512": (8, 512),
    "1 prompt of 512": (1, 512),
    "64 prompts of 512": (64, 512),
    "1 prompt of 8192": (1, 8192),
}
NEW_TOKENS = 64
STEP_TOKENS = 8192
"""A GPU needs thousands of tokens in a step to be busy with arithmetic."""


def run(bench: Bench) -> None:
    for words, (num_rows, length) in SHAPES.items():
        name = f"generate | {words}, {NEW_TOKENS} tokens more"
        bench.figure(name, partial(generate_figure, bench, num_rows, length), expected_s=30)


def generate_figure(bench: Bench, num_rows: int, length: int) -> Figure:
    """Seconds of the prompts alone and of each token after them, from runs of one token and of many."""
    config = load("air-4k", dry=bench.dry).model
    num_new = NEW_TOKENS
    if bench.dry:
        num_rows, length, num_new = min(num_rows, 2), 16, 4
    model = weights_in_bf16(GlmMoe, config, bench.device)
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(0, config.vocab_size, (num_rows, length), generator=generator).tolist()
    runner = WholeModel(model)
    pages_each = -(-(length + num_new) // EngineConfig.page_size)
    cache_bytes = num_rows * pages_each * runner.page_bytes(EngineConfig.page_size)
    # Each run computes its prompts: none is found in the cache.
    engine = Engine(runner, EngineConfig(cache_bytes, max_step_tokens=STEP_TOKENS, share_prefixes=False))

    def seconds(count: int) -> float:
        synchronize(bench)
        start = time.perf_counter()
        answers = engine.generate(prompts, SamplingParams(max_new_tokens=count))
        synchronize(bench)
        if any(len(answer.tokens) != count for (answer,) in answers):
            raise ValueError(f"generate gave {[len(answer.tokens) for (answer,) in answers]} tokens of {count}")
        return time.perf_counter() - start

    seconds(2)
    prefill, whole = (statistics.median(seconds(count) for _ in range(1 if bench.dry else 3)) for count in (1, num_new))
    each = max(1e-9, (whole - prefill) / (num_new - 1))
    weight_bytes = sum(parameter.nbytes for parameter in model.parameters())
    cache_bytes = num_rows * (length + num_new / 2) * kv_cache_bytes_per_token(config)
    matrices = count_parameters(config).active.matrices
    return {
        "prefill_s": prefill,
        "prefill_tokens_per_s": num_rows * length / prefill,
        "seconds": each,
        "tokens_per_s": num_rows / each,
        "summary": f"{num_rows / each:,.0f} tokens/s, prompts {num_rows * length / prefill:,.0f} tokens/s",
    } | bench.timed(each, 2.0 * matrices * num_rows, weight_bytes + cache_bytes)


def weights_in_bf16(model_class: type[GlmMoe], config, device: torch.device) -> GlmMoe:
    with torch.device("meta"):
        model = model_class(config)
    model.to_empty(device=device)
    fill_(model, {name: row.initial for name, row in parameter_table(config).items()}, config.initializer_range)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    model.compute_dtype = torch.bfloat16
    return model.eval()
