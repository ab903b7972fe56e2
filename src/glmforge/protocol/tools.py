"""Functions that may be called, and the grammar of calls that must be made: names, required parameters, types.

The prompt has begun the call, up to `<tool_call>` or, where one function is named, up to the end of its name. Tags are
single tokens, which llguidance writes as `<[id]>`. Parameters come in the order of the schema. Values are held to their
types and to enumerations of texts; what else a schema says is for the client to check.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.protocol.arguments import types_of
from glmforge.protocol.body import Body

MAX_TOOLS = 1024

_KEY, _TEXT = r"KEY: /[^\n]{1,200}/", r"TEXT: /(.|\n)*/"


class Tool(Body):
    """A function that may be called: its name, what it is for, the JSON schema of its parameters."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:\-]{1,128}$")]
    description: str = ""
    parameters: dict[str, Any] = {}

    @property
    def written(self) -> dict[str, Any]:
        """As the chat template writes it."""
        said = {"name": self.name} | ({"description": self.description} if self.description else {})
        return {"type": "function", "function": said | {"parameters": self.parameters}}


def _choice(given: Any) -> tuple[str, str | None]:
    if given in ("auto", "none", "required"):
        return given, None
    function = (
        given.get("function", given)
        if isinstance(given, dict) and given.get("type", "function") == "function"
        else None
    )
    if isinstance(function, dict) and isinstance(name := function.get("name"), str):
        return "required", name
    raise ValueError("choose 'auto', 'none', 'required', or a function by its type and name")


Choice = Annotated[tuple[str, str | None], BeforeValidator(_choice)]
"""Whether OpenAI's APIs are to call: `auto`, `none` or `required`, and the function that is named."""


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
