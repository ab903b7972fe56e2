"""Equations, systems, polynomials, inequalities, sequences.

Level L sets coefficients (to 5, 9, 12, 20, 40) and solutions (to 9, 15, 30, 60, 100 either side of 0), and what the
templates say. Unknowns in steps have the value of the solution, so that each line can be checked.
"""

# ruff: noqa: E501 - sentences and their patterns are not broken up

from fractions import Fraction
from itertools import pairwise

from glmforge_corpus.synthesise.draw import Draw
from glmforge_corpus.synthesise.numerals import factor, linear, polynomial, simplest
from glmforge_corpus.synthesise.problem import Draft, Template, Unlucky, say

COEFFICIENT = (5, 9, 12, 20, 40)
SOLUTION = (9, 15, 30, 60, 100)

_SOLVE = ("Solve for $x$: ${e}$", "Find $x$ if ${e}$.", "What value of $x$ satisfies ${e}$?", "Determine $x$ from the equation ${e}$.",
          "If ${e}$, what is $x$?")  # fmt: skip
_SOLVE_ZH = ("解方程：${e}$", "已知 ${e}$，求 $x$。", "求满足 ${e}$ 的 $x$。", "若 ${e}$，则 $x$ 等于多少？")


def linear_equation(draw: Draw, level: int, zh: bool) -> Draft:
    """One unknown: on one side (1), both (2), with parentheses (3), solutions that are fractions (4 and 5)."""
    limit = COEFFICIENT[level - 1]
    a, c = draw.nonzero(limit), draw.nonzero(limit) if level >= 2 else 0
    if a == c:
        raise Unlucky
    b = draw.nonzero(SOLUTION[level - 1])
    drawn = draw.nonzero(SOLUTION[level - 1])
    d = drawn if level >= 4 else (a - c) * drawn + b
    x = Fraction(d - b, a - c)
    steps = []
    left = linear(a, b)
    if level >= 3:
        k, inner = draw.integer(2, 5), draw.nonzero(9)
        left = f"{k}({linear(a, inner)}) {'+' if b >= 0 else '-'} {abs(b)}"
        a, b = k * a, k * inner + b
        if a == c:
            raise Unlucky
        if level == 3:
            d = (a - c) * draw.nonzero(SOLUTION[2]) + b
        x = Fraction(d - b, a - c)
        steps.append(f"${left} = {linear(a, b)}$")
    right = linear(c, d)
    if level >= 2:
        steps.append(f"${linear(a - c, b)} = {d}$")
    steps.append(f"${linear(a - c, 0)} = {d - b}$")
    steps.append(f"$x = {d - b} \\div {factor(a - c)} = {simplest(x)}$")
    return Draft(say(draw, zh, _SOLVE, _SOLVE_ZH, e=f"{left} = {right}"), steps, simplest(x))


def quadratic(draw: Draw, level: int, zh: bool) -> Draft:
    """Integer roots found by factoring; the larger, smaller, their sum of squares; leading coefficients from level 4."""
    limit = SOLUTION[min(level - 1, 2)]
    p, q = sorted((draw.nonzero(limit), draw.nonzero(limit)))
    if p == q:
        raise Unlucky
    k = draw.integer(2, 6) if level >= 4 else 1
    equation = polynomial((k * p * q, -k * (p + q), k))
    steps = [f"${equation} = {k}({polynomial((p * q, -p - q, 1))})$"] if k > 1 else []
    steps += [
        f"${polynomial((p * q, -p - q, 1))} = ({linear(1, -p)})({linear(1, -q)})$",
        f"${factor(p)} + {factor(q)} = {p + q}$, ${factor(p)} \\times {factor(q)} = {p * q}$",
        f"$x = {p}$ {'或' if zh else 'or'} $x = {q}$",
    ]
    which = draw.below(3)
    if which == 0:
        ask = ("What is the larger root of ${e} = 0$?", "Find the greater solution of ${e} = 0$.")
        return Draft(say(draw, zh, ask, ("方程 ${e} = 0$ 的较大的根是多少？",), e=equation), steps, str(q))
    if which == 1:
        ask = ("What is the smaller root of ${e} = 0$?", "Find the lesser solution of ${e} = 0$.")
        return Draft(say(draw, zh, ask, ("方程 ${e} = 0$ 的较小的根是多少？",), e=equation), steps, str(p))
    steps.append(f"${factor(p)}^2 + {factor(q)}^2 = {p * p + q * q}$")
    ask = (
        "What is the sum of the squares of the roots of ${e} = 0$?",
        "Add the squares of both solutions of ${e} = 0$. What is the result?",
    )
    return Draft(say(draw, zh, ask, ("方程 ${e} = 0$ 的两根的平方和是多少？",), e=equation), steps, str(p * p + q * q))


