"""Answers judged by math-verify, in processes that can be killed."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("math_verify", reason="needs glmforge[eval]")

from glmforge.errors import GlmforgeError
from glmforge.verify import mathematics
from glmforge.verify.mathematics import MathJudge, Verdict

HANGS = "hang"


@pytest.fixture(scope="module")
def judge():
    with MathJudge(num_processes=2, timeout_s=30.0) as judge:
        yield judge


@pytest.fixture
def hanging(monkeypatch, tmp_path):
    """Workers that judge by equality, sleep for ever at the answer `HANGS`, and end at the answer "end"."""
    script = tmp_path / "worker.py"
    script.write_text(
        "import json, sys, signal\n"
        "for line in sys.stdin:\n"
        "    gold, answer = json.loads(line)\n"
        f"    if {HANGS!r} in answer: signal.pause()\n"
        "    if 'end' in answer: sys.exit(1)\n"
        "    print(json.dumps(gold == answer), flush=True)\n"
    )
    _start_instead(monkeypatch, [sys.executable, str(script)])


def _start_instead(monkeypatch, command):
    popen = mathematics.subprocess.Popen
    monkeypatch.setattr(mathematics.subprocess, "Popen", lambda _, **kwargs: popen(command, **kwargs))


@pytest.mark.parametrize(
    ("reply", "gold", "is_right"),
    [
        ("so \\boxed{\\frac{1}{2}}", "0.5", True),
        ("\\boxed{x^2 + 2x + 1}", "(x+1)^2", True),
        ("\\boxed{3, 1, 2}", "\\{1, 2, 3\\}", True),
        ("\\boxed{[2, 3)}", "[2,3)", True),
        ("\\boxed{[2, 3]}", "[2,3)", False),
        ("\\boxed{2\\sqrt{3}}", "\\sqrt{12}", True),
        ("\\boxed{14}", "The total is $\\boxed{14}$.", True),
        ("first \\boxed{14}, then \\boxed{15}", "14", False),
        ("It costs 3 and 4, in all $7$.", "7", True),
        ("<think>\\boxed{7}</think>I do not know.", "7", False),
        ("<think>\\boxed{7}", "7", False),
        ("\\boxed{", "7", False),
        ("\\boxed{\\frac{}{}\\left(}", "7", False),
        ("", "7", False),
        ("\\boxed{" + "1+" * 20_000 + "1}", "20001", False),
    ],
)
def test_equal_forms(judge, reply, gold, is_right):
    verdict = judge.judge(reply, gold)
    assert verdict.is_right is is_right
    assert not verdict.timed_out


@pytest.mark.parametrize("answer", [HANGS, "end"])
def test_a_judgement_without_end_is_not_right_and_the_next_one_is_judged(hanging, answer):
    with MathJudge(timeout_s=0.2) as judge:
        assert judge.judge("\\boxed{7}", "7").is_right
        first = judge._free[0].process
        assert judge.judge(f"\\boxed{{{answer}}}", "7") == Verdict(False, answer, timed_out=True)
        assert first.poll() is not None, "killed"
        judge._timeout_s = 60.0
        assert judge.judge("\\boxed{7}", "7") == Verdict(True, "7")
        assert judge._free[0].process.pid != first.pid
        last = judge._free[0].process
    assert last.poll() is not None


@pytest.mark.parametrize("program", ["raise SystemExit(1)", "import os; os.close(1); os._exit(0)"])
def test_a_worker_that_cannot_start_is_an_error(monkeypatch, program):
    _start_instead(monkeypatch, [sys.executable, "-c", program])
    with MathJudge() as judge:
        for _ in range(2):  # its place in the pool is free again
            with pytest.raises(GlmforgeError, match="did not start") as error:
                judge.judge("\\boxed{7}", "7")
            assert "\n" not in str(error.value)


def test_threads_hear_their_own_verdicts(hanging):
    with MathJudge(num_processes=3, timeout_s=60.0) as judge, ThreadPoolExecutor(8) as threads:
        verdicts = list(threads.map(lambda n: judge.judge(f"\\boxed{{{n}}}", str(n - n % 2)), range(60)))
        assert len(judge._free) <= 3
    assert [verdict.is_right for verdict in verdicts] == [number % 2 == 0 for number in range(60)]
    assert [verdict.extracted for verdict in verdicts] == [str(number) for number in range(60)]
