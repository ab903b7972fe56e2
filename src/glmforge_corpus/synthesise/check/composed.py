"""Word problems of several events, verified from the text: every sentence says what it does to a quantity.

The quantity is followed from the beginning, whatever is asked: where the end is told and the beginning asked, the
answer is put at the beginning, and what comes out must be the end that is told.
"""

import re
from collections.abc import Callable
from fractions import Fraction

from glmforge_corpus.synthesise.check.formulas import Number, Unreadable, number, numbers

_SENTENCES = re.compile(r"(?<=[.?。？])\s*")
_SCALE = re.compile(r"\b1 (?=cm (?:stands for|is) )|1(?=厘米(?:代表|表示))")
_MEANS: tuple[tuple[re.Pattern[str], Callable[[Fraction, Number], Fraction]], ...] = tuple(
    (re.compile(pattern), act)
    for pattern, act in (
        (
            r"\b(?:bags|cans|shelves) (?:of|that)|\bshelf|\bmap\b|accounts|members|袋|桶里|一桶|账户|家人|书架|每架|图",
            lambda v, n: v / n,
        ),
        (
            r"burnt|eat|cost|pays \d|landlord|seep|takes \d+ litres of|leak|焦|吃掉|花去|房租|漏|用去",
            lambda v, n: v - n,
        ),
        (r"ferry|donate|adds|arrive|船|渡轮|赠送|捐", lambda v, n: v + n),
        (r"hours|days|minutes|classes|小时|天|分钟|个班", lambda v, n: v * n),
    )
)


def _composed(question: str, answer: str) -> bool:
    first, *others = [_SCALE.sub(" ", sentence) for sentence in _SENTENCES.split(question)]
    told = [sentence for sentence in others if numbers(sentence)]
    backwards = not numbers(first)
    value = Fraction(number(answer)) if backwards else Fraction(numbers(first)[0])
    *told, end = told if backwards else [*told, ""]
    for sentence in told:
        (n,) = numbers(sentence)
        act = next((act for pattern, act in _MEANS if pattern.search(sentence)), None)
        if act is None:
            raise Unreadable(f"sentence '{sentence}'")
        value = act(value, n)
    return value == (numbers(end)[0] if backwards else number(answer))


CHECKS: dict[str, Callable[[str, str], bool]] = dict.fromkeys(("bakery", "trip", "wages", "tank", "library"), _composed)
