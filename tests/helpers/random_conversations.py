"""Conversations as long and as odd as people's, and GLM's format spelt out for them in plain Python.

`spelt` is written from the format's description and knows nothing of the template: a text and whether it is learnt,
piece by piece. `read_back` takes a text apart again.
"""

import json
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from glmforge.data.tokens.special import SPECIAL_TOKENS

ODD = (
    *("é", "e\u0301", "ß", "中文", "日本語\u3000", "שלום", "مرحبا", "🇩🇪", "𝔘𝔫𝔦", "\U0010ffff", "\ue000", "\ufeff"),
    *("\U0001f468\u200d\U0001f467", "\u200b", "\u202e", "\u2028", "\x85", "\x00", "\x7f", "\r\n", "\t", "\n\n"),
    *("  ", "\u00a0", "1.5", "null", "{}", "[", '"', "\\", "\\n", "<", ">", "</", "<|", "|>", "<|user", "user|>"),
    *("<tool", "&lt;", "{{ x }}", "{% if %}", "'", "`", "%s"),
)
WORDS = ("the", "forge", "is", "hot", "Hammer", "Amboss", "et", "cetera", "why", "42", "3.14", "x = 1", "def f():")

_TYPED = "\ue0fe"


class TypingTokens(random.Random):
    """Draws texts in which control tokens are typed; see `record_with_typed_tokens`."""

    odd = (*ODD, *[_TYPED] * len(ODD))


def text(draw: random.Random, longest: int = 12, *, empty: bool = False) -> str:
    """Some words and oddities, but no role token made of them; not only space unless `empty`."""
    odd, number = getattr(draw, "odd", ODD), draw.randint(0 if empty else 1, longest)
    parts = [draw.choice(odd if draw.random() < 0.4 else WORDS) for _ in range(number)]
    joined = draw.choice(("", " ", "\n")).join(parts).replace("<|user|>", "<|user >")
    return joined if empty or joined.strip() else joined + "x"


def value(draw: random.Random, depth: int = 2) -> Any:
    """An argument of a tool call."""
    kinds = [None, True, False, draw.randint(-(2**40), 2**40), draw.random(), text(draw, 4, empty=True)]
    if depth:
        kinds += [
            [value(draw, depth - 1) for _ in range(draw.randint(0, 3))],
            {text(draw, 2): value(draw, depth - 1) for _ in range(draw.randint(0, 3))},
        ]
    return draw.choice(kinds)


def record(draw: random.Random) -> dict[str, Any]:
    """A record of OpenAI's kind, reasoning only in what follows the last question."""
    tools = [_tool(draw) for _ in range(draw.randint(1, 3))] if draw.random() < 0.5 else None
    messages: list[dict[str, Any]] = []
    if draw.random() < 0.4:
        messages.append({"role": "system", "content": text(draw, empty=True)})
    num_questions = draw.randint(1, 3)
    for number in range(num_questions):
        messages.append({"role": "user", "content": text(draw)})
        thinks = number == num_questions - 1 and draw.random() < 0.5
        while tools and draw.random() < 0.4:
            calls = [_call(draw, draw.choice(tools)["name"]) for _ in range(draw.randint(1, 2))]
            messages.append(_answer(draw, thinks, tool_calls=calls))
            messages += [{"role": "tool", "content": text(draw, empty=True)} for _ in calls]
        messages.append(_answer(draw, thinks))
    return {"messages": messages} | ({"tools": tools} if tools else {})


