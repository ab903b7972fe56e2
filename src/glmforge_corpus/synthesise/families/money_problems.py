"""Word problems about money: prices, discounts, shares, percentages. `word_problems.py` states the rules for all."""

# ruff: noqa: E501 - sentences and their patterns are not broken up

from fractions import Fraction

from glmforge_corpus.synthesise.draw import Draw
from glmforge_corpus.synthesise.numerals import decimal
from glmforge_corpus.synthesise.pools import FIRMS, FIRMS_ZH, name, names, thing, things
from glmforge_corpus.synthesise.problem import Draft, say

SIZE = (10, 20, 50, 100, 200)
"""Size of the numbers, by level."""


def shopping(draw: Draw, level: int, zh: bool) -> Draft:
    """Change after buying 1 to 5 kinds of things."""
    who, total, steps, wanted = name(draw, zh), 0, [], []
    for noun, measure in things(draw, max(1, level), zh):
        count, price = draw.integer(2, 4 + 2 * level), draw.integer(2, SIZE[level - 1])
        wanted.append(
            f"{count}{measure}{noun}（每{measure}{price}元）" if zh else f"{count} {noun} at {price} dollars each"
        )
        steps.append(f"${count} \\times {price} = {count * price}$")
        if total:
            steps.append(f"${total} + {count * price} = {total + count * price}$")
        total += count * price
    paid = total + draw.integer(1, 50)
    steps.append(f"${paid} - {total} = {paid - total}$")
    listed = (
        "、".join(wanted) if zh else " and ".join([", ".join(wanted[:-1]), wanted[-1]] if len(wanted) > 1 else wanted)
    )
    ask: tuple[str, ...] = ("{w} buys {l} and pays with {p} dollars. How much change does {w} get, in dollars?",
           "At the market, {w} takes {l}. How many dollars are returned if {w} hands over {p} dollars?",
           "{w}'s bill is for {l}. From {p} dollars, how many are left?", "{w} orders {l} and has {p} dollars in cash. How many dollars are left after paying?", "For a party, {w} buys {l}. The cashier is given {p} dollars. What change, in dollars, goes back to {w}?", "{w} fills a basket: {l}. If {p} dollars are put on the counter, how much money comes back, in dollars?")  # fmt: skip
    ask_zh: tuple[str, ...] = (
        "{w}买了{l}，付了{p}元，应找回多少元？",
        "{w}在商店买了{l}。如果付{p}元，应找零多少元？",
        "班级活动前，{w}去采购{l}，递给收银员{p}元，应找回多少元？",
        "{w}挑选了{l}，身上带着{p}元，付款后还剩多少元？",
    )
    return Draft(say(draw, zh, ask, ask_zh, w=who, l=listed, p=paid), steps, str(paid - total))


def discount(draw: Draw, level: int, zh: bool) -> Draft:
    """A price less a percentage, from level 3 plus a tax, at level 5 for several pieces."""
    price = 5 * draw.integer(2, 4 * SIZE[level - 1])
    off = (10, 5, 5, 1, 1)[level - 1] * draw.integer(1, (5, 12, 15, 60, 70)[level - 1])
    noun, _ = thing(draw, zh)
    value = Fraction(price * (100 - off), 100)
    steps = [f"$100 - {off} = {100 - off}$", f"${price} \\times {100 - off} \\div 100 = {decimal(value)}$"]
    tail = tail_zh = ""
    if level >= 3:
        tax = draw.integer(2, 20)
        taxed = value * (100 + tax) / 100
        steps += [
            f"$100 + {tax} = {100 + tax}$",
            f"${decimal(value)} \\times {100 + tax} \\div 100 = {decimal(taxed)}$",
        ]
        value, tail, tail_zh = taxed, f" Then a tax of {tax}% is added.", f"再加收{tax}%的税。"
    if level >= 5:
        count = draw.integer(2, 12)
        steps.append(f"${decimal(value)} \\times {count} = {decimal(value * count)}$")
        value, tail, tail_zh = (
            value * count,
            tail + f" A customer takes {count} such sets.",
            tail_zh + f"一位顾客买了{count}套。",
        )
    ask: tuple[str, ...] = ("A set of {x} costs {p} dollars and is sold at {o}% off.{t} How many dollars are to be paid?", "A shop lowers the price of a set of {x}, {p} dollars until now, by {o}%.{t} How many dollars does the customer pay?", "In the sale, a set of {x} marked {p} dollars comes with a discount of {o}%.{t} Find the amount to be paid in dollars.",
           "The price of a set of {x} is {p} dollars, reduced by {o}%.{t} What is the amount to pay, in dollars?")  # fmt: skip
    ask_zh: tuple[str, ...] = (
        "一套{x}原价{p}元，降价{o}%出售。{t}应付多少元？",
        "商场促销，一套标价{p}元的{x}降价{o}%。{t}顾客应付多少元？",
        "一套{x}标价{p}元，优惠{o}%。{t}需要支付多少元？",
    )
    return Draft(say(draw, zh, ask, ask_zh, x=noun, p=price, o=off, t=tail_zh if zh else tail), steps, decimal(value))


