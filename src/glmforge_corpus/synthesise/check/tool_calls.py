"""Tool calls, verified by reading the request: which calls it asks for, whether they fit the schemas that are
offered, whether the results that can be computed are right, and whether the reply says what came back."""

# ruff: noqa: E501 - sentences and their patterns are not broken up

import json
import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from glmforge_corpus.synthesise.check.formulas import evaluate

_D, _T = r"(?P<{0}>\d{{4}}-\d\d-\d\d)", r"(?P<{0}>\d\d:\d\d)"
_DATE, _START, _END = _D.format("date"), _D.format("start"), _D.format("end")
_CODE = r"(?P<warehouse>[A-Z]\d+)"
_MODE = r"(?P<mode>car|train|bike)"
_SUM = r"(?P<expression>\d+ [-+*] \d+(?: [-+*] \d+)*)"
_MONEY = r"(?P<amount>\d+) (?P<source>[A-Z]{3})"
_ASKED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("get_weather", (rf"weather be in (?P<city>\w+) on {_DATE}", rf"forecast for (?P<city>\w+) on {_DATE}", rf"I travel to (?P<city>\w+) on {_DATE}",
                     rf"(?:^|[。？])(?P<city>\w+?)在{_DATE}的天气怎么样", rf"查一下(?P<city>\w+?)在{_DATE}的天气预报")),
    ("days_between", (rf"days are there from {_START} to {_END}", rf"Count the days from {_START} to {_END}", rf"runs from {_START} to {_END}",
                      rf"从{_START}到{_END}一共有多少天", rf"计算从{_START}到{_END}的天数")),
    ("convert_currency", (rf"How much is {_MONEY} in (?P<target>[A-Z]{{3}})\?", rf"Convert {_MONEY} to (?P<target>[A-Z]{{3}})", rf"I have {_MONEY} and need (?P<target>[A-Z]{{3}})",
                          rf"{_MONEY}等于多少(?P<target>[A-Z]{{3}})", rf"把{_MONEY}换成(?P<target>[A-Z]{{3}})")),
    ("get_stock_level", (rf"How many units of the (?P<product>[\w ]+?) are in warehouse {_CODE}", rf"stock of the (?P<product>[\w ]+?) in warehouse {_CODE}", rf"Does warehouse {_CODE} still have the (?P<product>[\w ]+?), and",
                         rf"仓库{_CODE}里还有多少(?P<product>\w+?)？", rf"查一下(?P<product>\w+?)在仓库{_CODE}的库存",
                         rf"units of the (?P<product>[\w ]+?) will be left in warehouse {_CODE}", rf"Warehouse {_CODE} ships \d+ units of the (?P<product>[\w ]+?)\.", rf"仓库{_CODE}卖出\d+件(?P<product>\w+?)之后",
                         rf"One (?P<product>[\w ]+?) is worth \d+ dollars\. What is the stock of warehouse {_CODE}", rf"每件(?P<product>\w+?)价值\d+元，仓库{_CODE}里")),
    ("find_route", (rf"How far is it from (?P<origin>\w+) to (?P<destination>\w+) by {_MODE}", rf"route from (?P<origin>\w+) to (?P<destination>\w+) by {_MODE}", rf"go from (?P<origin>\w+) to (?P<destination>\w+) by {_MODE}",
                    rf"从(?P<origin>\w+?)到(?P<destination>\w+?)，交通方式{_MODE}，有多远", rf"规划从(?P<origin>\w+?)到(?P<destination>\w+?)的路线，交通方式{_MODE}")),
    ("send_message", (r"Send (?P<recipient>\w+) this message: (?P<text>[^.]+)\.", r"Let (?P<recipient>\w+) know this: (?P<text>[^.]+)\.", r"Text (?P<recipient>\w+) the following: (?P<text>[^.]+)\.",
                      r"给(?P<recipient>\w+?)发消息：(?P<text>[^。]+)。", r"请通知(?P<recipient>\w+?)：(?P<text>[^。]+)。")),
    ("create_event", (rf'Put "(?P<title>[^"]+)" into my calendar on {_DATE} at {_T.format("start")} for (?P<minutes>\d+) minutes', rf'Schedule "(?P<title>[^"]+)" on {_DATE} at {_T.format("start")}, lasting (?P<minutes>\d+) minutes',
                      rf"添加“(?P<title>[^”]+)”，日期{_DATE}，{_T.format('start')}开始，时长(?P<minutes>\d+)分钟")),
    ("calculate", (rf"What is {_SUM}\?", rf"Calculate {_SUM}\.", rf"work out {_SUM} for me", rf"{_SUM}等于多少？", rf"算一下{_SUM}。")),
)  # fmt: skip
_PATTERNS = [(name, re.compile(pattern)) for name, patterns in _ASKED for pattern in patterns]
_INTEGERS = {"amount", "minutes"}
_TYPES: dict[str, tuple[type, ...]] = {"string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,)}
_LEFT = re.compile(r"left in warehouse \S+ after (\d+) are|ships (\d+) units|卖出(\d+)件")
_WORTH = re.compile(r"is worth (\d+) dollars|价值(\d+)元")

Call = dict[str, Any]


def requested(question: str) -> list[Call]:
    """The calls that the wording asks for, in its order, as far as they are known before any result."""
    found = []
    for name, pattern in _PATTERNS:
        for match in pattern.finditer(question):
            arguments = {k: int(v) if k in _INTEGERS else v for k, v in match.groupdict().items()}
            found.append((match.start(), {"name": name, "arguments": arguments}))
    return [call for _, call in sorted(found, key=lambda pair: pair[0])]


def fits_schema(call: Call, tools: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the tool is offered, and the arguments are what it requires and of the right types."""
    schema = next((t["function"]["parameters"] for t in tools if t["function"]["name"] == call["name"]), None)
    if (
        schema is None
        or set(call["arguments"]) - set(schema["properties"])
        or set(schema["required"]) - set(call["arguments"])
    ):
        return False
    for key, value in call["arguments"].items():
        field = schema["properties"][key]
        if not isinstance(value, _TYPES[field["type"]]) or value not in field.get("enum", [value]):
            return False
    return True


def conversation(record: Mapping[str, Any]) -> str | None:
    """What is wrong with a conversation that calls tools, or None."""
    question, tools, messages = record["question"], record["tools"], record["messages"]
    made = [call["function"] for message in messages for call in message.get("tool_calls", ())]
    results = [json.loads(message["content"]) for message in messages if message["role"] == "tool"]
    if made != record["verifier"]["calls"] or len(results) != len(made):
        return "calls and verifier differ"
    expected = requested(question)
    offered = {tool["function"]["name"] for tool in tools}
    if record["template"] == "no_tool":
        return None if expected and not offered & {c["name"] for c in expected} and not made else "a tool would do"
    if record["template"] == "chained_calls":
        expected += [_second(question, results)]
    if made != expected:
        return "other calls are asked for"
    for call, result in zip(made, results, strict=True):
        if not fits_schema(call, tools):
            return f"call of {call['name']} does not fit its schema"
        if not _result_is_right(call, result):
            return f"result of {call['name']} is wrong"
    return _reply(messages[-1]["content"], made, results)


def _second(question: str, results: Sequence[Mapping[str, Any]]) -> Call:
    units = results[0].get("units")
    left, worth = _LEFT.search(question), _WORTH.search(question)
    found = left or worth
    n = next((g for g in found.groups() if g), "") if found else ""
    return {"name": "calculate", "arguments": {"expression": f"{units} {'-' if left else '*'} {n}"}}


def _result_is_right(call: Call, result: Mapping[str, Any]) -> bool:
    """Of tools whose result follows from the arguments; others may answer anything."""
    arguments = call["arguments"]
    match call["name"]:
        case "calculate":
            return bool(result["value"] == evaluate(arguments["expression"]))
        case "days_between":
            return bool(
                (date.fromisoformat(arguments["end"]) - date.fromisoformat(arguments["start"])).days == result["days"]
            )
        case "convert_currency":
            return bool(abs(result["amount"] * 100 - arguments["amount"] * result["rate_percent"]) < 1e-6)
        case _:
            return True


_NOT_SAID = {"rate_percent", "status"}


def _reply(reply: str, calls: Sequence[Call], results: Sequence[Mapping[str, Any]]) -> str | None:
    for call, result in (
        zip(calls, results, strict=True)
        if len(calls) != 2 or calls[1]["name"] != "calculate"
        else [(calls[1], results[1])]
    ):
        for key, value in result.items():
            if key not in _NOT_SAID and str(value) not in reply:
                return f"the reply does not say {call['name']}'s {key}"
    return None
