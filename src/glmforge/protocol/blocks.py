"""Answers as lists of blocks, one open at a time: what Messages and Responses share."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from glmforge.generate.answer import Update
from glmforge.protocol.openai import Counts
from glmforge.protocol.reply import Piece, ReplyParser
from glmforge.protocol.request import Ask, Context, Event


@dataclass
class ReplyBlock:
    """A part of an answer; a call's `text` is its arguments."""

    number: int
    kind: Literal["reasoning", "content", "call"]
    name: str = ""
    text: str = ""
    is_whole: bool = False


class BlockWriter:
    """Takes an answer apart into blocks. An API says what becomes of one that begins, goes on and ends."""

    def __init__(self, ask: Ask, context: Context, answer_id: str) -> None:
        assert ask.reply is not None, "it is taken apart"
        self._ask, self._id, self._counts = ask, answer_id, Counts(ask)
        self._parser = ReplyParser(context.tokenizer, ask.reply)
        self._blocks: list[ReplyBlock] = []
        self._is_open = False

    def update(self, update: Update) -> list[Event]:
        """What has become known. Raises `ApiError` for an answer that has failed."""
        self._counts.add(update)
        events = [event for piece in self._parser.take(update) for event in self._events(piece)]
        if update.finished is not None:
            events += self._close()
            self._finish(update)
        return events

    def _events(self, piece: Piece) -> Iterator[Event]:
        kind, text, _ = piece
        if kind == "end":
            self._blocks[-1].is_whole = True
            yield from self._close()
            return
        if kind != "arguments" and (kind == "call" or not self._is_open or self._blocks[-1].kind != kind):
            yield from self._close()
            is_call = kind == "call"
            block = ReplyBlock(len(self._blocks), kind, text if is_call else "", is_whole=not is_call)
            self._blocks.append(block)
            self._is_open = True
            yield from self._begun(block)
            text = "" if is_call else text.lstrip()
        if kind != "call":
            self._blocks[-1].text += text
            yield self._more(self._blocks[-1], text)

    def _close(self) -> Iterator[Event]:
        if self._is_open:
            self._is_open = False
            yield from self._ended(self._blocks[-1])

    def _begun(self, block: ReplyBlock) -> Iterator[Event]:
        raise NotImplementedError

    def _more(self, block: ReplyBlock, text: str) -> Event:
        raise NotImplementedError

    def _ended(self, block: ReplyBlock) -> Iterator[Event]:
        raise NotImplementedError

    def _finish(self, update: Update) -> None:
        """The answer has ended."""
        raise NotImplementedError

    def _event(self, kind: str, **data: Any) -> Event:
        return Event(kind, {"type": kind, **data})
