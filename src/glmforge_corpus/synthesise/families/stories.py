"""Stories about how many of a thing somebody has, told as a chain of events.

Level L: L + 1 events, start below 20, 50, 100, 200, 500. The events are drawn one by one, so that the number of
different stories grows with the level as no list of templates could.
"""

# ruff: noqa: E501 - sentences and their patterns are not broken up

from glmforge_corpus.synthesise.draw import Draw
from glmforge_corpus.synthesise.pools import FIRMS, FIRMS_ZH, name, names, thing
from glmforge_corpus.synthesise.problem import Draft, Template, say

SIZE = (20, 50, 100, 200, 500)

_START = ("{w} has {n} {x}.", "At first {w} has {n} {x}.", "{w} starts the week with {n} {x}.", "On Monday {w} counts {n} {x}.",
          "{w} owns {n} {x}.")  # fmt: skip
_START_ZH = ("{w}有{n}{m}{x}。", "起初{w}有{n}{m}{x}。", "星期一{w}数了数，有{n}{m}{x}。", "{w}一共拥有{n}{m}{x}。")
_GAIN = ("{w} buys {n} more.", "A friend gives {w} {n} more.", "Then {n} more arrive as a present.", "{o} hands {n} of them to {w}.",
         "{w} finds another {n} in a drawer.", "In a competition {w} wins {n} more.")  # fmt: skip
_GAIN_ZH = (
    "{w}又买来{n}{m}。", "朋友又送来{n}{m}。", "后来{w}又收到{n}{m}。", "{w}在抽屉里又找到{n}{m}。", "比赛中{w}又赢得{n}{m}。",
)  # fmt: skip
_LOSE = ("{w} gives {n} to {o}.", "{w} loses {n} on the way home.", "{w} sells {n} at the market.", "{w} uses up {n}.", "Sadly, {n} break.",
         "{w} lends {n} to {o}.")  # fmt: skip
_LOSE_ZH = (
    "{w}送给{o}{n}{m}。", "{w}在路上丢了{n}{m}。", "{w}在集市上卖掉{n}{m}。", "{w}用掉{n}{m}。", "可惜坏了{n}{m}。",
)  # fmt: skip
_TIMES = ("By the next day there are {n} times as many.", "{w} works hard until the number is {n} times as large.",
          "After a good month {w} has {n} times as many as before.")  # fmt: skip
_TIMES_ZH = ("第二天数量变成原来的{n}倍。", "经过努力，{w}的数量变成原来的{n}倍。")
_PART = (
    "{w} gives 1/{n} of them to {o}.",
    "{w} donates 1/{n} of what is there.",
    "Then 1/{n} of all of them are sold.",
)
_PART_ZH = ("{w}把其中的1/{n}送给{o}。", "{w}捐出了1/{n}。", "接着卖掉其中的1/{n}。")
_BOXES = ("{w} buys {k} boxes of {n} each.", "{w} receives {k} bags with {n} in each.", "{o} brings {k} packs of {n}.")
_BOXES_ZH = ("{w}又买来{k}盒，每盒{n}{m}。", "{o}带来{k}袋，每袋{n}{m}。")
_DAILY = ("{w} uses {n} a day for {k} days.", "For {k} days {w} gives away {n} every day.")
_DAILY_ZH = ("接下来的{k}天里，{w}每天用掉{n}{m}。", "连续{k}天，{w}每天送出{n}{m}。")
_END = ("How many {x} does {w} have now?", "How many {x} are there in the end?", "What is the number of {x} at the end?",
        "How many {x} are left with {w}?")  # fmt: skip
_END_ZH = ("{w}现在有多少{m}{x}？", "最后一共有多少{m}{x}？", "最后{w}还有多少{m}{x}？")


def possession(draw: Draw, level: int, zh: bool) -> Draft:
    """Somebody's things, gained and lost."""
    who, other = names(draw, 2, zh)
    noun, measure = thing(draw, zh)
    return _chain(draw, level, zh, who, other, noun, measure)


def stock(draw: Draw, level: int, zh: bool) -> Draft:
    """A firm's stock."""
    firm = draw.pick(FIRMS_ZH if zh else FIRMS)
    noun, measure = thing(draw, zh)
    return _chain(draw, level, zh, firm if zh else f"the {firm}", name(draw, zh), noun, measure)


def _chain(draw: Draw, level: int, zh: bool, who: str, other: str, noun: str, measure: str) -> Draft:
    value = draw.integer(4, SIZE[level - 1])
    sentences = [say(draw, zh, _START, _START_ZH, w=who, n=value, x=noun, m=measure)]
    steps: list[str] = []
    for _ in range(level + 1):
        sentence, formula, value = _event(draw, level, zh, who, other, measure, value)
        sentences.append(sentence)
        steps.append(formula)
    sentences.append(say(draw, zh, _END, _END_ZH, w=who, x=noun, m=measure))
    if not zh:
        sentences = [sentence[0].upper() + sentence[1:] for sentence in sentences]
    return Draft(("" if zh else " ").join(sentences), steps, str(value))


def _event(draw: Draw, level: int, zh: bool, who: str, other: str, measure: str, value: int) -> tuple[str, str, int]:
    """(sentence, formula, new value)."""
    size = SIZE[level - 1]
    kind = draw.below(6)
    words = {"w": who, "o": other, "m": measure}
    parts = [d for d in (2, 3, 4, 5, 6, 8, 10) if value % d == 0]
    if kind == 0 and value > 3:
        n = draw.integer(1, value - 1)
        return say(draw, zh, _LOSE, _LOSE_ZH, n=n, **words), f"${value} - {n} = {value - n}$", value - n
    if kind == 1 and value * 5 <= 20 * size:
        n = draw.integer(2, 5)
        return say(draw, zh, _TIMES, _TIMES_ZH, n=n, **words), f"${value} \\times {n} = {value * n}$", value * n
    if kind == 2 and parts and value > 3:
        n = draw.pick(parts)
        formula = f"${value} \\div {n} = {value // n}$, ${value} - {value // n} = {value - value // n}$"
        return say(draw, zh, _PART, _PART_ZH, n=n, **words), formula, value - value // n
    if kind == 3:
        k, n = draw.integer(2, 9), draw.integer(2, 12)
        formula = f"${k} \\times {n} = {k * n}$, ${value} + {k * n} = {value + k * n}$"
        return say(draw, zh, _BOXES, _BOXES_ZH, k=k, n=n, **words), formula, value + k * n
    if kind == 4 and value > 12:
        k = draw.integer(2, 5)
        n = draw.integer(1, (value - 1) // k)
        formula = f"${k} \\times {n} = {k * n}$, ${value} - {k * n} = {value - k * n}$"
        return say(draw, zh, _DAILY, _DAILY_ZH, k=k, n=n, **words), formula, value - k * n
    n = draw.integer(1, size)
    return say(draw, zh, _GAIN, _GAIN_ZH, n=n, **words), f"${value} + {n} = {value + n}$", value + n


TEMPLATES: dict[str, tuple[int, Template]] = {"possession": (1, possession), "stock": (1, stock)}
