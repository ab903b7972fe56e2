"""Verifiers by their kind: right, wrong and hostile replies; and which records are verifiers."""

import importlib.util
import itertools

import pytest

from glmforge.errors import DataError, GlmforgeError
from glmforge.extras import MissingPackageError
from glmforge.verify import reasoning_gym, sandbox
from glmforge.verify.code import program_of
from glmforge.verify.pool import Outcome, Pool
from glmforge.verify.reward import KINDS, check_runnable, check_verifier, reward

needs_sandbox = pytest.mark.skipif(not sandbox._has_sandbox(), reason="bubblewrap is not here, or may not run")
needs_gym = pytest.mark.skipif(not importlib.util.find_spec("reasoning_gym"), reason="needs glmforge[reasoning-gym]")
needs_math = pytest.mark.skipif(not importlib.util.find_spec("math_verify"), reason="needs glmforge[eval]")

CALLS = {"kind": "calls", "calls": [{"name": "add", "arguments": {"x": 1, "y": "two"}}]}
CALL = (
    "\n<tool_call>add\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n<arg_key>y</arg_key>\n"
    "<arg_value>two</arg_value>\n</tool_call>"
)


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("\n<think>a</think>" + CALL, 1.0),
        ("I call." + CALL, 1.0),
        (CALL + CALL, 0.0),
        (CALL.replace("two", "three"), 0.0),
        (CALL.replace(">1<", ">1.5<"), 0.0),
        (CALL.replace("</tool_call>", ""), 0.0),
        (CALL + "and more", 0.0),
        ("<think>" + CALL, 0.0),
        ("not opened</think>" + CALL, 0.0),
        ('{"name": "add", "arguments": {"x": 1, "y": "two"}}', 0.0),
        ("", 0.0),
    ],
)
def test_calls_in_the_format_only(reply, value):
    assert reward(CALLS, reply) == value


@needs_math
@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("\\boxed{\\frac{1}{2}}", 1.0),
        ("<think>\\boxed{3}</think>It is $0.5$.", 1.0),
        ("\\boxed{0.51}", 0.0),
        ("\\boxed{\\frac{}{}\\left(}", 0.0),
        ("\\boxed{" + "1+" * 20_000 + "1}", 0.0),
        ("<think>\\boxed{0.5}", 0.0),
        ("", 0.0),
    ],
)
def test_mathematics(reply, value):
    assert reward({"kind": "mathematics", "answer": "0.5"}, reply) == value


@needs_math
def test_mathematics_without_end_is_killed():
    """A power tower that no computer writes down."""
    with Pool(1, timeout_s=3.0) as pool:
        verifier = {"kind": "mathematics", "answer": "\\sin(7)"}
        hostile = "\\boxed{9^{9^{9^{9}}}}"
        outcome = pool.submit("glmforge.verify.reward:reward", verifier, hostile).result()
        assert outcome.failed in ("timeout", "crash") or outcome.value == 0.0
        assert pool.submit("glmforge.verify.reward:reward", verifier, "\\boxed{\\sin(7)}").result() == Outcome(1.0)


DOUBLE = "```python\nprint(2 * int(input()))\n```"
PAIRS = [{"stdin": "3\n", "stdout": "6\n"}, {"stdin": "5\n", "stdout": "10"}]
FUNCTION = "```python\ndef f(x):\n    return 2 * x\n```"
ASSERTIONS = ["assert f(3) == 6", "assert f(5) == 10"]


