"""Arithmetic, number theory and word problems, verified from the text by substitution or by trying everything."""

import re
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

from glmforge_corpus.synthesise.check.formulas import Number, Unreadable, evaluate, formulas, number, numbers


def _evaluates(question: str, answer: str) -> bool:
    return evaluate(formulas(question)[0]) == number(answer)


def _percent(question: str, answer: str) -> bool:
    found = re.search(r"(\d+)(?:%| percent)|百分之(\d+)", question)
    assert found is not None
    p = int(found[1] or found[2])
    rest = numbers(question.replace(found[0], " ", 1))
    part, whole = rest[0], number(answer)
    if re.search(r"[Ww]hich number|that number|哪个数|这个数", question) is None:
        part, whole = whole, part
    return 100 * part == p * whole


def _largest_fraction(question: str, answer: str) -> bool:
    pairs = [(int(a), int(b)) for a, b in re.findall(r"\\frac\{(\d+)\}\{(\d+)\}", question)]
    best = number(answer)
    up, down = Fraction(best).numerator, Fraction(best).denominator
    return any(a * down == up * b for a, b in pairs) and all(a * down <= up * b for a, b in pairs)


def _missing_number(question: str, answer: str) -> bool:
    left, _, right = formulas(question)[0].partition("=")
    return evaluate(left.replace("\\square", f"({answer})")) == evaluate(right)


def _sum_of_range(question: str, answer: str) -> bool:
    a, b = map(int, numbers(question))
    return sum(range(a, b + 1)) == number(answer)


def _signed_sum(question: str, answer: str) -> bool:
    return sum(map(int, re.findall(r"[-+]?\d+", question))) == number(answer)


