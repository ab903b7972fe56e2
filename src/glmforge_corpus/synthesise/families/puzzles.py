"""Knights and knaves, and orders in a row: puzzles with exactly one solution, found by going through all cases.

A solution is a list of cut-off cases, "A knight, B knave: broken by (2)", and the one case that is left. The cases
do not overlap and together with the solution make up everything that could be, so the list is a proof.
"""

# ruff: noqa: E501 - sentences and their patterns are not broken up

from collections.abc import Callable
from functools import cache
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from glmforge_corpus.synthesise.draw import Draw
from glmforge_corpus.synthesise.pools import names
from glmforge_corpus.synthesise.problem import Draft, Template, Unlucky, say

# A statement: (kind, about whom); who says it is its index.
Statement = tuple[str, tuple[int, ...]]
_CLAIMS = {
    "knight": ("{a} is a knight", "{a}是骑士"),
    "knave": ("{a} is a knave", "{a}是无赖"),
    "same": ("{a} and {b} are of the same kind", "{a}和{b}是同一类人"),
    "different": ("{a} and {b} are of different kinds", "{a}和{b}是不同类的人"),
    "either": ("at least one of {a} and {b} is a knight", "{a}和{b}中至少有一个是骑士"),
    "neither": ("both {a} and {b} are knaves", "{a}和{b}都是无赖"),
    "implies": ("if {a} is a knight, then so is {b}", "如果{a}是骑士，那么{b}也是"),
}  # fmt: skip
_ISLAND = ("On an island, knights always tell the truth and knaves always lie.{p}\nWhat is each of them? List everybody in the order above, as in: knight, knave.",
           "Everyone here is a knight, who never lies, or a knave, who always does.{p}\nDecide for each speaker in turn, and write for instance: knave, knight.")  # fmt: skip
_ISLAND_ZH = ("岛上的骑士总说真话，无赖总说假话。{p}\n他们各是什么人？按上面的顺序写出，例如：骑士, 无赖。",)


def claim_holds(statement: Statement, knights: tuple[bool, ...] | list[bool]) -> bool:
    """Whether what is said is so."""
    kind, about = statement
    a = knights[about[0]]
    b = knights[about[-1]]
    match kind:
        case "knight":
            return a
        case "knave":
            return not a
        case "same":
            return a == b
        case "different":
            return a != b
        case "either":
            return a or b
        case "neither":
            return not a and not b
        case _:
            return not a or b


def knights_and_knaves(draw: Draw, level: int, zh: bool) -> Draft:
    """L + 1 people with a statement each."""
    count = level + 1
    people = names(draw, count, zh)
    statements: list[Statement] = []
    for speaker in range(count):
        kind = draw.pick(
            tuple(_CLAIMS) if count > 2 else ("knave", "same", "different", "either", "neither", "implies")
        )
        others = [i for i in range(count) if i != speaker]
        if kind in ("knight", "knave"):
            about: tuple[int, ...] = (draw.pick(others),)
        elif draw.chance(0.5) or count == 2:
            about = tuple(draw.shuffled((speaker, draw.pick(others))))
        else:
            about = tuple(draw.sample(others, 2))
        statements.append((kind, about))
    leaves: list[tuple[list[bool], int]] = []
    solutions: list[list[bool]] = []
    _search_knights(statements, [], count, leaves, solutions)
    if len(solutions) != 1:
        raise Unlucky
    knight, knave = ("骑士", "无赖") if zh else ("knight", "knave")
    said = [_CLAIMS[kind][1 if zh else 0].format(a=people[about[0]], b=people[about[-1]]) for kind, about in statements]
    lines = [
        f"({i + 1}) {person}{'说：' if zh else ' says: '}{claim}{'。' if zh else '.'}"
        for i, (person, claim) in enumerate(zip(people, said, strict=True))
    ]
    question = say(draw, zh, _ISLAND, _ISLAND_ZH, p="\n" + "\n".join(lines))
    steps = [
        _case(people, leaf, knight, knave) + f": {'与' if zh else 'contradicts '}({index + 1}){'矛盾' if zh else ''}"
        for leaf, index in leaves
    ]
    steps.append(_case(people, solutions[0], knight, knave) + ("：全部符合" if zh else ": fits all"))
    return Draft(question, steps, ", ".join(knight if k else knave for k in solutions[0]), "list")


