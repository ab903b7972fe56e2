"""Render a conversation as the text that GLM-4.5 and 4.6 read.

The format lives in `template.jinja` alone. The same file goes into the tokenizer's configuration, so that
transformers, vLLM and SGLang render what training rendered; here it is compiled as transformers does it (with
`trim_blocks`, `lstrip_blocks` and a `tojson` that leaves Unicode readable), because the core package does not depend on
transformers. Another tokenizer may bring another template, so all are compiled in our own `sandbox`.

A turn has no end token: the next role token ends it. Turns before the last user message lose their reasoning,
as they do when the model is served.

`render_parts` says which control tokens are the template's own. What users, tools, system prompts and earlier answers
spell is text, with the published template's one exception: a `/nothink` that ends a user's message.
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError
from jinja2.sandbox import SecurityError

from glmforge.data.chat_template.budget import budget_for
from glmforge.data.chat_template.content import ContentMarks
from glmforge.data.chat_template.sandbox import TEMPLATE_FAULTS, compile_template
from glmforge.errors import DataError
from glmforge.files import shown

Message = Mapping[str, Any]

CHAT_TEMPLATE = (files("glmforge.data.chat_template") / "template.jinja").read_text(encoding="utf-8")

_NO_THINK = "/nothink"


def render(
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = False,
    thinking: bool = True,
    template: str = CHAT_TEMPLATE,
    clear_thinking: bool = True,
) -> str:
    """The prompt of a conversation, as text.

    Text cannot say which control tokens are the template's and which a message only spells: encode
    `render_parts`, or take `Tokenizer.apply_chat_template`.

    Args:
        messages: `role` (system, user, assistant, tool) and `content`; an assistant may have
            `reasoning_content` (or `<think>...</think>` in its content) and `tool_calls`, whose arguments are
            a mapping or, as OpenAI's interface returns them, JSON text. A tool's content may be a list of results:
            texts, numbers, or mappings with an `output`.
        tools: JSON schemas of the functions that may be called.
        add_generation_prompt: end with the opening of the assistant's next turn.
        thinking: False asks for an answer without reasoning.
        template: another Jinja template with the same inputs.
        clear_thinking: False keeps the reasoning of turns before the last user message, too, if the template can.

    Raises:
        DataError: a role, a content or a tool call that the format has no place for.
    """
    return _render(_normalized(messages, tools), tools, add_generation_prompt, thinking, template, clear_thinking)


def render_parts(
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = False,
    thinking: bool = True,
    template: str = CHAT_TEMPLATE,
    *,
    clear_thinking: bool = True,
    control_tokens: Sequence[str],
) -> list[str]:
    """What `render` gives, as text and control token in turn; beginning and ending with a text, which may be empty.

    Args:
        control_tokens: spellings of all tokens that are not text. Those in the result are the template's.

    Raises:
        DataError: as `render`.
    """
    normalized = _normalized(messages, tools)
    marks = ContentMarks(control_tokens, [normalized, tools])
    try:
        marked = [_marked(message, marks) for message in normalized]
        rendered = _render(marked, marks.add(tools), add_generation_prompt, thinking, template, clear_thinking)
    except RecursionError as error:
        raise DataError(f"conversation of {len(normalized)} messages: nested too deeply") from error
    return marks.split(rendered)


def _marked(message: dict[str, Any], marks: ContentMarks) -> dict[str, Any]:
    content, role = message.get("content"), message.get("role")
    marked = {field: marks.add(value) for field, value in message.items()}
    if isinstance(role, str) and role.isidentifier():  # templates compare it, and spell no token with one
        marked["role"] = role
    if role == "user" and isinstance(content, str) and content.endswith(_NO_THINK):
        marked["content"] = marks.add(content.removesuffix(_NO_THINK)) + _NO_THINK
    return marked


def _render(
    messages: list[dict[str, Any]],
    tools: Any,
    add_generation_prompt: bool,
    thinking: bool,
    template: str,
    clear_thinking: bool,
) -> str:
    try:
        with budget_for(messages, tools):
            return _compile(template).render(
                messages=messages,
                tools=list(tools) if tools else None,
                add_generation_prompt=add_generation_prompt,
                enable_thinking=thinking,
                clear_thinking=clear_thinking,
            )
    except SecurityError as error:
        raise DataError(
            f"the chat template is not allowed: {_in_words(error)}; use GLM's published template"
        ) from error
    except TemplateSyntaxError as error:
        raise DataError(
            f"the chat template is not valid Jinja: {_in_words(error)}; use GLM's published template"
        ) from error
    except TEMPLATE_FAULTS as error:
        raise DataError(
            f"the chat template fails on a conversation of {len(messages)} messages: {_in_words(error)}"
        ) from error
    except TemplateError as error:
        raise DataError(f"conversation of {len(messages)} messages: {_in_words(error)}") from error


@lru_cache(maxsize=16)
def _compile(template: str) -> Template:
    return compile_template(template)


def _in_words(error: Exception) -> str:
    """What a template did wrong, or what it complains of, in one line."""
    message = error.message if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
    line = f" (line {error.lineno})" if isinstance(error, TemplateSyntaxError) else ""
    return shown(message or type(error).__name__) + line


def _check_shape(messages: object, tools: object) -> None:
    """Conversations come from files: what is no list of messages is the file's fault."""
    if not isinstance(messages, list | tuple) or not all(isinstance(message, Mapping) for message in messages):
        raise DataError(f"conversation: {shown(repr(messages)[:100])} is not a list of messages with role and content")
    if tools is not None and not isinstance(tools, list | tuple):
        raise DataError(f"conversation: tools are {shown(repr(tools)[:100])}, which is not a list of JSON schemas")


