"""Needle tests answered by the generation engine: right is an answer that the generated text contains.

The model sees only its own words, so an answer can be right after a wrong one, or in another order. The price is that
each data rank and cp rank holds keys and values of a whole text of its own, for as long as it is answered.

A model on the disk may answer into a file of replies, which is resumed when the command is run again.
"""

import hashlib
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from glmforge.data.needles.build import NeedleTest, NeedleTests
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import GlmforgeError
from glmforge.evaluate.needles import cell_of, cells_of, needle_record
from glmforge.generate.answer_file import Asked, answer_requests, open_answers
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
    totals, runner = _Totals(tests, lengths), ShardedModel(model)
    numbers = _numbers(tests, lengths)
    with runner.session():
        engine = _engine(runner, tests.tokenizer, lengths)
        for first in range(0, len(numbers), runner.num_shares):
            mine = numbers[first : first + runner.num_shares][runner.share :][:1]
            asked = [_asked(engine, tests, index) for index in mine]
            replies = engine.generate([one.prompt for one in asked], [one.params for one in asked], alive=alive)
            for index, (reply,) in zip(mine, replies, strict=True) if runner.is_first else ():
                totals.add(tests[index], reply.tokens)
    found_C2 = model.world.sum(totals.right_C2.to(runner.device))
    return totals.records(found_C2, time.perf_counter() - started)


def generate_replies(
    model: ParallelModel, tests: NeedleTests, lengths: Sequence[int], out: Path, *, source: str, overwrite: bool = False
) -> list[Record]:
    """The same in one process, with every reply in a JSONL file at `out`.

    Raises:
        GlmforgeError: it cannot be written, or has replies of another model than `source` or to other tests.
    """
    started = time.perf_counter()
    totals, runner = _Totals(tests, lengths), ShardedModel(model)
    numbers, digest = _numbers(tests, lengths), hashlib.sha256()
    for index in numbers:
        digest.update(repr(tests[index].ids).encode())
    command = {"model": source, "dtype": str(model.parts[0].compute_dtype), "tests": digest.hexdigest()}
    with open_answers(out, dict(command), overwrite=overwrite) as answers, runner.session():
        engine = _engine(runner, tests.tokenizer, lengths)
        requests = ((index, partial(_asked, engine, tests, index)) for index in numbers)
        answer_requests(engine, requests, answers, name="test {}".format)
        for answer in answers.read():
            if "error" in answer:
                raise GlmforgeError(f"{answer['error']}; pass --force to answer again")
            (sample,) = answer["samples"]
            totals.add(tests[answer["line"]], sample["tokens"])
        answers.finish()
    return totals.records(totals.right_C2, time.perf_counter() - started)


class _Totals:
    """Right answers, and answers, by cell."""

    def __init__(self, tests: NeedleTests, lengths: Sequence[int]) -> None:
        self.cells, self.decode = cells_of(tests, lengths), tests.tokenizer.decode
        self.right_C2 = torch.zeros(len(self.cells), 2, dtype=torch.float64)

    def add(self, test: NeedleTest, tokens: Sequence[int]) -> None:
        reply = self.decode(tokens)
        for answer in test.answers:
            right = float(answer.text in reply)
            self.right_C2[self.cells.index(cell_of(test, answer.depth))] += torch.tensor([right, 1.0])

    def records(self, right_C2: Tensor, seconds: float) -> list[Record]:
        cells, cost = zip(self.cells, right_C2.tolist(), strict=True), make_record(needle_seconds=seconds)
        return [needle_record(cell, "generated", *sums) | cost for cell, sums in cells]


def _numbers(tests: NeedleTests, lengths: Sequence[int]) -> list[int]:
    return [index for index, key in enumerate(tests.keys) if key.length in lengths]


def _engine(runner: ShardedModel, tokenizer: Tokenizer, lengths: Sequence[int]) -> Engine:
    """With room for a longest test."""
    num_pages = -(-(max(lengths) + _SPARE_TOKENS) // _PAGE_SIZE)
    return Engine(runner, EngineConfig(num_pages * runner.page_bytes(_PAGE_SIZE), _PAGE_SIZE), tokenizer=tokenizer)


def _asked(engine: Engine, tests: NeedleTests, index: int) -> Asked:
    """The prompt of a test, with room for its answers and some more."""
    test, tokenizer, longest = tests[index], tests.tokenizer, engine.runner.config.max_position_embeddings
    params = SamplingParams(
        max_new_tokens=min(len(test.ids) + _SPARE_TOKENS, longest) - test.num_prompt,
        stop_ids=tokenizer.stop_ids,
        vocab_size=tokenizer.vocab_size,
    )
    fields = {**test.key._asdict(), "answers": [answer.text for answer in test.answers]}
    return Asked(test.ids[: test.num_prompt], params, fields)
