"""When the tool calls of a reply are the right ones."""

from collections.abc import Mapping, Sequence
from typing import Any

from glmforge.verify.reply import ToolCall, argument_value


def same_calls(given: Sequence[ToolCall], expected: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the calls of a reply have the names and arguments expected, in order."""
    return len(given) == len(expected) and all(_agrees(c, e) for c, e in zip(given, expected, strict=True))


def _agrees(call: ToolCall, expected: Mapping[str, Any]) -> bool:
    """The format writes a value raw or as JSON: either will do."""
    given, wanted = call.arguments, expected["arguments"]
    return (
        call.name == expected["name"]
        and given.keys() == wanted.keys()
        and all(given[k] == v or argument_value(given[k]) == v for k, v in wanted.items())
    )
