"""Rejection of replies, reason by reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmforge_corpus.synthesise.endpoint.judge import (
    Judgement,
    Reply,
    foreign_share,
    is_repetitive,
    judge,
    read_reply,
    reject_reason,
)

GOOD = Reply("Two and two are four.", "The answer is \\boxed{4}.", "stop")


def completion(content, finish="stop", **message):
    return {"choices": [{"message": {"content": content, **message}, "finish_reason": finish}]}


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (completion("<think>a</think>b \\boxed{1}"), None),
        (completion("a</think>b \\boxed{1}"), None),  # the template had opened the thinking
        (completion("\\boxed{1}", reasoning_content="a"), None),
        (completion("<think>a</think>b \\boxed{1}", "length"), "truncated"),
        (completion("<think>a never closed \\boxed{1}"), "format"),
        (completion("<think>a</think>b</think> \\boxed{1}"), "format"),
        (completion("<think>a</think><think>b \\boxed{1}"), "format"),
        (completion("<think>\\boxed{1}</think>"), "format"),
        (completion("\\boxed{1} <|user|> more"), "format"),
        (completion("<think>\\boxed{1}</think>I do not know."), "no answer"),
        (completion(""), "empty"),
        (completion(None), "empty"),
        (completion("ha ha ha " * 200 + "\\boxed{1}"), "repetition"),
        (completion("嗯，我们来计算一下这个问题的答案，\\boxed{1}"), "language mix"),
        (completion("half \ud800 a pair \\boxed{1}"), None),
    ],
)
def test_reasons(reply, reason):
    assert reject_reason(read_reply(reply), "What is one?", Judgement()) == reason


def test_thinking_can_be_required():
    reply = read_reply(completion("\\boxed{1}"))
    assert reject_reason(reply, "What is one?", Judgement()) is None
    assert reject_reason(reply, "What is one?", Judgement(require_thinking=True)) == "format"


def naive_is_repetitive(words, run, max_repeats):
    """Oracle: for each run, count its occurrences from the left without overlap."""
    grams = {tuple(words[i : i + run]) for i in range(len(words) - run + 1)}
    for gram in grams:
        i = count = 0
        while i + run <= len(words):
            if tuple(words[i : i + run]) == gram:
                count, i = count + 1, i + run
            else:
                i += 1
        if count > max_repeats:
            return True
    return False


@given(st.lists(st.sampled_from("ab"), max_size=60), st.integers(4, 6), st.integers(2, 4))
def test_repetition_is_what_the_plain_count_says(words, run, max_repeats):
    assert is_repetitive(" ".join(words), run, max_repeats) is naive_is_repetitive(words, run, max_repeats)


def test_language_mix_leaves_formulas_code_and_terms_alone():
    assert foreign_share("What is $x$?", "It is $\\text{四} = 4$") == 0
    assert foreign_share("求函数的值", "用 Newton 法计算这个函数在零点处的值") == 0
    assert foreign_share("求函数的值", "The function has the value four at this point.") > 0.5
    assert foreign_share("What is the value?", "The value 的 值") > 0.1
    assert foreign_share("1 + 1", "anything 都 可以") == 0


def replies(*answers):
    return [Reply("", f"The answer is \\boxed{{{a}}}.", "stop") for a in answers]


@pytest.mark.parametrize(
    ("answers", "reasons", "answer"),
    [
        (["4", "4", "5"], [None, None, "minority"], "4"),
        (["1/2", "0.5", "\\frac12"], None, "1/2"),
        (["4", "5"], ["no agreement"] * 2, None),
        (["4"], ["no agreement"], None),
        (["4", "4", "5", "5"], ["no agreement"] * 4, None),
        ([], [], None),
    ],
)
def test_unknown_answers_are_voted_on(answers, reasons, answer):
    given_reasons, given_answer = judge(replies(*answers), "?", None, Judgement())
    assert given_answer == answer
    if reasons is not None:
        assert given_reasons == reasons
    else:
        assert given_reasons[:2] == [None, None]


def test_known_answers_decide_and_bad_replies_have_no_vote():
    reasons, answer = judge([*replies("4", "5"), None], "?", {"kind": "number", "answer": "5"}, Judgement())
    assert (reasons, answer) == (["wrong answer", None, "refused"], "5")
    cut = Reply("", "\\boxed{9}", "length")
    assert judge([cut, cut, *replies("4", "4")], "?", None, Judgement())[0] == ["truncated", "truncated", None, None]
