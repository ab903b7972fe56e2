"""Answers found in replies whose final answer was labelled by hand (`labelled_extractions.jsonl`; null: there is none).

Kind "math" is judged by math-verify, which also finds answers that nothing marks; the other ones by `same_answer`.
"""

import json
from pathlib import Path

import pytest

from glmforge.verify.answers import final_answer, same_answer
from glmforge.verify.mathematics import MathJudge

LABELLED = [
    json.loads(line)
    for line in Path(__file__).with_name("labelled_extractions.jsonl").read_text(encoding="utf-8").splitlines()
]
PLAIN = [one for one in LABELLED if one["kind"] != "math"]
MATHEMATICS = [one for one in LABELLED if one["kind"] == "math"]
SHARE = 0.99


def _other(place, some):
    """The expected answer of the next one of this kind that is another."""
    one = some[place]
    later = (some[place + 1 :] + some)[: len(some)]
    return next(
        other["expected"]
        for other in later
        if other["kind"] == one["kind"]
        and other["expected"] is not None
        and not same_answer(other["expected"], one["expected"] or "", one["kind"])
    )


def _is_read(place, one):
    found = final_answer(one["reply"])
    if one["expected"] is None or found is None:
        return found is one["expected"]
    is_right, is_wrong = (
        same_answer(found, expected, one["kind"]) for expected in (one["expected"], _other(place, PLAIN))
    )
    return is_right and not is_wrong


def test_the_labelled_answers_are_found():
    wrong = [
        (one["reply"], final_answer(one["reply"]), one["expected"])
        for place, one in enumerate(PLAIN)
        if not _is_read(place, one)
    ]
    assert len(LABELLED) >= 300
    assert len(wrong) <= (1 - SHARE) * len(PLAIN), wrong


def test_the_labelled_mathematics_is_judged():
    pytest.importorskip("math_verify", reason="needs glmforge[eval]")
    with MathJudge(timeout_s=30.0) as judge:
        verdicts = [judge.judge(one["reply"], one["expected"]) for one in MATHEMATICS]
        others = [one["expected"] for one in (*MATHEMATICS[9:], *MATHEMATICS[:9])]
        false = [judge.judge(one["reply"], other) for one, other in zip(MATHEMATICS, others, strict=True)]
    wrong = [(one, verdict) for one, verdict in zip(MATHEMATICS, verdicts, strict=True) if not verdict.is_right]
    assert len(wrong) <= (1 - SHARE) * len(MATHEMATICS), wrong
    assert not [(one, other) for one, other, found in zip(MATHEMATICS, others, false, strict=True) if found.is_right]
