"""Which beginnings many prompts share, to be computed once before the prompts are.

Few-shot examples begin all prompts of a subject, a question begins all its choices. Prompts that run at the same time
cannot find each other's pages, so shared beginnings go first, shorter ones before those that extend them.
"""

import itertools
from collections.abc import Sequence

MIN_GAIN = 32
"""Tokens that a shared beginning must add to the one that it extends to be worth a request of its own."""


def shared_prefixes(prompts: Sequence[Sequence[int]], page_size: int) -> list[list[Sequence[int]]]:
    """The shared beginnings of `prompts`, which are in ascending order: those that extend no other, those that extend
    these, and so on. They are cut to whole pages, as only those are shared.
    """
    levels: list[list[Sequence[int]]] = []
    open_: list[int] = []  # lengths of the beginnings that the current prompt shares with earlier ones, ascending
    for earlier, prompt in itertools.pairwise(prompts):
        length = common_length(earlier, prompt) // page_size * page_size
        while open_ and open_[-1] > length:
            open_.pop()
        if length >= (open_[-1] if open_ else 0) + MIN_GAIN:
            if len(open_) == len(levels):
                levels.append([])
            levels[len(open_)].append(prompt[:length])
            open_.append(length)
    return levels


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences begin alike with."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # slices compare much faster than single tokens
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def in_chunks(prompts: Sequence[Sequence[int]], max_tokens: int) -> list[range]:
    """`prompts`, in ascending order, in pieces whose different tokens fit `max_tokens`, one prompt at least in each."""
    chunks: list[range] = []
    start, size = 0, 0
    for index, prompt in enumerate(prompts):
        added = len(prompt) - (common_length(prompts[index - 1], prompt) if index > start else 0)
        if index > start and size + added > max_tokens:
            chunks.append(range(start, index))
            start, size, added = index, 0, len(prompt)
        size += added
    if len(prompts) > start:
        chunks.append(range(start, len(prompts)))
    return chunks
