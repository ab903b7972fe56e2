"""Classical word problems, one situation each.

In all phrasings of a situation, in both languages, the numbers stand in the same order, so that they can be read
back from the text alone. Level L sets the size of the numbers and, where named, how many parts there are.
"""

# ruff: noqa: E501 - sentences and their patterns are not broken up

from fractions import Fraction
from math import comb

from glmforge_corpus.synthesise.draw import Draw
from glmforge_corpus.synthesise.families import money_problems, stories
from glmforge_corpus.synthesise.families.money_problems import SIZE
from glmforge_corpus.synthesise.numerals import DIVIDED, TIMES, decimal, simplest
from glmforge_corpus.synthesise.pools import FIRMS, FIRMS_ZH, PLACES, PLACES_ZH, name, names
from glmforge_corpus.synthesise.problem import Draft, Template, say


def meeting(draw: Draw, level: int, zh: bool) -> Draft:
    """Two trains that run towards each other; at levels 1 and 2 they meet after whole hours."""
    v, w = 5 * draw.integer(4, 10 + 4 * level), 5 * draw.integer(4, 10 + 4 * level)
    distance = (v + w) * draw.integer(2, 9) if level <= 2 else 10 * draw.integer(20, 40 * level)
    time = Fraction(distance, v + w)
    one, two = draw.sample(PLACES_ZH if zh else PLACES, 2)
    steps = [f"${v} + {w} = {v + w}$", f"${distance} \\div {v + w} = {simplest(time)}$"]
    ask: tuple[str, ...] = ("{a} and {b} are {d} km apart. A train leaves {a} for {b} at {v} km/h, and at the same moment another leaves {b} for {a} at {w} km/h. After how many hours do they meet?",
           "The road from {a} to {b} is {d} km long. Two cars start at the same time from its two ends, at {v} km/h and {w} km/h. How many hours pass until they meet?", "Between {a} and {b} lie {d} km. One cyclist sets out from each town at the same moment, riding towards the other at {v} km/h and {w} km/h. After how many hours do they meet?", "Two boats, {d} km apart on the way from {a} to {b}, head for each other at {v} km/h and {w} km/h. How many hours does it take until they meet?")  # fmt: skip
    ask_zh: tuple[str, ...] = (
        "{a}和{b}相距{d}千米。甲车以每小时{v}千米的速度从{a}开往{b}，同时乙车以每小时{w}千米的速度从{b}开往{a}。几小时后两车相遇？",
        "{a}与{b}之间的公路长{d}千米，两车同时从两地相向而行，速度分别是每小时{v}千米和每小时{w}千米，几小时后相遇？",
        "两列火车从相距{d}千米的{a}、{b}两站同时出发，相对开行，时速分别为{v}千米和{w}千米。经过几小时相遇？",
    )
    return Draft(say(draw, zh, ask, ask_zh, a=one, b=two, d=distance, v=v, w=w), steps, simplest(time))


def work_together(draw: Draw, level: int, zh: bool) -> Draft:
    """Two, from level 4 three people who share a piece of work."""
    people = names(draw, 3 if level >= 4 else 2, zh)
    hours = [draw.integer(2, 10 + 6 * level) for _ in people]
    rate = sum((Fraction(1, h) for h in hours), Fraction())
    steps = [
        " ".join(["$", " + ".join(f"\\frac{{1}}{{{h}}}" for h in hours), "=", simplest(rate), "$"])
        .replace("$ ", "$")
        .replace(" $", "$")
    ]
    steps.append(f"$1 \\div \\frac{{{rate.numerator}}}{{{rate.denominator}}} = {simplest(1 / rate)}$")
    each = [f"{p}单独做需要{h}小时" if zh else f"{p} alone needs {h} hours" for p, h in zip(people, hours, strict=True)]
    listed = "，".join(each) if zh else ", ".join(each[:-1]) + " and " + each[-1]
    ask: tuple[str, ...] = ("A job is to be done: {l}. How many hours do they need together?", "The hedge has to be cut: {l}. How many hours will it take if all of them work at once?", "A fence needs painting; {l}. How long, in hours, does the work take together?", "To sort the mail, {l}. In how many hours is it done if they share the work?", "For painting a hall, {l}. How many hours does it take them if they work together?",
           "To clear a field, {l}. Working side by side, how many hours do they take?")  # fmt: skip
    ask_zh: tuple[str, ...] = (
        "完成一项工作，{l}。他们一起做需要几小时？", "打扫教室，{l}。如果一起打扫，需要几小时？", "录入一份书稿，{l}。几人合作，几小时可以完成？", "粉刷一个大厅，{l}。大家合作需要多少小时？",
    )  # fmt: skip
    return Draft(say(draw, zh, ask, ask_zh, l=listed), steps, simplest(1 / rate))


