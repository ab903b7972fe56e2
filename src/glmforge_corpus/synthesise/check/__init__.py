"""The independent checker: is a problem's answer right, and each step of its solution?

It sees a finished record, reads the question's text, and finds the answer by other means than the generator did
(`generate.py` and `families/` are not imported here). `why_wrong` is the whole interface.
"""

import re
from collections.abc import Mapping
from typing import Any

from glmforge.verify.answers import final_answer, same_answer
from glmforge_corpus.synthesise.check import algebra, logic, numeric, programs, tables, tool_calls
from glmforge_corpus.synthesise.check.formulas import Unreadable, Values, formulas, number, wrong_statement

_TEXT_CHECKS = {**logic.CHECKS, **programs.CHECKS, **tables.CHECKS}
_CALCULATED = {"arithmetic", "number_theory", "word_problems", "algebra", "tables"}
_NOT_LAST = {"base_conversion", "greatest_common_divisor", "clock", "inequality", "largest_fraction"}
"""Templates whose last step does not end in the answer as it is written."""
_SEVERAL = {"quadratic", "system", "absolute_value"}
_SIGNED = re.compile(r"-?\d+(?:\.\d+)?(?:/\d+)?")


def why_wrong(record: Mapping[str, Any]) -> str | None:
    """What is wrong with a record of `Problem.record`, in a few words, or None: question, steps and answer agree."""
    try:
        return _why_wrong(record)
    except (Unreadable, ArithmeticError, ValueError, LookupError, StopIteration, AssertionError) as error:
        return f"not understood: {type(error).__name__}: {error}"


def _why_wrong(record: Mapping[str, Any]) -> str | None:
    if record["family"] == "tools":
        return tool_calls.conversation(record)
    question, answer, template = record["question"], record["answer"], record["template"]
    user, assistant = record["messages"]
    reasoning, reply = assistant["reasoning_content"], assistant["content"]
    if user["content"] != question or record["verifier"]["answer"] != answer:
        return "messages, verifier and record differ"
    stated = final_answer(reply)
    if stated is None or not same_answer(stated, answer, record["verifier"]["kind"]):
        return "the reply states another answer"
    if template in _TEXT_CHECKS:
        problem = _TEXT_CHECKS[template](question, answer, reasoning)
        return problem or (_wrong_step(reasoning, []) if record["family"] in _CALCULATED else None)
    if template in algebra.CHECKS:
        worlds = algebra.CHECKS[template](question, answer)
        if worlds is None:
            return "wrong answer"
        return _wrong_step(reasoning, worlds) or _ends_elsewhere(template, reasoning, answer)
    if not numeric.CHECKS[template](question, answer):
        return "wrong answer"
    return _wrong_step(reasoning, []) or _ends_elsewhere(template, reasoning, answer)


def _wrong_step(reasoning: str, worlds: list[Values]) -> str | None:
    outside = re.sub(r"\$[^$]+\$", "", reasoning)
    if "=" in outside or "$" in outside:
        return "a formula stands outside of dollar signs"
    statement = wrong_statement(reasoning, worlds)
    return f"wrong step: {statement}" if statement else None


def _ends_elsewhere(template: str, reasoning: str, answer: str) -> str | None:
    """Whether the answer stands where the solution ends; among several unknowns or roots, anywhere in it."""
    if template in _NOT_LAST:
        return None
    ends = formulas(reasoning) if template in _SEVERAL else formulas(reasoning)[-1:]
    written = {n for end in ends for n in _SIGNED.findall(end.partition("\\pmod")[0])}
    value = number(answer)
    return None if any(number(n) in (value, -value) for n in written) else "the last step does not lead to the answer"
