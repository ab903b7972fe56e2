"""A reply taken apart while it comes: reasoning, content, tool calls.

Tags count where they are tokens of their own: text that merely spells `</arg_value>` ends no value. What is handed out
does not depend on how the tokens are divided into updates. Space around reasoning and content is left out, as
`verify.reply` does it; a call is handed out when it is complete, since an agent must not act on half of one. What is
not in the format, such as a call that is not closed, is content as it was written: nothing is lost.
"""

import codecs
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from glmforge.data.tokens.special import MARKUP_TOKENS
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.protocol.request import ReplySettings
from glmforge.verify.reply import argument_value

_TAGS = MARKUP_TOKENS[: MARKUP_TOKENS.index("/nothink")]


class Reasoning(NamedTuple):
    text: str


class Content(NamedTuple):
    text: str


class Call(NamedTuple):
    """A complete call, and its arguments as JSON text."""

    name: str
    input: dict[str, Any]

    @property
    def arguments(self) -> str:
        return json.dumps(self.input, ensure_ascii=False)


Part = Reasoning | Content | Call


class _Tag(NamedTuple):
    """A tag of the reply's text: its first and its last character but one."""

    name: str
    start: int
    end: int


class ReplyParser:
    """Parts of one reply.

    Args:
        settings: `prefix` is taken as written already.
    """

    def __init__(self, tokenizer: Tokenizer, settings: ReplySettings) -> None:
        self._tokenizer, self._settings = tokenizer, settings
        self._tags_by_id = {tokenizer.special_id(tag): tag for tag in _TAGS}
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._num_decoded = 0
        self._tags: list[_Tag] = []
        self._text, self._offset = "", 0
        self._state: type[Reasoning] | type[Content] | type[Call] = Content
        self._space, self._has_begun = "", False
        self._call = ""
        self._call_tags: list[_Tag] = []
        self._may_think = True
        self.num_calls = 0
        for token in settings.prefix:
            list(self.add(token, tokenizer.token_bytes(token).decode()))

    def add(self, token: int | None, text: str) -> Iterator[Part]:
        """What is certain now.

        Args:
            token: the next one of the reply; None if there is none.
            text: what is certain of the reply's text since the last call, up to a stop string (`generate.text`).
        """
        if token is not None and token not in self._tokenizer.stop_ids:
            self._num_decoded += len(self._characters.decode(self._tokenizer.token_bytes(token)))
            if tag := self._tags_by_id.get(token):
                self._tags.append(_Tag(tag, self._num_decoded - len(tag), self._num_decoded))
        self._text += text
        yield from self._read()

    def finish(self) -> Iterator[Part]:
        """What was held back, when no more follows."""
        yield from self._read(is_end=True)
        if self._state is Call:
            yield from self._give_up_call()

    def _read(self, *, is_end: bool = False) -> Iterator[Part]:
        """Take the text up to the last tag that is there as a whole, and what follows unless a tag begins there."""
        while self._tags and self._tags[0].end <= self._offset + len(self._text):
            tag = self._tags.pop(0)
            yield from self._take(self._cut(tag.start))
            self._cut(tag.end)
            yield from self._take_tag(tag.name)
        end = self._offset + len(self._text)
        if self._tags and not is_end:
            end = min(end, self._tags[0].start)
        yield from self._take(self._cut(end))

    def _cut(self, end: int) -> str:
        text, self._text = self._text[: end - self._offset], self._text[end - self._offset :]
        self._offset = end
        return text

    def _take(self, text: str) -> Iterator[Part]:
        if self._state is Call:
            self._call += text
        elif text:
            if text.strip():
                self._may_think = False
            yield from self._spoken(text)

    def _spoken(self, text: str) -> Iterator[Part]:
        """Without the space at the beginning and the end of a part."""
        text = self._space + text
        kept = text.rstrip()
        self._space = text[len(kept) :]
        if not self._has_begun:
            kept = kept.lstrip()
            if not kept:
                self._space = ""
        if kept:
            self._has_begun = True
            yield self._state(kept)  # type: ignore[call-arg]

    def _take_tag(self, tag: str) -> Iterator[Part]:
        if self._state is Call:
            if tag == "<tool_call>":  # the one before it is not closed
                yield from self._give_up_call()
                self._begin(Call)
            elif tag == "</tool_call>":
                yield from self._end_call()
            else:
                self._call_tags.append(_Tag(tag, len(self._call), len(self._call) + len(tag)))
                self._call += tag
        elif tag == "<think>" and self._state is Content and self._may_think:
            self._begin(Reasoning)
        elif tag == "</think>" and self._state is Reasoning:
            self._begin(Content)
        elif tag == "<tool_call>" and self._state is Content and self._settings.tools:
            self._begin(Call)
        else:
            yield from self._take(tag)

    def _begin(self, state: type[Reasoning] | type[Content] | type[Call]) -> None:
        self._state, self._may_think = state, False
        if state is not Call:
            self._has_begun, self._space = False, ""
        self._call, self._call_tags = "", []

    def _end_call(self) -> Iterator[Part]:
        call = read_call(self._call, self._call_tags, self._settings.tools)
        if call is None:
            self._call += "</tool_call>"
            yield from self._give_up_call()
            return
        self._state, self._space = Content, ""
        self._has_begun = False
        if not (self._settings.one_call and self.num_calls):
            self.num_calls += 1
            yield call

    def _give_up_call(self) -> Iterator[Part]:
        text, self._state = "<tool_call>" + self._call, Content
        yield from self._spoken(text)


def read_call(text: str, tags: Sequence[tuple[str, int, int]], tools: Mapping[str, Mapping[str, Any]]) -> Call | None:
    """What stands between `<tool_call>` and `</tool_call>`; None if it is not in the format."""
    pieces: list[tuple[str, str]] = []
    place = 0
    for name, start, end in tags:
        pieces.append(("", text[place:start]))
        pieces.append((name, text[start:end]))
        place = end
    pieces.append(("", text[place:]))
    name = pieces[0][1].strip()
    if not name or "\n" in name:
        return None
    arguments: dict[str, Any] = {}
    rest = pieces[1:]
    while len(rest) >= 8 and [kind for kind, _ in rest[:7:2]] == [
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
    ]:
        key, between, value, after = (words for _, words in rest[1:8:2])
        if between.strip() or after.strip() or key in arguments:
            return None
        arguments[key] = typed(value, tools.get(name, {}).get("properties"), key)
        rest = rest[8:]
    return None if rest else Call(name, arguments)


def typed(text: str, properties: object, key: str) -> Any:
    """An argument as its schema has it: text stays as it is written, everything else is JSON, or text if it is none."""
    schema = properties.get(key) if isinstance(properties, Mapping) else None
    kinds = schema.get("type") if isinstance(schema, Mapping) else None
    if kinds == "string":
        return text
    value = argument_value(text)
    try:
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(kinds, list) and "string" in kinds and not _is_one_of(value, kinds) else value


def _is_one_of(value: object, kinds: Sequence[object]) -> bool:
    """Of the types of JSON schema that are not text."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return (
        ("null" in kinds and value is None)
        or ("boolean" in kinds and isinstance(value, bool))
        or ("number" in kinds and is_number)
        or ("integer" in kinds and is_number and value == int(value))  # type: ignore[call-overload]
        or ("array" in kinds and isinstance(value, list))
        or ("object" in kinds and isinstance(value, dict))
    )