def ages(draw: Draw, level: int, zh: bool) -> Draft:
    """A difference of ages now, a ratio of ages later."""
    one, two = names(draw, 2, zh)
    times, younger, later = draw.integer(2, 4), draw.integer(2, 10 + 5 * level), draw.integer(1, 5 * level)
    gap = (times - 1) * (younger + later)
    older = younger + gap
    steps = [
        (f"{later}年后的年龄差仍是" if zh else "The difference stays ") + f"${gap}$",
        (f"那时{two}的年龄：" if zh else f"{two}'s age then: ") + f"${gap} \\div ({times} - 1) = {younger + later}$",
        (f"{two}现在的年龄：" if zh else f"{two}'s age now: ") + f"${younger + later} - {later} = {younger}$",
        (f"{one}现在的年龄：" if zh else f"{one}'s age now: ") + f"${younger} + {gap} = {older}$",
    ]
    ask: tuple[str, ...] = ("{a} is {g} years older than {b}. In {k} years {a} will be {t} times as old as {b}. How old is {a} now?",
           "There are {g} years between {a} and the younger {b}. When {k} years have passed, {a} will be {t} times as old as {b}. What is {a}'s age today?", "{a} was born {g} years before {b}. {k} years from now, {a}'s age will be {t} times the age of {b}. How old is {a} at present?", "{b} is {g} years younger than {a}. After {k} more years, {a} will be exactly {t} times as old. Find {a}'s present age.")  # fmt: skip
    ask_zh: tuple[str, ...] = (
        "{a}比{b}大{g}岁。再过{k}年，{a}的年龄是{b}的{t}倍。{a}现在多少岁？",
        "{a}和{b}相差{g}岁，{a}年长。{k}年以后，{a}的岁数正好是{b}的{t}倍。{a}今年几岁？",
        "{a}比{b}年长{g}岁，{k}年后{a}的年龄将是{b}的{t}倍。求{a}今年的年龄。",
    )
    return Draft(say(draw, zh, ask, ask_zh, a=one, b=two, g=gap, k=later, t=times), steps, str(older))


_ANIMALS = (("chickens", "鸡", 2, "rabbits", "兔子", 4), ("geese", "鹅", 2, "sheep", "羊", 4), ("ducks", "鸭", 2, "beetles", "甲虫", 6),
            ("dogs", "狗", 4, "spiders", "蜘蛛", 8), ("bees", "蜜蜂", 6, "crabs", "螃蟹", 10))  # fmt: skip


def heads_and_legs(draw: Draw, level: int, zh: bool) -> Draft:
    """Two kinds of animals, counted by heads and by legs."""
    one, one_zh, p, two, two_zh, q = draw.pick(_ANIMALS)
    a, b = draw.integer(2, 2 * SIZE[level - 1]), draw.integer(2, 2 * SIZE[level - 1])
    heads, legs = a + b, p * a + q * b
    steps = [
        f"${heads} \\times {p} = {p * heads}$",
        f"${legs} - {p * heads} = {legs - p * heads}$",
        f"${q} - {p} = {q - p}$",
        f"${legs - p * heads} \\div {q - p} = {b}$",
    ]
    ask: tuple[str, ...] = ("A farm keeps {x} with {p} legs each and {y} with {q} legs each: {h} heads and {l} legs in all. How many {y} are there?",
           "Among {x} ({p} legs each) and {y} ({q} legs each) somebody counts {h} heads and {l} legs. How many of them are {y}?", "In a picture book there are {x} with {p} legs and {y} with {q} legs, altogether {h} heads and {l} legs. Find the number of {y}.", "{x} have {p} legs each, {y} have {q}. Some of both, {h} animals in all, have {l} legs. How many {y} are among them?")  # fmt: skip
    ask_zh: tuple[str, ...] = (
        "有若干只{x}（每只{p}条腿）和{y}（每只{q}条腿），共{h}个头、{l}条腿。{y}有多少只？",
        "{x}每只{p}条腿，{y}每只{q}条腿。两种动物共{h}只，腿共{l}条，问{y}有几只？",
        "笼子里有{x}（{p}条腿）和{y}（{q}条腿），数一数，头有{h}个，腿有{l}条。{y}有多少只？",
    )
    words = {"x": one_zh if zh else one, "y": two_zh if zh else two}
    return Draft(say(draw, zh, ask, ask_zh, p=p, q=q, h=heads, l=legs, **words), steps, str(b))