def _case(people: list[str], kinds: list[bool], knight: str, knave: str) -> str:
    return ", ".join(f"{person} {knight if kind else knave}" for person, kind in zip(people, kinds, strict=False))


def _search_knights(
    statements: list[Statement],
    fixed: list[bool],
    count: int,
    leaves: list[tuple[list[bool], int]],
    solutions: list[list[bool]],
) -> None:
    known = len(fixed)
    for speaker in range(known):
        statement = statements[speaker]
        if max(speaker, *statement[1]) == known - 1 and claim_holds(statement, fixed) is not fixed[speaker]:
            leaves.append((fixed, speaker))
            return
    if known == count:
        solutions.append(fixed)
        return
    for kind in (True, False):
        _search_knights(statements, [*fixed, kind], count, leaves, solutions)


# Clues about an order: kind, people, number. Positions count from 1 at the left.
Clue = tuple[str, int, int, int]
_CLUES = {
    "left": ("{a} is somewhere to the left of {b}.", "{a}在{b}的左边某处。"),
    "next_left": ("{a} is directly to the left of {b}.", "{a}紧挨在{b}的左边。"),
    "adjacent": ("{a} and {b} are next to each other.", "{a}和{b}相邻。"),
    "apart": ("{a} and {b} are not next to each other.", "{a}和{b}不相邻。"),
    "between": ("There are exactly {k} people between {a} and {b}.", "恰好有{k}人在{a}和{b}之间。"),
    "at": ("{a} is at position {k}.", "{a}在第{k}位。"),
    "not_at": ("{a} is not at position {k}.", "{a}不在第{k}位。"),
    "end": ("{a} is at one of the ends.", "{a}在两端之一。"),
}  # fmt: skip
_KINDS = (("at", "left", "next_left", "adjacent"), ("left", "next_left", "adjacent", "end", "not_at"),
          ("left", "next_left", "adjacent", "between", "end", "not_at"), ("left", "adjacent", "apart", "between", "end", "not_at"),
          ("left", "adjacent", "apart", "between", "not_at"))  # fmt: skip
_ROW = ("{n} people sit in a row: {p}. Positions are numbered from the left, starting at 1.\n{c}\nWrite the names from left to right, separated by commas.",
        "{p} stand in line; {n} places, the leftmost being place 1.\n{c}\nWho stands where? List the names from left to right, separated by commas.")  # fmt: skip
_ROW_ZH = ("{n}个人坐成一排：{p}。位置从左边的1开始编号。\n{c}\n请从左到右写出名字，用逗号分隔。",)


def clue_holds(clue: Clue, place: Callable[[int], int], count: int) -> bool:
    """Whether an order (person -> place, from 0) agrees with a clue."""
    kind, a, b, k = clue
    x = place(a)
    if kind in ("at", "not_at"):
        return (x == k - 1) is (kind == "at")
    if kind == "end":
        return x in (0, count - 1)
    return _distance_holds(kind, place(b) - x, k)


def _distance_holds(kind: str, distance: int, k: int) -> bool:
    match kind:
        case "left":
            return distance > 0
        case "next_left":
            return distance == 1
        case "adjacent":
            return abs(distance) == 1
        case "apart":
            return abs(distance) != 1
        case _:
            return abs(distance) == k + 1


@cache
def _orders(count: int) -> NDArray[np.int8]:
    """`[count!, count]`: place of each person, for all orders."""
    return np.array(list(permutations(range(count))), dtype=np.int8)


