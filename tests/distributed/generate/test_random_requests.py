"""Requests that come, go and run out of memory on ranks that step together: each one's tokens are those of one process,
and no page is lost."""

import random
from collections import defaultdict
from typing import Any

import pytest
import torch.distributed as dist

from glmforge.config.layout import resolve_layout
from glmforge.config.schema import RunConfig
from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine
from glmforge.generate.params import SamplingParams
from glmforge.generate.runner import WholeModel
from glmforge.generate.sharded import ShardedModel
from glmforge.parallel.build import build_model
from glmforge.parallel.world import World, join_world
from helpers.distributed import run_ranks
from helpers.equivalence import Case

PAGE_SIZE, NUM_PAGES = 4, 20
Request = tuple[list[int], SamplingParams]
Answers = dict[tuple[int, int], list[int]]


def requests_of(share: int, number: int) -> list[Request]:
    generator = random.Random(share)
    beginning = [generator.randrange(512) for _ in range(30)]
    made = []
    for seed in range(number):
        prompt = beginning[: generator.randint(0, 30)] + [generator.randrange(512) for _ in range(3)]
        params = SamplingParams(
            max_new_tokens=generator.randint(1, 12),
            temperature=generator.choice([0.0, 1.0]),
            seed=seed,
            num_samples=generator.choice([1, 1, 3]),
        )
        made.append((prompt, params))
    return made


def rank_serves(config: RunConfig, number: int) -> tuple[int, int, set[int], Answers]:
    """The share of this rank, how often it took pages back, what was cancelled, and tokens by request and sample."""
    with join_world(resolve_layout(config, dist.get_world_size()), timeout_s=60) as world:
        runner = ShardedModel(build_model(config, world))
        # Ranks of one share make the same choices; others have less to do, and end before.
        waiting = requests_of(runner.share, number // (1 + runner.share))
        generator = random.Random(runner.share)
        cache_bytes = NUM_PAGES * runner.page_bytes(PAGE_SIZE)
        engine = Engine(runner, EngineConfig(cache_bytes, PAGE_SIZE, max_sequences=6, max_step_tokens=16))
        cancelled, found = set(), defaultdict(list)
        with runner.session():
            while runner.anyone(bool(waiting) or not engine.is_idle):
                for _ in range(min(len(waiting), generator.choice([0, 1, 3]))):
                    engine.add(*waiting.pop())
                if generator.random() < 0.05 and not engine.is_idle:
                    request = generator.choice(engine.scheduler.sequences).request.number
                    engine.cancel(request)
                    cancelled.add(request)
                for update in engine.step():
                    found[update.request, update.sample].append(update.token)
                engine.check()
        assert engine.memory.pool.num_free + len(engine.memory.tree) == NUM_PAGES
        return runner.share, engine.scheduler.num_preempted, cancelled, dict(found)


@pytest.mark.parametrize("number", [24, pytest.param(300, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("num_ranks", "parallel"),
    [(4, {"dp_shard": 2, "tp": 2, "ep": 2}), (2, {"pp": 2, "micro_batch_size": 2})],
    ids=str,
)
def test_each_request_gets_its_tokens(num_ranks: int, parallel: dict[str, Any], number: int) -> None:
    case = Case(parallel, num_ranks)
    results = run_ranks(rank_serves, num_ranks, case.config(single=False), number, timeout_s=300)
    (model,) = build_model(case.config(single=True), World.single("cpu")).parts
    runner = WholeModel(model.eval())
    for share, num_preempted, cancelled, found in results:
        assert num_preempted > 0 or share > 0
        engine = Engine(runner, EngineConfig(64 * runner.page_bytes(PAGE_SIZE), PAGE_SIZE))
        requests = requests_of(share, number // (1 + share))[::-1]
        answers = engine.generate([prompt for prompt, _ in requests], [params for _, params in requests])
        for request, samples in enumerate(answers):
            for sample, answer in enumerate(samples):
                got = found.get((request, sample), [])
                assert got == answer.tokens[: len(got) if request in cancelled else None]
