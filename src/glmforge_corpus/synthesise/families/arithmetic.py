"""Calculation: expressions, fractions, decimals, percentages, missing numbers.

Level L: L + 1 operations; operands below 20, 50, 100, 200, 500; powers from level 4.
"""

# ruff: noqa: E501 - sentences and their patterns are not broken up

from fractions import Fraction
from math import lcm

from glmforge_corpus.synthesise.draw import Draw
from glmforge_corpus.synthesise.numerals import decimal, factor, signed, simplest
from glmforge_corpus.synthesise.problem import Draft, Template, say

SIZE = (20, 50, 100, 200, 500)
_ASK = (
    "Calculate ${e}$.", "What is ${e}$?", "Evaluate ${e}$.", "Work out the value of ${e}$.", "Find ${e}$.",
    "Compute the following: ${e}$.",
)  # fmt: skip
_ASK_ZH = ("计算 ${e}$。", "求 ${e}$ 的值。", "${e}$ 等于多少？", "请计算：${e}$。", "算一算：${e}$ 是多少？")


def expression(draw: Draw, level: int, zh: bool) -> Draft:
    """An expression of L + 1 operations, reduced one operation at a time."""
    steps: list[str] = []
    text, value, _ = _tree(draw, level + 1, level, steps)
    if draw.chance(0.3):
        extra = draw.integer(2, SIZE[level - 1])
        steps.append(f"${value} + {extra} = {value + extra}$")
        text, value = f"{text} + {extra}", value + extra
    return Draft(say(draw, zh, _ASK, _ASK_ZH, e=text), steps, str(value))


def _tree(draw: Draw, num_operations: int, level: int, steps: list[str]) -> tuple[str, int, int]:
    """(text, value, precedence 1 sum, 2 product, 3 atom); the steps of its evaluation are appended."""
    if num_operations == 0:
        value = draw.integer(2, SIZE[level - 1])
        return str(value), value, 3
    if level >= 4 and num_operations == 1 and draw.chance(0.25):
        base, power = draw.integer(2, 12), draw.integer(2, 3)
        steps.append(f"${base}^{power} = {base**power}$")
        return f"{base}^{power}", base**power, 3
    left_operations = draw.below(num_operations)
    left, a, left_rank = _tree(draw, left_operations, level, steps)
    right, b, right_rank = _tree(draw, num_operations - 1 - left_operations, level, steps)
    sign = draw.pick("++--**/")
    if sign == "/":
        return _quotient(draw, left, a, left_rank, steps)
    if sign == "*":
        steps.append(f"${factor(a)} \\times {factor(b)} = {a * b}$")
        return f"{_wrap(left, left_rank, 2)} \\times {_wrap(right, right_rank, 3)}", a * b, 2
    value = a + b if sign == "+" else a - b
    steps.append(f"${a} {sign} {factor(b)} = {value}$")
    return f"{left} {sign} {_wrap(right, right_rank, 2)}", value, 1


def _quotient(draw: Draw, left: str, a: int, left_rank: int, steps: list[str]) -> tuple[str, int, int]:
    divisors = [d for d in range(2, 13) if a % d == 0]
    if not divisors or a == 0:
        divisor = draw.integer(2, 9)
        steps.append(f"${factor(a)} \\times {divisor} = {a * divisor}$")
        return f"{_wrap(left, left_rank, 2)} \\times {divisor}", a * divisor, 2
    divisor = draw.pick(divisors)
    steps.append(f"${factor(a)} \\div {divisor} = {a // divisor}$")
    return f"{_wrap(left, left_rank, 2)} \\div {divisor}", a // divisor, 2


def _wrap(text: str, rank: int, least: int) -> str:
    return text if rank >= least else f"({text})"


