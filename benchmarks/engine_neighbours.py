"""What a request that asks for too much costs its neighbours: random grammars, schemas and settings beside 30 requests.

    python benchmarks/engine_neighbours.py      # some minutes; writes benchmarks/results/engine_neighbours.json
    python benchmarks/engine_neighbours.py --requests 200 --out /tmp/neighbours.json

Thirty tasks of one event loop ask an `AsyncEngine` for texts, over and over, while 3,000 random requests come
(`tests/helpers/random_grammars.py`), sixteen at a time: grammars and JSON schemas that are valid, recursive, ambiguous
without end, huge or nonsense, and settings at and beyond their limits. Exit status 1 unless every text of the thirty is
the one that they get alone, with a token in every step from the first to the last.

`outcomes` counts how the random requests ended, `errors` the commonest reasons without their numbers. `pause_ms` is the
time between two tokens of a neighbour, `alone` without the random requests. The model is tiny, so that a step is short
beside everything else that happens in it.
"""

import argparse
import asyncio
import random
import re
import sys
import tempfile
import time
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from record import ROOT, write_result

sys.path.insert(0, str(ROOT / "tests"))

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.generate.answer import Update
from glmforge.generate.asynchronous import AsyncEngine
from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine, Prepared
from glmforge.generate.grammar import LIMITS
from glmforge.generate.params import RequestError, SamplingParams
from glmforge.model import GlmMoe
from helpers.models import randomize_, tiny_config
from helpers.random_grammars import random_request
from helpers.tiny_data import make_tiny_data

CODE = ("src/glmforge/generate", "tests/helpers/random_grammars.py")
NUM_NEIGHBOURS, LENGTH, AT_ONCE = 30, 100, 16
SETTINGS: list[dict[str, Any]] = [
    {},
    {"top_k": 20},
    {"top_p": 0.8},
    {"repetition_penalty": 1.3},
    {"min_p": 0.01, "logprobs": 2},
    {"json_schema": {"type": "array", "items": {"type": "integer"}, "minItems": 90}},
]


class WatchedEngine(Engine):
    """Counts in `num_skipped` steps that gave no token to a neighbour without a grammar, between its first and last."""

    num_stepped = num_skipped = 0

    def watch(self, params: list[SamplingParams]) -> None:
        self.watched = {id(one.logit_bias) for one in params if not one.has_grammar}  # `add` copies all but the fields
        self.last_steps: dict[int, int | None] = {}

    def queue(self, prepared: Prepared) -> int:
        number = super().queue(prepared)
        if id(prepared.params.logit_bias) in self.watched:
            self.last_steps[number] = None
        return number

    def step(self) -> list[Update]:
        updates = super().step()
        self.num_stepped += 1
        for update in updates:
            if update.request in self.last_steps:
                last = self.last_steps[update.request]
                self.num_skipped += 0 if last is None else self.num_stepped - last - 1
                self.last_steps[update.request] = self.num_stepped
        return updates


@dataclass
class Neighbours:
    """What the thirty found; `pauses` are seconds between two tokens."""

    num_texts: int = 0
    num_wrong: int = 0
    pauses: list[float] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="instead of benchmarks/results/engine_neighbours.json")
    args = parser.parse_args()
    started = time.perf_counter()
    engine = make_engine()
    params = [neighbour(number) for number in range(NUM_NEIGHBOURS)]
    engine.watch(params)
    expected = [samples[0].tokens for samples in engine.generate([[number, 3] for number in range(30)], params)]
    alone, _, _ = asyncio.run(run(engine, params, expected, [], seconds=10.0))
    generator = random.Random(args.seed)
    requests = [random_request(generator) for _ in range(args.requests)]
    beside, outcomes, errors = asyncio.run(run(engine, params, expected, requests))
    engine.check()
    content = {
        "requests": args.requests,
        "seed": args.seed,
        "at_once": AT_ONCE,
        "limits": LIMITS._asdict(),
        "outcomes": dict(outcomes.most_common()),
        "errors": dict(errors.most_common(25)),
        "neighbours": figures(beside),
        "alone": figures(alone),
        "steps": engine.num_stepped,
        "steps_without_a_token": engine.num_skipped,
        "seconds": round(time.perf_counter() - started, 1),
    }
    print(content)
    print("written to", write_result("engine_neighbours", content, code=CODE, libraries=["llguidance"], out=args.out))
    return int(beside.num_wrong + engine.num_skipped + outcomes["lost"] > 0)


def make_engine() -> WatchedEngine:
    model = GlmMoe(tiny_config())
    randomize_(model)
    model.eval()
    with tempfile.TemporaryDirectory() as directory:
        tokenizer = Tokenizer.load(make_tiny_data(Path(directory)).tokenizer)
    return WatchedEngine(model, EngineConfig(cache_bytes=1 << 27, max_sequences=128), tokenizer=tokenizer)


def neighbour(number: int) -> SamplingParams:
    settings = SETTINGS[number % len(SETTINGS)] | {"logit_bias": {}}
    stop = {} if "json_schema" in settings else {"stop_ids": [511], "vocab_size": 511}
    return SamplingParams(max_new_tokens=LENGTH, temperature=number % 3 / 2, seed=number, **stop, **settings)


async def run(
    engine: Engine, params: list[SamplingParams], expected: list[list[int]], requests: list[dict[str, Any]],
    *, seconds: float = 0.0,
) -> tuple[Neighbours, Counter[str], Counter[str]]:  # fmt: skip
    """Neighbours go on until the requests have ended, at least for so many seconds."""
    streams, found = AsyncEngine(engine), Neighbours()
    outcomes: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    waiting, deadline = iter(requests), time.perf_counter() + seconds
    is_over = asyncio.Event()

    async def neighbours(number: int) -> None:
        while not is_over.is_set():
            tokens, last = [], 0.0
            async with aclosing(streams.stream([number, 3], params[number])) as updates:
                async for update in updates:
                    now = time.perf_counter()
                    if update.token is not None:
                        tokens.append(update.token)
                        found.pauses += [now - last] if last else []
                        last = now
            found.num_texts += 1
            found.num_wrong += tokens != expected[number]

    async def others() -> None:
        for settings in waiting:
            outcome, error = await outcome_of(streams, settings)
            outcomes[outcome] += 1
            if error:
                errors[re.sub(r"[0-9]+", "N", error)[:100]] += 1
        await asyncio.sleep(max(0.0, deadline - time.perf_counter()))

    tasks = [asyncio.create_task(neighbours(number)) for number in range(NUM_NEIGHBOURS)]
    await asyncio.gather(*(others() for _ in range(AT_ONCE)))
    is_over.set()
    await asyncio.gather(*tasks)
    outcomes["lost"] = len(requests) - sum(outcomes.values())
    return found, outcomes, errors


async def outcome_of(streams: AsyncEngine, settings: dict[str, Any]) -> tuple[str, str | None]:
    try:
        params = SamplingParams(**settings)
        reasons, error = [], None
        async with aclosing(streams.stream("def main", params)) as updates:
            async for update in updates:
                if update.finished is not None:
                    reasons.append(update.finished)
                    error = update.error
        return "error" if "error" in reasons else reasons[-1], error
    except RequestError as refused:
        return "refused", str(refused)


def figures(found: Neighbours) -> dict[str, Any]:
    pauses = sorted(found.pauses)
    shares = {"median": 0.5, "p99": 0.99, "p99_9": 0.999, "longest": 1.0}
    return {
        "texts": found.num_texts,
        "wrong_texts": found.num_wrong,
        "pause_ms": {name: round(1e3 * pauses[int(share * (len(pauses) - 1))], 2) for name, share in shares.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
