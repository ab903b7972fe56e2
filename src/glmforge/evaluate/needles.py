"""How much of what is hidden in long texts a model retrieves, by task, length and depth.

Answers are scored: text and reply go through the model once, and an answer is right if each of its tokens is the
likeliest one after those before it. For the first answer of a reply that is what greedy generation would have to give;
further ones are requested behind the right ones before. One forward pass costs a fraction of generation, and works on
every layout, context parallelism included, where no rank could hold the text alone.

Tests of one length go together, as many rows as fill the longest length, to the data ranks in turn.

Shapes: T tokens of all rows, A answers in these rows, C cells, which are tasks, lengths and depths.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from glmforge.config.needles import NeedleTask
from glmforge.data.needles.build import NeedleTest, NeedleTests
from glmforge.data.stream.batch import IGNORED_LABEL, Batch
from glmforge.evaluate.scoring import score_batch
from glmforge.observe.alive import Alive, quiet
from glmforge.observe.metrics import Record, make_record
from glmforge.parallel.inputs import TokenShare
from glmforge.parallel.model import ParallelModel

_NUM_SUMS = 4  # right answers, answers, nll, tokens of answers


class Cell(NamedTuple):
    """The keys of an accuracy."""

    task: NeedleTask
    length: int
    depth: float


def cells_of(tests: NeedleTests, lengths: Iterable[int]) -> list[Cell]:
    """In the order of records: by task, length, depth."""
    config, wanted = tests.config, sorted(lengths)
    return [Cell(task, length, depth) for task in config.tasks for length in wanted for depth in sorted(config.depths)]


def cell_of(test: NeedleTest, depth: float) -> Cell:
    """Where an answer at `depth` counts."""
    return Cell(test.key.task, test.key.length, depth)


def needle_record(cell: Cell, answers: str, right: float, num_answers: float, nll: float | None = None) -> Record:
    """The record of a cell; `nll` is the mean over the tokens of its answers."""
    return make_record(
        needle_task=cell.task,
        needle_length=cell.length,
        needle_depth=cell.depth,
        needle_accuracy=right / num_answers,
        needle_nll=nll,
        needle_answers=int(num_answers),
        needle_method=answers,
    )


@torch.no_grad()
def score_needles(
    model: ParallelModel, tests: NeedleTests, lengths: Sequence[int], alive: Alive = quiet
) -> list[Record]:
    """A record per cell of these lengths; `alive` is called before each forward. Collective."""
    started = time.perf_counter()
    world, cells = model.world, cells_of(tests, lengths)
    totals_C4 = torch.zeros(len(cells), _NUM_SUMS, dtype=torch.float64, device=world.device)
    groups, data_ranks = list(_groups(tests, lengths)), world.layout.data_ranks
    with model.evaluating():
        # Every rank runs the same number of forwards, as sharded weights require; past the end it scores nothing.
        for first in range(0, len(groups), data_ranks):
            alive(f"needles, forward {first // data_ranks + 1} of {-(-len(groups) // data_ranks)}")
            number = first + world.data_rank
            rows = [tests[index] for index in groups[min(number, len(groups) - 1)]]
            sums_A4 = _score(model, rows)
            if number < len(groups):
                cell_A = [cells.index(cell_of(row, answer.depth)) for row in rows for answer in row.answers]
                totals_C4.index_add_(0, torch.tensor(cell_A, device=world.device), sums_A4)
    found = world.sum(totals_C4).tolist()
    cost = make_record(needle_seconds=time.perf_counter() - started)
    return [
        needle_record(cell, "scored", right, num_answers, nll / num_tokens) | cost
        for cell, (right, num_answers, nll, num_tokens) in zip(cells, found, strict=True)
    ]


def _groups(tests: NeedleTests, lengths: Sequence[int]) -> Iterator[list[int]]:
    """Numbers of tests of one length each, that go through the model together."""
    for length in sorted(lengths):
        numbers = [index for index, key in enumerate(tests.keys) if key.length == length]
        size = max(lengths) // length
        yield from (numbers[first : first + size] for first in range(0, len(numbers), size))


def _score(model: ParallelModel, rows: Sequence[NeedleTest]) -> Tensor:
    """float64 [A, 4]: whether each answer is right, 1, its nll and tokens.

    Zeros but on one of the ranks with these rows.
    """
    world, parallel = model.world, model.parallel
    parts = 2 * world.axis_size("cp") * world.axis_size("tp")
    seq_len = -(-rows[0].key.length // parts) * parts
    batch = _batch(rows, seq_len).to(world.device)
    answer_T = _answers_of_tokens(rows, seq_len).to(world.device)
    num_answers = sum(len(row.answers) for row in rows)
    share = TokenShare(len(rows), seq_len, world, parallel)
    output = score_batch(model, batch, share, num_mtp=0)
    sums_A4 = torch.zeros(num_answers, _NUM_SUMS, dtype=torch.float64, device=world.device)
    if output is None:  # the last section is on another rank
        return sums_A4
    greedy_T, nll_T = share.put(output.main.greedy_o), share.put(output.main.nll_o)
    (asked_L,) = torch.nonzero(answer_T >= 0, as_tuple=True)
    answer_L = answer_T[asked_L]
    is_wrong_L = greedy_T[asked_L] != batch.labels_BS.flatten()[asked_L]
    num_wrong_A = torch.zeros_like(sums_A4[:, 0]).index_add_(0, answer_L, is_wrong_L.double())
    sums_A4[:, 0] = num_wrong_A == 0
    sums_A4[:, 1] = 1
    sums_A4[:, 2].index_add_(0, answer_L, nll_T[asked_L].double())
    sums_A4[:, 3].index_add_(0, answer_L, torch.ones_like(asked_L, dtype=torch.float64))
    return share.once(sums_A4)


def _batch(rows: Sequence[NeedleTest], seq_len: int) -> Batch:
    """Rows filled up at the end, which no answer sees; only answers have labels."""
    ids_BS = np.zeros((len(rows), seq_len), np.int64)
    labels_BS = np.full((len(rows), seq_len), IGNORED_LABEL)
    for number, row in enumerate(rows):
        ids = np.array(row.ids)
        ids_BS[number, : len(ids)] = ids
        for answer in row.answers:
            labels_BS[number, answer.start - 1 : answer.stop - 1] = ids[answer.start : answer.stop]
    numbers = tuple(range(len(rows)))
    lengths = ((seq_len,),) * len(rows)
    return Batch(torch.from_numpy(ids_BS), torch.from_numpy(labels_BS), lengths, numbers, (0,) * len(rows))


def _answers_of_tokens(rows: Sequence[NeedleTest], seq_len: int) -> Tensor:
    """int64 [T]: which of the rows' answers a token is asked to go on with, -1 for none."""
    answer_T, number = torch.full((len(rows) * seq_len,), -1), 0
    for row_number, row in enumerate(rows):
        for answer in row.answers:
            start = row_number * seq_len - 1
            answer_T[start + answer.start : start + answer.stop] = number
            number += 1
    return answer_T
