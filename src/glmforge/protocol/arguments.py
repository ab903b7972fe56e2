"""Arguments of a call: the JSON that their texts stand for, by the types in the function's schema, while they come."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from glmforge.errors import DataError
from glmforge.files import parse_json


class ArgumentsStream:
    """JSON of the arguments of one call, piece by piece."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema, self._keys = schema, set[str]()
        self._types: set[str] = set()
        self._value: list[str] = []

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def begin(self, key: str) -> str:
        """As far as its value is certain to follow."""
        self._types, self._value = types_of(self._schema, key), []
        opening = f"{', ' if self._keys else '{'}{json.dumps(key, ensure_ascii=False)}: "
        self._keys.add(key)
        return opening + ('"' if self._types == {"string"} else "")

    def more(self, text: str) -> str:
        """Of a string its next characters; of other values, nothing yet."""
        if self._types == {"string"}:
            return _inner(text)
        self._value.append(text)
        return ""

    def end(self) -> str:
        """The rest of the value."""
        return '"' if self._types == {"string"} else _value_json("".join(self._value), self._types)

    def closing(self) -> str:
        """Behind all arguments."""
        return "}" if self._keys else "{}"


def types_of(schema: Mapping[str, Any], key: str) -> set[str]:
    """The JSON types that a function's schema allows for a parameter; empty if it does not say."""
    properties = schema.get("properties")
    found: object = properties.get(key) if isinstance(properties, Mapping) else None
    types: set[str] = set()
    pending, num_read = [found], 0
    while pending and num_read < 100:  # schemas may refer to each other in a circle
        one, num_read = pending.pop(), num_read + 1
        if not isinstance(one, Mapping):
            continue
        kind, reference = one.get("type"), one.get("$ref")
        named = [kind] if isinstance(kind, str) else kind if isinstance(kind, list | tuple) else []
        types |= {name for name in named if isinstance(name, str)}
        if not named:
            values = one.get("enum") if isinstance(one.get("enum"), list) else [one["const"]] if "const" in one else []
            types |= {_type_of(value) for value in values or []}
        if isinstance(reference, str) and reference.startswith("#/"):
            pending.append(_at(schema, reference[2:].split("/")))
        for choice in ("anyOf", "oneOf"):
            if isinstance(one.get(choice), list):
                pending += one[choice]
    return types


def _at(schema: object, path: Sequence[str]) -> object:
    for name in path:
        schema = schema.get(name) if isinstance(schema, Mapping) else None
    return schema


def _value_json(text: str, types: set[str]) -> str:
    """JSON of a value: as it is written, if it is JSON and may be more than a string; else as a string."""
    try:
        value = parse_json(text, object, source="value", error=DataError)
    except DataError:
        return f'"{_inner(text)}"'
    kind = _type_of(value)
    other = types - {"string"} | ({"integer"} if "number" in types else set())
    if "string" in types and kind not in other:
        return f'"{_inner(text)}"'
    return text.strip()


def _type_of(value: object) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _inner(text: str) -> str:
    """Characters within a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
