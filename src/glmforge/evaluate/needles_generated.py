"""Needle tests answered by the generation engine: right is an answer that the generated text contains.

The model sees only its own words, so an answer can be right after a wrong one, or in another order. The price is that
each data rank and cp rank holds keys and values of a whole text of its own, for as long as it is answered.
"""

import time
from collections.abc import Sequence

import torch

from glmforge.data.needles.build import NeedleTest, NeedleTests
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.evaluate.needles import cell_of, cells_of, needle_record
from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine
from glmforge.generate.params import SamplingParams
from glmforge.generate.sharded import ShardedModel
from glmforge.observe.alive import Alive, quiet
from glmforge.observe.metrics import Record, make_record
from glmforge.parallel.model import ParallelModel

_PAGE_SIZE = 16
_SPARE_TOKENS = 32
"""That a reply may have beyond those of the right answers."""


def generate_needles(
    model: ParallelModel, tests: NeedleTests, lengths: Sequence[int], alive: Alive = quiet
) -> list[Record]:
    """A record per task, length and depth; `alive` is called before each step of the engine. Collective."""
    started = time.perf_counter()
    cells, runner = cells_of(tests, lengths), ShardedModel(model)
    totals_C2 = torch.zeros(len(cells), 2, dtype=torch.float64)
    numbers = [index for index, key in enumerate(tests.keys) if key.length in lengths]
    with runner.session():
        num_pages = -(-(max(lengths) + _SPARE_TOKENS) // _PAGE_SIZE)
        engine = Engine(runner, EngineConfig(num_pages * runner.page_bytes(_PAGE_SIZE), _PAGE_SIZE))
        for first in range(0, len(numbers), runner.num_shares):
            mine = [tests[index] for index in numbers[first : first + runner.num_shares][runner.share :][:1]]
            replies = _replies(engine, mine, tests.tokenizer, model.config.max_position_embeddings, alive)
            for test, reply in zip(mine, replies, strict=True) if runner.speaks else ():
                for answer in test.answers:
                    right = float(answer.text in reply)
                    totals_C2[cells.index(cell_of(test, answer.depth))] += torch.tensor([right, 1.0])
    found = model.world.sum(totals_C2.to(runner.device)).tolist()
    cost = make_record(needle_seconds=time.perf_counter() - started)
    return [needle_record(cell, "generated", *sums) | cost for cell, sums in zip(cells, found, strict=True)]


def _replies(
    engine: Engine, tests: Sequence[NeedleTest], tokenizer: Tokenizer, num_positions: int, alive: Alive
) -> list[str]:
    """What the model goes on with, at most one test on each rank. Collective."""
    params = [
        SamplingParams(
            max_new_tokens=min(len(test.ids) + _SPARE_TOKENS, num_positions) - test.num_prompt,
            stop_ids=tokenizer.stop_ids,
            vocab_size=tokenizer.vocab_size,
        )
        for test in tests
    ]
    answers = engine.generate([test.ids[: test.num_prompt] for test in tests], params, alive=alive)
    return [tokenizer.decode(sample.tokens) for (sample,) in answers]
