"""Judges of benchmarks' answers."""

import json

import pytest

from glmforge.evaluate.benchmarks import scorers
from glmforge.evaluate.benchmarks.local_data import read_rows
from glmforge.verify import sandbox
from helpers.shared_data import shared_data

needs_sandbox = pytest.mark.skipif(not sandbox._has_sandbox(), reason="bubblewrap is not here, or may not run")

DOC = {"prompt": "def one():\n", "test": "def check(f):\n    assert f() == 1", "entry_point": "one"}
TASK = {"test_list": ["assert math.floor(one()) == 1", "assert one() > 0"], "test_setup_code": "import math"}


@needs_sandbox
def test_canonical_solutions_of_humaneval_pass():
    rows = read_rows(shared_data("eval/HumanEval.jsonl.gz"), {"canonical_solution": str})[::9]
    answers = [row["canonical_solution"] for row in rows]
    assert [scorers.humaneval(row, [answer])["right"] for row, answer in zip(rows, answers, strict=True)] == [1.0] * 19
    shifted = [*answers[1:], answers[0]]  # nobody's solution solves another one's problem
    wrong = [scorers.humaneval(row, [answer])["right"] for row, answer in zip(rows[:4], shifted[:4], strict=True)]
    assert wrong == [0.0] * 4


@needs_sandbox
@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("    return 1\n", 1.0),
        ("    return 2\n", 0.0),
        ("Here:\n```python\ndef one():\n    return 1\n```\nDone.", 1.0),
        ("```\ndef one():\n    return 1", 1.0),
        ("```py\ndef one():\n    return 2\n```\n```py\ndef one():\n    return 1\n```", 1.0),
        ("", 0.0),
        ("    return 1\n\nimport sys; sys.exit(0)\n", 0.0),
        ("    return 1\n\nimport os; os._exit(0)\n", 0.0),
        ("    return 2\n\nprint('done'); print = lambda *_: None\n", 0.0),
        ("    return 2\n\nclass Any:\n    __eq__ = lambda *_: True\n", 0.0),
        ("    return 1\n\nimport os; os.close(1)\n", 0.0),
    ],
)
def test_programs(answer, right):
    assert scorers.humaneval(DOC, [answer]) == {"right": right}


@needs_sandbox
@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("def one():\r\n  return 1", 1.0),
        ("Sure.\n```python\ndef one(): return 1\n```", 1.0),
        ("def one(): return 2", 0.0),
    ],
)
def test_mbpp(answer, right):
    assert scorers.mbpp(TASK, [answer]) == {"right": right}


FUNCTION = {"name": "add", "parameters": {"type": "dict", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}


@pytest.mark.parametrize(
    ("possible", "answer", "right", "malformed"),
    [
        (
            [{"add": {"a": [3]}}],
            "I add.\n<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
            1,
            0,
        ),
        ([{"add": {"a": [3]}}], "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>4</arg_value>\n</tool_call>", 0, 0),
        ([{"add": {"a": [3]}}], "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>3</arg_value>", 0, 1),
        ([{"add": {"a": [3]}}], "It is 3.", 0, 0),
        ([], "I cannot.", 1, 0),
        ([], "", 0, 1),
        ([], "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>3</arg_value>", 0, 1),
        ([], "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>3</arg_value>\n</tool_call>", 0, 0),
    ],
)
def test_function_calls(possible, answer, right, malformed):
    doc = {"functions": json.dumps([FUNCTION]), "possible": json.dumps(possible)}
    found = scorers.function_calls(doc, [answer])
    assert (found["right"], found["malformed"]) == (right, malformed)


@pytest.mark.parametrize(("possible", "extracted"), [([{"add": {"a": [3]}}], None), ([], "[]")])
def test_a_reply_without_the_call_that_is_wanted_has_no_answer(possible, extracted):
    doc = {"functions": json.dumps([FUNCTION]), "possible": json.dumps(possible)}
    assert scorers.function_calls(doc, ["It is 3."])["extracted"] == extracted


@pytest.mark.parametrize(
    ("answer", "patch"),
    [
        ("<patch>\n--- a\n+++ b\n</patch> done", "--- a\n+++ b\n"),
        ("```diff\n--- a\n```", "--- a\n"),
        ("--- a", None),
        ("<patch>cut", None),
    ],
)
def test_patch(answer, patch):
    assert scorers.patch({}, [answer]) == {"wrote_patch": float(patch is not None), "extracted": patch}


@pytest.mark.parametrize(
    ("doc", "answer", "right"),
    [
        ({"answer": "1/2"}, "so \\boxed{0.5}", 1.0),
        ({"solution": "we get $\\boxed{12}$."}, "The answer is 12", 1.0),
        ({"answer": "042"}, "42", 1.0),
        ({"answer": "42"}, "Between 42 and 43.", 0.0),
    ],
)
def test_mathematics(doc, answer, right):
    pytest.importorskip("math_verify", reason="needs glmforge[eval]")
    assert scorers.mathematics(doc, [answer])["right"] == right
