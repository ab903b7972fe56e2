"""How numbers are written in questions, steps and answers."""

from fractions import Fraction

TIMES, DIVIDED = " \\times ", " \\div "


def simplest(value: Fraction | int) -> str:
    """Lowest terms: 3, -3/4."""
    return str(value)


def decimal(value: Fraction | int) -> str:
    """The finite decimal without trailing zeros, or lowest terms where there is none."""
    value = Fraction(value)
    if value.denominator == 1:
        return str(value.numerator)
    down, twos, fives = value.denominator, 0, 0
    while down % 2 == 0:
        down, twos = down // 2, twos + 1
    while down % 5 == 0:
        down, fives = down // 5, fives + 1
    if down > 1:
        return str(value)
    places = max(twos, fives)
    digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    return f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:]}"


def signed(value: int) -> str:
    """With its sign: +3, -4."""
    return f"{value:+d}"


def factor(value: int) -> str:
    """As a factor or a subtrahend: negative numbers in parentheses."""
    return f"({value})" if value < 0 else str(value)


def linear(a: int, b: int, symbol: str = "x") -> str:
    """`a x + b`, written as people do."""
    return polynomial((b, a), symbol)


def polynomial(coefficients: tuple[int, ...] | list[int], symbol: str = "x") -> str:
    """Lowest power first in, highest first out; "0" for nothing."""
    terms = []
    for power in range(len(coefficients) - 1, -1, -1):
        c = coefficients[power]
        if c == 0:
            continue
        body = (
            ""
            if power == 0
            else symbol
            if power == 1
            else f"{symbol}^{power}"
            if power < 10
            else f"{symbol}^{{{power}}}"
        )
        size = str(abs(c)) if abs(c) != 1 or power == 0 else ""
        terms.append(("-" if c < 0 else "+", size + body))
    if not terms:
        return "0"
    first = ("-" if terms[0][0] == "-" else "") + terms[0][1]
    return first + "".join(f" {sign} {term}" for sign, term in terms[1:])
