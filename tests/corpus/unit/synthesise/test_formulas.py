"""The checker's own calculator, against Python's fractions."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmforge_corpus.synthesise.check.formulas import Unreadable, evaluate, holds, numbers, wrong_statement
from glmforge_corpus.synthesise.numerals import decimal, polynomial


@st.composite
def expressions(draw, depth=3):
    """(LaTeX, value) of a random expression."""
    if depth == 0 or draw(st.booleans()):
        value = draw(st.integers(0, 50))
        return str(value), Fraction(value)
    a, x = draw(expressions(depth=depth - 1))
    b, y = draw(expressions(depth=depth - 1))
    sign = draw(st.sampled_from(["+", "-", "\\times", "\\div", "\\frac", "^"]))
    if sign == "\\frac":
        return (f"\\frac{{{a}}}{{{b}}}", x / y) if y else (a, x)
    if sign == "\\div" and not y:
        return a, x
    if sign == "^":
        return f"({a})^2", x**2
    result = {"+": x + y, "-": x - y, "\\times": x * y, "\\div": x / y if y else None}[sign]
    return f"(({a}) {sign} ({b}))", result


@given(expressions())
def test_values_are_python_fractions(expression):
    assert evaluate(expression[0]) == expression[1]


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("2 + 3 \\times 4", 14),
        ("20 \\div 2 \\div 5", 2),
        ("10 - 3 - 2", 5),
        ("-3^2", -9),
        ("2 \\times -3", -6),
        ("2(3 + 4)", 14),
        ("7 - 2 \\times (1 - 4)", 13),
        ("0.1 + 0.2", Fraction(3, 10)),
        ("2^{10}", 1024),
        ("|3 - 10|", 7),
        ("3/4 \\times 4", 3),
    ],
)
def test_precedence(formula, value):
    assert evaluate(formula) == value


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=5), st.integers(-9, 9))
def test_polynomials_are_read_as_they_are_written(coefficients, x):
    assert evaluate(polynomial(coefficients), {"x": x}) == sum(c * x**k for k, c in enumerate(coefficients))


@given(st.integers(-(10**6), 10**6), st.integers(0, 5))
def test_decimals_are_exact(value, places):
    exact = Fraction(value, 10**places)
    assert Fraction(decimal(exact)) == exact
    assert evaluate(decimal(exact)) == exact


@pytest.mark.parametrize(
    "formula", ["", "2 +", "(2", "2 3", "x", "1 \\div 0", "2^{99999}", "2^{-1}", "\\sqrt{4}", "a b"]
)
def test_what_is_not_understood_is_no_number(formula):
    with pytest.raises(Unreadable):
        evaluate(formula)


@pytest.mark.parametrize(
    ("statement", "true"),
    [
        ("1 + 1 = 2", True),
        ("1 + 1 = 3", False),
        ("2^5 = 32 \\equiv 2 \\pmod{5}", True),
        ("2^5 = 32 \\equiv 3 \\pmod{5}", False),
        ("1 < 2 \\le 2", True),
        ("1 < 2 < 2", False),
        ("3 \\ge 4", False),
        ("4 = 4 = 5", False),
    ],
)
def test_chains_hold_or_not(statement, true):
    assert holds(statement) is true


def test_statements_about_unknowns_must_hold_for_all_solutions_but_may_name_one():
    worlds = [{"x": 2}, {"x": 3}]
    assert wrong_statement("$x^2 - 5x + 6 = 0$ so $x = 2$ or $x = 3$", worlds) is None
    assert wrong_statement("$x = 4$", worlds) == "x = 4"
    assert wrong_statement("$2x = 4$", worlds) == "2x = 4"
    assert wrong_statement("$2x = 4$", []) == "2x = 4"


def test_numbers_are_found_in_order():
    assert numbers("from 3 to 4.5, then 1/2") == [3, Fraction(9, 2), 1, 2]
