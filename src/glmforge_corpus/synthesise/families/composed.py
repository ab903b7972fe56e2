"""Word problems of several events, in which the result of one is what the next begins with.

Each situation has three events with quantities and units of ordinary life. Levels 1 and 2 ask for the first result, 3
and 4 go on to the second and third, and level 5 is harder rather than longer: the end is given and the beginning asked,
so that the events have to be undone. In all phrasings, in both languages, the numbers stand in the same order.
"""

# ruff: noqa: E501 - sentences and their patterns are not broken up

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from glmforge_corpus.synthesise.draw import Draw
from glmforge_corpus.synthesise.numerals import decimal
from glmforge_corpus.synthesise.pools import FIRMS, FIRMS_ZH, PLACES, PLACES_ZH, name
from glmforge_corpus.synthesise.problem import Draft, Template, Unlucky

Steps = Sequence[tuple[str, int]]
"""Operation with its number, done to the running value: ("*", 3)."""

_SIGN = {"*": "\\times", "/": "\\div", "+": "+", "-": "-"}
_INVERSE = {"*": "/", "/": "*", "+": "-", "-": "+"}
_EVENTS = (1, 1, 2, 3, 3)


@dataclass(frozen=True, slots=True)
class Event:
    """Sentences that tell of an operation on the quantity, and the questions for its result; `{n}` is its number.

    Attributes:
        tell, tell_zh: phrasings of what happens.
        ask, ask_zh: phrasings of the question for the result.
        given, given_zh: the result told, `{r}`, where the beginning is asked for.
    """

    operation: str
    tell: tuple[str, ...]
    ask: tuple[str, ...]
    given: tuple[str, ...]
    tell_zh: tuple[str, ...]
    ask_zh: tuple[str, ...]
    given_zh: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Situation:
    """A beginning and three events.

    Attributes:
        begin, unknown: phrasings that state the first quantity `{n}`, and that leave it open.
        ask: the question for it.
    """

    begin: tuple[str, ...]
    unknown: tuple[str, ...]
    ask: tuple[str, ...]
    begin_zh: tuple[str, ...]
    unknown_zh: tuple[str, ...]
    ask_zh: tuple[str, ...]
    events: tuple[Event, Event, Event]


