"""What a task's request becomes, and what the task sees of a reply."""

import pytest

from glmforge.evaluate.benchmarks.model import stop_strings
from glmforge.verify.reply import visible_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("42", "42"),
        ("42\nQuestion: next", "42\n"),
        ("\n<think>Question: what?</think>\n42", "42"),
        ("<think>first</think>no<think>again</think>42", "42"),
        ("<think>cut here", ""),
        ("no tags Question:", "no tags "),
        ("</think>42", "42"),
    ],
)
def test_answer(text: str, answer: str) -> None:
    assert visible_answer(text, ["Question:", ""]) == answer


def test_stop_strings() -> None:
    assert stop_strings({"until": ["a", "", "b", "a"]}) == ("a", "b")
    assert stop_strings({"until": "x"}) == ("x",)
    assert stop_strings({}) == ()
