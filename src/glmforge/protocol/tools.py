"""Functions that may be called, and the grammar of calls that must be made: names, required parameters, types.

The prompt has begun the call, up to `<tool_call>` or, where one function is named, up to the end of its name. Tags are
single tokens, which llguidance writes as `<[id]>`. Parameters come in the order of the schema. Values are held to their
types and to enumerations of texts; what else a schema says is for the client to check.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.protocol.reply import types_of
from glmforge.protocol.request import Fields, invalid, quoted

MAX_TOOLS = 1024
_NAME = re.compile(r"[A-Za-z0-9_.:\-]{1,128}")

_KEY, _TEXT = r"KEY: /[^\n]{1,200}/", r"TEXT: /(.|\n)*/"


@dataclass(frozen=True)
class Tool:
    """A function that may be called: its name, what it is for, the JSON schema of its parameters."""

    name: str
    description: str | None
    parameters: dict[str, Any]

    @classmethod
    def of(cls, given: Fields, parameters: str) -> "Tool":
        """`parameters`: what the API calls them."""
        name = given.text("name")
        if not _NAME.fullmatch(name):
            raise invalid(given.where("name"), f"{quoted(name)} must be 1 to 128 letters, digits or any of _ - . :")
        schema = given.part(parameters)
        return cls(name, given.text("description", "") or None, {} if schema is None else dict(given.get(parameters)))

    @property
    def schema(self) -> dict[str, Any]:
        """As the chat template writes it."""
        said = {"name": self.name} | ({"description": self.description} if self.description else {})
        return {"type": "function", "function": said | {"parameters": self.parameters}}


def grammars_are_there() -> bool:
    """Whether the extra `grammar` is installed."""
    return find_spec("llguidance") is not None


def grammar_of(tools: Sequence[Tool], named: str | None, tokenizer: Tokenizer, *, parallel: bool) -> str:
    """What follows the beginning of the call. Without `parallel`, or with a name, it is one call."""
    tags = {tag: f"<[{tokenizer.special_id(f'<{tag}>')}]>" for tag in ("tool_call", "arg_key", "arg_value")}
    tags |= {f"/{tag}": f"<[{tokenizer.special_id(f'</{tag}>')}]>" for tag in ("tool_call", "arg_key", "arg_value")}
    able = [tool for tool in tools if named in (None, tool.name)]
    more = f' ("\\n" {tags["tool_call"]} call)*' if parallel and named is None else ""
    lines = [f"start: call{more}", "call: " + " | ".join(f"call_{number}" for number in range(len(able))), _KEY, _TEXT]
    for number, tool in enumerate(able):
        begin = [] if named else [_quoted(f"{tool.name}\n")]
        rule = " ".join([*begin, *_arguments(tool.parameters, tags), tags["/tool_call"]])
        lines.append(f"call_{number}: {rule}")
    return "\n".join(lines)


def _arguments(schema: Mapping[str, Any], tags: Mapping[str, str]) -> Iterator[str]:
    def argument(key: str, value: str) -> str:
        return (
            f'{tags["arg_key"]} {key} {tags["/arg_key"]} "\\n" {tags["arg_value"]} {value} {tags["/arg_value"]} "\\n"'
        )

    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, Mapping):
        yield f"({argument('KEY', 'TEXT')})*"
        return
    for key in properties:
        is_required = isinstance(required, list | tuple) and key in required
        yield f"({argument(_quoted(key), _value(schema, key))}){'' if is_required else '?'}"


def _value(schema: Mapping[str, Any], key: str) -> str:
    types, said = types_of(schema, key), schema["properties"][key]
    choices = said.get("enum") if isinstance(said, Mapping) else None
    if choices and isinstance(choices, list | tuple) and all(isinstance(one, str) and one for one in choices):
        return f"({' | '.join(map(_quoted, choices))})"
    known = types & {"integer", "number", "boolean", "null", "array", "object"}
    if not types or types - known:
        return "TEXT"
    return f"%json {json.dumps({'type': sorted(known)})}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
