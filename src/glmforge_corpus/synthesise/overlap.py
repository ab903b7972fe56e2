"""Runs of 13 words in common with an evaluation item, without exception.

`dedup.contamination` leaves out n-grams that prove nothing, such as rows of numbers, because web text is full of them.
Here a problem more or less costs nothing, so the plain rule of GPT-3 (arXiv:2005.14165, appendix C) is applied as well.
A run of 13 words holds one of the blocks of 7 that a text is cut into: only those are looked up, and texts with a hit
gone over in full.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from glmforge_corpus.decontaminate.evaluation_sets import EvaluationSet, read_items

RUN = 13
_BLOCK = (RUN + 1) // 2
_WORD = re.compile(r"[\u3400-\u9fff]|[^\W_\u3400-\u9fff]+")


def _grams(words: Sequence[str], size: int, stride: int = 1) -> Iterable[str]:
    return (" ".join(words[i : i + size]) for i in range(0, len(words) - size + 1, stride))


class Runs:
    """The runs of some texts, to be looked for in others."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._runs, self._blocks = set[str](), set[str]()
        for text in texts:
            words = _WORD.findall(text.casefold())
            if len(words) >= RUN:
                self._runs.update(_grams(words, RUN))
                self._blocks.update(_grams(words, _BLOCK))

    def meet(self, text: str) -> bool:
        """Whether `RUN` words in a row of `text` stand in one of the texts."""
        words = _WORD.findall(text.casefold())
        if not any(block in self._blocks for block in _grams(words, _BLOCK, _BLOCK)):
            return False
        return any(run in self._runs for run in _grams(words, RUN))


@lru_cache(maxsize=1)
def runs_of(against: tuple[EvaluationSet, ...]) -> Runs:
    """Of all items of evaluation sets; kept for the next task of this process."""
    return Runs(text for one in against for item in read_items(one) for _, text in (*item.passages, *item.joined))
