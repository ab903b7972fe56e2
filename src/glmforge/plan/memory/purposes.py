"""What the memory of a rank is for: the categories of a dry run and of the closed forms."""

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum


class Purpose(StrEnum):
    """What memory is for."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    GATHERED = "gathered weights"
    UNREDUCED = "unreduced gradients"
    ACTIVATIONS = "activations"
    BUFFERS = "pipeline buffers"
    WORKING = "working memory"
    CACHE = "engine's cache"


Memory = Counter[Purpose]
"""Bytes by purpose; differences may be negative."""


def purposes_in(memories: Iterable[Memory]) -> list[Purpose]:
    """All of them, but for an engine's cache where nothing has one."""
    has_cache = any(memory[Purpose.CACHE] for memory in memories)
    return [purpose for purpose in Purpose if has_cache or purpose is not Purpose.CACHE]
