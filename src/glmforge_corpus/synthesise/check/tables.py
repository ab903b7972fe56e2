"""Table questions, verified by reading the Markdown table and the question."""

# ruff: noqa: E501 - sentences and their patterns are not broken up

import re
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

from glmforge_corpus.synthesise.check.formulas import Unreadable, number

Row = dict[str, str]


def _tables(question: str) -> list[list[Row]]:
    found: list[list[Row]] = []
    header: list[str] | None = None
    for line in question.splitlines():
        if not line.startswith("|"):
            header = None
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if header is None:
            header = cells
            found.append([])
        elif set(cells) != {"---"}:
            found[-1].append(dict(zip(header, cells, strict=True)))
    return found


def _meets(row: Row, condition: str) -> bool:
    equal = re.match(r'^(.+?)(?: is "|为“)(.+?)[”"]$', condition)
    if equal:
        return row[equal[1]] == equal[2]
    compared = re.match(r"^(.+?)(?: is )?(more|less|大于|小于)(?: than )?(\d+)$", condition)
    if compared is None:
        raise Unreadable(f"condition '{condition}'")
    value, bound = int(row[compared[1]]), int(compared[3])
    return value > bound if compared[2] in ("more", "大于") else value < bound


_WHERE = re.compile(r"where (.+?)(?: \(in lowest terms\))?\?|在(.+?)的行中")
_EXTREME = re.compile(r"Which (\w+) has the (largest|smallest) (\w+) among|，(\w+)(最大|最小)的(\w+)是什么")
_TOTAL = re.compile(r"total (\w+) of|，(\w+)之和")
_MEAN = re.compile(r"mean (\w+) of|，(\w+)的平均值")


def aggregate(question: str, answer: str, reasoning: str) -> str | None:
    """What is wrong with the answer or the rows picked, or None."""
    (rows,) = _tables(question)
    where = _WHERE.search(question)
    if where is None:
        raise Unreadable("no condition")
    conditions = re.split(r" and |且", where[1] or where[2])
    kept = [row for row in rows if all(_meets(row, condition) for condition in conditions)]
    named = re.findall(r"([^\s,：:]+) (\d+)", re.split(r"[:：] ?", reasoning.splitlines()[0], maxsplit=1)[1])
    if [name for name, _ in named] != [next(iter(row.values())) for row in kept]:
        return "other rows match"
    if not all(value in row.values() for (_, value), row in zip(named, kept, strict=True)):
        return "a value is not in its row"
    extreme, total, mean = _EXTREME.search(question), _TOTAL.search(question), _MEAN.search(question)
    if extreme:
        key, which, column = (
            (extreme[1], extreme[2], extreme[3]) if extreme[1] else (extreme[6], extreme[5], extreme[4])
        )
        values = [int(row[column]) for row in kept]
        best = max(values) if which in ("largest", "最大") else min(values)
        return None if [row[key] for row in kept if int(row[column]) == best] == [answer] else "another row"
    if total or mean:
        found = total or mean
        assert found is not None
        amount = Fraction(sum(int(row[found[1] or found[2]]) for row in kept))
        return None if (amount / len(kept) if mean else amount) == number(answer) else "another value"
    return None if len(kept) == int(answer) else "another count"


def group(question: str, answer: str, reasoning: str) -> str | None:
    """What is wrong with the answer, or None."""
    (rows,) = _tables(question)
    asked = re.search(r"Which (\w+) has the largest total (\w+)\?|哪个(\w+?)的(\w+)总和最大", question)
    if asked is None:
        raise Unreadable("no question")
    key, column = (asked[1], asked[2]) if asked[1] else (asked[3], asked[4])
    totals: dict[str, int] = {}
    for row in rows:
        totals[row[key]] = totals.get(row[key], 0) + int(row[column])
    for line in reasoning.splitlines():
        name, _, formula = line.partition(": ")
        if totals.get(name) != int(re.findall(r"\d+", formula)[-1]):
            return f"not its total: '{line}'"
    best = max(totals.values())
    return None if [name for name, total in totals.items() if total == best] == [answer] else "another group"


def ranking(question: str, answer: str, reasoning: str) -> str | None:
    """What is wrong with the answer or the order, or None."""
    (rows,) = _tables(question)
    asked = re.search(
        r"Sorted by (\w+) from (highest|lowest) to \w+, which (\w+) is number (\d+)|按(\w+?)(从高到低|从低到高)排列，第(\d+)个(\w+)是",
        question,
    )
    if asked is None:
        raise Unreadable("no question")
    column, way, key, k = (
        (asked[1], asked[2], asked[3], asked[4]) if asked[1] else (asked[5], asked[6], asked[8], asked[7])
    )
    down = way in ("highest", "从高到低")
    row = next(row for row in rows if row[key] == answer)
    ahead = sum(
        int(other[column]) > int(row[column]) if down else int(other[column]) < int(row[column]) for other in rows
    )
    if ahead != int(k) - 1:
        return "at another place"
    listed = re.findall(r"(\S+) (\d+)", reasoning)
    values = [int(value) for _, value in listed]
    rising = all((a > b) if down else (a < b) for a, b in pairwise(values))
    return None if rising and sorted(listed) == sorted((r[key], r[column]) for r in rows) else "the order is wrong"


def join(question: str, answer: str, reasoning: str) -> str | None:
    """What is wrong with the answer, or None."""
    prices, orders = _tables(question)
    cost = {next(iter(row.values())): int(list(row.values())[1]) for row in prices}
    asked = re.search(r"all orders of (\S+) cost|([^\s：。]+)的所有订单", question)
    if asked is None:
        raise Unreadable("no question")
    mine = [list(row.values()) for row in orders if next(iter(row.values())) == (asked[1] or asked[2])]
    if sum(cost[item] * int(count) for _, item, count in mine) != number(answer):
        return "another total"
    return (
        None
        if [line.partition(":")[0] for line in reasoning.splitlines()] == [item for _, item, _ in mine]
        else "other orders"
    )


CHECKS: dict[str, Callable[[str, str, str], str | None]] = {
    "aggregate": aggregate,
    "group": group,
    "ranking": ranking,
    "join": join,
}
