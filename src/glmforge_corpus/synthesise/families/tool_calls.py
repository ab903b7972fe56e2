"""Requests that a tool answers: schemas, the right calls in GLM's form, results, and the closing reply.

Level 1: one tool is offered and called once. 2: three are offered. 3: two calls at the same time. 4: the second call
needs the result of the first. 5: six tools are offered; three calls at the same time, or none of the tools will do.
Tool results are computed or drawn here; nothing is ever called.
"""

# ruff: noqa: E501 - sentences and their patterns are not broken up

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from glmforge_corpus.synthesise.draw import Draw
from glmforge_corpus.synthesise.pools import NAMES, NAMES_ZH, PLACES, PLACES_ZH
from glmforge_corpus.synthesise.problem import Draft, Template, say

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Tool:
    """A tool and what can be asked of it.

    Attributes:
        schema: as in an OpenAI request.
        requests, requests_zh: wordings with the arguments' names in braces.
        draw: arguments and result.
        report, report_zh: sentence about a result, with arguments and the result's fields.
    """

    schema: dict[str, Any]
    requests: tuple[str, ...]
    requests_zh: tuple[str, ...]
    draw: Callable[[Draw, bool], tuple[Arguments, dict[str, Any]]]
    report: str
    report_zh: str

    @property
    def name(self) -> str:
        return str(self.schema["function"]["name"])