@needs_sandbox
@pytest.mark.parametrize(
    ("tests", "reply", "value"),
    [
        (PAIRS, f"<think>```python\n1 / 0\n```</think>So:\n{DOUBLE}", 1.0),
        (PAIRS, "print(2 * int(input()))", 1.0),
        (PAIRS, "```python\nprint(6)\n```", 0.0),
        (PAIRS, DOUBLE.replace("print", "print(1);print"), 0.0),
        (PAIRS, DOUBLE.replace("```python\n", "```python\nimport os\n") + "```python\nos._exit(0)\n```", 0.0),
        (PAIRS, f"<think>{DOUBLE}", 0.0),
        (PAIRS, "", 0.0),
        (ASSERTIONS, FUNCTION, 1.0),
        (ASSERTIONS, FUNCTION.replace("2 *", "3 *"), 0.0),
        (ASSERTIONS, FUNCTION + "\n```python\nimport sys; sys.exit(0)\n```", 0.0),
        (ASSERTIONS, "```python\nimport os; print('x'); os._exit(0)\n```", 0.0),
        (ASSERTIONS, "```python\ndef f(x:\n```", 0.0),
        ([*ASSERTIONS, {"stdin": "", "stdout": "hello"}], FUNCTION.replace("def", "print('hello')\ndef"), 1.0),
        ([*ASSERTIONS, {"stdin": "", "stdout": "hello"}], FUNCTION, 0.0),
    ],
)
def test_code(tests, reply, value):
    assert reward({"kind": "code", "tests": tests}, reply, program_s=60.0) == value


@needs_sandbox
def test_a_slow_program_is_wrong_however_many_tests_there_are():
    verifier = {"kind": "code", "tests": [{"stdin": "", "stdout": ""}] * 1000}
    assert reward(verifier, "```python\nimport time\ntime.sleep(0.7)\n```", program_s=1.0) == 0.0


def test_the_last_program_behind_the_reasoning():
    assert program_of("<think>```\na\n```</think>\n```py\nb\n```\n```Python\nc\n```\nDone.") == "c\n"
    assert program_of("x</think>```\nopen") == "open"
    assert program_of("no fence") == "no fence"


def test_no_program_runs_without_a_sandbox(monkeypatch):
    monkeypatch.setattr(sandbox, "_has_sandbox", lambda: False)
    for call in (lambda: reward({"kind": "code", "tests": ["pass"]}, "x = 1"), lambda: check_runnable({"code"})):
        with pytest.raises(GlmforgeError, match="bubblewrap"):
            call()
    assert reward({"kind": "code", "tests": ["assert x == 1"]}, "x = 1", unsafe_code=True) == 1.0
    check_runnable({"code"}, unsafe_code=True)
    check_runnable({"number", "calls"})


@needs_gym
@pytest.mark.parametrize("family", ["basic_arithmetic", "countdown", "letter_counting", "syllogism"])
def test_scorers_of_reasoning_gym(family):
    first, second = itertools.islice(reasoning_gym.records(family, 2, 7), 2)
    assert [first, second] == list(reasoning_gym.records(family, 2, 7))
    assert first["id"] != second["id"]
    verifier = first["verifier"]
    check_verifier(verifier)
    answer = verifier["entry"]["answer"]
    assert reward(verifier, f"<think>hm</think>It is <answer>\n{answer}\n</answer>.", unsafe_code=True) == 1.0
    assert reward(verifier, f"<think>hm</think>\\boxed{{{answer}}}", unsafe_code=True) == 1.0
    for wrong in (f"<think><answer>{answer}</answer>", "<answer>no idea</answer>", "", "</answer><answer>"):
        assert reward(verifier, wrong, unsafe_code=True) < 0.1