def system(draw: Draw, level: int, zh: bool) -> Draft:
    """Two equations in two unknowns by elimination; asked for x, y or, from level 3, a combination of them."""
    limit, size = COEFFICIENT[level - 1], SOLUTION[level - 1]
    x, y = draw.nonzero(size), draw.nonzero(size)
    a, b, c, d = (draw.nonzero(limit) for _ in range(4))
    determinant = a * d - b * c
    if determinant == 0:
        raise Unlucky
    r, s = a * x + b * y, c * x + d * y
    one, two = f"{_two(a, b)} = {r}", f"{_two(c, d)} = {s}"
    steps = [
        f"${d * r} - {factor(b * s)} = {d * r - b * s}$, ${a * d} - {factor(b * c)} = {determinant}$",
        f"$x = {d * r - b * s} \\div {factor(determinant)} = {x}$",
        f"${factor(a)} \\times {factor(x)} {'+' if b > 0 else '-'} {linear(abs(b), 0, 'y')} = {r}$",
        f"${linear(b, 0, 'y')} = {r - a * x}$",
        f"$y = {r - a * x} \\div {factor(b)} = {y}$",
    ]
    asked = draw.below(3 if level >= 3 else 2)
    name, value = (("x", x), ("y", y), ("x + y", x + y))[asked]
    if asked == 2:
        steps.append(f"$x + y = {factor(x)} + {factor(y)} = {x + y}$")
    ask = (
        "Solve the system ${one}$, ${two}$. What is ${n}$?",
        "Given ${one}$ and ${two}$, find ${n}$.",
        "If ${one}$ and ${two}$, what is the value of ${n}$?",
    )
    ask_zh = ("解方程组 ${one}$，${two}$，求 ${n}$ 的值。", "已知 ${one}$，${two}$，则 ${n}$ 等于多少？")
    return Draft(say(draw, zh, ask, ask_zh, one=one, two=two, n=name), steps, str(value))


def _two(a: int, b: int) -> str:
    head = "x" if a == 1 else "-x" if a == -1 else f"{a}x"
    tail = "y" if abs(b) == 1 else f"{abs(b)}y"
    return f"{head} {'+' if b > 0 else '-'} {tail}"


def polynomial_value(draw: Draw, level: int, zh: bool) -> Draft:
    """A polynomial of degree 1 + (L + 1) // 2 at a point, by Horner's scheme; also as a remainder."""
    degree, at = 1 + (level + 1) // 2, draw.nonzero(3 + level)
    coefficients = [draw.nonzero(COEFFICIENT[level - 1]) for _ in range(degree + 1)]
    value, steps = coefficients[-1], []
    for c in coefficients[-2::-1]:
        steps.append(f"${factor(value)} \\times {factor(at)} + {factor(c)} = {value * at + c}$")
        value = value * at + c
    text = polynomial(coefficients)
    ask = (
        "What is the value of ${p}$ at $x = {a}$?",
        "Evaluate the polynomial ${p}$ for $x = {a}$.",
        "Find the remainder when ${p}$ is divided by ${f}$; the root of the divisor is $x = {a}$.",
    )
    ask_zh = ("求多项式 ${p}$ 在 $x = {a}$ 处的值。", "当 $x = {a}$ 时，${p}$ 等于多少？")
    head = "用秦九韶算法：" if zh else "By Horner's scheme:"
    return Draft(say(draw, zh, ask, ask_zh, p=text, a=at, f=linear(1, -at)), [head, *steps], str(value))


