"""Questions about a table: filters, sums, means, extremes, groups, orders, joins.

Level L: L + 3 rows. Levels 1 and 2 ask with one condition, 3 and 4 with two or for groups, 5 joins two tables.
"""

# ruff: noqa: E501 - sentences and their patterns are not broken up

from collections.abc import Sequence
from fractions import Fraction

from glmforge_corpus.synthesise.draw import Draw
from glmforge_corpus.synthesise.numerals import simplest
from glmforge_corpus.synthesise.pools import NAMES, NAMES_ZH, PLACES, PLACES_ZH
from glmforge_corpus.synthesise.problem import Draft, Template, Unlucky, say

# key column, group column, group values, two number columns with their ranges; English and Chinese
_SUBJECTS = (
    (("name", "city", "age", "points"), ("姓名", "城市", "年龄", "积分"), "people", PLACES, PLACES_ZH, (18, 70), (0, 500)),
    (("product", "category", "price", "stock"), ("商品", "类别", "价格", "库存"), "goods", ("toys", "tools", "food", "books"), ("玩具", "工具", "食品", "图书"), (2, 300), (0, 90)),
    (("player", "team", "goals", "minutes"), ("球员", "球队", "进球", "分钟"), "people", ("red", "blue", "green", "white"), ("红队", "蓝队", "绿队", "白队"), (0, 30), (10, 900)),
    (("employee", "department", "salary", "years"), ("员工", "部门", "工资", "年限"), "people", ("sales", "design", "legal", "support"), ("销售", "设计", "法务", "客服"), (2000, 9000), (1, 30)),
    (("route", "region", "length", "riders"), ("线路", "区域", "长度", "乘客"), "codes", ("north", "south", "east", "west"), ("北区", "南区", "东区", "西区"), (3, 60), (20, 2000)),
)  # fmt: skip
_GOODS = (
    "kite", "drill", "rice", "atlas", "puzzle", "hammer", "honey", "novel", "robot", "saw", "tea", "diary", "ball",
    "wrench", "jam", "globe",
)  # fmt: skip
_GOODS_ZH = (
    "风筝", "电钻", "大米", "地图", "拼图", "锤子", "蜂蜜", "小说", "机器人", "锯子", "茶叶", "日记本", "皮球", "扳手", "果酱", "地球仪",
)  # fmt: skip

Rows = list[tuple[str, str, int, int]]