BAKERY = Situation(
    ("{w}'s bakery bakes {n} rolls every hour.", "Every hour, {n} rolls leave the oven of {w}'s bakery.", "The oven that {w} looks after turns out {n} rolls an hour."),
    ("{w}'s bakery bakes the same number of rolls every hour.", "The oven that {w} looks after turns out equally many rolls in each hour.", "Hour after hour, the same number of rolls leave {w}'s oven."),
    ("How many rolls are baked in an hour?", "How many rolls does the oven turn out per hour?", "Find the number of rolls baked each hour."),
    ("{w}的面包房每小时烤{n}个小面包。", "{w}看管的烤炉一小时能烤出{n}个小面包。", "面包房里，{w}每小时烤好{n}个小面包。"),
    ("{w}的面包房每小时烤出的小面包一样多。", "{w}看管的烤炉每小时出炉的小面包数量相同。"),
    ("每小时烤多少个小面包？", "烤炉一小时能烤出多少个小面包？", "求每小时烤出的小面包个数。"),
    (
        Event("*", ("It is open for {n} hours today.", "Today the oven runs for {n} hours.", "Baking goes on for {n} hours."),
              ("How many rolls is that altogether?", "How many rolls are baked in all?", "What is the day's total number of rolls?"),
              ("In all, {r} rolls are baked.", "The day's total comes to {r} rolls."),
              ("今天一共烤了{n}个小时。", "烤炉今天开了{n}个小时。"), ("今天一共烤了多少个小面包？", "一天下来共有多少个小面包出炉？"), ("一天共烤了{r}个小面包。",)),
        Event("-", ("Of these, {n} turn out burnt and are thrown away.", "Unluckily, {n} of them are burnt.", "The staff eat {n} of them for breakfast."),
              ("How many rolls can be sold?", "How many are left to sell?"), ("That leaves {r} rolls for sale.", "So {r} rolls can be sold."),
              ("其中{n}个烤焦了，只好扔掉。", "店员早餐吃掉了{n}个。"), ("还有多少个可以出售？", "能卖的小面包还剩多少个？"), ("剩下{r}个可以出售。",)),
        Event("/", ("The rest go into bags of {n}.", "They are packed in bags of {n}.", "What remains is sold in bags of {n} rolls."),
              ("How many bags does that fill?", "How many full bags are there?", "What number of bags is needed?"), ("This fills exactly {r} bags.", "In the end {r} bags are full."),
              ("剩下的每{n}个装一袋。", "其余的按{n}个一袋包装。"), ("一共能装多少袋？", "正好装满多少袋？"), ("正好装满{r}袋。",)),
    ),
)  # fmt: skip
TRIP = Situation(
    ("{w} cycles {n} km every day.", "On a tour, {w} rides {n} km a day.", "{w} is on a cycling holiday and covers {n} km each day."),
    ("{w} is on a cycling tour and rides the same distance every day.", "On a tour, {w} cycles equally far each day."),
    ("How many kilometres does {w} ride each day?", "What distance in kilometres is covered per day?"),
    ("{w}骑车旅行，每天骑{n}千米。", "假期里，{w}每天骑行{n}千米。", "{w}参加骑行活动，一天骑{n}千米。"), ("{w}骑车旅行，每天骑的路程相同。", "骑行途中，{w}每天骑得一样远。"),
    ("{w}每天骑多少千米？", "求每天骑行的千米数。"),
    (
        Event("*", ("The tour lasts {n} days.", "This goes on for {n} days.", "After {n} days the tour is over."), ("How many kilometres is the whole tour?", "What distance has {w} covered by then, in kilometres?"), ("The tour is {r} km long.",),
              ("一共骑了{n}天。", "这样连续骑了{n}天。"), ("全程多少千米？", "一共骑了多少千米？"), ("全程{r}千米。",)),
        Event("+", ("On the way home from {a}, {n} km by ferry are added.", "A ferry from {a} takes {w} another {n} km.", "To this comes a ferry passage of {n} km from {a}."), ("How many kilometres is the whole journey?", "What is the length of the journey with the ferry, in kilometres?"), ("With it the journey is {r} km long.",),
              ("最后从{a}乘船，又走了{n}千米。", "回程从{a}坐渡轮，还有{n}千米。"), ("整个旅程多少千米？", "连同乘船，一共走了多少千米？"), ("整个旅程共{r}千米。",)),
        Event("/", ("On the map, 1 cm stands for {n} km.", "{w} draws the journey on a map on which 1 cm is {n} km."), ("How many centimetres long is the journey on the map?", "What is its length on the map, in centimetres?"), ("On the map the journey is {r} cm long.",),
              ("在地图上，1厘米代表{n}千米。", "{w}把路线画在图上，图上1厘米表示{n}千米。"), ("整个旅程在图上长多少厘米？", "图上路线的长度是多少厘米？"), ("图上路线长{r}厘米。",)),
    ),
)  # fmt: skip
WAGES = Situation(
    ("{w} earns {n} dollars an hour at a {f}.", "For an hour's work at a {f}, {w} is paid {n} dollars.", "A {f} pays {w} {n} dollars per hour."),
    ("{w} works at a {f} for a fixed hourly wage.", "A {f} pays {w} by the hour."),
    ("What is the hourly wage in dollars?", "How many dollars does {w} earn per hour?"),
    ("{w}在{f}打工，每小时工资{n}元。", "{f}付给{w}的工资是每小时{n}元。", "{w}利用假期在{f}工作，一小时挣{n}元。"), ("{w}在{f}打工，按小时计工资。", "{f}按小时付给{w}工资。"),
    ("每小时的工资是多少元？", "{w}一小时挣多少元？"),
    (
        Event("*", ("This month that makes {n} hours.", "In May, {w} works {n} hours.", "Over four weeks the time sheet shows {n} hours."), ("How many dollars does {w} earn in that time?", "What do the wages come to, in dollars?"), ("The wages come to {r} dollars.",),
              ("这个月一共工作了{n}小时。", "五月份{w}工作了{n}小时。"), ("一共挣了多少元？", "这段时间的工资是多少元？"), ("工资一共{r}元。",)),
        Event("-", ("Rent and food cost {n} dollars.", "{w} pays {n} dollars for rent and food.", "Of this, {n} dollars go to the landlord."), ("How many dollars remain?", "How much money is left, in dollars?"), ("After that, {r} dollars remain.",),
              ("房租和伙食花去{n}元。", "其中{n}元用来付房租。"), ("还剩多少元？", "余下多少元？"), ("此后还剩{r}元。",)),
        Event("/", ("{w} shares the rest equally among {n} savings accounts.", "What remains is divided equally among {n} members of the family."), ("How many dollars does each one receive?", "What is each share in dollars?"), ("Each share is {r} dollars.",),
              ("剩下的钱平均存进{n}个账户。", "余款平均分给{n}位家人。"), ("每份多少元？", "平均每份是多少元？"), ("每份正好{r}元。",)),
    ),
)  # fmt: skip
TANK = Situation(
    ("A pump moves {n} litres a minute into an empty tank.", "Water runs into an empty tank at {n} litres per minute.", "An empty tank on {w}'s farm is filled with {n} litres every minute."),
    ("Water runs into an empty tank at a steady rate.", "A pump fills an empty tank on {w}'s farm, always equally fast."),
    ("How many litres flow in per minute?", "What is the rate of the inflow, in litres per minute?"),
    ("水泵每分钟向空水箱注入{n}升水。", "一个空水箱，每分钟注水{n}升。", "{w}给农场的空水池注水，每分钟{n}升。"), ("水以固定的速度注入一个空水箱。", "{w}用水泵匀速向空水池注水。"),
    ("每分钟注水多少升？", "求注水的速度：每分钟多少升？"),
    (
        Event("*", ("The pump is switched off after {n} minutes.", "After {n} minutes {w} closes the valve.", "This is kept up for {n} minutes."), ("How many litres are in the tank?", "How much water has been let in, in litres?"), ("The tank holds {r} litres then.",),
              ("{n}分钟后，{w}关掉水泵。", "这样注水{n}分钟。"), ("水箱里有多少升水？", "一共注入多少升水？"), ("这时水箱里有{r}升水。",)),
        Event("-", ("Overnight {n} litres seep out through a crack.", "The garden takes {n} litres of it.", "A leak costs {n} litres before it is found."), ("How many litres are left?", "How much water remains, in litres?"), ("By then {r} litres are left.",),
              ("夜里从裂缝漏掉{n}升。", "浇园用去{n}升。"), ("还剩多少升水？", "水箱里剩下多少升？"), ("还剩{r}升水。",)),
        Event("/", ("What is left is drawn off in cans of {n} litres.", "The rest is filled into cans that hold {n} litres each."), ("How many cans does it fill?", "How many cans are needed?"), ("It fills exactly {r} cans.",),
              ("剩下的水分装进容量{n}升的桶里。", "余下的水每{n}升装一桶。"), ("可以装满多少桶？", "一共需要多少个桶？"), ("正好装满{r}桶。",)),
    ),
)  # fmt: skip
LIBRARY = Situation(
    ("A school library buys {n} books for every class.", "For each class, {w} orders {n} books.", "Each class of a school is to get {n} new books."),
    ("A school library buys equally many books for every class.", "For each class, {w} orders the same number of books."),
    ("How many books is each class to get?", "How many books are bought per class?"),
    ("学校图书馆为每个班购买{n}本书。", "{w}为每个班订了{n}本新书。"), ("学校图书馆为每个班购买同样多的书。", "{w}给每个班订的书一样多。"),
    ("每个班分到多少本书？", "平均每个班买了多少本？"),
    (
        Event("*", ("There are {n} classes.", "The school has {n} classes.", "{n} classes are waiting for them."), ("How many books is that?", "How many books are ordered in all?"), ("That makes {r} books.",),
              ("学校共有{n}个班。", "全校有{n}个班级。"), ("一共买了多少本书？", "总共订购多少本？"), ("一共是{r}本。",)),
        Event("+", ("Parents in {a} donate {n} more.", "A publisher from {a} adds {n} books as a present.", "Then {n} books arrive from a library in {a}."), ("How many new books are there then?", "How many books have come together?"), ("Altogether there are {r} new books.",),
              ("{a}的一家出版社又赠送{n}本。", "{a}的家长们还捐了{n}本。"), ("现在一共有多少本新书？", "新书总共有多少本？"), ("新书总数达到{r}本。",)),
        Event("/", ("A shelf has room for {n} books.", "They are put up on shelves of {n} books each."), ("How many shelves do the new books take?", "How many shelves are filled?"), ("They take exactly {r} shelves.",),
              ("每个书架放{n}本。", "把这些书放上书架，每架{n}本。"), ("需要多少个书架？", "正好放满多少个书架？"), ("正好放满{r}个书架。",)),
    ),
)  # fmt: skip
SITUATIONS = {"bakery": BAKERY, "trip": TRIP, "wages": WAGES, "tank": TANK, "library": LIBRARY}
_FIRST = {"bakery": (20, 400), "trip": (12, 90), "wages": (9, 45), "tank": (15, 240), "library": (4, 60)}
_TIMES = {"bakery": (3, 12), "trip": (3, 21), "wages": (12, 160), "tank": (8, 90), "library": (6, 40)}
_PARTS = {"bakery": (4, 12), "trip": (5, 25), "wages": (2, 6), "tank": (5, 20), "library": (20, 45)}


