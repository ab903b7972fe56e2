"""Chance that can be called up again: what problem i draws is a pure function of (seed, family, level, i).

Built on `random.Random.random` alone, the one method whose sequence Python promises to keep from version to version;
`choice` and `sample` have changed before.
"""

import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """A stream of choices named by its key.

    Args:
        key: anything that identifies the stream, such as `(seed, "algebra", 3, 17)`; equal keys give equal streams.
    """

    __slots__ = ("_random",)

    def __init__(self, *key: int | str) -> None:
        digest = hashlib.blake2b(repr(key).encode(), digest_size=16).digest()
        self._random = random.Random(int.from_bytes(digest, "little")).random

    def below(self, n: int) -> int:
        """An integer in [0, n)."""
        return int(self._random() * n)

    def integer(self, low: int, high: int) -> int:
        """An integer in [low, high]."""
        return low + int(self._random() * (high - low + 1))

    def nonzero(self, limit: int) -> int:
        """An integer in [-limit, limit] without 0."""
        value = 1 + int(self._random() * limit)
        return value if self._random() < 0.5 else -value

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self._random() * len(items))]

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """`count` different items, in random order."""
        pool = list(items)
        for i in range(count):
            j = i + int(self._random() * (len(pool) - i))
            pool[i], pool[j] = pool[j], pool[i]
        return pool[:count]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        return self.sample(items, len(items))
