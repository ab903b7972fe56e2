"""Formulas in dollar signs: read, evaluated exactly, and found true or false.

A recursive-descent reader of the small part of LaTeX that problems use: + - \\times \\div / ^ \\frac, parentheses,
absolute values, products without a sign (3x, 2(x + 1)), one-letter unknowns. Values are integers or fractions.
"""

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

Number = int | Fraction
Values = Mapping[str, Number]

_TOKEN = re.compile(r"\s*(\d+\.\d+|\d+|\\frac|\\times|\\div|\\cdot|\\square|[-+*/^(){}|a-zA-Z])")
_RELATION = re.compile(r"(\\equiv|\\le|\\ge|=|<|>)")
_MODULUS = re.compile(r"\\pmod\{(\d+)\}")
_FORMULA = re.compile(r"\$([^$]+)\$")
_LETTER = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z](?![a-zA-Z])")


class Unreadable(ValueError):
    """A formula, or a text, that the checker does not understand: the problem does not count as verified."""


def formulas(text: str) -> list[str]:
    """What stands between dollar signs."""
    return _FORMULA.findall(text)


def evaluate(formula: str, values: Values | None = None) -> Number:
    """The exact value of an expression. Raises `Unreadable`."""
    tokens = _tokens(formula)
    reader = _Reader(tokens, values or {})
    result = reader.sum()
    if reader.position != len(tokens):
        raise Unreadable(f"formula '{formula}': not understood from '{tokens[reader.position]}' on")
    return result


def _tokens(formula: str) -> list[str]:
    found, position, end = [], 0, len(formula.rstrip())
    while position < end:
        match = _TOKEN.match(formula, position)
        if match is None:
            raise Unreadable(f"formula '{formula}': unknown sign '{formula[position]}'")
        found.append(match[1])
        position = match.end()
    return found


class _Reader:
    def __init__(self, tokens: list[str], values: Values) -> None:
        self.tokens, self.values, self.position = tokens, values, 0

    def peek(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def take(self, wanted: str = "") -> str:
        token = self.peek()
        if not token or (wanted and token != wanted):
            raise Unreadable(f"formula: '{wanted or 'a term'}' expected, found '{token or 'the end'}'")
        self.position += 1
        return token

    def sum(self) -> Number:
        value = self.product()
        while (sign := self.peek()) in ("+", "-"):
            self.position += 1
            other = self.product()
            value = value + other if sign == "+" else value - other
        return value

    def product(self) -> Number:
        value = self.signed()
        while token := self.peek():
            if token in ("\\times", "*", "\\cdot"):
                self.position += 1
                value = value * self.signed()
            elif token in ("\\div", "/"):
                self.position += 1
                value = divide(value, self.signed())
            elif token == "(" or token.isalpha():
                value = value * self.power()
            else:
                break
        return value

    def signed(self) -> Number:
        if self.peek() == "-":
            self.position += 1
            return -self.signed()
        if self.peek() == "+":
            self.position += 1
            return self.signed()
        return self.power()

    def power(self) -> Number:
        value = self.atom()
        if self.peek() == "^":
            self.position += 1
            exponent = self.group() if self.peek() == "{" else self.atom()
            if not isinstance(exponent, int) or not 0 <= exponent <= 4000:
                raise Unreadable(f"formula: exponent {exponent}")
            value = _raised(value, exponent)
        return value

    def group(self) -> Number:
        self.take("{")
        value = self.sum()
        self.take("}")
        return value

    def atom(self) -> Number:
        token = self.take()
        if token[0].isdigit():
            return int(token) if token.isdigit() else simplified(Fraction(token))
        if token == "(":
            value = self.sum()
            self.take(")")
            return value
        if token == "|":
            value = self.sum()
            self.take("|")
            return value if value >= 0 else -value
        if token == "\\frac":
            return divide(self.group(), self.group())
        if token in self.values:
            return self.values[token]
        raise Unreadable(f"formula: '{token}' has no value")


def _raised(base: Number, exponent: int) -> Number:
    return int(base**exponent) if isinstance(base, int) else simplified(base**exponent)


def divide(a: Number, b: Number) -> Number:
    """a / b, an integer where it is one. Raises `Unreadable` for b = 0."""
    if b == 0:
        raise Unreadable("formula: division by 0")
    if isinstance(a, int) and isinstance(b, int) and a % b == 0:
        return a // b
    return simplified(Fraction(a) / b)


def simplified(value: Fraction) -> Number:
    return value.numerator if value.denominator == 1 else value


def holds(statement: str, values: Values | None = None) -> bool:
    """Whether all relations of a chain such as `2^5 = 32 \\equiv 2 \\pmod{5}` are true. A lone value is true."""
    modulus = _MODULUS.search(statement)
    parts = _RELATION.split(_MODULUS.sub("", statement))
    before = evaluate(parts[0], values)
    for relation, text in zip(parts[1::2], parts[2::2], strict=True):
        after = evaluate(text, values)
        if not _related(before, relation, after, int(modulus[1]) if modulus else 0):
            return False
        before = after
    return True


def _related(a: Number, relation: str, b: Number, modulus: int) -> bool:
    match relation:
        case "=":
            return a == b
        case "<":
            return a < b
        case ">":
            return a > b
        case "\\le":
            return a <= b
        case "\\ge":
            return a >= b
        case _:
            return modulus > 0 and (a - b) % modulus == 0


def wrong_statement(text: str, worlds: Sequence[Values] = ()) -> str | None:
    """The first statement of a solution that is not true, or None.

    Statements about unknowns are true if they are so for each possible solution in `worlds`; only one that says
    what an unknown is (`x = 3`) may speak of one of several.
    """
    for statement in formulas(text):
        if not _LETTER.search(statement):
            true = holds(statement)
        elif re.match(r"^[a-z] [=<>]", statement):
            true = any(holds(statement, values) for values in worlds)
        else:
            true = bool(worlds) and all(holds(statement, values) for values in worlds)
        if not true:
            return statement
    return None


_NUMERAL = re.compile(r"\d+(?:\.\d+)?")


def numbers(text: str) -> list[Number]:
    """Unsigned numbers in the order in which they stand."""
    return [int(n) if n.isdigit() else simplified(Fraction(n)) for n in _NUMERAL.findall(text)]


def number(text: str) -> Number:
    """A number as answers are written: 3, -3/4, 0.25. Raises `Unreadable`."""
    try:
        return int(text) if text.removeprefix("-").isdecimal() else simplified(Fraction(text))
    except (ValueError, ZeroDivisionError) as error:
        raise Unreadable(f"answer '{text}': not a number") from error