def _template(kind: str) -> Template:
    situation = SITUATIONS[kind]

    def composed(draw: Draw, level: int, zh: bool) -> Draft:
        words = {
            "w": name(draw, zh),
            "f": draw.pick(FIRMS_ZH if zh else FIRMS),
            "a": draw.pick(PLACES_ZH if zh else PLACES),
        }
        first, operations, value = _numbers(draw, kind, _EVENTS[level - 1], easy=level == 1)
        events = situation.events[: len(operations)]
        said = list[str]()
        if level < 5:
            said.append(draw.pick(situation.begin_zh if zh else situation.begin).format(n=first, **words))
        else:
            said.append(draw.pick(situation.unknown_zh if zh else situation.unknown).format(**words))
        said += [
            draw.pick(event.tell_zh if zh else event.tell).format(n=number, **words)
            for event, (_, number) in zip(events, operations, strict=True)
        ]
        last = events[-1]
        if level < 5:
            said.append(draw.pick(last.ask_zh if zh else last.ask).format(**words))
            return Draft(_joined(said, zh), _forward(first, operations), str(value))
        said.append(draw.pick(last.given_zh if zh else last.given).format(r=value, **words))
        said.append(draw.pick(situation.ask_zh if zh else situation.ask).format(**words))
        back = [(_INVERSE[sign], number) for sign, number in reversed(operations)]
        return Draft(_joined(said, zh), _forward(value, back), str(first))

    return composed