def _table(draw: Draw, level: int, zh: bool) -> tuple[tuple[str, ...], Rows]:
    english, chinese, kind, groups, groups_zh, first, second = draw.pick(_SUBJECTS)
    count = level + 3
    if kind == "people":
        keys = draw.sample(NAMES_ZH if zh else NAMES, count)
    elif kind == "goods":
        keys = draw.sample(_GOODS_ZH if zh else _GOODS, count)
    else:
        keys = [f"{letter}{draw.integer(1, 9)}" for letter in draw.sample("ABCDEFGHKLMNPRSTUVWX", count)]
    values = draw.sample(groups_zh if zh else groups, min(2 + level // 2, 4))
    rows = [(key, draw.pick(values), draw.integer(*first), draw.integer(*second)) for key in keys]
    return (chinese if zh else english), rows


def _number(row: tuple[str, str, int, int], column: int) -> int:
    return row[2] if column == 2 else row[3]


def show(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def _condition(draw: Draw, columns: tuple[str, ...], rows: Rows, zh: bool, number: bool) -> tuple[str, list[bool]]:
    """(words, which rows) of a condition that some rows meet and some do not."""
    if not number:
        value = draw.pick(rows)[1]
        words = f"{columns[1]}为“{value}”" if zh else f'{columns[1]} is "{value}"'
        return words, [row[1] == value for row in rows]
    column = draw.integer(2, 3)
    bound = _number(draw.pick(rows), column)
    above = draw.chance(0.5)
    words = (
        f"{columns[column]}{'大于' if above else '小于'}{bound}"
        if zh
        else f"{columns[column]} is {'more' if above else 'less'} than {bound}"
    )
    return words, [(_number(row, column) > bound) if above else (_number(row, column) < bound) for row in rows]


_LEAD = ("Here is a table.\n{t}\n{q}", "Look at the following data.\n{t}\n{q}", "{t}\nAnswer from the table above: {q}")
_LEAD_ZH = ("请看下表。\n{t}\n{q}", "{t}\n根据上表回答：{q}")


def aggregate(draw: Draw, level: int, zh: bool) -> Draft:
    """Count, sum, mean, maximum or minimum of the rows that meet one condition, from level 3 two."""
    columns, rows = _table(draw, level, zh)
    words, chosen = _condition(draw, columns, rows, zh, draw.chance(0.5))
    if level >= 3:
        more, also = _condition(draw, columns, rows, zh, True)
        words += ("且" if zh else " and ") + more
        chosen = [a and b for a, b in zip(chosen, also, strict=True)]
    kept = [row for row, keep in zip(rows, chosen, strict=True) if keep]
    if not kept or len(kept) == len(rows):
        raise Unlucky
    column = draw.integer(2, 3)
    values = [_number(row, column) for row in kept]
    matched = ", ".join(f"{row[0]} {row[column]}" for row in kept)
    steps = [
        ("符合条件的行（及其" + columns[column] + "）：" if zh else f"Matching rows with their {columns[column]}: ")
        + matched
    ]
    joined = " + ".join(map(str, values))
    kind = draw.below(5)
    if kind == 0:
        question = f"在{words}的行中，共有多少行？" if zh else f"How many rows are there where {words}?"
        answer = str(len(kept))
    elif kind == 1:
        question = (
            f"在{words}的行中，{columns[column]}之和是多少？"
            if zh
            else f"What is the total {columns[column]} of the rows where {words}?"
        )
        answer = str(sum(values))
        steps += [f"${joined} = {answer}$"] if len(values) > 1 else []
    elif kind == 2:
        question = (
            f"在{words}的行中，{columns[column]}的平均值是多少？（最简分数）"
            if zh
            else f"What is the mean {columns[column]} of the rows where {words} (in lowest terms)?"
        )
        answer = simplest(Fraction(sum(values), len(values)))
        steps += [f"${joined} = {sum(values)}$"] if len(values) > 1 else []
        steps.append(f"${sum(values)} \\div {len(values)} = {answer}$")
    else:
        best = max(values) if kind == 3 else min(values)
        found = [row[0] for row in kept if row[column] == best]
        if len(found) > 1:
            raise Unlucky
        big, big_zh = ("largest", "最大") if kind == 3 else ("smallest", "最小")
        question = (
            f"在{words}的行中，{columns[column]}{big_zh}的{columns[0]}是什么？"
            if zh
            else f"Which {columns[0]} has the {big} {columns[column]} among the rows where {words}?"
        )
        answer = found[0]
        return Draft(say(draw, zh, _LEAD, _LEAD_ZH, t=show(columns, rows), q=question), steps, answer, "text")
    return Draft(say(draw, zh, _LEAD, _LEAD_ZH, t=show(columns, rows), q=question), steps, answer)


def group(draw: Draw, level: int, zh: bool) -> Draft:
    """The group with the largest total."""
    columns, rows = _table(draw, level, zh)
    column = draw.integer(2, 3)
    groups: dict[str, list[int]] = {}
    for row in rows:
        groups.setdefault(row[1], []).append(_number(row, column))
    totals = {name: sum(values) for name, values in groups.items()}
    best = max(totals.values())
    if len(groups) < 2 or list(totals.values()).count(best) > 1:
        raise Unlucky
    steps = [
        f"{name}: ${' + '.join(map(str, values))} = {totals[name]}$" if len(values) > 1 else f"{name}: ${values[0]}$"
        for name, values in groups.items()
    ]
    answer = next(name for name, total in totals.items() if total == best)
    question = (
        f"哪个{columns[1]}的{columns[column]}总和最大？"
        if zh
        else f"Which {columns[1]} has the largest total {columns[column]}?"
    )
    return Draft(say(draw, zh, _LEAD, _LEAD_ZH, t=show(columns, rows), q=question), steps, answer, "text")


def ranking(draw: Draw, level: int, zh: bool) -> Draft:
    """Whoever is at place k when sorted by a column without ties."""
    columns, rows = _table(draw, level, zh)
    column, k = draw.integer(2, 3), draw.integer(2, min(1 + level, 5))
    if len({row[column] for row in rows}) < len(rows):
        raise Unlucky
    down = draw.chance(0.5)
    ordered = sorted(rows, key=lambda row: row[column], reverse=down)
    steps = [(" > " if down else " < ").join(f"{row[0]} {row[column]}" for row in ordered)]
    direction, direction_zh = ("highest to lowest", "从高到低") if down else ("lowest to highest", "从低到高")
    question = (
        f"按{columns[column]}{direction_zh}排列，第{k}个{columns[0]}是什么？"
        if zh
        else f"Sorted by {columns[column]} from {direction}, which {columns[0]} is number {k}?"
    )
    return Draft(say(draw, zh, _LEAD, _LEAD_ZH, t=show(columns, rows), q=question), steps, ordered[k - 1][0], "text")


def join(draw: Draw, level: int, zh: bool) -> Draft:
    """Orders that refer to a price list: what somebody's orders cost."""
    goods = draw.sample(_GOODS_ZH if zh else _GOODS, level)
    prices = [(item, draw.integer(2, 20 * level)) for item in goods]
    buyers = draw.sample(NAMES_ZH if zh else NAMES, 1 + level // 2)
    orders = [(draw.pick(buyers), draw.pick(goods), draw.integer(1, 12)) for _ in range(level + 3)]
    buyer = draw.pick(orders)[0]
    cost, total, steps = dict(prices), 0, []
    for who, item, count in orders:
        if who == buyer:
            amount = count * cost[item]
            steps.append(
                f"{item}: ${count} \\times {cost[item]} = {amount}$"
                + (f", ${total} + {amount} = {total + amount}$" if total else "")
            )
            total += amount
    one = show(("商品", "单价") if zh else ("item", "price"), prices)
    two = show(("顾客", "商品", "数量") if zh else ("customer", "item", "quantity"), orders)
    question = f"{buyer}的所有订单一共多少钱？" if zh else f"How much do all orders of {buyer} cost together?"
    return Draft(say(draw, zh, _LEAD, _LEAD_ZH, t=f"{one}\n\n{two}", q=question), steps, str(total))


TEMPLATES: dict[str, tuple[int, Template]] = {
    "aggregate": (1, aggregate),
    "group": (2, group),
    "ranking": (1, ranking),
    "join": (4, join),
}
