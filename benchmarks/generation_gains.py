"""What sharing prefixes, taking prompts in pieces and drafting gain, on the model of generation_model.py.

    python benchmarks/generation_gains.py                          # fp32 and bf16
    python benchmarks/generation_gains.py --dtypes fp32 --rounds 2

- `prefix`: 16 samples of each of 4 prompts, once as 4 requests of 16 samples, once as 64 requests whose prompts are
  found in the prefix tree, once with nothing shared. Seconds in all, pages in use at most.
- `prefill`: 8 sequences decode when 4 long prompts and then a short one arrive. With steps of different sizes, up to
  one that takes all prompts at once: the longest pause of those that decode, and the time to the first token of the
  short request and of the long ones.
- `drafts`: greedy answers without drafts, with those of the MTP layer and with n-gram lookup, for 1 and 8 requests.

The ways of each part take turns in this process, each with an engine of its own and with prompts that change in every
turn.
"""

import argparse
import json
import os
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from generation_model import DTYPES, FOLDER
from record import write_result

from glmforge.checkpoint.pretrained import load_pretrained
from glmforge.data.tokens.shards import TokenShard
from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine
from glmforge.generate.params import SamplingParams
from glmforge.generate.speculate.speculation import DrafterName
from glmforge.kernels.allocator import keep_large_blocks
from glmforge.model.transformer import GlmMoe

CODE = ("src/glmforge/generate", "src/glmforge/kernels", "src/glmforge/model", "benchmarks/generation_model.py")
CACHE_BYTES = 1 << 29
NUM_PROMPTS, NUM_SAMPLES, PROMPT_TOKENS, NEW_TOKENS = 4, 16, 1024, 32
NUM_RUNNING, NUM_LONG, LONG_TOKENS, SHORT_TOKENS = 8, 4, 2048, 32
NUM_DRAFTING, DRAFT_PROMPT_TOKENS, DRAFT_NEW_TOKENS = (1, 8), 128, 128
STEP_TOKENS = {"steps of 128": 128, "steps of 512": 512, "steps of 2048": 2048, "whole": 16384}

Prompts = list[list[int]]
Figures = dict[str, float]
Take = Callable[[int, int], Prompts]
"""So many prompts of so many tokens."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=FOLDER, help="what generation_model.py made")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=5, help="timed turns of every way, after one that warms up")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    keep_large_blocks()
    shard = TokenShard(args.model / "data" / "held_out")
    tokens = shard.tokens(0, shard.num_tokens).tolist()
    result: dict[str, Any] = {"threads": args.threads, "rounds": args.rounds}
    for dtype in args.dtypes:
        model = load_pretrained(args.model / "run", dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[dtype])
        result[dtype] = {part: in_turns(PARTS[part](model), tokens, args.rounds) for part in args.parts}
        print(dtype, json.dumps(result[dtype], indent=1), flush=True)
    write_result("generation_gains", result, code=CODE, out=args.out)


def in_turns(ways: dict[str, Callable[[Take], Figures]], tokens: list[int], rounds: int) -> dict[str, Figures]:
    """The medians of each way's figures. Turn 0 warms up."""
    turns: dict[str, list[Figures]] = defaultdict(list)
    for turn in range(rounds + 1):
        for name in ways if turn % 2 else reversed(ways):
            figures = ways[name](taker(tokens, turn))
            if turn:
                turns[name].append(figures)
    return {
        name: {key: round(statistics.median(one[key] for one in turns[name]), 4) for key in turns[name][0]}
        for name in ways
    }


def taker(tokens: list[int], turn: int) -> Take:
    """Prompts from anywhere in `tokens`, the same ones for all ways of a turn."""
    rng = random.Random(turn)

    def take(number: int, length: int) -> Prompts:
        starts = [rng.randrange(len(tokens) - length) for _ in range(number)]
        return [tokens[start : start + length] for start in starts]

    return take


def prefix_ways(model: GlmMoe) -> dict[str, Callable[[Take], Figures]]:
    def way(take: Take, *, share: bool, num_samples: int) -> Figures:
        params = SamplingParams(max_new_tokens=NEW_TOKENS, temperature=1.0, seed=0, num_samples=num_samples)
        engine = Engine(model, EngineConfig(cache_bytes=CACHE_BYTES, share_prefixes=share))
        start, most_pages = time.perf_counter(), 0
        for prompt in take(NUM_PROMPTS, PROMPT_TOKENS):
            for _ in range(NUM_SAMPLES // num_samples):
                engine.add(prompt, params)
        while not engine.is_idle:
            engine.step()
            most_pages = max(most_pages, engine.memory.num_used)
        return {"seconds": time.perf_counter() - start, "pages": most_pages}

    return {
        "samples of a request": partial(way, share=True, num_samples=NUM_SAMPLES),
        "found in the tree": partial(way, share=True, num_samples=1),
        "not shared": partial(way, share=False, num_samples=1),
    }


def prefill_ways(model: GlmMoe) -> dict[str, Callable[[Take], Figures]]:
    def way(take: Take, step_tokens: int) -> Figures:
        engine = Engine(model, EngineConfig(cache_bytes=CACHE_BYTES, max_step_tokens=step_tokens))
        longest = SamplingParams(max_new_tokens=256)
        running = [engine.add(prompt, longest) for prompt in take(NUM_RUNNING, SHORT_TOKENS)]
        for _ in range(NUM_RUNNING):
            engine.step()
        arrival = time.perf_counter()
        late = [engine.add(prompt, SamplingParams(max_new_tokens=1)) for prompt in take(NUM_LONG, LONG_TOKENS)]
        late += [engine.add(prompt, SamplingParams(max_new_tokens=1)) for prompt in take(1, SHORT_TOKENS)]
        last = dict.fromkeys(running, arrival)
        firsts: dict[int, float] = {}
        pause = 0.0
        while len(firsts) < len(late):
            updates = engine.step()
            now = time.perf_counter()
            for number in (update.request for update in updates):
                if number in last:
                    pause, last[number] = max(pause, now - last[number]), now
                else:
                    firsts[number] = now - arrival
        return {
            "longest_pause_s": pause,
            "first_token_of_short_s": firsts[late[-1]],
            "first_token_of_long_s": statistics.median(firsts[number] for number in late[:-1]),
        }

    return {name: partial(way, step_tokens=size) for name, size in STEP_TOKENS.items()}


def draft_ways(model: GlmMoe) -> dict[str, Callable[[Take], Figures]]:
    def way(take: Take, number: int, drafter: DrafterName | None) -> Figures:
        engine = Engine(model, EngineConfig(cache_bytes=CACHE_BYTES, drafter=drafter))
        start = time.perf_counter()
        for prompt in take(number, DRAFT_PROMPT_TOKENS):
            engine.add(prompt, SamplingParams(max_new_tokens=DRAFT_NEW_TOKENS))
        while not engine.is_idle:
            engine.step()
        seconds = time.perf_counter() - start
        return {"tokens_per_s": number * DRAFT_NEW_TOKENS / seconds, "acceptance": engine.metrics.acceptance}

    names: tuple[DrafterName | None, ...] = (None, "mtp", "ngram")
    return {
        f"{drafter or 'none'}, {number}": partial(way, number=number, drafter=drafter)
        for number in NUM_DRAFTING
        for drafter in names
    }


PARTS: dict[str, Callable[[GlmMoe], dict[str, Callable[[Take], Figures]]]] = {
    "prefix": prefix_ways,
    "prefill": prefill_ways,
    "drafts": draft_ways,
}


if __name__ == "__main__":
    main()
