"""Tool calls in a reply, and when they are the right ones."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_TOOL_CALL = re.compile(r"<tool_call>([^\n<]*)\n(.*?)</tool_call>", re.DOTALL)
_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


def parse_calls(reply: str) -> list[dict[str, Any]]:
    """The tool calls that a reply spells in GLM's format; values are text or, where they are JSON, what it says."""
    found = []
    for name, body in _TOOL_CALL.findall(reply.rpartition("</think>")[2]):
        arguments: dict[str, Any] = {}
        for key, value in _ARGUMENT.findall(body):
            try:
                arguments[key] = json.loads(value)
            except ValueError:
                arguments[key] = value
        found.append({"name": name.strip(), "arguments": arguments})
    return found


def same_calls(given: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]]) -> bool:
    """Whether parsed calls have the names and arguments expected, in order."""
    return len(given) == len(expected) and all(_agrees(c, e) for c, e in zip(given, expected, strict=True))


def _agrees(call: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    """Values that the format writes raw come back as JSON if they look like it: compare as both."""
    given, wanted = call["arguments"], expected["arguments"]
    same = given.keys() == wanted.keys()
    return (
        call["name"] == expected["name"]
        and same
        and all(given[k] == v or str(given[k]) == v for k, v in wanted.items())
    )