def average(draw: Draw, level: int, zh: bool) -> Draft:
    """The last value that a wanted mean needs; L + 2 values."""
    scores = [draw.integer(40, 100) for _ in range(level + 1)]
    last = draw.integer(40, 100)
    last -= (sum(scores) + last) % (level + 2)
    mean, total = (sum(scores) + last) // (level + 2), sum(scores)
    steps = [
        f"${mean} \\times {level + 2} = {mean * (level + 2)}$",
        f"${' + '.join(map(str, scores))} = {total}$",
        f"${mean * (level + 2)} - {total} = {last}$",
    ]
    ask: tuple[str, ...] = ("In tests so far {w} scored {s}. What must the next score be for an average of {m} over all of them?",
           "{w}'s points so far: {s}. Which result in the next round makes the mean of all rounds {m}?", "{w} has marks of {s} in the last papers. What mark in the next one brings the average to {m}?", "The judges have given {w} {s} points until now. How many points must follow for a mean of {m} over all of them?")  # fmt: skip
    ask_zh: tuple[str, ...] = (
        "{w}前几次测验得分为{s}。下一次要得多少分，所有测验的平均分才是{m}？",
        "{w}已经参加的几轮比赛得分依次是{s}。下一轮得多少分，才能使平均分达到{m}？",
        "到目前为止，{w}的成绩是{s}分。再考一次后平均分恰好是{m}分，这次考了多少分？",
    )
    return Draft(say(draw, zh, ask, ask_zh, w=name(draw, zh), s=", ".join(map(str, scores)), m=mean), steps, str(last))


def rectangle(draw: Draw, level: int, zh: bool) -> Draft:
    """The area from the perimeter and the difference of the sides."""
    width, longer = draw.integer(2, 2 * SIZE[level - 1]), draw.integer(1, SIZE[level - 1])
    perimeter, length = 2 * (2 * width + longer), width + longer
    steps = [
        f"${perimeter} \\div 2 = {width + length}$",
        f"$({width + length} - {longer}) \\div 2 = {width}$",
        f"${width} + {longer} = {length}$",
        f"${width} \\times {length} = {width * length}$",
    ]
    ask: tuple[str, ...] = ("The perimeter of a rectangle is {p} cm, and it is {d} cm longer than wide. What is its area in square centimetres?",
           "A rectangular frame is made of {p} cm of wire and is {d} cm longer than it is wide. How many square centimetres does it enclose?", "A strip of {p} cm goes exactly round a rectangular photograph that is {d} cm longer than wide. Find the area of the photograph in square centimetres.", "A rectangle has a perimeter of {p} cm; its sides differ by {d} cm. How large is its area, in square centimetres?")  # fmt: skip
    ask_zh: tuple[str, ...] = (
        "一个长方形的周长是{p}厘米，长比宽多{d}厘米。它的面积是多少平方厘米？",
        "用{p}厘米长的铁丝围成一个长方形，长比宽多{d}厘米，围成的面积是多少平方厘米？",
        "长方形相框的周长为{p}厘米，相邻两边相差{d}厘米，求相框的面积（平方厘米）。",
    )
    return Draft(say(draw, zh, ask, ask_zh, p=perimeter, d=longer), steps, str(width * length))