def _numbers(draw: Draw, kind: str, num_events: int, *, easy: bool) -> tuple[int, Steps, int]:
    """The first quantity, what is done to it, and the result; every result on the way is whole and positive."""
    (low, high), (least, most), (fewest, largest) = _FIRST[kind], _TIMES[kind], _PARTS[kind]
    first = draw.integer(low, low + (high - low) // 3 if easy else high)
    times, parts = draw.integer(least, min(most, 9) if easy and least < 9 else most), draw.integer(fewest, largest)
    total = first * times
    sign = SITUATIONS[kind].events[1].operation
    rest = (total if sign == "-" else -total) % parts
    change = rest + parts * draw.integer(1, max(1, total // (3 * parts)))
    result = total - change if sign == "-" else total + change
    if result < 2 * parts:
        raise Unlucky
    operations = [("*", times), (sign, change), ("/", parts)][:num_events]
    return first, operations, (total, result, result // parts)[num_events - 1]


def _forward(value: int, operations: Steps) -> list[str]:
    steps, running = [], Fraction(value)
    for sign, number in operations:
        result = {"*": running * number, "/": running / number, "+": running + number, "-": running - number}[sign]
        steps.append(f"${decimal(running)} {_SIGN[sign]} {number} = {decimal(result)}$")
        running = result
    return steps


def _joined(sentences: Sequence[str], zh: bool) -> str:
    return ("" if zh else " ").join(sentences)


TEMPLATES: dict[str, tuple[int, Template]] = {kind: (1, _template(kind)) for kind in SITUATIONS}
