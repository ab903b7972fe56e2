"""Programs in replies, judged by tests in the sandbox.

Tests with input and output keep the expected output outside the sandbox: a program cannot see it. Assertions run in the
program's own process behind it. A program that ends before them has not passed, but one that sets out to deceive them
can (objects that equal everything, the interpreter's frames): prefer input and output where the task allows it.
"""

import re
import secrets
import time
from collections.abc import Mapping, Sequence

from glmforge.verify.answers import after_reasoning
from glmforge.verify.sandbox import run_program

PROGRAM_S = 10.0
_FENCED = re.compile(r"```(?:python|py)?\s*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)

Test = str | Mapping[str, str]
"""Python that raises if the program is wrong, or `stdin` and the `stdout` expected."""


def fenced(text: str) -> list[str]:
    """What the fences of Python, or of no language, hold; the last may be open."""
    return _FENCED.findall(text)


def program_of(reply: str) -> str:
    """The last fenced program behind the reasoning, or all of it where there are no fences."""
    answer = after_reasoning(reply)
    return (fenced(answer) or [answer])[-1]


def passes_tests(program: str, tests: Sequence[Test], *, seconds: float = PROGRAM_S, unsafe: bool = False) -> bool:
    """Whether a program passes all tests, those with assertions together, within so many seconds.

    Raises:
        GlmforgeError: there is no sandbox.
    """
    end = time.monotonic() + seconds
    assertions = [test for test in tests if isinstance(test, str)]
    if assertions and not passes(program, "\n".join(assertions), seconds=seconds, unsafe=unsafe):
        return False
    for test in tests:
        if isinstance(test, Mapping):
            left = end - time.monotonic()
            finished = run_program(program, test["stdin"], timeout_s=left, unsafe=unsafe) if left > 0 else None
            if finished is None or not finished.is_ok or _lines(finished.output) != _lines(test["stdout"]):
                return False
    return True


def passes(program: str, assertions: str, *, seconds: float = PROGRAM_S, unsafe: bool = False) -> bool:
    """Whether `assertions` run to their end behind `program`. One that exits before them has not passed."""
    done = secrets.token_hex(16)
    finished = run_program(f"{program}\n\n{assertions}\nprint({done!r})\n", timeout_s=seconds, unsafe=unsafe)
    return finished.is_ok and finished.output.rstrip().endswith(done)


def _lines(output: str) -> list[str]:
    """Without space at the ends of lines, and empty lines at the end."""
    return [line.rstrip() for line in output.rstrip().splitlines()]