def _normalized(messages: Sequence[Message], tools: object) -> list[dict[str, Any]]:
    """Messages whose texts in parts are joined, inline reasoning has its field, and arguments are parsed."""
    _check_shape(messages, tools)
    return [_normalized_message(message, index) for index, message in enumerate(messages)]


def _normalized_message(message: Message, index: int) -> dict[str, Any]:
    plain = dict(message)
    content = plain["content"] = _joined_text(plain.get("content"), plain.get("role"))
    if plain.get("role") != "assistant":
        return plain
    if isinstance(content, str) and "</think>" in content and not isinstance(plain.get("reasoning_content"), str):
        plain["reasoning_content"], plain["content"] = split_reasoning(content)
    calls = plain.get("tool_calls")
    if calls:
        if not isinstance(calls, list | tuple) or not all(isinstance(call, Mapping) for call in calls):
            raise DataError(f"message {index}: tool_calls are {shown(repr(calls)[:100])}, which is not a list of calls")
        plain["tool_calls"] = [_parse_call(call, index) for call in calls]
    return plain


def _joined_text(content: Any, role: object) -> Any:
    """One text of a list of text parts; other content as it is, such as a tool's list of results."""
    if not isinstance(content, list | tuple) or (role == "tool" and not content):
        return content
    texts = [_part_text(part, is_result=role == "tool") for part in content]
    return content if None in texts else "".join(map(str, texts))


def _part_text(part: Any, *, is_result: bool) -> str | None:
    """None if the part is not text: in a tool's content, a bare string is a separate result."""
    if isinstance(part, Mapping) and part.get("type", "text") == "text" and not (is_result and "output" in part):
        part, is_result = part.get("text"), False
    return part if isinstance(part, str) and not is_result else None


def split_reasoning(answer: str) -> tuple[str, str]:
    """(reasoning, answer) of a text with `<think>REASONING</think>ANSWER`, as the template takes it apart."""
    return answer.split("</think>")[0].split("<think>")[-1], answer.split("</think>")[-1]


def _parse_call(call: Mapping[str, Any], index: int) -> dict[str, Any]:
    given = call.get("function", call)
    if not isinstance(given, Mapping):
        raise DataError(f"message {index}: a tool call of {shown(repr(given)[:100])}, which is not a function")
    function = dict(given)
    if isinstance(function.get("arguments"), str):
        try:
            function["arguments"] = json.loads(function["arguments"])
        except (ValueError, RecursionError) as error:
            name = shown(function.get("name"))
            raise DataError(f"message {index}: arguments of tool call '{name}' are not JSON: {error}") from error
    return {"function": function}