def _coprime(a: int, b: int) -> bool:
    small, large = min(a, b), max(a, b)
    for d in range(1, int(small**0.5) + 1):
        if small % d == 0 and ((d > 1 and large % d == 0) or (small // d > 1 and large % (small // d) == 0)):
            return False
    return True


def _gcd_or_lcm(question: str, answer: str) -> bool:
    a, b = map(int, numbers(question))
    x = int(answer)
    if re.search(r"multiple|divisible by both|blink|公倍数|整除的最小", question):
        return x % a == 0 and x % b == 0 and _coprime(x // a, x // b)
    return a % x == 0 and b % x == 0 and _coprime(a // x, b // x)


def _power_mod(question: str, answer: str) -> bool:
    base, exponent, modulus = map(int, numbers(question))
    value = 1
    for _ in range(exponent):
        value = value * base % modulus
    return value == int(answer)


def _two_remainders(question: str, answer: str) -> bool:
    r, m, s, n = map(int, numbers(question))
    if "除以" in question:
        r, m, s, n = m, r, n, s
    return next(x for x in range(m * n) if x % m == r and x % n == s) == int(answer)


def _divisors(question: str, answer: str) -> bool:
    (value,) = map(int, numbers(question))
    low = [d for d in range(1, int(value**0.5) + 1) if value % d == 0]
    every = {*low, *(value // d for d in low)}
    if re.search(r"sum of all|Add up|之和", question):
        return sum(every) == int(answer)
    if re.search(r"prime|质因数", question):
        primes = [d for d in every if d > 1 and all(d % k for k in range(2, int(d**0.5) + 1))]
        return max(primes) == int(answer)
    return len(every) == int(answer)


def _base_conversion(question: str, answer: str) -> bool:
    first, base = map(int, numbers(question))
    if re.search(r"(?:decimal|十进制)数?(?: number)? ?\d|from decimal|写成", question):
        return int(answer, base) == first
    return int(str(first), base) == int(answer)


def _count_multiples(question: str, answer: str) -> bool:
    n, *divisors = map(int, numbers(question))
    return len({x for d in divisors for x in range(d, n + 1, d)}) == int(answer)


def _inverse(question: str, answer: str) -> bool:
    n, a = map(int, numbers(question))
    return a * int(answer) % n == 1 and 0 < int(answer) < n


def _digit_sum(question: str, answer: str) -> bool:
    a, b = map(int, numbers(question))
    rest, total = a * b, 0
    while rest:
        rest, digit = divmod(rest, 10)
        total += digit
    return total == int(answer)


# Stories: how a sentence changes the number of items; the first pattern that fits counts.
Event = Callable[[Number, list[Number]], Number]
_EVENTS: tuple[tuple[re.Pattern[str], Event], ...] = tuple(
    (re.compile(pattern), event)
    for pattern, event in (
        (r" a day for |every day|每天", lambda v, n: v - n[0] * n[1]),
        (r" of \d+ each| with \d+ in each|packs of|，每[盒袋]", lambda v, n: v + n[0] * n[1]),
        (r"1/\d+", lambda v, n: v - Fraction(v) / Fraction(n[1])),
        (r"times as|倍", lambda v, n: v * n[0]),
        (r" gives \d+ to | loses | sells | uses up | break| lends |送给|丢了|卖掉|用掉|坏了", lambda v, n: v - n[0]),
        (r" more| hands |another|又|finds", lambda v, n: v + n[0]),
    )
)


def _story(question: str, answer: str) -> bool:
    sentences = [s for s in re.split(r"(?<=[.。])\s*", question) if s]
    value, *changes = sentences[:-1]
    amount = numbers(value)[0]
    for sentence in changes:
        event = next((event for pattern, event in _EVENTS if pattern.search(sentence)), None)
        if event is None:
            raise Unreadable(f"sentence '{sentence}'")
        amount = event(amount, numbers(sentence))
    return amount == number(answer)


def _shopping(question: str, answer: str) -> bool:
    *wanted, paid = numbers(question)
    return sum(a * b for a, b in zip(wanted[::2], wanted[1::2], strict=True)) + number(answer) == paid


def _discount(question: str, answer: str) -> bool:
    price, off, *rest = numbers(question)
    value = price - Fraction(price * off, 100)
    value += value * (rest[0] if rest else 0) / 100
    return value * (rest[1] if len(rest) > 1 else 1) == number(answer)


def _meeting(question: str, answer: str) -> bool:
    distance, v, w = numbers(question)
    return number(answer) * v + number(answer) * w == distance


def _work_together(question: str, answer: str) -> bool:
    return sum((Fraction(number(answer)) / Fraction(h) for h in numbers(question)), Fraction()) == 1


def _ages(question: str, answer: str) -> bool:
    gap, later, times = numbers(question)
    return number(answer) + later == times * (number(answer) - gap + later)


def _heads_and_legs(question: str, answer: str) -> bool:
    p, q, heads, legs = map(int, numbers(question))
    return [y for y in range(heads + 1) if (heads - y) * p + y * q == legs] == [int(answer)]


def _ratio_share(question: str, answer: str) -> bool:
    total, *shares = numbers(question)
    people = re.match(r"(?:The prize of )?(.+?)(?: share | is |按顺序)", question)
    asked = re.search(r"does (\S+) get|is (\S+)'s share|。(\S+?)分得", question)
    if people is None or asked is None:
        raise Unreadable(f"question '{question}'")
    listed = re.split(r", | and |、", people[1])
    who = next(name for name in asked.groups() if name)
    return number(answer) * sum(shares) == total * shares[listed.index(who)]


def _average(question: str, answer: str) -> bool:
    *scores, mean = numbers(question)
    return sum(scores) + number(answer) == mean * (len(scores) + 1)


def _rectangle(question: str, answer: str) -> bool:
    perimeter, longer = map(int, numbers(question))
    areas = [w * (w + longer) for w in range(1, perimeter) if 2 * (w + w + longer) == perimeter]
    return areas == [int(answer)]


def _growth(question: str, answer: str) -> bool:
    value = Fraction(numbers(question)[0])
    for word, p in re.findall(r"(rises by |falls by |增加|减少)(\d+)%", question):
        value += value * int(p) / 100 * (1 if word in ("rises by ", "增加") else -1)
    return value == number(answer)


def _mixture(question: str, answer: str) -> bool:
    a, p, b, q = numbers(question)
    return number(answer) * (a + b) == a * p + b * q


def _clock(question: str, answer: str) -> bool:
    hour, minute, *parts = map(int, numbers(question))
    for part in parts:
        for _ in range(part):
            minute += 1
            if minute == 60:
                hour, minute = (hour + 1) % 24, 0
    return f"{hour:02d}:{minute:02d}" == answer


def _budget(question: str, answer: str) -> bool:
    money, price = map(int, numbers(question))
    x = int(answer)
    if re.search(r"remain|left over|剩下", question):
        return 0 <= x < price and (money - x) % price == 0
    return x * price <= money < (x + 1) * price


def _consecutive(question: str, answer: str) -> bool:
    count, total = map(int, numbers(question))
    return sum(range(int(answer) - count + 1, int(answer) + 1)) == total


def _posts(question: str, answer: str) -> bool:
    length, gap = map(int, numbers(question))
    return len(range(0, length + 1, gap)) * (2 if re.search("both sides|两侧", question) else 1) == int(answer)


def _committee(question: str, answer: str) -> bool:
    chosen = list(map(int, numbers(question)))
    ways = 1
    for k, n in zip(chosen[::2], chosen[1::2], strict=True):
        row = [1]
        for _ in range(n):  # Pascal's triangle
            row = [1, *(a + b for a, b in pairwise(row)), 1][: k + 2]
        ways *= row[k]
    return ways == int(answer)


_SENTENCES = re.compile(r"(?<=[.?。？])\s*")
_SCALE = re.compile(r"\b1 (?=cm (?:stands for|is) )|1(?=厘米(?:代表|表示))")
_MEANS: tuple[tuple[re.Pattern[str], Callable[[Fraction, Number], Fraction]], ...] = tuple(
    (re.compile(pattern), act)
    for pattern, act in (
        (
            r"\b(?:bags|cans|shelves) (?:of|that)|\bshelf|\bmap\b|accounts|members|袋|桶里|一桶|账户|家人|书架|每架|图",
            lambda v, n: v / n,
        ),
        (
            r"burnt|eat|cost|pays \d|landlord|seep|takes \d+ litres of|leak|焦|吃掉|花去|房租|漏|用去",
            lambda v, n: v - n,
        ),
        (r"ferry|donate|adds|arrive|船|渡轮|赠送|捐", lambda v, n: v + n),
        (r"hours|days|minutes|classes|小时|天|分钟|个班", lambda v, n: v * n),
    )
)


def _composed(question: str, answer: str) -> bool:
    """Word problems of several events: every sentence says what it does to a quantity.

    The quantity is followed from the beginning: where the end is given and the beginning asked, the answer is put at
    the beginning, and what comes out must be the end that is given.
    """
    first, *others = [_SCALE.sub(" ", sentence) for sentence in _SENTENCES.split(question)]
    quoted = [sentence for sentence in others if numbers(sentence)]
    backwards = not numbers(first)
    value = Fraction(number(answer)) if backwards else Fraction(numbers(first)[0])
    *quoted, end = quoted if backwards else [*quoted, ""]
    for sentence in quoted:
        (n,) = numbers(sentence)
        act = next((act for pattern, act in _MEANS if pattern.search(sentence)), None)
        if act is None:
            raise Unreadable(f"sentence '{sentence}'")
        value = act(value, n)
    return value == (numbers(end)[0] if backwards else number(answer))


CHECKS: dict[str, Callable[[str, str], bool]] = {
    "expression": _evaluates, "fractions": _evaluates, "decimals": _evaluates, "percent": _percent,
    "largest_fraction": _largest_fraction, "missing_number": _missing_number, "sum_of_range": _sum_of_range,
    "signed_sum": _signed_sum,
    "greatest_common_divisor": _gcd_or_lcm, "power_mod": _power_mod, "two_remainders": _two_remainders,
    "divisors": _divisors, "base_conversion": _base_conversion, "count_multiples": _count_multiples,
    "inverse": _inverse, "digit_sum": _digit_sum,
    "possession": _story, "stock": _story, "shopping": _shopping, "discount": _discount, "meeting": _meeting,
    "work_together": _work_together, "ages": _ages, "heads_and_legs": _heads_and_legs, "ratio_share": _ratio_share,
    "average": _average, "rectangle": _rectangle, "growth": _growth, "mixture": _mixture, "clock": _clock,
    "budget": _budget, "consecutive": _consecutive, "posts": _posts, "committee": _committee,
    "bakery": _composed, "trip": _composed, "wages": _composed, "tank": _composed, "library": _composed,
}  # fmt: skip
