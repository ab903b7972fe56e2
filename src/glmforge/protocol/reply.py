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

from collections.abc import Iterable
from typing import Literal, NamedTuple

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.generate.answer import Update
from glmforge.generate.text import TextStream
from glmforge.protocol.arguments import ArgumentsStream
from glmforge.protocol.request import ReplySettings

_TAGS = (
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<arg_key>",
    "</arg_key>", "<arg_value>", "</arg_value>",
)  # fmt: skip

_State = Literal["start", "reasoning", "content", "name", "call", "key", "between", "value"]


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
        self._state: _State = "reasoning" if settings.in_thought else "content" if settings.in_content else "start"
        self._begun = {"content"} if settings.in_content else set[str]()
        self._space: dict[str, list[str]] = {"reasoning": [], "content": []}
        self._call, self._num_told = _Call(), 0
        self.stopped, self.num_reasoning, self.num_calls = False, 0, 0
        self._num_tokens = -len(settings.prefix)
        self._run = self._new_run()
        self._out: list[Piece] = []
        self._out = self.add(settings.prefix)

    @property
    def in_thought(self) -> bool:
        return self._state == "reasoning"

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

    def take(self, update: Update) -> list[Piece]:
        """What an update tells; at its end, all."""
        pieces = [] if update.token is None else self.add([update.token])
        return pieces if update.finished is None else [*pieces, *self.finish()]

    def _told(self) -> list[Piece]:
        told, self._out = self._out, []
        return told

    def _new_run(self) -> TextStream:
        """Text up to the next tag."""
        return TextStream(self._tokenizer, () if self.in_thought else self._settings.stop)

    def _text(self, text: str) -> None:
        if self._state == "start" and text.strip():
            self._state = "content"
        if not text or self._state == "start":
            return
        if self._state in ("reasoning", "content"):
            self._say(text)
            return
        call = self._call
        if self._state == "name":
            name, end, rest = text.partition("\n")
            call.raw.append(name + end)
            call.name += name
            if end and self._begin_call():
                self._text(rest)
            elif end:
                self._break_off(rest)
        elif self._state in ("call", "between") and text.strip():
            self._break_off(text)
        else:
            call.raw.append(text)
            if self._state == "key":
                call.key += text
            elif self._state == "value":
                self._tell_of_call(call.arguments.more(text))

    def _tag(self, tag: str) -> None:
        if self._state == "start":
            self._state = "reasoning" if tag == "<think>" else "content"
            if self._state == "reasoning":
                return
        if self._state == "reasoning" and tag == "</think>":
            self._state = "content"
        elif self._state not in ("reasoning", "content"):
            if not self._tag_in_call(tag):
                self._break_off()
                self._tag(tag)
        elif tag == "<tool_call>" and self._settings.tools:
            self._state, self._call = "name", _Call()
            self._call.raw.append(tag)
        else:
            self._say(tag)

    def _tag_in_call(self, tag: str) -> bool:
        """Whether the tag may stand there."""
        call = self._call
        if self._state == "name" and not (tag in ("<arg_key>", "</tool_call>") and self._begin_call()):
            return False
        call.raw.append(tag)
        match self._state, tag:
            case "call", "<arg_key>":
                self._state, call.key = "key", ""
            case "call", "</tool_call>":
                self._state = "content"
                self.num_calls += 1
                self._tell_of_call(call.arguments.closing(), is_whole=True)
            case "key", "</arg_key>" if call.key not in call.arguments:
                self._state = "between"
            case "between", "<arg_value>":
                self._state = "value"
                self._tell_of_call(call.arguments.begin(call.key))
            case "value", "</arg_value>":
                self._state = "call"
                self._tell_of_call(call.arguments.end())
            case _:
                call.raw.pop()
                return False
        return True

    def _begin_call(self) -> bool:
        """Whether the call has a name."""
        self._call.name = name = self._call.name.strip()
        if name:
            self._state, self._call.arguments = "call", ArgumentsStream(self._settings.tools.get(name, {}))
            self._tell_of_call("")
        return bool(name)

    def _tell_of_call(self, arguments: str, is_whole: bool = False) -> None:
        """More of its arguments. They are told of when it is whole, or at once."""
        call = self._call
        call.untold += arguments
        if self._settings.hold_calls and not is_whole:
            return
        if call.number is None:
            call.number, self._num_told = self._num_told, self._num_told + 1
            self._out.append(Piece("call", call.name, call.number))
        if call.untold:
            self._out.append(Piece("arguments", call.untold, call.number))
        if is_whole:
            self._out.append(Piece("end", "", call.number))
        call.untold = ""
        call.raw.clear()
        self._space["content"] = self._space["content"] or ["\n"]

    def _break_off(self, rest: str = "") -> None:
        """The call is not one; what has not been told of it is content."""
        self._state = "content"
        self._say("".join(self._call.raw) + rest)

    def _say(self, text: str) -> None:
        """Reasoning or content, without the white space at both ends."""
        kind: Literal["reasoning", "content"] = "reasoning" if self.in_thought else "content"
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
    """A call that is being read. `untold` and `raw`: what is known and has not been told, as JSON of arguments and as
    the model has written it. `number`: among those told of."""

    def __init__(self) -> None:
        self.name = self.key = self.untold = ""
        self.number: int | None = None
        self.arguments = ArgumentsStream({})
        self.raw: list[str] = []


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
