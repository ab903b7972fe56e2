"""Keeps what a conversation says apart from the control tokens that its template writes.

A rendered conversation is one text, and in it a user's `<|assistant|>` looks like the template's own. So before it is
rendered, a mark follows every character of its content that a control token begins with: a character that the
conversation has nowhere. No control token can then begin within content, no matter what the template cuts out of it.
The rendered text is split at the control tokens that are left, and the marks are taken out again.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from glmforge.errors import DataError

_MARKS = ("\x7f", *map(chr, range(0xFDD0, 0xFDF0)), *map(chr, range(0xE000, 0xF900)))
"""DEL, the noncharacters and private-use characters of Unicode; none of them counts as white space."""


class ContentMarks:
    """Marks the content of one conversation, and splits what its template made of it.

    Args:
        control_tokens: spellings of all tokens that content must not become.
        conversation: the template's input: messages, tools.

    Raises:
        DataError: the conversation has every character that could be the mark.
    """

    def __init__(self, control_tokens: Sequence[str], conversation: object) -> None:
        self._tokens, self._begins = _patterns(tuple(control_tokens))
        text = "\n".join(_texts(conversation))
        # JSON, which a template may write content as, can spell the mark as an escape sequence.
        free = (mark for mark in _MARKS if mark not in text and _escaped(mark) not in text)
        self._mark = next(free, "")
        if not self._mark:
            raise DataError("conversation: it uses every private-use character of Unicode; is it text?")

    def add(self, content: Any) -> Any:
        """The same content with marks in all of its texts."""
        if isinstance(content, str):
            return self._begins.sub(lambda found: found[0] + self._mark, content)
        if isinstance(content, Mapping):
            return {self.add(key): self.add(value) for key, value in content.items()}
        return [self.add(item) for item in content] if isinstance(content, list | tuple) else content

    def split(self, rendered: str) -> list[str]:
        """Text and control token in turn, beginning and ending with a text, which may be empty."""
        return [self._without(part) for part in self._tokens.split(rendered)]

    def _without(self, text: str) -> str:
        return text.replace(self._mark, "").replace(_escaped(self._mark), "")


@lru_cache(maxsize=16)
def _patterns(control_tokens: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Of the tokens, the longest first as tokenizers match them, and of the characters that they begin with."""
    longest_first = sorted(control_tokens, key=len, reverse=True)
    begins = {case for token in control_tokens for case in (token[0].lower(), token[0].upper())}
    return re.compile(f"({'|'.join(map(re.escape, longest_first))})"), re.compile(f"[{re.escape(''.join(begins))}]")


def _escaped(mark: str) -> str:
    return f"\\u{ord(mark):04x}"


def _texts(content: object) -> Iterator[str]:
    stack = [content]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            stack += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple):
            stack += item