def product_coefficient(draw: Draw, level: int, zh: bool) -> Draft:
    """One coefficient of a product of two polynomials of degrees 1 and 1 (level 1) to 3 and 3 (level 5)."""
    m, n = 1 + level // 2, 1 + (level - 1) // 2
    limit = COEFFICIENT[level - 1]
    p, q = ([draw.nonzero(limit) for _ in range(k + 1)] for k in (m, n))
    power = draw.integer(1, m + n - 1)
    pairs = [(p[i], q[power - i]) for i in range(m + 1) if 0 <= power - i <= n]
    total = sum(a * b for a, b in pairs)
    products = [f"${factor(a)} \\times {factor(b)} = {a * b}$" for a, b in pairs]
    steps = [", ".join(products), f"${' + '.join(factor(a * b) for a, b in pairs)} = {total}$"]
    body = "x" if power == 1 else f"x^{power}"
    ask = (
        "What is the coefficient of ${b}$ in the expansion of $({p})({q})$?",
        "Find the coefficient of ${b}$ after expanding $({p})({q})$.",
    )
    ask_zh = ("求 ${b}$ 的系数，其中的乘积为 $({p})({q})$。",)
    return Draft(say(draw, zh, ask, ask_zh, b=body, p=polynomial(p), q=polynomial(q)), steps, str(total))