@needs_gym
@needs_sandbox
def test_scorers_that_execute_a_reply_do_it_in_the_sandbox(tmp_path):
    """Countdown's hands the answer to sympy's parser, which evaluates it."""
    mark = tmp_path / "mark"
    verifier = next(reasoning_gym.records("countdown", 1, 0))["verifier"]
    replies = [
        verifier["entry"]["answer"],
        f"__import__('os').system('touch {mark}') or 7",
        f"open({str(__file__)!r}).read() and __import__('os')._exit(0)",
        "__import__('os')._exit(0)",
    ]
    with pytest.raises(GlmforgeError, match="executes what a reply says"):
        reward(verifier, "<answer>1</answer>")
    tmp_path.chmod(0o777)
    with Pool(1, timeout_s=120.0, packages=reasoning_gym.packages()) as pool:
        calls = [(verifier, f"<answer>{reply}</answer>", 10.0, True) for reply in replies]
        right, touches, reads, ends = pool.map("glmforge.verify.reward:reward", calls)
    assert right == Outcome(1.0)
    assert touches.value < 0.1
    assert reads.value < 0.1, "the file is there"
    assert ends == Outcome(None, "crash")
    assert not mark.exists()
    check_runnable({"reasoning_gym"})


def test_scorers_that_execute_a_reply_need_the_sandbox(monkeypatch):
    monkeypatch.setattr(sandbox, "_has_sandbox", lambda: False)
    with pytest.raises(GlmforgeError, match="bubblewrap") as error:
        Pool(packages=[])
    assert "\n" not in str(error.value)


@needs_gym
@pytest.mark.parametrize(
    ("family", "options", "words"),
    [
        ("basic_arithmetics", {}, "unknown family 'basic_arithmetics'"),
        ("basic_arithmetic", {"minimum": 3}, "minimum"),
        ("basic_arithmetic", {"min_terms": -3}, "min_terms"),
        ("rearc", {}, "cannot be kept as JSON"),
    ],
)
def test_families_that_cannot_be(family, options, words):
    with pytest.raises(DataError, match=words) as error:
        list(reasoning_gym.records(family, 1, 0, options))
    assert "\n" not in str(error.value)


def test_reasoning_gym_is_an_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "reasoning_gym", None)
    reasoning_gym._dataset.cache_clear()
    for call in (lambda: list(reasoning_gym.records("countdown", 1, 0)), lambda: check_runnable({"reasoning_gym"})):
        with pytest.raises(MissingPackageError, match="reasoning") as error:
            call()
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("verifier", "words"),
    [
        (None, "must be a mapping"),
        ([], "must be a mapping"),
        ({}, "verifier.kind: None is unknown"),
        ({"kind": "numbers", "answer": "1"}, "choose one of number"),
        ({"kind": ["number"], "answer": "1"}, "is unknown"),
        ({"kind": "number"}, "verifier.answer"),
        ({"kind": "number", "answer": 3}, "must be text"),
        ({"kind": "text", "answer": " "}, "not empty"),
        ({"kind": "calls"}, "verifier.calls"),
        ({"kind": "calls", "calls": [{"name": "f"}]}, "name and arguments"),
        ({"kind": "code", "tests": []}, "verifier.tests"),
        ({"kind": "code", "tests": [{"stdin": "1"}]}, "stdin and stdout"),
        ({"kind": "code", "tests": [{"stdin": "", "stdout": "x" * 70_000}]}, "at most 64 KiB"),
        ({"kind": "code", "tests": "assert True"}, "a list"),
        ({"kind": "reasoning_gym", "dataset": "countdown"}, "verifier.entry"),
        ({"kind": "reasoning_gym", "dataset": "countdown", "entry": {"answer": "1"}, "options": []}, "options"),
    ],
)
def test_what_is_no_verifier(verifier, words):
    with pytest.raises(DataError, match=words) as error:
        check_verifier(verifier)
    assert "\n" not in str(error.value)


def test_every_kind_is_checked_and_judged():
    good = {
        **{kind: {"answer": "1"} for kind in ("number", "choice", "list", "text", "mathematics")},
        "calls": {"calls": []},
        "code": {"tests": ["pass"]},
        "reasoning_gym": {"dataset": "x", "entry": {"answer": None}},
    }
    assert good.keys() == set(KINDS)
    for kind, fields in good.items():
        check_verifier({"kind": kind, **fields})
    with pytest.raises(GlmforgeError, match="unknown kind 'x'"):
        reward({"kind": "x"}, "")
