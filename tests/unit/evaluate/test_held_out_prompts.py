"""Prompts of held-out conversations: token for token what stands before the last answer."""

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from glmforge.data.tokens.shard_writer import ShardWriter
from glmforge.data.tokens.shards import TokenShard
from glmforge.errors import DataError
from glmforge.evaluate.held_out_prompts import HeldOutPrompt, held_out_prompts

Documents = Callable[..., TokenShard]


@pytest.fixture
def documents(tmp_path: Path) -> Documents:
    """Documents whose tokens have these weights; document d has the ids 100 d, 100 d + 1, ..."""
    names = map(str, count())

    def make(*weights: Sequence[float]) -> TokenShard:
        prefix = tmp_path / next(names)
        with ShardWriter(prefix, 10_000, weighted=True) as writer:
            for number, of_document in enumerate(weights):
                ids = 100 * number + np.arange(len(of_document))
                writer.add(ids, np.array([len(ids)]), np.array(of_document, np.float32))
            writer.finish("fingerprint", "test", 1)
        return TokenShard(prefix)

    return make


def prompts(shard: TokenShard, number: int, max_tokens: int = 100) -> list[HeldOutPrompt]:
    return list(held_out_prompts(shard, "chat", number=number, max_tokens=max_tokens, vocab_size=10_000))


@pytest.mark.parametrize(
    ("weights", "prompt", "reference"),
    [
        ([0, 0, 1, 1, 1], [0, 1], [2, 3, 4]),
        ([0, 1, 1, 0, 0, 1, 1], [0, 1, 2, 3, 4], [5, 6]),
        ([0, 1, 1, 0, 0.5, 2, 0, 0], [0, 1, 2, 3], [4, 5]),
        ([0, 0, 1], [0, 1], [2]),
    ],
)
def test_the_prompt_ends_where_the_last_answer_begins(
    documents: Documents, weights: Sequence[float], prompt: list[int], reference: list[int]
) -> None:
    assert prompts(documents(weights), 1) == [HeldOutPrompt("chat", prompt, reference)]


def test_prompts_are_spread_over_the_shard(documents: Documents) -> None:
    shard = documents(*[[0, 1]] * 10)
    assert [prompt.ids for prompt in prompts(shard, 4)] == [[0], [200], [500], [700]]
    assert len(prompts(shard, 50)) == 10
    assert prompts(shard, 4) == prompts(shard, 4)


def test_what_is_too_long_or_has_no_answer_is_passed_over_for_the_next(documents: Documents) -> None:
    """Document 4 is of the second half and does not stand in for the first."""
    long, silent, whole, short = [0, 0, 0, 1], [0, 0, 0], [1, 1], [0, 0, 1]
    shard = documents(long, silent, whole, short, short, *[long] * 3)
    assert [prompt.ids for prompt in prompts(shard, 2, max_tokens=2)] == [[300, 301], [400, 401]]
    assert [prompt.ids[0] for prompt in prompts(shard, 2, max_tokens=3)] == [0, 400]
    assert [prompt.ids[0] for prompt in prompts(shard, 4, max_tokens=2)] == [300, 400]
    assert prompts(shard, 8, max_tokens=1) == []


def test_an_id_outside_the_vocabulary_is_refused(documents: Documents) -> None:
    with pytest.raises(DataError, match="is id 101, outside the vocabulary of 101"):
        list(held_out_prompts(documents([0, 1], [0, 1]), "chat", number=2, max_tokens=9, vocab_size=101))
