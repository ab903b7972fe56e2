"""Divisors, remainders, primes, bases.

Level L sets the size of the numbers: below 100, 200, 500, 2000, 10000 where nothing else is said.
"""

# ruff: noqa: E501 - sentences and their patterns are not broken up

from math import gcd, isqrt, lcm

from glmforge_corpus.synthesise.draw import Draw
from glmforge_corpus.synthesise.numerals import TIMES
from glmforge_corpus.synthesise.problem import Draft, Template, say

SIZE = (100, 200, 500, 2000, 10000)


def greatest_common_divisor(draw: Draw, level: int, zh: bool) -> Draft:
    """Euclid's algorithm, or the least common multiple by way of it."""
    g = draw.integer(1, 4 * level)
    m, n = (draw.integer(2, SIZE[level - 1] // level) for _ in range(2))
    a, b = g * max(m, n), g * min(m, n)
    steps, x, y = [], a, b
    while y:
        steps.append(f"${x} = {x // y} \\times {y} + {x % y}$")
        x, y = y, x % y
    if draw.chance(0.5):
        ask: tuple[str, ...] = ("What is the greatest common divisor of {a} and {b}?", "What is the largest integer that divides both {a} and {b}?", "Two ribbons of {a} cm and {b} cm are cut into equal pieces, as long as possible and without waste. How many centimetres long is a piece?", "A floor of {a} cm by {b} cm is laid with square tiles, none of them cut. What is the greatest possible side of a tile, in centimetres?", "There are {a} red and {b} white roses. What is the greatest number of equal bunches that use all of them?", "Determine the greatest common divisor of {a} and {b}.", "Find the greatest common factor of {a} and {b}.",
               "What is the largest integer that divides both {a} and {b}?")  # fmt: skip
        ask_zh: tuple[str, ...] = (
            "{a}和{b}的最大公约数是多少？", "两根绳子分别长{a}厘米和{b}厘米，要剪成同样长的小段且没有剩余，每段最长多少厘米？", "求{a}与{b}的最大公约数。",
            "一块长{a}厘米、宽{b}厘米的地面，用整块的正方形瓷砖铺满，瓷砖边长最大是多少厘米？", "有{a}支红花和{b}支白花，要全部分成同样的花束，最多能分成多少束？", "求能同时整除{a}和{b}的最大整数。",
        )  # fmt: skip
        return Draft(say(draw, zh, ask, ask_zh, a=a, b=b), steps, str(x))
    multiple = a // x * b
    steps.append(("最大公约数是" if zh else "The greatest common divisor is ") + f"${x}$")
    steps.append(f"${a} \\times {b} \\div {x} = {multiple}$")
    ask = ("What is the least common multiple of {a} and {b}?", "Determine the least common multiple of {a} and {b}.", "What is the smallest positive number that is a multiple of {a} and of {b}?", "Two bells ring every {a} and every {b} minutes and have just rung together. After how many minutes, a common multiple of both, do they first do so again?", "Gears with {a} and {b} teeth mesh. After how many teeth, the least common multiple, are they back where they began?", "Find the smallest positive integer divisible by both {a} and {b}.",
           "Two lights blink every {a} and {b} seconds. They blink together now: after how many seconds do they do so again?")  # fmt: skip
    ask_zh = (
        "{a}和{b}的最小公倍数是多少？", "求{a}与{b}的最小公倍数。", "甲、乙两灯分别每{a}秒和每{b}秒闪一次，现在同时闪，再过多少秒（即最小公倍数）又同时闪？",
        "某数既是{a}的倍数，又是{b}的倍数，即公倍数，最小是多少？", "求能同时被{a}和{b}整除的最小正整数。",
    )  # fmt: skip
    return Draft(say(draw, zh, ask, ask_zh, a=a, b=b), steps, str(multiple))


def power_mod(draw: Draw, level: int, zh: bool) -> Draft:
    """Repeated squaring; exponents to 9, 15, 30, 100, 1000, moduli to 12, 18, 30, 60, 100."""
    base, exponent = draw.integer(2, 10 + 10 * level), draw.integer(3, (9, 15, 30, 100, 1000)[level - 1])
    modulus = draw.integer(3, (12, 18, 30, 60, 100)[level - 1])
    steps, result = [], 1
    for bit in f"{exponent:b}":
        square = result * result
        if result != 1:
            steps.append(f"${result}^2 = {square} \\equiv {square % modulus} \\pmod{{{modulus}}}$")
        result = square % modulus
        if bit == "1":
            steps.append(
                f"${result} \\times {base} = {result * base} \\equiv {result * base % modulus} \\pmod{{{modulus}}}$"
            )
            result = result * base % modulus
    head = (
        f"指数的二进制为 {exponent:b}，逐位平方并相乘："
        if zh
        else f"The exponent is {exponent:b} in binary: square for each bit, and multiply by the base for each 1."
    )
    ask: tuple[str, ...] = ("What is the remainder when ${b}^{{{e}}}$ is divided by {m}?", "Which remainder does ${b}^{{{e}}}$ leave on division by {m}?", "Divide ${b}^{{{e}}}$ by {m}. What remains?", "Reduce ${b}^{{{e}}}$ modulo {m}.", "${b}^{{{e}}}$ counters are laid out in rows of {m}. How many are in the last, incomplete row?", "Find ${b}^{{{e}}} \\bmod {m}$.",
           "Divide ${b}^{{{e}}}$ by {m}. What is left over?")  # fmt: skip
    ask_zh: tuple[str, ...] = (
        "${b}^{{{e}}}$除以{m}的余数是多少？", "${b}^{{{e}}}$ 被{m}除，余几？", "计算 ${b}^{{{e}}}$ 模{m}的值。",
        "把 ${b}^{{{e}}}$ 个棋子每{m}个排一行，最后剩下多少个？", "求 ${b}^{{{e}}} \\bmod {m}$。",
    )  # fmt: skip
    return Draft(say(draw, zh, ask, ask_zh, b=base, e=exponent, m=modulus), [head, *steps], str(result))


def two_remainders(draw: Draw, level: int, zh: bool) -> Draft:
    """The smallest number with two given remainders, found by going through one residue class."""
    limit = (9, 12, 15, 20, 30)[level - 1]
    m = draw.integer(3, limit + 2)
    n = draw.integer(3, limit + 2)
    while gcd(m, n) > 1:
        n += 1
    r, s = draw.below(m), draw.below(n)
    x, steps = r, []
    while True:
        steps.append(f"${x} \\equiv {x % n} \\pmod{{{n}}}$")
        if x % n == s:
            break
        x += m
    head = f"逐个检查除以{m}余{r}的数：" if zh else f"Go through the numbers that leave {r} when divided by {m}:"
    ask: tuple[str, ...] = ("What is the smallest non-negative integer that leaves remainder {r} when divided by {m} and remainder {s} when divided by {n}?", "Find the least non-negative integer with remainder {r} modulo {m} and remainder {s} modulo {n}.", "A box of beads has {r} left over in rows of {m} and {s} left over in rows of {n}. What is the smallest number of beads, possibly none?", "On division, a number leaves {r} for divisor {m} and {s} for divisor {n}. What is the smallest such number, counting from zero?",
           "A basket of eggs leaves {r} over in rows of {m}, and {s} over in rows of {n}. What is the smallest number of eggs there can be (possibly none)?")  # fmt: skip
    ask_zh: tuple[str, ...] = (
        "一个非负整数，除以{m}余{r}，除以{n}余{s}，这样的数最小是多少？",
        "某数除以{m}余{r}，除以{n}余{s}，这样的非负整数中最小的是多少？",
        "一堆棋子，除以{m}余{r}个，除以{n}余{s}个，这堆棋子最少有多少个？（可以为零）",
    )
    return Draft(say(draw, zh, ask, ask_zh, r=r, m=m, s=s, n=n), [head, *steps], str(x))


def factorisation(n: int) -> list[tuple[int, int]]:
    """(prime, exponent) in rising order, by trial division."""
    found, p = [], 2
    while p <= isqrt(n):
        exponent = 0
        while n % p == 0:
            n, exponent = n // p, exponent + 1
        if exponent:
            found.append((p, exponent))
        p += 1
    return [*found, (n, 1)] if n > 1 else found


def divisors(draw: Draw, level: int, zh: bool) -> Draft:
    """How many divisors, their sum, or the largest prime factor."""
    n = draw.integer(10, 2 * SIZE[level - 1])
    factors = factorisation(n)
    product = " \\times ".join(f"{p}^{e}" if e > 1 else str(p) for p, e in factors)
    steps = [f"${n} = {product}$"]
    ask: tuple[str, ...]
    ask_zh: tuple[str, ...]
    kind = draw.below(3)
    if kind == 0:
        count = 1
        for _, e in factors:
            count *= e + 1
        steps.append(
            f"${TIMES.join(f'({e} + 1)' for _, e in factors)} = {count}$"
            if len(factors) > 1
            else f"${factors[0][1]} + 1 = {count}$"
        )
        ask, ask_zh = (
            (
                "How many positive divisors does {n} have?",
                "In how many sizes of equal groups can {n} pupils be divided, groups of one and a single group included?",
                "Find the number of positive divisors of {n}.",
                "By how many positive integers is {n} divisible?",
                "How many rectangles of different width can be laid with all of {n} square tiles? Turned ones count as different.",
                "Count the positive integers that divide {n}.",
            ),
            (
                "{n}有多少个正因数？",
                "求{n}的正因数的个数。",
                "{n}能被多少个不同的正整数整除？",
                "{n}名学生平均分组，每组人数有多少种可能？（一人一组和全体一组也算）",
            ),
        )
        return Draft(say(draw, zh, ask, ask_zh, n=n), steps, str(count))
    if kind == 1:
        sums = [sum(p**k for k in range(e + 1)) for p, e in factors]
        total = 1
        for (p, e), value in zip(factors, sums, strict=True):
            total *= value
            steps.append(f"${' + '.join(str(p**k) for k in range(e + 1))} = {value}$")
        steps.append(f"${TIMES.join(map(str, sums))} = {total}$")
        ask, ask_zh = (
            (
                "What is the sum of all positive divisors of {n}?",
                "Find the sum of all numbers that divide {n}, one and the number itself included.",
                "List the divisors of {n}. What is the sum of all of them?",
                "Add up all positive integers that divide {n}.",
            ),
            (
                "{n}的所有正因数之和是多少？",
                "把{n}的正因数全部加起来，求它们之和。",
                "求{n}的全部正因数之和。",
            ),
        )
        return Draft(say(draw, zh, ask, ask_zh, n=n), steps, str(total))
    ask, ask_zh = (
        (
            "What is the largest prime factor of {n}?",
            "Factorise {n}. What is the largest prime in it?",
            "Which is the greatest prime number that {n} is divisible by?",
            "Find the greatest prime that divides {n}.",
        ),
        (
            "{n}的最大质因数是多少？",
            "把{n}分解质因数，其中最大的质因数是几？",
            "求{n}的质因数中最大的一个。",
        ),
    )
    return Draft(say(draw, zh, ask, ask_zh, n=n), steps, str(factors[-1][0]))


def base_conversion(draw: Draw, level: int, zh: bool) -> Draft:
    """To and from bases 2 to 9."""
    n, base = draw.integer(8, SIZE[level - 1]), draw.integer(2, 9)
    digits, rest, steps = "", n, []
    while rest:
        steps.append(f"${rest} = {rest // base} \\times {base} + {rest % base}$")
        digits, rest = str(rest % base) + digits, rest // base
    if draw.chance(0.5):
        ask: tuple[str, ...] = (
            "Write the decimal number {n} in base {b}.",
            "How is the decimal number {n} written in base {b}?",
            "Give the digits of the decimal number {n} in the number system with base {b}.",
            "Convert {n} from decimal to base {b}.",
        )
        ask_zh: tuple[str, ...] = (
            "把十进制数{n}写成{b}进制。",
            "十进制数{n}用{b}进制怎样表示？",
            "将十进制数{n}化为{b}进制数。",
        )
        steps.append("从下往上读余数。" if zh else "Read the remainders from the last to the first.")
        return Draft(say(draw, zh, ask, ask_zh, n=n, b=base), steps, digits)
    steps, value = [], 0
    for digit in digits:
        steps.append(f"${value} \\times {base} + {digit} = {value * base + int(digit)}$")
        value = value * base + int(digit)
    ask = (
        "The number {d} is written in base {b}. What is it in decimal?",
        "Read {d} as a number in base {b}. Which value does it have in our usual notation?",
        "Which decimal value has the number {d} if its base is {b}?",
        "Convert {d} from base {b} to decimal.",
    )
    ask_zh = (
        "{d}是一个{b}进制数，它的十进制值是多少？",
        "把数{d}看作{b}进制数，化成十进制是多少？",
        "{d}（{b}进制）等于十进制的多少？",
    )
    return Draft(say(draw, zh, ask, ask_zh, d=digits, b=base), steps, str(n))


def count_multiples(draw: Draw, level: int, zh: bool) -> Draft:
    """Multiples in [1, n]: of one number, from level 2 of either of two, by inclusion and exclusion."""
    n, a, b = draw.integer(20, 2 * SIZE[level - 1]), draw.integer(2, 9 + 2 * level), draw.integer(2, 9 + 2 * level)
    if level == 1 or a == b:
        ask: tuple[str, ...] = (
            "How many integers from one to {n} are divisible by {a}?",
            "How many positive integers up to {n} are multiples of {a}?",
        )
        ask_zh: tuple[str, ...] = (
            "从一到{n}的整数中，有多少个能被{a}整除？",
            "在不超过{n}的正整数中，有多少个是{a}的倍数？",
            "小于或等于{n}的正整数里，{a}的倍数有多少个？",
        )
        return Draft(say(draw, zh, ask, ask_zh, n=n, a=a), [f"${n} = {n // a} \\times {a} + {n % a}$"], str(n // a))
    both = lcm(a, b)
    steps = [f"${n} = {n // d} \\times {d} + {n % d}$" for d in (a, b, both)]
    total = n // a + n // b - n // both
    steps.append(f"${n // a} + {n // b} - {n // both} = {total}$")
    ask = (
        "How many integers from one to {n} are divisible by {a} or by {b} (or by both)?",
        "Count the positive integers up to {n} that are multiples of {a} or {b}.",
    )
    ask_zh = (
        "从一到{n}的整数中，能被{a}或{b}整除的有多少个？",
        "在不超过{n}的正整数中，是{a}的倍数或{b}的倍数的数有多少个？",
        "小于或等于{n}的正整数里，能被{a}或{b}整除的共有几个？",
    )
    return Draft(say(draw, zh, ask, ask_zh, n=n, a=a, b=b), steps, str(total))


def inverse(draw: Draw, level: int, zh: bool) -> Draft:
    """The inverse modulo n (n to 50, 100, 300 at levels 3, 4, 5), checked by multiplying."""
    n = draw.integer(7, (0, 0, 50, 100, 300)[level - 1])
    a = draw.integer(2, n - 2)
    while gcd(a, n) > 1:
        a = a + 1 if a < n - 1 else 2
    steps, (x, y), (u, v) = [], (n, a), (0, 1)
    while y:
        q = x // y
        steps.append(f"${x} = {q} \\times {y} + {x % y}$")
        (x, y), (u, v) = (y, x % y), (v, u - q * v)
    value = u % n
    steps.append(f"${a} \\times {value} = {a * value} \\equiv 1 \\pmod{{{n}}}$")
    ask: tuple[str, ...] = ("Modulo {n}, which positive integer below the modulus gives a product of one with {a}?",
           "Working modulo {n}, what is the multiplicative inverse of {a}?")  # fmt: skip
    ask_zh: tuple[str, ...] = (
        "在模{n}的意义下，{a}的乘法逆元是多少？",
        "求模{n}时{a}的乘法逆元。",
        "模{n}，哪个小于模数的正整数与{a}相乘得一？",
    )
    return Draft(say(draw, zh, ask, ask_zh, n=n, a=a), steps, str(value))


def digit_sum(draw: Draw, level: int, zh: bool) -> Draft:
    """Digits of a product or power, added up."""
    a, b = draw.integer(11, SIZE[level - 1]), draw.integer(11, SIZE[level - 1])
    product = a * b
    digits = " + ".join(str(product))
    total = sum(map(int, str(product)))
    steps = [f"${a} \\times {b} = {product}$"]
    steps += [f"${digits} = {total}$"] if len(str(product)) > 1 else []
    ask: tuple[str, ...] = (
        "What is the sum of the digits of ${a} \\times {b}$?",
        "Multiply {a} by {b} and add up the digits of the result. What do you get?",
    )
    ask_zh: tuple[str, ...] = (
        "${a} \\times {b}$ 的各位数字之和是多少？",
        "把{a}与{b}相乘，所得结果的各位数字之和是多少？",
    )
    return Draft(say(draw, zh, ask, ask_zh, a=a, b=b), steps, str(total))


TEMPLATES: dict[str, tuple[int, Template]] = {
    "greatest_common_divisor": (1, greatest_common_divisor),
    "power_mod": (1, power_mod),
    "two_remainders": (1, two_remainders),
    "divisors": (1, divisors),
    "base_conversion": (1, base_conversion),
    "count_multiples": (1, count_multiples),
    "inverse": (3, inverse),
    "digit_sum": (1, digit_sum),
}