def _mask(clue: Clue, places: NDArray[np.int8]) -> NDArray[np.bool_]:
    """`[orders]`: `clue_holds` for all of them at once."""
    kind, a, b, k = clue
    x = places[:, a]
    distance = places[:, b] - x
    held: NDArray[np.bool_]
    match kind:
        case "at":
            held = x == k - 1
        case "not_at":
            held = x != k - 1
        case "end":
            held = (x == 0) | (x == places.shape[1] - 1)
        case "left":
            held = distance > 0
        case "next_left":
            held = distance == 1
        case "adjacent":
            held = np.abs(distance) == 1
        case "apart":
            held = np.abs(distance) != 1
        case _:
            held = np.abs(distance) == k + 1
    return held


def seating(draw: Draw, level: int, zh: bool) -> Draft:
    """An order of 3, 4, 4, 5, 5 people; direct clues at level 1, only relative and negative ones at level 5."""
    count = (3, 4, 4, 5, 5)[level - 1]
    people = names(draw, count, zh)
    hidden = draw.shuffled(range(count))  # hidden[p] = place of person p
    left, clues = _orders(count), list[Clue]()
    for _ in range(40):
        clue = _true_clue(draw, draw.pick(_KINDS[level - 1]), hidden)
        if clue is None or clue in clues:
            continue
        rest = left[_mask(clue, left)]
        if len(rest) < len(left):
            left = rest
            clues.append(clue)
        if len(left) == 1:
            break
    else:
        raise Unlucky
    order = _by_mentions(clues, count)
    leaves: list[tuple[dict[int, int], int]] = []
    _search_order(clues, {}, order, count, leaves)
    if len(leaves) > 30:
        raise Unlucky
    lines = [
        f"({i + 1}) " + _CLUES[kind][1 if zh else 0].format(a=people[a], b=people[b], k=k)
        for i, (kind, a, b, k) in enumerate(clues)
    ]
    steps = []
    for leaf, index in leaves:
        case = ", ".join(f"{people[p]} {place + 1}" for p, place in leaf.items())
        steps.append(
            f"{case}: {'与' if zh else 'contradicts '}({index + 1}){'矛盾' if zh else ''}"
            if index >= 0
            else case + ("：全部符合" if zh else ": fits all")
        )
    solution = [people[hidden.index(place)] for place in range(count)]
    # who is named first must not tell the order
    listed = ("、" if zh else ", ").join(people)
    question = say(draw, zh, _ROW, _ROW_ZH, n=count, p=listed, c="\n".join(lines))
    return Draft(question, steps, ", ".join(solution), "list")


def _true_clue(draw: Draw, kind: str, hidden: list[int]) -> Clue | None:
    count = len(hidden)
    a, b = draw.sample(range(count), 2)
    k = 0
    if kind == "at":
        k = hidden[a] + 1
    elif kind == "not_at":
        k = draw.integer(1, count)
    elif kind == "between":
        k = abs(hidden[a] - hidden[b]) - 1
        if k < 1:
            return None
    if kind == "left" and hidden[a] > hidden[b]:
        a, b = b, a
    clue = (kind, a, b if kind not in ("at", "not_at", "end") else a, k)
    return clue if clue_holds(clue, hidden.__getitem__, count) else None


def _by_mentions(clues: list[Clue], count: int) -> list[int]:
    """People in an order in which clues become decidable early."""
    order: list[int] = []
    for _, a, b, _ in sorted(clues, key=lambda clue: clue[0] not in ("at", "end")):
        order += [p for p in dict.fromkeys((a, b)) if p not in order]
    return order + [p for p in range(count) if p not in order]


def _search_order(
    clues: list[Clue], placed: dict[int, int], order: list[int], count: int, leaves: list[tuple[dict[int, int], int]]
) -> None:
    for index, clue in enumerate(clues):
        if clue[1] in placed and clue[2] in placed and not clue_holds(clue, placed.__getitem__, count):
            leaves.append((placed, index))
            return
    if len(placed) == count:
        leaves.append((placed, -1))
        return
    person = order[len(placed)]
    for place in range(count):
        if place not in placed.values():
            _search_order(clues, {**placed, person: place}, order, count, leaves)


TEMPLATES: dict[str, tuple[int, Template]] = {"knights_and_knaves": (1, knights_and_knaves), "seating": (1, seating)}
