"""When the tool calls of a reply are the right ones: those expected, or any of the possible ones."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from glmforge.verify.reply import ToolCall, argument_value

_TYPES: Mapping[str, type] = {
    "string": str, "any": str, "integer": int, "float": float, "boolean": bool, "array": list, "tuple": list,
    "dict": dict,
}  # fmt: skip


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


def possible_calls(
    given: Sequence[ToolCall], functions: Sequence[Mapping[str, Any]], possible: Sequence[Mapping[str, Any]]
) -> bool:
    """Whether the calls are the possible ones in any order, by the rules of the Berkeley Function-Calling Leaderboard.

    Args:
        functions: their `name` and `parameters`, types as the leaderboard names them.
        possible: for each call {name: {argument: [value, ...]}}; an argument with "" among its values may be missing.
    """
    left = list(given)
    for one in possible:
        call = next((call for call in left if _is_possible(call, functions, one)), None)
        if call is None:
            return False
        left.remove(call)
    return not left


def _is_possible(call: ToolCall, functions: Sequence[Mapping[str, Any]], possible: Mapping[str, Any]) -> bool:
    ((name, choices),) = possible.items()
    schema = next((one["parameters"] for one in functions if one["name"] == name), None)
    if call.name != name or schema is None:
        return False
    wanted = {*schema.get("required", ()), *(key for key, values in choices.items() if "" not in values)}
    return wanted <= call.arguments.keys() and all(
        key in schema["properties"] and key in choices and _is_value(text, schema["properties"][key], choices[key])
        for key, text in call.arguments.items()
    )


def _is_value(text: str, schema: Mapping[str, Any], choices: Sequence[Any]) -> bool:
    kind = _TYPES.get(schema["type"], str)
    # Some choices have another type than the schema, such as the name of a variable.
    first = next((type(choice) for choice in choices if choice != ""), kind)
    value = text if kind is first is str else argument_value(text)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind and type(value) is not first:
        return False
    inner = _TYPES.get(schema.get("items", {}).get("type", "")) if kind is list and type(value) is list else None
    return any(_same(value, choice) and _has_types(value, inner, choice) for choice in choices)


def _has_types(value: Any, inner: type | None, choice: Any) -> bool:
    """Whether the items of a list have the type of the schema, or of the choice."""
    first = type(choice[0]) if isinstance(choice, list) and choice else None
    return inner is None or all(type(item) in (inner, first) for item in value)


def _same(value: Any, choice: Any) -> bool:
    """Texts but for case, spaces and some signs; of a dictionary each key has choices of its own."""
    if isinstance(value, str) and isinstance(choice, str):
        return _bare(value) == _bare(choice)
    if isinstance(value, list) and isinstance(choice, list):
        return len(value) == len(choice) and all(map(_same, value, choice))
    if isinstance(value, dict) and isinstance(choice, dict):
        options = {key: one if isinstance(one, list) else [one] for key, one in choice.items()}
        return all(
            key in options and any(_same(one, option) for option in options[key]) for key, one in value.items()
        ) and all(key in value or "" in option for key, option in options.items())
    return bool(value == choice)


def _bare(text: str) -> str:
    return re.sub(r"[ ,./\-_*^]", "", text).lower().replace("'", '"')