def ratio_share(draw: Draw, level: int, zh: bool) -> Draft:
    """A sum divided in a ratio of two to four parts."""
    people = names(draw, 2 + (level + 1) // 3, zh)
    shares = [draw.integer(1, 4 + 2 * level) for _ in people]
    unit = draw.integer(2, 2 * SIZE[level - 1])
    total, index = unit * sum(shares), draw.below(len(people))
    steps = [
        f"${' + '.join(map(str, shares))} = {sum(shares)}$",
        f"${total} \\div {sum(shares)} = {unit}$",
        f"${unit} \\times {shares[index]} = {unit * shares[index]}$",
    ]
    ask: tuple[str, ...] = (
        "{l} share {t} dollars in the ratio {r}. How many dollars does {w} get?",
        "The prize of {l} is {t} dollars, divided in the ratio {r} in this order. What is {w}'s share in dollars?",
    )
    ask_zh: tuple[str, ...] = ("{l}按顺序分{t}元，比例为{r}。{w}分得多少元？",)
    listed = "、".join(people) if zh else ", ".join(people[:-1]) + " and " + people[-1]
    return Draft(
        say(draw, zh, ask, ask_zh, l=listed, t=total, r=" : ".join(map(str, shares)), w=people[index]),
        steps,
        str(unit * shares[index]),
    )


def growth(draw: Draw, level: int, zh: bool) -> Draft:
    """A quantity that grows and falls by percentages, L times."""
    value = Fraction(100 * draw.integer(2, SIZE[level - 1]))
    start, changes, steps = value, [], []
    for _ in range(1 + level // 2):
        p = (10, 10, 5, 5, 1)[level - 1] * draw.integer(1, (9, 9, 19, 19, 99)[level - 1])
        up = draw.chance(0.5)
        factor = 100 + p if up else 100 - p
        result = value * factor / 100
        changes.append((f"增加{p}%" if up else f"减少{p}%") if zh else (f"rises by {p}%" if up else f"falls by {p}%"))
        steps.append(f"${decimal(value)} \\times {factor} \\div 100 = {decimal(result)}$")
        value = result
    ask: tuple[str, ...] = (
        "The income of a {f} is {n} dollars; then it {c}. What is it in the end, in dollars?",
        "At a {f} the yearly cost of {n} dollars {c}. How many dollars is it after that?",
    )
    ask_zh: tuple[str, ...] = ("一家{f}的收入为{n}元，之后{c}。最后是多少元？",)
    listed = "，再".join(changes) if zh else ", then ".join(changes)
    return Draft(
        say(draw, zh, ask, ask_zh, f=draw.pick(FIRMS_ZH if zh else FIRMS), n=start, c=listed), steps, decimal(value)
    )


def budget(draw: Draw, level: int, zh: bool) -> Draft:
    """As many as the money buys, and what is left."""
    price, money = draw.integer(3, SIZE[level - 1] + 5), draw.integer(20, 20 * SIZE[level - 1])
    (noun, measure), who = thing(draw, zh), name(draw, zh)
    money = max(money, price)
    steps = [f"${money} = {money // price} \\times {price} + {money % price}$"]
    if draw.chance(0.5):
        ask: tuple[str, ...] = ("{w} has {n} dollars and buys as many {x} as possible at {p} dollars each. How many dollars remain?",
               "With {n} dollars {w} buys {x} for {p} dollars apiece until there is not enough money. How much is left over, in dollars?")  # fmt: skip
        ask_zh: tuple[str, ...] = (
            "{w}有{n}元，尽可能多地买{x}，每{m}{p}元。最后剩下多少元？",
            "{w}用{n}元去买单价{p}元的{x}，买到钱不够为止，剩下多少元？",
        )
        answer = money % price
    else:
        ask = (
            "{w} has {n} dollars. How many {x} at {p} dollars each can {w} buy at most?",
            "With {n} dollars to spend and {x} at {p} dollars apiece, how many can {w} afford?",
            "{w} collected {n} dollars to buy {x} for a raffle; each costs {p} dollars. What is the greatest number that can be bought?",
            "What is the largest number of {x} that {n} dollars buy, if one costs {p} dollars and {w} gets no discount?",
        )
        ask_zh = (
            "{w}有{n}元，{x}每{m}{p}元，最多能买多少{m}？",
            "{w}带了{n}元去买{x}，单价{p}元，最多可以买几{m}？",
        )
        answer = money // price
    return Draft(say(draw, zh, ask, ask_zh, w=who, n=money, x=noun, p=price, m=measure), steps, str(answer))