def mixture(draw: Draw, level: int, zh: bool) -> Draft:
    """The strength of a mixture of two solutions."""
    a, b = draw.integer(1, SIZE[level - 1]), draw.integer(1, SIZE[level - 1])
    p, q = 5 * draw.integer(1, 19), 5 * draw.integer(1, 19)
    value = Fraction(a * p + b * q, a + b)
    steps = [
        f"${a} \\times {p} + {b} \\times {q} = {a * p + b * q}$",
        f"${a} + {b} = {a + b}$",
        f"${a * p + b * q} \\div {a + b} = {simplest(value)}$",
    ]
    ask: tuple[str, ...] = ("{a} litres of a {p}% salt solution are mixed with {b} litres of a {q}% one. What percentage of salt has the mixture? Give the number before the percent sign.",
           "Into a tank go {a} litres of {p}% acid and {b} litres of {q}% acid. How many percent acid does it hold then?", "{a} litres of orange drink with {p}% juice are poured together with {b} litres of one with {q}% juice. How many percent juice does the drink have now?", "A chemist stirs {a} litres of a {p}% solution into {b} litres of a {q}% solution. What is the strength of the mixture, in percent?")  # fmt: skip
    ask_zh: tuple[str, ...] = (
        "{a}升浓度为{p}%的盐水与{b}升浓度为{q}%的盐水混合，混合后的浓度是百分之几？只写百分号前的数。",
        "把{a}升含糖{p}%的糖水和{b}升含糖{q}%的糖水倒在一起，新糖水的含糖率是百分之几？只写百分号前的数。",
    )
    return Draft(say(draw, zh, ask, ask_zh, a=a, b=b, p=p, q=q), steps, simplest(value))


def clock(draw: Draw, level: int, zh: bool) -> Draft:
    """When something ends that has L parts."""
    hour, minute = draw.integer(5, 20), draw.below(60)
    parts = [draw.integer(5, 40 + 30 * level) for _ in range(level)]
    start, total = 60 * hour + minute, sum(parts)
    end = start + total
    steps = [f"${hour} \\times 60 + {minute} = {start}$"]
    if level > 1:
        steps.append(f"${' + '.join(map(str, parts))} = {total}$")
    steps.append(f"${start} + {total} = {end}$")
    if end >= 1440:
        steps.append(f"${end} - 1440 = {end - 1440}$")
        end -= 1440
    steps.append(f"${end} = {end // 60} \\times 60 + {end % 60}$")
    ask: tuple[str, ...] = ("A {f} tour starts at {h}:{m:02d}. Its parts take {p} minutes. At what time does it end (HH:MM)?", "At {h}:{m:02d} a meeting at a {f} begins. The items on its agenda last {p} minutes. At what time is it over (HH:MM)?", "A course given at a {f} starts at {h}:{m:02d} and is made up of lessons of {p} minutes without a break. When does it finish (HH:MM)?",
           "The work at a {f} begins at {h}:{m:02d} and has parts of {p} minutes, one after the other. When is it over (HH:MM)?")  # fmt: skip
    ask_zh: tuple[str, ...] = (
        "{f}的活动{h}:{m:02d}开始，各部分依次需要{p}分钟。几点结束？（HH:MM）",
        "{f}的会议{h}:{m:02d}开始，各项议程分别用时{p}分钟，中间不休息。会议几点结束？（HH:MM）",
    )
    text = say(
        draw, zh, ask, ask_zh, f=draw.pick(FIRMS_ZH if zh else FIRMS), h=hour, m=minute, p=", ".join(map(str, parts))
    )
    return Draft(text, steps, f"{end // 60:02d}:{end % 60:02d}", "text")


def consecutive(draw: Draw, level: int, zh: bool) -> Draft:
    """The largest of L + 2 consecutive integers with a given sum."""
    first, count = draw.integer(1, 20 * SIZE[level - 1]), level + 2
    total = sum(range(first, first + count))
    middle = Fraction(total, count)
    half = Fraction(count - 1, 2)
    steps = [
        f"${total} \\div {count} = {decimal(middle)}$",
        f"$({count} - 1) \\div 2 = {decimal(half)}$",
        f"${decimal(middle)} + {decimal(half)} = {first + count - 1}$",
    ]
    ask: tuple[str, ...] = (
        "The sum of {k} consecutive integers is {s}. What is the largest of them?",
        "{k} consecutive page numbers add up to {s}. Which is the highest page number?",
        "Someone adds {k} whole numbers that follow one another and gets {s}. Find the largest.",
        "Of {k} integers in a row, adding up to {s}, find the greatest.",
    )
    ask_zh: tuple[str, ...] = (
        "{k}个连续整数的和是{s}，其中最大的是多少？",
        "有{k}个连续的整数，它们加起来等于{s}，最大的一个是几？",
        "{k}张连号的票，号码之和是{s}，最大的号码是多少？",
    )
    return Draft(say(draw, zh, ask, ask_zh, k=count, s=total), steps, str(first + count - 1))