def fractions(draw: Draw, level: int, zh: bool) -> Draft:
    """Fractions added, subtracted, multiplied or divided: two of them at levels 1 and 2, up to four at level 5."""
    limit = (9, 12, 15, 20, 30)[level - 1]
    parts = [Fraction(draw.integer(1, limit), draw.integer(2, limit)) for _ in range(2 + level // 2)]
    operation = draw.pick("+-*/") if len(parts) == 2 else "+-"
    steps: list[str] = []
    if operation in "*/" and len(parts) == 2:
        a, b = parts
        sign = "\\times" if operation == "*" else "\\div"
        value = a * b if operation == "*" else a / b
        text = f"{_frac(a)} {sign} {_frac(b)}"
        c = b if operation == "*" else 1 / b
        up, down = a.numerator * c.numerator, a.denominator * c.denominator
        if operation == "/":
            steps.append(f"${text} = {_frac(a)} \\times {_frac(c)}$")
        steps.append(
            f"${a.numerator} \\times {c.numerator} = {up}$, ${a.denominator} \\times {c.denominator} = {down}$"
        )
        steps.append(f"${_over(up, down)} = {simplest(value)}$")
    else:
        signs = [1] + [1 if draw.chance(0.6) else -1 for _ in parts[1:]]
        text = _frac(parts[0]) + "".join(
            f" {'+' if s > 0 else '-'} {_frac(p)}" for s, p in zip(signs[1:], parts[1:], strict=True)
        )
        common = lcm(*(p.denominator for p in parts))
        ups = [int(p * common) for p in parts]
        steps += [f"${_frac(p)} = {_over(up, common)}$" for p, up in zip(parts, ups, strict=True)]
        total = sum(s * up for s, up in zip(signs, ups, strict=True))
        chain = str(ups[0]) + "".join(
            f" {'+' if s > 0 else '-'} {up}" for s, up in zip(signs[1:], ups[1:], strict=True)
        )
        steps.append(f"${chain} = {total}$")
        value = Fraction(total, common)
        steps.append(f"${_over(total, common)} = {simplest(value)}$")
    ask = [q + " Give the answer in lowest terms." for q in _ASK]
    return Draft(say(draw, zh, ask, [q + "答案用最简分数表示。" for q in _ASK_ZH], e=text), steps, simplest(value))


def _frac(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else _over(value.numerator, value.denominator)


def _over(up: int, down: int) -> str:
    return f"\\frac{{{up}}}{{{down}}}" if up >= 0 else f"-\\frac{{{-up}}}{{{down}}}"


def decimals(draw: Draw, level: int, zh: bool) -> Draft:
    """Decimals of one to three places: a chain of L sums, differences or products."""
    places = (1, 1, 2, 2, 3)[level - 1]
    value = Fraction(draw.integer(11, 10 * SIZE[level - 1]), 10**places)
    text, steps = decimal(value), []
    for _ in range(1 + level // 2):
        other = Fraction(draw.integer(2, 5 * SIZE[level - 1]), 10 ** draw.integer(1, places))
        sign, word = draw.pick((("+", "+"), ("-", "-"), ("*", "\\times")))
        result = value + other if sign == "+" else value - other if sign == "-" else value * other
        inner = f"({text})" if sign == "*" and " " in text else text
        text = f"{inner} {word} {decimal(other)}"
        steps.append(f"${_paren(decimal(value))} {word} {decimal(other)} = {decimal(result)}$")
        value = result
    return Draft(say(draw, zh, _ASK, _ASK_ZH, e=text), steps, decimal(value))


def _paren(text: str) -> str:
    return f"({text})" if text.startswith("-") else text


_PERCENT = (
    "What is {p}% of {n}?", "Find {p}% of {n}.", "Calculate {p} percent of {n}.", "Work out {p}% of {n}.",
    "A sample is {p}% of a lot of {n} g. How many grams is the sample?",
    "If {p}% of a class fund of {n} dollars is spent, how many dollars are spent?",
    "A journey is {p}% done. How many kilometres is that if the whole way is {n} km?",
    "A bank pays {p}% interest a year. How many dollars is that on {n} dollars?", "How much is {p}% of {n}?",
)  # fmt: skip
_PERCENT_ZH = (
    "{n}的{p}%是多少？", "求{n}的{p}%。", "{n}克的{p}%是多少克？", "一批货物重{n}千克，已运走{p}%，运走了多少千克？", "本金{n}元，年利率{p}%，一年的利息是多少元？",
    "{n}页的书已看了{p}%，看了多少页？", "计算：{n}的百分之{p}是多少？",
)  # fmt: skip
_WHOLE = (
    "{n} is {p}% of which number?",
    "What is that number of which {n} is {p}%?",
    "A deposit of {n} dollars is {p}% of the price of a bicycle. Which number of dollars does the bicycle cost?",
    "{n} pupils walk to school, {p}% of all. Which number of pupils does the school have?",
    "Given that {n} equals {p}% of a number, find that number.",
)
_WHOLE_ZH = (
    "{n}是哪个数的{p}%？", "一个数的一部分是{n}，恰好占它的{p}%。这个数是多少？", "{n}占哪个数的{p}%？", "已知{n}等于某数的{p}%，求这个数。",
)  # fmt: skip


def percent(draw: Draw, level: int, zh: bool) -> Draft:
    """Part of a whole, from level 3 also the whole from its part."""
    step = (10, 5, 2, 1, 1)[level - 1]
    p, n = step * draw.integer(1, 95 // step), draw.integer(2, 20 * SIZE[level - 1])
    if level >= 3 and draw.chance(0.5):
        value = Fraction(100 * n, p)
        steps = [f"${n} \\times 100 = {100 * n}$", f"${100 * n} \\div {p} = {simplest(value)}$"]
        return Draft(say(draw, zh, _WHOLE, _WHOLE_ZH, p=p, n=n), steps, simplest(value))
    value = Fraction(p * n, 100)
    steps = [f"${n} \\times {p} = {n * p}$", f"${n * p} \\div 100 = {decimal(value)}$"]
    return Draft(say(draw, zh, _PERCENT, _PERCENT_ZH, p=p, n=n), steps, decimal(value))


_LARGEST = ("Which of these fractions is the largest: {f}?", "Which fraction is greatest among {f}?", "Compare {f}. Which one is the largest?", "Runners have done {f} of the course. What is the largest of these fractions?", "Of the fractions {f}, which one is the greatest?",
            "Compare the fractions {f}. Which one is largest?")  # fmt: skip
_LARGEST_ZH = (
    "下列分数中哪个最大：{f}？", "在{f}中，哪个分数最大？", "几位同学分别看完全书的{f}，其中最大的分数是哪个？", "比较分数{f}的大小，最大的是哪个？",
)  # fmt: skip


def largest_fraction(draw: Draw, level: int, zh: bool) -> Draft:
    """The largest of L + 1 different fractions below 1 (denominators to 10, 15, 20, 30, 40)."""
    limit = (10, 15, 20, 30, 40)[level - 1]
    parts: list[Fraction] = []
    while len(parts) < level + 1:
        down = draw.integer(3, limit)
        part = Fraction(draw.integer(1, down - 1), down)
        if part not in parts:
            parts.append(part)
    common, best = lcm(*(p.denominator for p in parts)), max(parts)
    steps = [f"${_frac(p)} = {_over(int(p * common), common)}$" for p in parts]
    steps.append(("最大的分子是" if zh else "The largest numerator is ") + f"${int(best * common)}$")
    listed = ", ".join(f"${_frac(p)}$" for p in parts)
    return Draft(say(draw, zh, _LARGEST, _LARGEST_ZH, f=listed), steps, simplest(best))


_MISSING = ("Which number belongs in the box? $\\square {t} = {r}$", "Solve for the box: $\\square {t} = {r}$", "Somebody has wiped out a number: $\\square {t} = {r}$. What was it?", "What has to stand in place of the box so that $\\square {t} = {r}$ is true?", "Find the number that the box stands for: $\\square {t} = {r}$",
            "Fill in the missing number: $\\square {t} = {r}$")  # fmt: skip
_MISSING_ZH = (
    "方框里应填什么数？$\\square {t} = {r}$", "在 $\\square {t} = {r}$ 中，方框表示哪个数？", "算式 $\\square {t} = {r}$ 里有一个数被擦掉了，它是多少？",
    "求方框所代表的数：$\\square {t} = {r}$", "填空：$\\square {t} = {r}$",
)  # fmt: skip


def missing_number(draw: Draw, level: int, zh: bool) -> Draft:
    """L operations done to an unknown number, undone one by one from the right."""
    answer = draw.integer(2, SIZE[level - 1])
    tail, undo, value = "", [], answer
    for i in range(level):
        other = draw.integer(2, SIZE[level - 1])
        if i == 0 and level > 1 and draw.chance(0.6):
            other = draw.integer(2, 12)
            undo.append(f"${value * other} \\div {other} = {value}$")
            tail, value = f"{tail} \\times {other}", value * other
        elif draw.chance(0.5):
            undo.append(f"${value + other} - {other} = {value}$")
            tail, value = f"{tail} + {other}", value + other
        else:
            undo.append(f"${value - other} + {other} = {value}$")
            tail, value = f"{tail} - {other}", value - other
    return Draft(say(draw, zh, _MISSING, _MISSING_ZH, t=tail.strip(), r=value), undo[::-1], str(answer))


_SUM = ("What is the sum of all integers from {a} to {b}?", "What do the integers from {a} up to and including {b} add up to?", "Tickets are numbered from {a} to {b}. What is the sum of the numbers on them?", "Pages {a} to {b} have been torn out of a book. What is the sum of the missing page numbers?", "Someone adds every whole number beginning with {a} and ending with {b}. What total results?", "Add up all whole numbers from {a} to {b}, both included.",
        "Find the total of the integers {a} through {b}.")  # fmt: skip
_SUM_ZH = (
    "从{a}到{b}的所有整数之和是多少？", "把{a}到{b}的整数全部加起来，和是多少？", "一叠票的编号从{a}到{b}，所有编号之和是多少？", "连续整数从{a}起加到{b}为止，总和是多少？",
    "求{a}到{b}（含两端）所有整数的和。",
)  # fmt: skip


def sum_of_range(draw: Draw, level: int, zh: bool) -> Draft:
    """Gauss's sum of up to 10, 30, 100, 300, 1000 consecutive integers."""
    a = draw.integer(1, 10 * SIZE[level - 1])
    b = a + draw.integer(4, (10, 30, 100, 300, 1000)[level - 1])
    count, total = b - a + 1, (a + b) * (b - a + 1) // 2
    steps = [
        ("项数：" if zh else "Number of terms: ") + f"${b} - {a} + 1 = {count}$",
        ("首末两项之和：" if zh else "First plus last: ") + f"${a} + {b} = {a + b}$",
        f"${a + b} \\times {count} \\div 2 = {total}$",
    ]
    return Draft(say(draw, zh, _SUM, _SUM_ZH, a=a, b=b), steps, str(total))


_BALANCE = ("The temperature is {t} degrees. It changes by {c} degrees in turn. What is it now?", "A drone hovers {t} metres above the launch pad and climbs or sinks by {c} metres, step by step. How many metres above the pad is it at last?", "A submarine is at {t} metres and changes its depth by {c} metres in this order. Where is it then?", "In a board game the score stands at {t} points. The next rounds bring {c} points. What is the score then?", "The level of a reservoir is {t} cm against the mark and changes by {c} cm day after day. What is the level in the end?",
            "A diver is at height {t} metres and moves by {c} metres, one after the other. At which height does the dive end?",
            "An account stands at {t} dollars. The bookings are {c} dollars. What is the balance?")  # fmt: skip
_BALANCE_ZH = (
    "气温是{t}度，先后变化{c}度，现在是多少度？", "清晨的气温是{t}度，此后依次变化{c}度，现在气温是多少度？", "无人机相对起飞点的高度为{t}米，随后依次升降{c}米，最后的高度是多少米？",
    "水位为{t}厘米，逐日变化{c}厘米，最后的水位是多少？", "某队现有{t}分，接下来几轮得分为{c}，最后是多少分？", "账户余额为{t}元，随后的收支依次是{c}元，现在余额是多少？",
)  # fmt: skip


def signed_sum(draw: Draw, level: int, zh: bool) -> Draft:
    """A chain of L + 1 signed changes."""
    value = draw.nonzero(SIZE[level - 1])
    changes = [draw.nonzero(SIZE[level - 1]) for _ in range(level + 1)]
    question = say(draw, zh, _BALANCE, _BALANCE_ZH, t=value, c=", ".join(signed(c) for c in changes))
    steps = []
    for change in changes:
        steps.append(f"${value} + {factor(change)} = {value + change}$")
        value += change
    return Draft(question, steps, str(value))


TEMPLATES: dict[str, tuple[int, Template]] = {
    "expression": (1, expression),
    "fractions": (1, fractions),
    "decimals": (1, decimals),
    "percent": (1, percent),
    "largest_fraction": (1, largest_fraction),
    "missing_number": (1, missing_number),
    "sum_of_range": (1, sum_of_range),
    "signed_sum": (1, signed_sum),
}
