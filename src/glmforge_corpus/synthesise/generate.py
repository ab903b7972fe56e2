"""Problem i of a family and level: a pure function of (seed, family, level, i)."""

from collections.abc import Iterable
from functools import cache

from glmforge.errors import ConfigError
from glmforge_corpus.synthesise.draw import Draw
from glmforge_corpus.synthesise.families import (
    algebra,
    arithmetic,
    composed,
    logic,
    number_theory,
    programs,
    puzzles,
    tables,
    tool_calls,
    word_problems,
)
from glmforge_corpus.synthesise.problem import LEVELS, Draft, Problem, Template, Unlucky, dialogue

FAMILIES: dict[str, dict[str, tuple[int, Template]]] = {
    "arithmetic": arithmetic.TEMPLATES,
    "number_theory": number_theory.TEMPLATES,
    "word_problems": {**word_problems.TEMPLATES, **composed.TEMPLATES},
    "algebra": algebra.TEMPLATES,
    "logic": {**logic.TEMPLATES, **puzzles.TEMPLATES},
    "programs": programs.TEMPLATES,
    "tables": tables.TEMPLATES,
    "tools": tool_calls.TEMPLATES,
}
LANGUAGES = ("en", "zh")
CHINESE_SHARE = 0.3

_REPLIES = (
    "The answer is ${b}$.", "So the answer is ${b}$.", "Answer: ${b}$", "Therefore, the result is ${b}$.",
    "This gives ${b}$.", "Hence the answer: ${b}$.", "We get ${b}$.",
)  # fmt: skip
_REPLIES_ZH = (
    "答案是 ${b}$。", "所以答案是 ${b}$。", "因此结果为 ${b}$。", "由此得 ${b}$。", "于是答案为 ${b}$。", "答：${b}$。",
)  # fmt: skip
_SHOWN_STEPS = 4
"""So many of the last steps stand in the reply itself; all of them are in its reasoning."""
_MAX_TRIES = 400


def make_problem(seed: int, family: str, level: int, index: int, languages: tuple[str, ...] = LANGUAGES) -> Problem:
    """Problem `index` of a family and level.

    Raises:
        ConfigError: no such family or level.
    """
    draw = Draw(seed, family, level, index)
    chinese = draw.chance(CHINESE_SHARE)
    zh = chinese if len(languages) > 1 else languages[0] == "zh"
    name, template = draw.pick(_templates(family, level))
    for _ in range(_MAX_TRIES):
        try:
            draft = template(draw, level, zh)
        except Unlucky:
            continue
        identifier = f"{family}-{level}-{seed}-{index:08d}"
        messages = dialogue(draft, _reply(draw, draft, zh))
        return Problem(identifier, family, name, level, "zh" if zh else "en", draft, messages)
    raise AssertionError(f"{family}/{name}, level {level}: no problem in {_MAX_TRIES} tries")


@cache
def _templates(family: str, level: int) -> tuple[tuple[str, Template], ...]:
    if family not in FAMILIES:
        raise ConfigError(f"family '{family}': no such family: choose from {', '.join(FAMILIES)}")
    if level not in LEVELS:
        raise ConfigError(f"level {level}: must be from {LEVELS[0]} to {LEVELS[-1]}")
    return tuple((name, template) for name, (least, template) in FAMILIES[family].items() if level >= least)


def _reply(draw: Draw, draft: Draft, zh: bool) -> str:
    if draft.kind == "calls":
        return ""
    answer = draft.answer if draft.kind == "number" else f"\\text{{{draft.answer}}}"
    conclusion = draw.pick(_REPLIES_ZH if zh else _REPLIES).format(b=f"\\boxed{{{answer}}}")
    return "\n".join([*draft.steps[-_SHOWN_STEPS:], conclusion])


def make_problems(
    seed: int, family: str, level: int, indices: Iterable[int], languages: tuple[str, ...] = LANGUAGES
) -> list[Problem]:
    """The problems of these indices."""
    return [make_problem(seed, family, level, index, languages) for index in indices]
