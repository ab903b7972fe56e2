"""Which beginnings prompts share, to be computed once before the prompts are.

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
    common = [common_length(a, b) // page_size * page_size for a, b in itertools.pairwise(prompts)]
    levels: list[list[Sequence[int]]] = []
    ranges = [(0, len(prompts), 0, 0)]  # of prompts, the length that all of them share so far, and its level
    while ranges:
        start, stop, shared, level = ranges.pop()
        if stop - start < 2:
            continue
        length = min(common[start : stop - 1])
        if length >= shared + MIN_GAIN:
            levels += [[]] if level == len(levels) else []
            levels[level].append(prompts[start][:length])
            shared, level = length, level + 1
        ends = [place + 1 for place in range(start, stop - 1) if common[place] == length]
        ranges += [(first, last, shared, level) for first, last in itertools.pairwise([start, *ends, stop])]
    return levels


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # slices compare much faster than single tokens
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def in_chunks(prompts: Sequence[Sequence[int]], max_tokens: int) -> list[slice]:
    """Slices of `prompts`, in ascending order, whose different tokens fit `max_tokens`; one prompt at least in each."""
    chunks: list[slice] = []
    start, size = 0, 0
    for index, prompt in enumerate(prompts):
        added = len(prompt) - (common_length(prompts[index - 1], prompt) if index > start else 0)
        if index > start and size + added > max_tokens:
            chunks.append(slice(start, index))
            start, size, added = index, 0, len(prompt)
        size += added
    return [*chunks, slice(start, len(prompts))] if prompts else []
