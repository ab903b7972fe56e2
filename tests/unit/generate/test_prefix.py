"""Prompts that begin alike share pages, and finding, learning and giving them up is linear in their tokens."""

import sys
from types import FrameType
from typing import Any

from glmforge.generate.memory import CacheMemory
from glmforge.generate.params import SamplingParams
from glmforge.generate.scheduler import Scheduler
from glmforge.generate.sequence import Request, Sequence

PAGE_SIZE, STEP_TOKENS, NUM_NEW = 4, 32, 20


def sequence(number: int, length: int, first: int) -> Sequence:
    prompt = (first, *range(1, length))
    return Sequence(Request(number, prompt, SamplingParams(max_new_tokens=NUM_NEW)), 0, list(prompt))


def lines_run(length: int) -> int:
    """Lines of Python that the scheduler and its memory run for four prompts: twice the same, then others for which the
    pages of earlier ones have to go, while one that has long pages decodes."""
    num_pages = (length + NUM_NEW) // PAGE_SIZE * 5 // 2
    scheduler = Scheduler(CacheMemory(num_pages, PAGE_SIZE), 2, STEP_TOKENS)
    for number, first in enumerate([7, 7, 8, 9]):
        scheduler.add(sequence(number, length, first))
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if "glmforge/generate" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        while scheduler.sequences:
            work = scheduler.next_step()
            scheduler.advance(work)
            for one in (one for one, _ in work if one.num_pending == 0):
                one.tokens.append(0)
                if one.num_left == 0:
                    scheduler.finish(one, "length")
    finally:
        sys.settrace(before)
    scheduler.check()
    return count


def test_work_is_linear_in_the_tokens() -> None:
    short, long = lines_run(400), lines_run(3200)
    assert long < 10 * short  # 8 times the tokens; a walk along the path for each page would run 49 times


def test_the_page_that_is_idle_longest_goes() -> None:
    """A path goes from its end; one that is found again stays, though it is older."""
    memory = CacheMemory(8, PAGE_SIZE)
    paths = [sequence(number, 3 * PAGE_SIZE, first) for number, first in enumerate([1, 2])]
    for one in paths:
        memory.begin(one)
        memory.grow(one, len(one.tokens))
        one.num_cached = len(one.tokens)
        memory.learn(one)
    older, younger = ([*one.pages] for one in paths)
    memory.end(paths[0])
    memory.end(paths[1])
    again = sequence(2, 2 * PAGE_SIZE + 1, 1)
    memory.begin(again)
    assert again.pages == older[:2]
    other = sequence(3, 6 * PAGE_SIZE, 3)
    assert memory.grow(other, 4 * PAGE_SIZE)
    assert memory.tree.pages() == [*older[:2], *younger[:2]]
    assert memory.grow(other, 6 * PAGE_SIZE)
    assert memory.tree.pages() == older[:2]
    assert not memory.grow(other, 7 * PAGE_SIZE)
    memory.check([again, other])