def _schema(name: str, description: str, **properties: tuple[str, str] | tuple[str, str, list[str]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in properties.items():
        fields[key] = {"type": value[0], "description": value[1]}
        if len(value) == 3:
            fields[key]["enum"] = value[2]
    parameters = {"type": "object", "properties": fields, "required": list(fields)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _day(draw: Draw) -> date:
    return date(2024, 1, 1) + timedelta(days=draw.below(1400))


def _weather(draw: Draw, zh: bool) -> tuple[Arguments, dict[str, Any]]:
    sky = draw.pick(("晴", "多云", "小雨", "大风") if zh else ("sunny", "cloudy", "light rain", "windy"))
    return {"city": draw.pick(PLACES_ZH if zh else PLACES), "date": str(_day(draw))}, {
        "celsius": draw.integer(-15, 38),
        "sky": sky,
    }


def _days(draw: Draw, zh: bool) -> tuple[Arguments, dict[str, Any]]:
    start, gap = _day(draw), draw.integer(2, 700)
    return {"start": str(start), "end": str(start + timedelta(days=gap))}, {"days": gap}


_RATES = {
    ("USD", "EUR"): 90, ("EUR", "USD"): 110, ("USD", "CNY"): 720, ("CNY", "JPY"): 2100, ("GBP", "EUR"): 115,
    ("EUR", "CNY"): 780,
}  # fmt: skip


def _currency(draw: Draw, zh: bool) -> tuple[Arguments, dict[str, Any]]:
    pair = draw.pick(tuple(_RATES))
    amount = 10 * draw.integer(1, 900)
    return {"amount": amount, "source": pair[0], "target": pair[1]}, {
        "rate_percent": _RATES[pair],
        "amount": amount * _RATES[pair] // 100 if amount * _RATES[pair] % 100 == 0 else amount * _RATES[pair] / 100,
    }


_WARES = (
    "desk lamp", "office chair", "water bottle", "backpack", "keyboard", "notebook", "tripod", "headset", "blanket",
    "kettle", "monitor", "bicycle pump",
)  # fmt: skip
_WARES_ZH = ("台灯", "办公椅", "水杯", "背包", "键盘", "笔记本", "三脚架", "耳机", "毛毯", "水壶", "显示器", "打气筒")


def _stock(draw: Draw, zh: bool) -> tuple[Arguments, dict[str, Any]]:
    arguments = {
        "product": draw.pick(_WARES_ZH if zh else _WARES),
        "warehouse": f"{draw.pick('ABCDEFGH')}{draw.integer(1, 40)}",
    }
    return arguments, {"units": draw.integer(20, 900)}


def _route(draw: Draw, zh: bool) -> tuple[Arguments, dict[str, Any]]:
    start, end = draw.sample(PLACES_ZH if zh else PLACES, 2)
    km = draw.integer(20, 1500)
    return {"origin": start, "destination": end, "mode": draw.pick(("car", "train", "bike"))}, {
        "km": km,
        "minutes": km + draw.integer(5, 200),
    }


def _message(draw: Draw, zh: bool) -> tuple[Arguments, dict[str, Any]]:
    texts = ("会议改到下午了", "文件已经上传", "我晚到十分钟", "请带上合同", "明天不用来了", "包裹到了前台") if zh else (
        "the meeting has moved to the afternoon", "the files are uploaded", "I am ten minutes late", "please bring the contract", "no need to come tomorrow", "the parcel is at the front desk")  # fmt: skip
    arguments = {"recipient": draw.pick(NAMES_ZH if zh else NAMES), "text": draw.pick(texts)}
    return arguments, {"status": "sent", "message_id": f"m{draw.integer(1000, 99999)}"}


def _event(draw: Draw, zh: bool) -> tuple[Arguments, dict[str, Any]]:
    title = draw.pick(
        ("团队例会", "牙医预约", "产品评审", "羽毛球", "读书会")
        if zh
        else ("team meeting", "dentist", "design review", "badminton", "book club")
    )
    arguments = {
        "title": title,
        "date": str(_day(draw)),
        "start": f"{draw.integer(7, 20):02d}:{draw.pick(('00', '15', '30', '45'))}",
        "minutes": 15 * draw.integer(1, 8),
    }
    return arguments, {"status": "created", "event_id": f"e{draw.integer(1000, 99999)}"}


def _calculate(draw: Draw, zh: bool) -> tuple[Arguments, dict[str, Any]]:
    a, b, c = draw.integer(12, 999), draw.integer(12, 999), draw.integer(2, 99)
    sign = draw.pick("+-")
    return {"expression": f"{a} * {b} {sign} {c}"}, {"value": a * b + c if sign == "+" else a * b - c}


TOOLS = (
    Tool(_schema("get_weather", "Weather forecast for a city on a date.", city=("string", "name of the city"), date=("string", "YYYY-MM-DD")),
         ("What will the weather be in {city} on {date}?", "Please check the forecast for {city} on {date}.", "I travel to {city} on {date}. What weather should I expect there?"),
         ("{city}在{date}的天气怎么样？", "帮我查一下{city}在{date}的天气预报。"), _weather,
         "In {city} on {date} it will be {sky} at {celsius} degrees.", "{city}在{date}的天气是{sky}，气温{celsius}度。"),
    Tool(_schema("days_between", "Number of days from one date to another.", start=("string", "YYYY-MM-DD"), end=("string", "YYYY-MM-DD")),
         ("How many days are there from {start} to {end}?", "Count the days from {start} to {end}, please.", "My project runs from {start} to {end}. How many days is that?"),
         ("从{start}到{end}一共有多少天？", "请计算从{start}到{end}的天数。"), _days,
         "From {start} to {end} there are {days} days.", "从{start}到{end}共有{days}天。"),
    Tool(_schema("convert_currency", "Convert an amount of money at today's rate.", amount=("number", "how much"), source=("string", "ISO code", ["USD", "EUR", "CNY", "GBP", "JPY"]), target=("string", "ISO code", ["USD", "EUR", "CNY", "GBP", "JPY"])),
         ("How much is {amount} {source} in {target}?", "Convert {amount} {source} to {target}.", "I have {amount} {source} and need {target}. What do I get?"),
         ("{amount} {source}等于多少{target}？", "把{amount} {source}换成{target}。"), _currency,
         "{amount} {source} are {result} {target}.", "{amount} {source}等于{result} {target}。"),
    Tool(_schema("get_stock_level", "Units of a product in a warehouse.", product=("string", "name of the product"), warehouse=("string", "code of the warehouse")),
         ("How many units of the {product} are in warehouse {warehouse}?", "Check the stock of the {product} in warehouse {warehouse}.", "Does warehouse {warehouse} still have the {product}, and how many?"),
         ("仓库{warehouse}里还有多少{product}？", "查一下{product}在仓库{warehouse}的库存。"), _stock,
         "Warehouse {warehouse} holds {units} units of the {product}.", "仓库{warehouse}里有{units}件{product}。"),
    Tool(_schema("find_route", "Distance and time of a trip.", origin=("string", "where from"), destination=("string", "where to"), mode=("string", "means of transport", ["car", "train", "bike"])),
         ("How far is it from {origin} to {destination} by {mode}?", "Find me a route from {origin} to {destination} by {mode}.", "I want to go from {origin} to {destination} by {mode}. How long does it take?"),
         ("从{origin}到{destination}，交通方式{mode}，有多远？", "帮我规划从{origin}到{destination}的路线，交通方式{mode}，要多久？"), _route,
         "From {origin} to {destination} by {mode} it is {km} km, about {minutes} minutes.", "从{origin}到{destination}（{mode}）有{km}公里，大约{minutes}分钟。"),
    Tool(_schema("send_message", "Send a short text message.", recipient=("string", "name of the recipient"), text=("string", "what to say")),
         ("Send {recipient} this message: {text}.", "Let {recipient} know this: {text}.", "Text {recipient} the following: {text}."),
         ("给{recipient}发消息：{text}。", "请通知{recipient}：{text}。"), _message,
         "Your message to {recipient} is {status} ({message_id}).", "给{recipient}的消息已发送（{message_id}）。"),
    Tool(_schema("create_event", "Add an event to the calendar.", title=("string", "what it is"), date=("string", "YYYY-MM-DD"), start=("string", "HH:MM"), minutes=("integer", "duration")),
         ("Put \"{title}\" into my calendar on {date} at {start} for {minutes} minutes.", "Schedule \"{title}\" on {date} at {start}, lasting {minutes} minutes."),
         ("在日历中添加“{title}”，日期{date}，{start}开始，时长{minutes}分钟。",), _event,
         "\"{title}\" is in your calendar on {date} at {start} ({event_id}).", "“{title}”已添加到日历：{date} {start}（{event_id}）。"),
    Tool(_schema("calculate", "Evaluate an arithmetic expression.", expression=("string", "such as 2 * (3 + 4)")),
         ("What is {expression}?", "Calculate {expression}.", "Please work out {expression} for me."),
         ("{expression}等于多少？", "帮我算一下{expression}。"), _calculate,
         "The value of {expression} is {value}.", "{expression}的结果是{value}。"),
)  # fmt: skip
BY_NAME = {tool.name: tool for tool in TOOLS}

_NEED = ("This needs {n}.", "I should call {n} for this.", "The right tool here is {n}.")
_NEED_ZH = ("这需要调用{n}。", "应当使用工具{n}。")
_GOT = ("The tool has answered: {r}.", "The result says {r}.")
_GOT_ZH = ("工具返回：{r}。", "结果为{r}。")
_MISSING = (
    "None of the tools on offer can do this; they are {o}.",
    "I have {o}, and neither of them fits this request.",
)
_MISSING_ZH = ("现有工具是{o}，都无法完成这个请求。",)
_SORRY = ("I cannot do this with the tools I have.", "I am sorry, but none of my tools can do that.")
_SORRY_ZH = ("抱歉，现有的工具无法完成这个请求。",)


def _report(tool: Tool, arguments: Arguments, result: dict[str, Any], zh: bool) -> str:
    values = {**result, **arguments, "result": result.get("amount")}
    return (tool.report_zh if zh else tool.report).format_map(values)


def _offer(draw: Draw, used: list[Tool], count: int, without: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    others = [tool for tool in TOOLS if tool not in used and tool.name not in without]
    return [tool.schema for tool in draw.shuffled(used + draw.sample(others, count - len(used)))]


def _call(tool: Tool, arguments: Arguments) -> dict[str, Any]:
    return {"name": tool.name, "arguments": arguments}


def _assistant(reasoning: str, content: str = "", calls: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "reasoning_content": reasoning, "content": content}
    if calls:
        message["tool_calls"] = [{"type": "function", "function": call} for call in calls]
    return message


def _observation(result: dict[str, Any]) -> dict[str, Any]:
    return {"role": "tool", "content": json.dumps(result, ensure_ascii=False)}


def _plain(result: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in result.items())


def calls(draw: Draw, level: int, zh: bool) -> Draft:
    """One call, or at levels 3 and 5 two or three at the same time."""
    count = (1, 1, 2, 1, 3)[level - 1]
    tools = draw.sample(TOOLS, count)
    drawn = [tool.draw(draw, zh) for tool in tools]
    requests = [
        draw.pick(tool.requests_zh if zh else tool.requests).format_map(arguments)
        for tool, (arguments, _) in zip(tools, drawn, strict=True)
    ]
    right = [_call(tool, arguments) for tool, (arguments, _) in zip(tools, drawn, strict=True)]
    reports = [_report(tool, *pair, zh) for tool, pair in zip(tools, drawn, strict=True)]
    named = ("、" if zh else " and ").join(tool.name for tool in tools)
    first = say(draw, zh, _NEED, _NEED_ZH, n=named)
    last = say(draw, zh, _GOT, _GOT_ZH, r="; ".join(_plain(result) for _, result in drawn))
    answer = ("" if zh else " ").join(reports)
    turns = [_assistant(first, "", right), *(_observation(result) for _, result in drawn), _assistant(last, answer)]
    return Draft(
        ("" if zh else " ").join(requests),
        [first, last],
        answer,
        "calls",
        turns,
        _offer(draw, tools, (1, 3, 3, 4, 6)[level - 1]),
        right,
    )


_LEFT = (
    "How many units of the {product} will be left in warehouse {warehouse} after {n} are sold?",
    "Warehouse {warehouse} ships {n} units of the {product}. How many remain there?",
)
_LEFT_ZH = ("仓库{warehouse}卖出{n}件{product}之后，还剩多少件？",)
_WORTH = ("One {product} is worth {n} dollars. What is the stock of warehouse {warehouse} in it worth?",)
_WORTH_ZH = ("每件{product}价值{n}元，仓库{warehouse}里的这种商品总共值多少元？",)


def chained_calls(draw: Draw, level: int, zh: bool) -> Draft:
    """Stock first, then a calculation with it."""
    stock, calculate = BY_NAME["get_stock_level"], BY_NAME["calculate"]
    arguments, result = stock.draw(draw, zh)
    units = int(result["units"])
    if draw.chance(0.5):
        n = draw.integer(2, units)
        question = say(draw, zh, _LEFT, _LEFT_ZH, n=n, **arguments)
        expression, value = f"{units} - {n}", units - n
    else:
        n = draw.integer(2, 400)
        question = say(draw, zh, _WORTH, _WORTH_ZH, n=n, **arguments)
        expression, value = f"{units} * {n}", units * n
    second, outcome = {"expression": expression}, {"value": value}
    right = [_call(stock, arguments), _call(calculate, second)]
    thoughts = [
        say(draw, zh, _NEED, _NEED_ZH, n=stock.name),
        say(draw, zh, _GOT, _GOT_ZH, r=_plain(result))
        + ("" if zh else " ")
        + say(draw, zh, _NEED, _NEED_ZH, n=calculate.name),
        say(draw, zh, _GOT, _GOT_ZH, r=_plain(outcome)),
    ]
    answer = _report(calculate, second, outcome, zh)
    turns = [
        _assistant(thoughts[0], "", right[:1]),
        _observation(result),
        _assistant(thoughts[1], "", right[1:]),
        _observation(outcome),
        _assistant(thoughts[2], answer),
    ]
    return Draft(
        question, thoughts, answer, "calls", turns, _offer(draw, [stock, calculate], 4 if level == 4 else 6), right
    )


def no_tool(draw: Draw, level: int, zh: bool) -> Draft:
    """A request that one tool could answer which is not on offer."""
    tool = draw.pick([t for t in TOOLS if t.name != "calculate"])
    arguments, _ = tool.draw(draw, zh)
    offered = _offer(draw, [], 6, without=(tool.name,))
    listed = ("、" if zh else ", ").join(schema["function"]["name"] for schema in offered)
    thought = say(draw, zh, _MISSING, _MISSING_ZH, o=listed)
    answer = say(draw, zh, _SORRY, _SORRY_ZH)
    question = draw.pick(tool.requests_zh if zh else tool.requests).format_map(arguments)
    return Draft(question, [thought], answer, "calls", [_assistant(thought, answer)], offered, [])


TEMPLATES: dict[str, tuple[int, Template]] = {
    "calls": (1, calls),
    "chained_calls": (4, chained_calls),
    "no_tool": (5, no_tool),
}
