"""Algebra, verified by putting the answer in, and by evaluating where the generator calculated with coefficients.

A check returns the possible values of the unknowns, for the lines of the solution, or None if the answer is wrong.
"""

import re
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

from glmforge_corpus.synthesise.check.formulas import (
    Number,
    Unreadable,
    Values,
    divide,
    evaluate,
    formulas,
    number,
    simplified,
)

Worlds = list[Values]


def _sides(equation: str) -> tuple[str, str]:
    left, _, right = equation.partition("=")
    return left, right


def _slope(formula: str) -> tuple[int, int]:
    """(a, b) of a formula that is a x + b."""
    zero, one = evaluate(formula, {"x": 0}), evaluate(formula, {"x": 1})
    assert isinstance(zero, int)
    assert isinstance(one, int)
    return one - zero, zero


def _linear_equation(question: str, answer: str) -> Worlds | None:
    left, right = next(_sides(f) for f in formulas(question) if "=" in f)
    x = number(answer)
    fits = evaluate(left, {"x": x}) == evaluate(right, {"x": x})
    unique = evaluate(left, {"x": x + 1}) != evaluate(right, {"x": x + 1})
    return [{"x": x}] if fits and unique else None


def _quadratic(question: str, answer: str) -> Worlds | None:
    left, _ = _sides(formulas(question)[0])
    c, plus, minus = (evaluate(left, {"x": x}) for x in (0, 1, -1))
    b, a = divide(plus - minus, 2), divide(plus + minus, 2) - c
    roots = [x for x in range(-60, 61) if a * x * x + b * x + c == 0]
    if len(roots) != 2:
        raise Unreadable(f"'{left}': {len(roots)} integer roots")
    if re.search("larger|greater|较大", question):
        right: Number = roots[1]
    elif re.search("smaller|lesser|较小", question):
        right = roots[0]
    else:
        right = sum(x * x for x in roots)
    return [{"x": x} for x in roots] if right == number(answer) else None


def _system(question: str, answer: str) -> Worlds | None:
    *equations, asked = formulas(question)
    rows = []
    for equation in equations:
        left, right = _sides(equation)
        c = evaluate(left, {"x": 0, "y": 0})
        a, b = evaluate(left, {"x": 1, "y": 0}) - c, evaluate(left, {"x": 0, "y": 1}) - c
        rows.append((a, b, evaluate(right) - c))
    (a, b, r), (c, d, s) = rows
    determinant = a * d - b * c
    if determinant == 0:
        return None
    world: Values = {"x": divide(r * d - b * s, determinant), "y": divide(a * s - r * c, determinant)}
    return [world] if evaluate(asked, world) == number(answer) else None


def _polynomial_value(question: str, answer: str) -> Worlds | None:
    text, *_, at = formulas(question) if "=" not in formulas(question)[0] else formulas(question)[::-1]
    _, x = _sides(at)
    return [{}] if evaluate(text, {"x": evaluate(x)}) == number(answer) else None


_LARGE = 10**9
"""Kronecker's substitution: at so large an argument, coefficients are the digits of a value."""


def _product_coefficient(question: str, answer: str) -> Worlds | None:
    one, two = formulas(question)
    monomial, product = (one, two) if "(" in two else (two, one)
    power = 1 if monomial == "x" else int(monomial.removeprefix("x^").strip("{}"))
    value = evaluate(product, {"x": _LARGE})
    assert isinstance(value, int)
    digit = 0
    for _ in range(power + 1):
        digit = (value + _LARGE // 2) % _LARGE - _LARGE // 2
        value = (value - digit) // _LARGE
    return [{}] if digit == number(answer) else None


def _inequality(question: str, answer: str) -> Worlds | None:
    text = next(f for f in formulas(question) if "\\le" in f or ">" in f)
    if "\\le" in text:
        low, middle, high = text.split("\\le")
        a, b = _slope(middle)
        first, last = evaluate(low), evaluate(high)
        reach = int(max(first, -first) + max(last, -last)) + abs(b) + 1
        return [{}] if sum(first <= a * x + b <= last for x in range(-reach, reach + 1)) == number(answer) else None
    left, _, right = text.partition(">")
    x, bound = number(answer), evaluate(right)
    fits = evaluate(left, {"x": x}) > bound >= evaluate(left, {"x": x - 1})
    return [{"x": x}] if fits and isinstance(x, int) and _slope(left)[0] > 0 else None


def _sequence(question: str, answer: str) -> Worlds | None:
    terms = [int(t) for t in re.findall(r"(?<![\d])-?\d+", question)]
    n = terms.pop() if re.search(r"(?:first|number|place|前|第) ?\d+", question) else None
    if n is None:
        raise Unreadable(f"question '{question}'")
    if re.search("geometric|times a constant|等比", question):
        ratio = divide(terms[1], terms[0])
        grown = all(a * ratio == b for a, b in pairwise(terms))
        values: list[Number] = [terms[0]]
        while len(values) < n:
            values.append(values[-1] * ratio)
    else:
        step = terms[1] - terms[0]
        grown = all(a + step == b for a, b in pairwise(terms))
        values = [terms[0]]
        while len(values) < n:
            values.append(values[-1] + step)
    wanted = sum(values) if re.search("sum|total|项和", question) else values[-1]
    return [{}] if grown and wanted == number(answer) else None


def _recurrence(question: str, answer: str) -> Worlds | None:
    terms = {int(i): int(v) for i, v in re.findall(r"a_(\d+) = (-?\d+)", question)}
    rule = re.search(r"a_n = (\d*)a_\{n-1\}(?: ([-+]) (\d*)a_\{n-2\})? ([-+]) (\d+)", question)
    asked = re.search(r"\$a_(\d+)\$[?.。]", question)
    if rule is None or asked is None:
        raise Unreadable(f"question '{question}'")
    p, r = int(rule[1] or 1), int(f"{rule[2]}{rule[3] or 1}") if rule[2] else 0
    q = int(rule[4] + rule[5])
    for n in range(max(terms) + 1, int(asked[1]) + 1):
        terms[n] = p * terms[n - 1] + (r * terms[n - 2] if r else 0) + q
    return [{}] if terms[int(asked[1])] == number(answer) else None


def _composition(question: str, answer: str) -> Worlds | None:
    f, g, nested = formulas(question)
    rules = {"f": _sides(f)[1], "g": _sides(g)[1]}
    order, at = re.findall(r"[fg]", nested), re.search(r"\((-?\d+)\)", nested)
    assert at is not None
    value: Number = int(at[1])
    for name in reversed(order):
        value = evaluate(rules[name], {"x": value})
    return [{}] if value == number(answer) else None


def _absolute_value(question: str, answer: str) -> Worlds | None:
    left, right = next(_sides(f) for f in formulas(question) if "=" in f)
    a, b = _slope(left.strip().strip("|"))
    c = evaluate(right)
    low, high = sorted(simplified(Fraction(sign * c - b, a)) for sign in (-1, 1))
    if any(evaluate(left, {"x": x}) != c for x in (low, high)):
        return None
    wanted = high if re.search("larger|较大", question) else low * high
    return [{"x": low}, {"x": high}] if wanted == number(answer) else None


CHECKS: dict[str, Callable[[str, str], Worlds | None]] = {
    "linear_equation": _linear_equation,
    "quadratic": _quadratic,
    "system": _system,
    "polynomial_value": _polynomial_value,
    "product_coefficient": _product_coefficient,
    "inequality": _inequality,
    "arithmetic_sequence": _sequence,
    "geometric_sequence": _sequence,
    "recurrence": _recurrence,
    "composition": _composition,
    "absolute_value": _absolute_value,
}
