r"""A reply taken apart while it comes: token ids in; reasoning, content and calls out, equal at every chunking.

GLM's tags (`<think>`, `<tool_call>`, `<arg_key>` and their kind) are single tokens. A tag is such a token; text that
only spells one is text, in a value as well as in an answer. `verify.reply` reads finished text, which cannot tell them
apart, and refuses what is malformed; here every token has a place:

- A thought is what `<think>` at the beginning opens, up to `</think>`. A call ends it as well.
- A call that is malformed or cut stands in the content as it was written (`hold_calls`). Where arguments are told of
  while they come, such a call has no `end`, its JSON is not whole either, and the rest is content.
- A tag that stands where it means nothing is content.

White space around reasoning and content, and within calls around tags, means nothing.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import DataError
from glmforge.files import parse_json
from glmforge.generate.text import TextStream
from glmforge.protocol.request import ReplySettings

_TAGS = (
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<arg_key>",
    "</arg_key>", "<arg_value>", "</arg_value>",
)  # fmt: skip

_State = Literal["start", "thought", "content", "name", "call", "key", "between", "value"]


class Piece(NamedTuple):
    """What has become known of a reply.

    Attributes:
        kind: `call` begins one, whose name is `text`; `arguments` is more of their JSON; `end` says that it is whole.
        call: the number of the call.
    """

    kind: Literal["reasoning", "content", "call", "arguments", "end"]
    text: str
    call: int = -1


class ReplyParser:
    """Of one reply.

    Attributes:
        stopped: whether a stop string was found; what follows it is ignored.
        num_reasoning: tokens of the thought, its tags included.
        num_calls: calls that are whole.
    """

    def __init__(self, tokenizer: Tokenizer, settings: ReplySettings) -> None:
        self._tokenizer, self._settings = tokenizer, settings
        self._tag_of = {tokenizer.special_id(tag): tag for tag in _TAGS}
        self._state: _State = "thought" if settings.in_thought else "start"
        self._out: list[Piece] = []
        self._space: dict[str, list[str]] = {"reasoning": [], "content": []}
        self._begun: set[str] = set()
        if settings.in_content:
            self._state = "content"
            self._begun.add("content")
        self._call = _Call({})
        self._next_call = 0
        self.stopped, self.num_reasoning, self.num_calls = False, 0, 0
        self._num_tokens = -len(settings.prefix)
        self._run = self._new_run()
        self._out = self.add(settings.prefix)

    @property
    def in_thought(self) -> bool:
        return self._state == "thought"

    def add(self, tokens: Iterable[int]) -> list[Piece]:
        """What these tokens tell."""
        for token in tokens:
            if self.stopped:
                break
            self._num_tokens += 1
            was_thought = self.in_thought
            tag = self._tag_of.get(token)
            if tag is None:
                self._text(self._run.add(token, may_stop=self._num_tokens >= self._settings.min_new_tokens))
                self.stopped = self._run.stopped
            else:
                self._text(self._run.finish())
                self._tag(tag)
                self._run = self._new_run()
            self.num_reasoning += was_thought or self.in_thought
        return self._told()

    def finish(self) -> list[Piece]:
        """What was held back, when no more tokens follow."""
        self._text(self._run.finish())
        if self._state in ("name", "call", "key", "between", "value"):
            self._break_off()
        return self._told()

    def _told(self) -> list[Piece]:
        told, self._out = self._out, []
        return told

    def _new_run(self) -> TextStream:
        """Text up to the next tag."""
        return TextStream(self._tokenizer, () if self.in_thought else self._settings.stop)

    def _text(self, text: str) -> None:
        if not text:
            return
        if self._state == "start" and text.strip():
            self._state = "content"
        if self._state == "thought":
            self._say("reasoning", text)
        elif self._state == "content":
            self._say("content", text)
        elif self._state != "start":
            self._text_in_call(text)

    def _text_in_call(self, text: str) -> None:
        call = self._call
        if self._state == "name":
            name, end, rest = text.partition("\n")
            call.raw.append(name + end)
            call.name.append(name)
            if end and self._begin_call():
                self._text(rest)
            elif end:
                self._break_off(rest)
        elif self._state in ("call", "between") and text.strip():
            self._break_off(text)
        else:
            call.raw.append(text)
            if self._state == "key":
                call.key.append(text)
            elif self._state == "value":
                self._arguments(call.value_text(text))

    def _tag(self, tag: str) -> None:
        if self._state == "start":
            self._state = "thought" if tag == "<think>" else "content"
            if self._state == "thought":
                return
        if self._state == "thought" and tag == "</think>":
            self._state = "content"
        elif self._state in ("thought", "content"):
            if tag == "<tool_call>" and self._settings.tools:
                self._state, self._call = "name", _Call(self._settings.tools)
                self._call.raw.append(tag)
            else:
                self._say("reasoning" if self._state == "thought" else "content", tag)
        elif not self._tag_in_call(tag):
            self._break_off()
            self._tag(tag)

    def _tag_in_call(self, tag: str) -> bool:
        """Whether the tag may stand there."""
        call = self._call
        if self._state == "name" and not (tag in ("<arg_key>", "</tool_call>") and self._begin_call()):
            return False
        call.raw.append(tag)
        match self._state, tag:
            case "call", "<arg_key>":
                self._state = "key"
                call.key.clear()
            case "call", "</tool_call>":
                self._end_call()
            case "key", "</arg_key>" if "".join(call.key) not in call.keys:
                self._state = "between"
            case "between", "<arg_value>":
                self._state = "value"
                self._arguments(call.begin_value())
            case "value", "</arg_value>":
                self._state = "call"
                self._arguments(call.end_value())
            case _:
                call.raw.pop()
                return False
        return True

    def _begin_call(self) -> bool:
        """Whether the call has a name."""
        call = self._call
        name = "".join(call.name).strip()
        if not name:
            return False
        self._state, call.number, call.full_name = "call", self._next_call, name
        self._tell_of_call(Piece("call", name, call.number))
        return True

    def _arguments(self, text: str) -> None:
        if text:
            self._tell_of_call(Piece("arguments", text, self._call.number))

    def _tell_of_call(self, piece: Piece) -> None:
        self._call.pieces.append(piece)
        if not self._settings.hold_calls:
            self._let_go()

    def _let_go(self) -> None:
        """Tell what is known of the call."""
        self._next_call = self._call.number + 1
        pieces, number = self._call.pieces, self._call.number
        arguments = "".join(piece.text for piece in pieces if piece.kind == "arguments")
        self._out += [piece for piece in pieces if piece.kind == "call"]
        self._out += [Piece("arguments", arguments, number)] if arguments else []
        self._out += [piece for piece in pieces if piece.kind == "end"]
        pieces.clear()
        self._call.raw.clear()
        self._space["content"] = self._space["content"] or ["\n"]

    def _end_call(self) -> None:
        number = self._call.number
        self._call.pieces += [Piece("arguments", self._call.closing(), number), Piece("end", "", number)]
        self._let_go()
        self._state = "content"
        self.num_calls += 1

    def _break_off(self, rest: str = "") -> None:
        """The call is not one; what has not been told of it is content."""
        self._state = "content"
        self._say("content", "".join(self._call.raw) + rest)

    def _say(self, kind: Literal["reasoning", "content"], text: str) -> None:
        """Without the white space at both ends."""
        kept = text.strip()
        if not kept:
            self._space[kind].append(text)
            return
        start = text.index(kept)
        before = "".join([*self._space[kind], text[:start]]) if kind in self._begun else ""
        self._space[kind] = [text[start + len(kept) :]]
        self._begun.add(kind)
        self._out.append(Piece(kind, before + kept))


class _Call:
    """A call that is being read. `pieces` and `raw`: what is known and has not been told, as pieces and as written."""

    def __init__(self, tools: Mapping[str, Mapping[str, Any]]) -> None:
        self._tools = tools
        self.number, self.full_name = -1, ""
        self.name: list[str] = []
        self.key: list[str] = []
        self.keys: set[str] = set()
        self.pieces: list[Piece] = []
        self.raw: list[str] = []
        self._value: list[str] = []
        self._types: set[str] = set()

    def begin_value(self) -> str:
        """JSON of the key, as far as its value is certain to follow."""
        key = "".join(self.key)
        self._types, self._value = types_of(self._tools.get(self.full_name, {}), key), []
        opening = f"{', ' if self.keys else '{'}{json.dumps(key, ensure_ascii=False)}: "
        self.keys.add(key)
        return opening + ('"' if self._types == {"string"} else "")

    def value_text(self, text: str) -> str:
        """JSON of a string's next characters; of other values, nothing yet."""
        if self._types == {"string"}:
            return _inner(text)
        self._value.append(text)
        return ""

    def end_value(self) -> str:
        return '"' if self._types == {"string"} else _value_json("".join(self._value), self._types)

    def closing(self) -> str:
        return "}" if self.keys else "{}"


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