def posts(draw: Draw, level: int, zh: bool) -> Draft:
    """Posts along a road, at both ends too."""
    gap, spaces = draw.integer(2, 4 + 4 * level), draw.integer(3, 5 * SIZE[level - 1])
    length = gap * spaces
    steps = [f"${length} \\div {gap} = {spaces}$", f"${spaces} + 1 = {spaces + 1}$"]
    answer, sides, sides_zh = spaces + 1, "one side", "一侧"
    if draw.chance(0.5):
        steps.append(f"${spaces + 1} \\times 2 = {2 * spaces + 2}$")
        answer, sides, sides_zh = 2 * spaces + 2, "both sides", "两侧"
    ask: tuple[str, ...] = ("A road of {l} m gets a lamp post every {g} m on {s}, with posts at both of its ends. How many posts is that?",
           "Trees are planted along {l} m of road, {g} m apart, on {s}, the ends included. How many trees are needed?", "Flags are put up along a street of {l} m, one every {g} m, on {s} and at either end. How many flags is that?", "A canal path is {l} m long. Benches stand {g} m apart on {s}, beginning and ending with one. How many benches are there?")  # fmt: skip
    ask_zh: tuple[str, ...] = (
        "一条长{l}米的路，每隔{g}米在{s}种一棵树，两端都种。一共种多少棵？",
        "公园小路长{l}米，每隔{g}米在{s}装一盏路灯，起点和终点都装，共需多少盏？",
    )
    return Draft(say(draw, zh, ask, ask_zh, l=length, g=gap, s=sides_zh if zh else sides), steps, str(answer))


def committee(draw: Draw, level: int, zh: bool) -> Draft:
    """Ways to choose two people, from level 3 three; from level 4 out of two groups."""
    n, k = draw.integer(4, 10 + 10 * level), 2 if level < 3 else 3
    steps = [
        f"${TIMES.join(str(n - i) for i in range(k))} \\div {DIVIDED.join(str(i) for i in range(2, k + 1))} = {comb(n, k)}$"
    ]
    if level < 4:
        ask: tuple[str, ...] = (
            "In how many ways can a committee of {k} be chosen among the {n} workers of a {f}?",
            "A {f} needs {k} volunteers out of {n} people for the weekend. How many choices are there?",
            "How many different groups of {k} can be formed from the {n} members of the team at a {f}?",
            "A {f} sends {k} of its {n} people to a fair if they are chosen by lot. How many different groups are possible?",
        )
        ask_zh: tuple[str, ...] = (
            "一家{f}要选出{k}人组成小组，全体共有{n}人，有多少种选法？",
            "{f}周末需要{k}人值班，从{n}名员工中选，共有多少种不同的选法？",
        )
        text = say(draw, zh, ask, ask_zh, k=k, n=n, f=draw.pick(FIRMS_ZH if zh else FIRMS))
        return Draft(text, steps, str(comb(n, k)))
    m = draw.integer(4, 10 + 10 * level)
    steps += [
        f"${m} \\times {m - 1} \\div 2 = {m * (m - 1) // 2}$",
        f"${comb(n, k)} \\times {m * (m - 1) // 2} = {comb(n, k) * comb(m, 2)}$",
    ]
    ask = (
        "A {f} team is made of {k} out of {n} adults and 2 out of {m} students. How many teams are possible?",
        "A {f} sends {k} of its {n} adults and 2 of its {m} students. In how many ways can they be chosen?",
    )
    ask_zh = ("一家{f}的队伍由{k}名成人（从{n}名中选）和2名学生（从{m}名中选）组成，有多少种组法？",)
    return Draft(
        say(draw, zh, ask, ask_zh, k=k, n=n, m=m, f=draw.pick(FIRMS_ZH if zh else FIRMS)),
        steps,
        str(comb(n, k) * comb(m, 2)),
    )


TEMPLATES: dict[str, tuple[int, Template]] = {
    **stories.TEMPLATES,
    "shopping": (1, money_problems.shopping),
    "discount": (1, money_problems.discount),
    "meeting": (1, meeting),
    "work_together": (1, work_together),
    "ages": (1, ages),
    "heads_and_legs": (1, heads_and_legs),
    "ratio_share": (1, money_problems.ratio_share),
    "average": (1, average),
    "rectangle": (1, rectangle),
    "growth": (1, money_problems.growth),
    "mixture": (1, mixture),
    "clock": (1, clock),
    "budget": (1, money_problems.budget),
    "consecutive": (2, consecutive),
    "posts": (1, posts),
    "committee": (2, committee),
}
