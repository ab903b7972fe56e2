"""The reward of a reply whose right answer is known: for reinforcement learning, evaluation and synthetic data.

A record's `verifier` says how replies to it are judged, by its `kind`:

    number, choice, list, text   `answer`: the final answer, compared as in `answers`
    mathematics                  `answer`: the same by math-verify, also where it is an expression or an interval
    calls                        `calls`: the reply is in GLM's format and makes exactly these calls, each a mapping of
                                 `name` and `arguments`
    code                         `tests`: the program passes all; see `code`
    reasoning_gym                `dataset`, `entry`: the score of the family; see `reasoning_gym`

Kinds mathematics and reasoning_gym may run for ever on hostile answers, and reasoning_gym executes them: have them
called by `pool.Pool`, the latter in the sandbox.
"""

import importlib
import logging
from collections.abc import Collection, Mapping
from typing import Any

from glmforge.errors import DataError, GlmforgeError
from glmforge.extras import needed_for
from glmforge.files import shown
from glmforge.verify import reasoning_gym
from glmforge.verify.answers import final_answer, same_answer
from glmforge.verify.code import PROGRAM_S, passes_tests, program_of
from glmforge.verify.mathematics import is_same, pair_of
from glmforge.verify.pool import Pool
from glmforge.verify.reply import MalformedReply, parse_reply
from glmforge.verify.sandbox import OUTPUT_BYTES, run_program
from glmforge.verify.tool_calls import same_calls

_ANSWERS = ("number", "choice", "list", "text")
KINDS = (*_ANSWERS, "mathematics", "calls", "code", "reasoning_gym")


def reward(verifier: Mapping[str, Any], reply: str, program_s: float = PROGRAM_S, unsafe_code: bool = False) -> float:
    """1.0 for a right reply, 0.0 for a wrong one; between them only where the verifier is reasoning-gym's.

    Args:
        verifier: a record's, as `check_verifier` accepts it.
        reply: the model's text, reasoning included or not.
        program_s: seconds for all tests of a program; one that takes longer is wrong.
        unsafe_code: run programs without a sandbox where there is none, and kind reasoning_gym in this process.

    Raises:
        GlmforgeError: an unknown kind, a missing package, no sandbox.
    """
    match verifier["kind"]:
        case "number" | "choice" | "list" | "text" as kind:
            answer = final_answer(reply)
            return float(answer is not None and same_answer(answer, verifier["answer"], kind))
        case "mathematics":
            return float(_is_same_mathematics(reply, verifier["answer"]))
        case "calls":
            try:
                return float(same_calls(parse_reply(reply).tool_calls, verifier["calls"]))
            except MalformedReply:
                return 0.0
        case "code":
            tests = verifier["tests"]
            return float(passes_tests(program_of(reply), tests, seconds=program_s, unsafe=unsafe_code))
        case "reasoning_gym":
            if not unsafe_code:
                raise GlmforgeError(
                    "reasoning-gym executes what a reply says: call it in a sandboxed pool (unsafe_code true), with "
                    "reasoning_gym.packages()"
                )
            return reasoning_gym.score(verifier, reply)
        case kind:
            raise GlmforgeError(f"verifier: unknown kind '{shown(kind)}'; choose one of {', '.join(KINDS)}")


def check_verifier(verifier: object) -> None:
    """Raise `DataError`, in one line without its place, if `reward` could not judge by it."""
    if not isinstance(verifier, Mapping):
        raise DataError(f"verifier must be a mapping with kind, not {_quoted(verifier)}")
    kind = verifier.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise DataError(f"verifier.kind: {_quoted(kind)} is unknown; choose one of {', '.join(KINDS)}")
    if kind in (*_ANSWERS, "mathematics"):
        _check(verifier, "answer", "text that is not empty", lambda one: isinstance(one, str) and one.strip())
    elif kind == "calls":
        _check(verifier, "calls", "a list of mappings with name and arguments", _are_calls)
    elif kind == "code":
        _check(verifier, "tests", "a list of texts, or of stdin and stdout of at most 64 KiB", _are_tests)
    else:
        _check(verifier, "dataset", "the name of a family", lambda one: isinstance(one, str))
        _check(verifier, "entry", "a mapping with answer", lambda one: isinstance(one, Mapping) and "answer" in one)
        _check({"options": {}, **verifier}, "options", "a mapping", _is_mapping)


def check_runnable(kinds: Collection[str], *, unsafe_code: bool = False) -> None:
    """Raise `GlmforgeError` if this machine lacks what the verifiers of these kinds need: packages, the sandbox."""
    if "mathematics" in kinds:
        with needed_for("verifier 'mathematics'"):
            import math_verify  # noqa: F401
    if "reasoning_gym" in kinds:
        with needed_for("verifier 'reasoning_gym'"):
            importlib.import_module("reasoning_gym")
        if not unsafe_code:
            with Pool(packages=reasoning_gym.packages()) as pool:
                if pool.submit("builtins:len", []).result().failed:
                    raise GlmforgeError(
                        "verifier 'reasoning_gym': the sandbox cannot read Python's packages; move them out of a "
                        "private directory, or set rewards.unsafe_code"
                    )
    if "code" in kinds:
        run_program("", unsafe=unsafe_code)


def _is_same_mathematics(reply: str, gold: str) -> bool:
    """As `MathJudge.judge`, in this process and without a limit of time."""
    with needed_for("verifier 'mathematics'"):
        import math_verify  # noqa: F401
    logging.getLogger("math_verify").disabled = True
    _, pair = pair_of(reply, gold)
    return pair is not None and is_same(*pair)


def _check(verifier: Mapping[str, Any], field: str, wanted: str, is_good: Any) -> None:
    if not is_good(verifier.get(field)):
        raise DataError(f"verifier.{field}: must be {wanted}, not {_quoted(verifier.get(field))}")


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping)


def _are_calls(calls: object) -> bool:
    return isinstance(calls, list) and all(
        isinstance(call, Mapping) and isinstance(call.get("name"), str) and isinstance(call.get("arguments"), Mapping)
        for call in calls
    )


def _are_tests(tests: object) -> bool:
    return isinstance(tests, list) and bool(tests) and all(map(_is_test, tests))


def _is_test(test: object) -> bool:
    if isinstance(test, str):
        return bool(test.strip())
    texts = [test.get(name) for name in ("stdin", "stdout")] if isinstance(test, Mapping) else [None]
    return all(isinstance(text, str) for text in texts) and len(str(texts[1]).encode()) <= OUTPUT_BYTES


def _quoted(value: object) -> str:
    return shown(repr(value)[:100])
