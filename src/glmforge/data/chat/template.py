"""Render a conversation as the text that GLM-4.5 and 4.6 read.

The format lives in `template.jinja` alone. The same file goes into the tokenizer's configuration, so that
transformers, vLLM and SGLang render what training rendered; here it is compiled in the environment that
transformers uses (a sandbox, with `trim_blocks`, `lstrip_blocks` and a `tojson` that leaves Unicode
readable), because the core package does not depend on transformers.

A turn has no end token: the next role token ends it. Turns before the last user message lose their reasoning,
as they do when the model is served.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from glmforge.errors import DataError

Message = Mapping[str, Any]

CHAT_TEMPLATE = (files("glmforge.data.chat") / "template.jinja").read_text(encoding="utf-8")


def render(
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = False,
    thinking: bool = True,
    template: str = CHAT_TEMPLATE,
) -> str:
    """The prompt of a conversation.

    Args:
        messages: `role` (system, user, assistant, tool) and `content`; an assistant may have
            `reasoning_content` (or `<think>...</think>` in its content) and `tool_calls`, whose arguments are
            a mapping or, as OpenAI's interface returns them, JSON text.
        tools: JSON schemas of the functions that may be called.
        add_generation_prompt: end with the opening of the assistant's next turn.
        thinking: False asks for an answer without reasoning.
        template: another Jinja template with the same inputs.

    Raises:
        DataError: a role, a content or a tool call that the format has no place for.
    """
    plain = [_with_parsed_arguments(message, index) for index, message in enumerate(messages)]
    try:
        return _compile(template).render(
            messages=plain,
            tools=list(tools) if tools else None,
            add_generation_prompt=add_generation_prompt,
            enable_thinking=thinking,
        )
    except TemplateError as error:
        raise DataError(f"conversation of {len(plain)} messages: {error.message}") from error


@cache
def _compile(template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    return environment.from_string(template)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """Replaces Jinja's own filter, which escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _with_parsed_arguments(message: Message, index: int) -> dict[str, Any]:
    plain = dict(message)
    if plain.get("tool_calls"):
        plain["tool_calls"] = [_parse_call(call, index) for call in plain["tool_calls"]]
    return plain


def _parse_call(call: Mapping[str, Any], index: int) -> dict[str, Any]:
    function = dict(call.get("function", call))
    if isinstance(function.get("arguments"), str):
        try:
            function["arguments"] = json.loads(function["arguments"])
        except json.JSONDecodeError as error:
            raise DataError(
                f"message {index}: arguments of tool call '{function.get('name')}' are not JSON: {error}"
            ) from error
    return {"function": function}
