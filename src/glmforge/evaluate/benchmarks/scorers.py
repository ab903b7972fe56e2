"""What judges the answers of our benchmarks: functions that tasks of the harness call with a document and its answers.

Each returns its measures by name: `right` is the score, 0 or 1, `extracted` what was read as the answer if that is not
what the filter left. The command sets `unsafe_code`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from glmforge.verify import code
from glmforge.verify.code import PROGRAM_S, fenced
from glmforge.verify.mathematics import shared_judge
from glmforge.verify.reply import MalformedReply, parse_reply
from glmforge.verify.tool_calls import possible_calls

Doc = Mapping[str, Any]

_PATCH = re.compile(r"<patch>\n?(.*?)</patch>|```(?:diff|patch)\n(.*?)```", re.DOTALL)
unsafe_code = False


def mathematics(doc: Doc, answers: Sequence[str]) -> dict[str, float | str | None]:
    """Whether the final answer equals the document's `answer`, or what its `solution` boxes."""
    gold = str(doc["answer"]) if "answer" in doc else str(doc["solution"])
    verdict = shared_judge().judge(answers[0], gold)
    measured = {"right": float(verdict.is_right), "judge_timed_out": float(verdict.timed_out)}
    return measured | {"extracted": verdict.extracted}


def humaneval(doc: Doc, answers: Sequence[str]) -> dict[str, float]:
    """Whether the function passes the document's tests. An answer continues the prompt, or is a program in a fence."""
    prompt, fences = doc["prompt"], fenced(answers[0])
    program = fences[-1] if fences and f"def {doc['entry_point']}" in fences[-1] else prompt + answers[0]
    before = f"{prompt}\n    pass\n" if fences else ""
    return _passes(before + program, f"{doc['test']}\ncheck({doc['entry_point']})")


def mbpp(doc: Doc, answers: Sequence[str]) -> dict[str, float]:
    """Whether the program passes the document's tests; if there are fences it is what the last one holds."""
    tests = "\n".join([doc["test_setup_code"], *doc["test_list"]])
    return _passes((fenced(answers[0]) or [answers[0]])[-1], tests)


def function_calls(doc: Doc, answers: Sequence[str]) -> dict[str, float | str | None]:
    """Whether the reply makes the calls expected. If no function fits the request it is right to say so: with some
    text and no call. The leaderboard takes a call that cannot be read for none; this does not."""
    try:
        calls = parse_reply(answers[0]).tool_calls
    except MalformedReply:
        return {"right": 0.0, "malformed": 1.0, "extracted": None}
    possible = json.loads(doc["possible"])
    right = possible_calls(calls, json.loads(doc["functions"]), possible)
    said = json.dumps([{call.name: call.arguments} for call in calls], ensure_ascii=False)
    return {"right": float(right), "malformed": 0.0, "extracted": said if calls or not possible else None}


def patch(doc: Doc, answers: Sequence[str]) -> dict[str, float | str | None]:
    """The patch in an answer, as SWE-bench reads it: in tags, or in a fence; it is not judged."""
    found = _PATCH.search(answers[0])
    text = (found[1] or found[2]) if found else None
    return {"wrote_patch": float(text is not None), "extracted": text}


def _passes(program: str, tests: str) -> dict[str, float]:
    """Whether `tests` run to their end after `program`. One that exits before them has not passed."""
    return {"right": float(code.passes(program, tests, seconds=PROGRAM_S, unsafe=unsafe_code))}