class Message:
    """A reply as it stands in a body: pieces put together.

    Attributes:
        calls: (name, arguments as JSON text, whether it is whole).
    """

    def __init__(self, pieces: Iterable[Piece] = ()) -> None:
        self.reasoning = self.content = ""
        self.calls: list[tuple[str, str, bool]] = []
        self.add(pieces)

    def add(self, pieces: Iterable[Piece]) -> None:
        """More of the reply."""
        for kind, text, _ in pieces:
            if kind == "reasoning":
                self.reasoning += text
            elif kind == "content":
                self.content += text
            elif kind == "call":
                self.calls.append((text, "", False))
            else:
                name, arguments, _ = self.calls[-1]
                self.calls[-1] = (name, arguments + text, kind == "end")


@dataclass
class ReplyBlock:
    """A part of a reply, as APIs have it whose answers are lists of blocks; a call's `text` is its arguments."""

    kind: Literal["reasoning", "content", "call"]
    name: str = ""
    text: str = ""
    is_whole: bool = False


class Step(NamedTuple):
    """A block has begun, has got this text, or has ended."""

    kind: Literal["open", "text", "close"]
    number: int
    block: ReplyBlock
    text: str = ""


class ReplyBlocks:
    """A reply as blocks, one open at a time."""

    def __init__(self) -> None:
        self.blocks: list[ReplyBlock] = []
        self._is_open = False

    def add(self, pieces: Iterable[Piece]) -> Iterator[Step]:
        """More of the reply."""
        for kind, text, _ in pieces:
            if kind == "call":
                yield from self._open(ReplyBlock("call", text))
            elif kind == "end":
                self.blocks[-1].is_whole = True
                yield from self.close()
            elif kind == "arguments":
                yield self._more(text)
            else:
                if not self._is_open or self.blocks[-1].kind != kind:
                    text = text.lstrip()
                    yield from self._open(ReplyBlock(kind, is_whole=True))
                yield self._more(text)

    def close(self) -> Iterator[Step]:
        """What is open has ended."""
        if self._is_open:
            self._is_open = False
            yield Step("close", len(self.blocks) - 1, self.blocks[-1])

    def _open(self, block: ReplyBlock) -> Iterator[Step]:
        yield from self.close()
        self.blocks.append(block)
        self._is_open = True
        yield Step("open", len(self.blocks) - 1, block)

    def _more(self, text: str) -> Step:
        block = self.blocks[-1]
        block.text += text
        return Step("text", len(self.blocks) - 1, block, text)
