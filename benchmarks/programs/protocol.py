"""What a program under test has in common with the others: its settings, and requests and answers as lines of JSON.

A program is a script that `generation.py` starts with an interpreter that has what it needs, so this file needs
nothing but Python. It is started with its settings as one argument, says that it is ready and in which version, and
then answers each line of its standard input. What a library prints goes to standard error.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

Prompts = list[list[int]]
Generate = Callable[[Prompts, int, "Answers"], None]


class Answers:
    """The tokens of each prompt's answer, and when its first one came; times are `time.perf_counter()`."""

    def __init__(self, num_prompts: int) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(num_prompts)]
        self.start = time.perf_counter()
        self._first = [0.0] * num_prompts

    def add(self, number: int, token: int, at: float | None = None) -> None:
        """`token` is the next one of prompt `number`; `at` is when, if it was not now."""
        if not self.tokens[number]:
            self._first[number] = (time.perf_counter() if at is None else at) - self.start
        self.tokens[number].append(token)

    def report(self) -> dict[str, Any]:
        """What is answered; all tokens have come."""
        return {"seconds": time.perf_counter() - self.start, "first_token_s": self._first, "tokens": self.tokens}


def read_settings() -> SimpleNamespace:
    """From the command line.

    Attributes: `model` (path), `dtype` ("fp32" or "bf16"), `variant`, `threads`, `num_sequences` at the same time,
    `num_tokens` of the longest with its answer, `step_tokens` of a step at most; and `out`, for `serve`: from here on
    standard output is standard error.
    """
    settings = SimpleNamespace(**json.loads(sys.argv[1]), out=os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)
    return settings


def serve(settings: SimpleNamespace, generate: Generate, version: str) -> None:
    """Answer requests until there are no more. `generate(prompts, new_tokens, answers)` is greedy and ends nowhere
    before `new_tokens` tokens of each prompt."""
    print(json.dumps({"version": version}), file=settings.out, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answers = Answers(len(request["prompts"]))
        generate(request["prompts"], request["new_tokens"], answers)
        print(json.dumps(answers.report()), file=settings.out, flush=True)