def record_with_typed_tokens(seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A record whose texts and keys spell control tokens, in every role, and the same one with a word for each.

    No question ends with one: a `/nothink` there is the template's. Some results are lists, some questions parts.
    """
    draw = TypingTokens(seed)
    made = record(draw)
    for message in made["messages"]:
        if message["role"] == "tool" and draw.random() < 0.5:
            message["content"] = [draw.choice(({"output": text(draw)}, text(draw), 7)) for _ in range(2)]
        elif message["role"] == "user":
            message["content"] = [{"type": "text", "text": message["content"]}, text(draw) + "?"]
        for call in message.get("tool_calls", ()):
            call["function"] = {"name": call["function"]["name"] + _TYPED, "arguments": arguments_of(call)}
    for tool in made.get("tools", ()):
        tool["name"] += _TYPED
    marked = json.dumps(made, ensure_ascii=False)
    typed = re.sub(_TYPED, lambda _: draw.choice(SPECIAL_TOKENS), marked)
    return json.loads(typed), json.loads(marked.replace(_TYPED, "typed"))


def _tool(draw: random.Random) -> dict[str, Any]:
    properties = {text(draw, 1): {"type": "string", "description": text(draw, 4)} for _ in range(2)}
    parameters = {"type": "object", "properties": properties}
    return {"name": f"tool_{draw.randint(0, 99)}", "description": text(draw), "parameters": parameters}


def _call(draw: random.Random, name: str) -> dict[str, Any]:
    arguments = {text(draw, 2): value(draw) for _ in range(draw.randint(0, 3))}
    written = json.dumps(arguments, ensure_ascii=draw.random() < 0.5) if draw.random() < 0.5 else arguments
    return {"type": "function", "function": {"name": name, "arguments": written}}


def _answer(draw: random.Random, thinks: bool, **fields: Any) -> dict[str, Any]:
    content, message = text(draw, 20, empty=bool(fields)), {"role": "assistant", **fields}
    if not thinks or draw.random() < 0.2:
        return message | {"content": content}
    if draw.random() < 0.5:
        return message | {"content": f"<think>{text(draw)}</think>{content}"}
    return message | {"content": content, "reasoning_content": text(draw)}


def split_answer(message: Mapping[str, Any]) -> tuple[str, str]:
    """(reasoning, answer) of an assistant's message of `record`."""
    before, tag, after = message["content"].rpartition("</think>")
    thought = before.removeprefix("<think>") if tag else message.get("reasoning_content", "")
    return thought.strip(), after.strip()


def arguments_of(call: Mapping[str, Any]) -> dict[str, Any]:
    given = call["function"]["arguments"]
    return json.loads(given) if isinstance(given, str) else given


def spelt(made: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """The text of a record and what of it is learnt, in pieces, when all turns are."""
    messages: Sequence[Mapping[str, Any]] = made["messages"]
    thinking = any(split_answer(m)[0] for m in messages if m["role"] == "assistant")
    pieces = [("[gMASK]<sop>" + (_header(made["tools"]) if "tools" in made else ""), False)]
    for number, message in enumerate(messages):
        role = message["role"]
        if role == "system":
            pieces.append((f"<|system|>\n{message['content']}", False))
        elif role == "user":
            opening = "" if number and messages[number - 1]["role"] == "assistant" else "<|user|>"
            pieces.append((f"{opening}\n{message['content']}" + ("" if thinking else "/nothink"), False))
        elif role == "tool":
            pieces.append((f"\n<tool_response>\n{message['content']}\n</tool_response>", False))
        else:
            pieces += _spelt_answer(message, thinking)
    return pieces


def _spelt_answer(message: Mapping[str, Any], thinking: bool) -> list[tuple[str, bool]]:
    """With the token that ends the turn, whoever's is next."""
    thought, answer = split_answer(message)
    body = f"\n{answer}" if answer else ""
    for call in message.get("tool_calls", ()):
        body += f"\n<tool_call>{call['function']['name']}\n"
        for key, given in arguments_of(call).items():
            shown = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
            body += f"<arg_key>{key}</arg_key>\n<arg_value>{shown}</arg_value>\n"
        body += "</tool_call>"
    end = "<|observation|>" if message.get("tool_calls") else "<|user|>"
    return [("<|assistant|>", False), (f"\n<think>{thought}</think>", thinking), (body + end, True)]


def _header(tools: Sequence[Mapping[str, Any]]) -> str:
    listed = "".join(json.dumps(tool, ensure_ascii=False) + "\n" for tool in tools)
    return (
        "<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided "
        f"with function signatures within <tools></tools> XML tags:\n<tools>\n{listed}</tools>\n\nFor each function "
        "call, output the function name and arguments within the following XML format:\n<tool_call>{function-name}\n"
        "<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}</arg_value>\n<arg_key>{arg-key-2}</arg_key>\n"
        "<arg_value>{arg-value-2}</arg_value>\n...\n</tool_call>"
    )


def read_back(rendered: str) -> list[dict[str, Any]]:
    """The messages of a text that ends with a role token; arguments as they are written, reasoning where it is."""
    found = re.split(r"<\|(system|user|assistant|observation)\|>", rendered.removeprefix("[gMASK]<sop>"))[1:-2]
    messages: list[dict[str, Any]] = []
    for role, body in zip(found[::2], found[1::2], strict=True):
        if role == "observation":
            results = re.findall(r"\n<tool_response>\n(.*?)\n</tool_response>", body, re.DOTALL)
            messages += [{"role": "tool", "content": result} for result in results]
        elif role == "assistant":
            thought, said = body.removeprefix("\n<think>").split("</think>")
            answer, *calls = said.split("\n<tool_call>")
            message = {"role": role, "reasoning": thought, "content": answer.removeprefix("\n")}
            messages.append(message | {"calls": [_read_call(call) for call in calls]})
        else:
            messages.append({"role": role, "content": body.removeprefix("\n").removesuffix("/nothink")})
    return messages


def _read_call(call: str) -> tuple[str, list[tuple[str, str]]]:
    name, _, body = call.removesuffix("</tool_call>").partition("\n")
    pairs = re.findall(r"<arg_key>(.*?)</arg_key>\n<arg_value>(.*?)</arg_value>\n", body, re.DOTALL)
    return name, pairs
