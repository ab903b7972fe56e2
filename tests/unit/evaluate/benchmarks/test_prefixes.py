"""Shared beginnings are found once each, shorter ones first."""

import itertools
import random

from glmforge.evaluate.benchmarks.prefixes import MIN_GAIN, common_length, in_chunks, shared_prefixes


def test_examples_then_questions_then_choices() -> None:
    examples = list(range(100))
    questions = [examples + [1000 + q] * 50 for q in range(3)]
    prompts = sorted((*question, c, c) for question in questions for c in range(4))
    levels = shared_prefixes(prompts, page_size=16)
    assert [list(prefix) for prefix in levels[0]] == [examples[:96]]
    assert sorted(list(prefix) for prefix in levels[1]) == [question[:144] for question in questions]
    assert len(levels) == 2


def test_nothing_is_shared_or_too_little() -> None:
    assert shared_prefixes([], 16) == []
    assert shared_prefixes([(1, 2, 3), (2, 3, 4)], 16) == []
    almost = MIN_GAIN - 1
    assert shared_prefixes([(*range(almost), 1), (*range(almost), 2)], 1) == []


def test_every_level_extends_the_one_before() -> None:
    draw = random.Random(0)
    stems = [tuple(draw.choices(range(3), k=draw.randrange(40, 200))) for _ in range(8)]
    prompts = sorted((*draw.choice(stems)[: draw.randrange(20, 200)], 9, i) for i in range(60))
    levels = shared_prefixes(prompts, 8)
    assert levels
    for shorter, longer in itertools.pairwise(levels):
        for prefix in longer:
            assert any(prefix[: len(one)] == one and len(one) + MIN_GAIN <= len(prefix) for one in shorter)
    for prefix in itertools.chain(*levels):
        assert len(prefix) % 8 == 0
        assert sum(prompt[: len(prefix)] == prefix for prompt in prompts) >= 2


def test_chunks_fit() -> None:
    prompts = sorted([(*range(50), *[i] * 10) for i in range(20)] + [tuple(range(200, 500))])
    chunks = in_chunks(prompts, 120)
    assert [prompt for chunk in chunks for prompt in prompts[chunk]] == prompts
    for chunk in chunks:
        some = prompts[chunk]
        size = len(some[0]) + sum(len(b) - common_length(a, b) for a, b in itertools.pairwise(some))
        assert size <= 120 or len(some) == 1
