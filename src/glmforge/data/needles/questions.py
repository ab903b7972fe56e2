"""The tasks: what is hidden, where, the question and what the answers are. All in words; tokens come later.

The tasks are those of RULER (Hsieh et al., 2024, arXiv 2404.06654) in wording of our own:

    single        one needle
    multi_key     one of several needles with different keys is requested
    multi_value   several needles have the same key; all values are requested
    multi_query   several needles with different keys; all are requested
    variables     a chain of assignments, beside a second one; all variables of the first chain's value are requested

RULER counts what it finds for the whole question. Here every answer has the depth of its own needle, and needles whose
answers are requested lie only at depths that are tested, so that any answer counts at exactly one depth. Whoever is
asked begins the reply in the words of the needle, so that a model which only continues text can answer.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from glmforge.config.needles import NeedleTask, NeedleTestsConfig, NeedleValues
from glmforge.data.needles.words import KIND, draw_keys, draw_names, draw_values


class Needle(NamedTuple):
    """A sentence and the share of the text, 0 to 1, that comes before it."""

    sentence: str
    place: float


class Answer(NamedTuple):
    """What is to be retrieved, and the depth it counts at."""

    text: str
    depth: float


@dataclass(frozen=True)
class Question:
    """A text's needles in their order, the question, how the reply begins, and the answers in their order."""

    intro: str
    needles: tuple[Needle, ...]
    question: str
    lead: str
    answers: tuple[Answer, ...]


def make_question(task: NeedleTask, depth: float, config: NeedleTestsConfig, rng: np.random.Generator) -> Question:
    """A question of `task`; (the first of) its needles lies at `depth`."""
    return _TASKS[task](depth, config, rng)


def _single(depth: float, config: NeedleTestsConfig, rng: np.random.Generator) -> Question:
    return _one_key(depth, config.values, rng, num_others=0)


def _multi_key(depth: float, config: NeedleTestsConfig, rng: np.random.Generator) -> Question:
    return _one_key(depth, config.values, rng, num_others=config.num_needles - 1)


def _one_key(depth: float, kind: NeedleValues, rng: np.random.Generator, num_others: int) -> Question:
    keys, values = draw_keys(rng, 1 + num_others), draw_values(rng, 1 + num_others, kind)
    places = [depth, *rng.random(num_others).tolist()]
    asked = f"secret {KIND[kind]} for {keys[0]}"
    return Question(
        _intro(kind),
        _in_order(Needle(_sentence(kind, *each[:2]), each[2]) for each in zip(keys, values, places, strict=True)),
        f"What is the {asked}?",
        f"The {asked} is",
        (Answer(values[0], depth),),
    )


def _multi_value(depth: float, config: NeedleTestsConfig, rng: np.random.Generator) -> Question:
    (key,), kind = draw_keys(rng, 1), config.values
    answers = [Answer(*each) for each in zip(*_values_at_depths(depth, config, rng), strict=True)]
    answers.sort(key=lambda answer: answer.depth)
    asked = f"secret {KIND[kind]}s for {key}"
    return Question(
        _intro(kind),
        tuple(Needle(_sentence(kind, key, answer.text), answer.depth) for answer in answers),
        f"What are the {asked}, in the order of the text?",
        f"The {asked} are",
        tuple(answers),
    )


def _multi_query(depth: float, config: NeedleTestsConfig, rng: np.random.Generator) -> Question:
    keys, kind = draw_keys(rng, config.num_needles), config.values
    answers = [Answer(*each) for each in zip(*_values_at_depths(depth, config, rng), strict=True)]
    asked = f"secret {KIND[kind]}s for {', '.join(keys[:-1])} and {keys[-1]}"
    needles = (Needle(_sentence(kind, key, a.text), a.depth) for key, a in zip(keys, answers, strict=True))
    return Question(_intro(kind), _in_order(needles), f"What are the {asked}?", f"The {asked} are", tuple(answers))


def _variables(depth: float, config: NeedleTestsConfig, rng: np.random.Generator) -> Question:
    num = config.num_needles
    names, (value, other_value) = draw_names(rng, 2 * num), draw_values(rng, 2, "numbers")
    depths = sorted([depth, *_further_depths(config, rng)])
    chain = _chain(names[:num], value, depths)
    other = _chain(names[num:], other_value, sorted(rng.random(num).tolist()))
    asked = f"variables that have the value {value}"
    return Question(
        "The following text hides assignments to variables. Remember them, they are asked for at the end.",
        _in_order([*chain, *other]),
        f"Which are the {asked}, in the order of the text?",
        f"The {asked} are",
        tuple(Answer(*each) for each in zip(names[:num], depths, strict=True)),
    )


_TASKS: dict[NeedleTask, Callable[[float, NeedleTestsConfig, np.random.Generator], Question]] = {
    "single": _single,
    "multi_key": _multi_key,
    "multi_value": _multi_value,
    "multi_query": _multi_query,
    "variables": _variables,
}


def _intro(kind: NeedleValues) -> str:
    return f"The following text hides secret {KIND[kind]}s. Remember them, they are asked for at the end."


def _sentence(kind: NeedleValues, key: str, value: str) -> str:
    return f"The secret {KIND[kind]} for {key} is {value}."


def _chain(names: Sequence[str], value: str, places: Sequence[float]) -> list[Needle]:
    assigned = [value, *(f"VAR {name}" for name in names[:-1])]
    return [Needle(f"VAR {each[0]} = {each[1]}.", each[2]) for each in zip(names, assigned, places, strict=True)]


def _values_at_depths(
    depth: float, config: NeedleTestsConfig, rng: np.random.Generator
) -> tuple[list[str], list[float]]:
    return draw_values(rng, config.num_needles, config.values), [depth, *_further_depths(config, rng)]


def _further_depths(config: NeedleTestsConfig, rng: np.random.Generator) -> list[float]:
    return [config.depths[index] for index in rng.integers(0, len(config.depths), config.num_needles - 1)]


def _in_order(needles: Iterable[Needle]) -> tuple[Needle, ...]:
    """By place; needles of one place stay in the order they are given in."""
    return tuple(sorted(needles, key=lambda needle: needle.place))