def inequality(draw: Draw, level: int, zh: bool) -> Draft:
    """How many integers lie in an interval that a double inequality gives, or the least integer that satisfies one."""
    a, b = draw.integer(2, COEFFICIENT[level - 1] + 2), draw.nonzero(SOLUTION[level - 1])
    low = draw.integer(-SOLUTION[level - 1], SOLUTION[level - 1])
    if draw.chance(0.5):
        bound = Fraction(low - b, a)
        least = bound.numerator // bound.denominator + 1
        steps = [
            f"${linear(a, b)} > {low}$",
            f"${a}x > {low} - {factor(b)} = {low - b}$",
            f"$x > {simplest(bound)}$",
            f"${least} > {simplest(bound)}$, ${least - 1} \\le {simplest(bound)}$",
        ]
        ask = (
            "What is the least integer $x$ with ${e} > {r}$?",
            "Find the smallest integer that satisfies ${e} > {r}$.",
        )
        text = say(draw, zh, ask, ("满足 ${e} > {r}$ 的最小整数是多少？",), e=linear(a, b), r=low)
        return Draft(
            text, [("以 $x$ 表示最小整数：" if zh else "With $x$ for the least such integer:"), *steps], str(least)
        )
    high = low + draw.integer(a + 1, a * (6 + 6 * level))
    first, last = -((b - low) // a), (high - b) // a
    steps = [
        f"${low} - {factor(b)} = {low - b}$, ${high} - {factor(b)} = {high - b}$",
        f"${factor(a)} \\times {factor(first)} \\ge {low - b} > {factor(a)} \\times {factor(first - 1)}$",
        f"${factor(a)} \\times {factor(last)} \\le {high - b} < {factor(a)} \\times {factor(last + 1)}$",
        f"${last} - {factor(first)} + 1 = {last - first + 1}$",
    ]
    ask = (
        "How many integers $x$ satisfy ${l} \\le {e} \\le {h}$?",
        "Count the integers $x$ for which ${l} \\le {e} \\le {h}$.",
    )
    text = say(draw, zh, ask, ("满足 ${l} \\le {e} \\le {h}$ 的整数 $x$ 有多少个？",), l=low, e=linear(a, b), h=high)
    return Draft(text, steps, str(last - first + 1))


def arithmetic_sequence(draw: Draw, level: int, zh: bool) -> Draft:
    """A far term, from level 3 also the sum of the first n."""
    first, step, n = (
        draw.nonzero(SOLUTION[level - 1]),
        draw.nonzero(COEFFICIENT[level - 1]),
        draw.integer(7, 10 + 10 * level),
    )
    last = first + (n - 1) * step
    shown = ", ".join(str(first + i * step) for i in range(4))
    steps = [f"${first + step} - {factor(first)} = {step}$", f"${first} + ({n} - 1) \\times {factor(step)} = {last}$"]
    if level >= 3 and draw.chance(0.5):
        total = Fraction(n * (first + last), 2)
        steps += [
            f"${first} + {factor(last)} = {first + last}$",
            f"${n} \\times {factor(first + last)} \\div 2 = {total}$",
        ]
        ask = (
            "The arithmetic sequence {s}, ... is given. What is the sum of its first {n} terms?",
            "An arithmetic sequence begins {s}, ... Find the total of its first {n} terms.",
        )
        return Draft(say(draw, zh, ask, ("等差数列{s}，……的前{n}项和是多少？",), s=shown, n=n), steps, str(total))
    ask = (
        "The arithmetic sequence {s}, ... goes on. What is its term number {n}?",
        "Numbers are written down in equal steps: {s}, ... Which one stands at place {n}?",
    )
    return Draft(say(draw, zh, ask, ("等差数列{s}，……的第{n}项是多少？",), s=shown, n=n), steps, str(last))


def geometric_sequence(draw: Draw, level: int, zh: bool) -> Draft:
    """A later term or the sum of the first n, n to 4 + L."""
    first, ratio, n = draw.nonzero(COEFFICIENT[level - 1]), draw.pick((-3, -2, 2, 3, 4, 5)), draw.integer(4, 4 + level)
    terms = [first * ratio**i for i in range(n)]
    shown = ", ".join(map(str, terms[:3]))
    steps = [f"${b} \\div {factor(a)} = {ratio}$" for a, b in [(terms[0], terms[1])]]
    steps += [f"${factor(a)} \\times {factor(ratio)} = {b}$" for a, b in pairwise(terms[2:])]
    if draw.chance(0.5):
        steps.append(f"${' + '.join(factor(t) for t in terms)} = {sum(terms)}$")
        ask = (
            "The geometric sequence {s}, ... is given. What is the sum of its first {n} terms?",
            "A geometric sequence begins {s}, ... Find the total of its first {n} terms.",
        )
        return Draft(say(draw, zh, ask, ("等比数列{s}，……的前{n}项和是多少？",), s=shown, n=n), steps, str(sum(terms)))
    ask = (
        "The geometric sequence {s}, ... goes on. What is its term number {n}?",
        "Each number is the one before times a constant: {s}, ... Which one stands at place {n}?",
    )
    return Draft(say(draw, zh, ask, ("等比数列{s}，……的第{n}项是多少？",), s=shown, n=n), steps, str(terms[-1]))


def recurrence(draw: Draw, level: int, zh: bool) -> Draft:
    """a_n = p a_(n-1) + q, from level 3 with a term r a_(n-2)."""
    p, q, n = draw.integer(2, 1 + level), draw.nonzero(COEFFICIENT[level - 1]), draw.integer(4, 4 + level)
    r = draw.nonzero(3) if level >= 3 else 0
    terms = [draw.integer(-9, 9), draw.integer(-9, 9)] if r else [draw.integer(-9, 9)]
    steps, start = [], len(terms)
    while len(terms) < n:
        formula = f"{p} \\times {factor(terms[-1])}"
        value = p * terms[-1] + q
        if r:
            formula += f" + {factor(r)} \\times {factor(terms[-2])}"
            value += r * terms[-2]
        steps.append(
            ("第" if zh else "Term ")
            + f"{len(terms) + 1}"
            + ("项：" if zh else ": ")
            + f"${formula} + {factor(q)} = {value}$"
        )
        terms.append(value)
    tail = (f" {'+' if r > 0 else '-'} {abs(r)}a_{{n-2}}" if r else "") + f" {'+' if q > 0 else '-'} {abs(q)}"
    given = ", ".join(f"$a_{i + 1} = {terms[i]}$" for i in range(start))
    ask = (
        "A sequence has {g} and $a_n = {p}a_{{n-1}}{t}$. What is $a_{n}$?",
        "Given {g} and the rule $a_n = {p}a_{{n-1}}{t}$, compute $a_{n}$.",
    )
    ask_zh = ("数列满足 {g}，$a_n = {p}a_{{n-1}}{t}$，求 $a_{n}$。",)
    return Draft(say(draw, zh, ask, ask_zh, g=given, p=p, t=tail, n=n), steps, str(terms[-1]))


def composition(draw: Draw, level: int, zh: bool) -> Draft:
    """Two functions, one after the other; from level 3 one is quadratic, from level 5 applied three times."""
    limit = COEFFICIENT[level - 1]
    f = [draw.nonzero(limit), draw.nonzero(limit)] + ([draw.nonzero(3)] if level >= 3 else [])
    g = [draw.nonzero(limit), draw.nonzero(limit)]
    order = "fgf" if level >= 5 else draw.pick(("fg", "gf"))
    at = draw.nonzero(5 + level)
    value, steps = at, []
    for name in reversed(order):
        coefficients = f if name == "f" else g
        result = sum(c * value**k for k, c in enumerate(coefficients))
        terms = [
            f"{factor(c)} \\times {factor(value)}^2"
            if k == 2
            else f"{factor(c)} \\times {factor(value)}"
            if k == 1
            else factor(c)
            for k, c in reversed(list(enumerate(coefficients)))
        ]
        steps.append(f"{name}({value}): ${' + '.join(terms)} = {result}$")
        value = result
    nested = "(".join(order) + f"({at})" + ")" * (len(order) - 1)
    ask = (
        "Let $f(x) = {f}$ and $g(x) = {g}$. What is ${n}$?",
        "For the functions $f(x) = {f}$ and $g(x) = {g}$, compute ${n}$.",
    )
    ask_zh = ("设 $f(x) = {f}$，$g(x) = {g}$，求 ${n}$。",)
    return Draft(say(draw, zh, ask, ask_zh, f=polynomial(f), g=polynomial(g), n=nested), steps, str(value))


def absolute_value(draw: Draw, level: int, zh: bool) -> Draft:
    """Both solutions of |ax + b| = c, asked for by their product or the larger one."""
    a, b = draw.integer(1, COEFFICIENT[level - 1]), draw.nonzero(SOLUTION[level - 1])
    c = draw.integer(1, 2 * SOLUTION[level - 1])
    if level <= 2:
        b = a * draw.nonzero(SOLUTION[level - 1])
        c = a * draw.integer(1, SOLUTION[level - 1])
    high, low = Fraction(c - b, a), Fraction(-c - b, a)
    steps = [
        f"$x = ({c} - {factor(b)}) \\div {a} = {simplest(high)}$",
        f"$x = (-{c} - {factor(b)}) \\div {a} = {simplest(low)}$",
    ]
    equation = f"|{linear(a, b)}| = {c}"
    if draw.chance(0.5):
        ask = ("What is the larger solution of ${e}$?", "The equation ${e}$ has two solutions. Find the larger one.")
        return Draft(say(draw, zh, ask, ("方程 ${e}$ 的较大的解是多少？",), e=equation), steps, simplest(high))
    steps.append(
        f"${simplest(high) if high >= 0 else f'({simplest(high)})'} \\times ({simplest(low)}) = {simplest(high * low)}$"
    )
    ask = ("What is the product of the two solutions of ${e}$?", "Multiply both solutions of ${e}$. What do you get?")
    return Draft(say(draw, zh, ask, ("方程 ${e}$ 的两个解的乘积是多少？",), e=equation), steps, simplest(high * low))


TEMPLATES: dict[str, tuple[int, Template]] = {
    "linear_equation": (1, linear_equation),
    "quadratic": (1, quadratic),
    "system": (1, system),
    "polynomial_value": (1, polynomial_value),
    "product_coefficient": (1, product_coefficient),
    "inequality": (1, inequality),
    "arithmetic_sequence": (1, arithmetic_sequence),
    "geometric_sequence": (1, geometric_sequence),
    "recurrence": (1, recurrence),
    "composition": (1, composition),
    "absolute_value": (1, absolute_value),
}
