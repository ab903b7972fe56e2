"""Tokens in, text out, as far as it is certain.

Bytes of one character may come in several tokens, and a stop string may begin at the end of one and go on in the next.
Text is handed out up to the last whole character, less what could be the beginning of a stop string; what follows is
held back until more tokens tell. A new token costs its own bytes, however long the answer is.

What comes out is what `Tokenizer.decode` makes of all the tokens but those that end an answer, which say nothing.
"""

import codecs
from collections.abc import Sequence

from glmforge.data.tokens.tokenizer import Tokenizer


class TextStream:
    """The text of one answer.

    Attributes:
        text: all that has been handed out.
        stopped_by: the stop string that was found; the text ends before it.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._tokenizer, self._stop = tokenizer, stop
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held_back = ""
        self._parts: list[str] = []
        self.stopped_by: str | None = None

    @property
    def text(self) -> str:
        return "".join(self._parts)

    @property
    def stopped(self) -> bool:
        return self.stopped_by is not None

    def add(self, token: int, *, may_stop: bool = True) -> str:
        """The text that is certain now. Unless it `may_stop`, stop strings that end with this token do not count."""
        if token in self._tokenizer.stop_ids:
            return ""
        self._held_back += self._characters.decode(self._tokenizer.token_bytes(token))
        if may_stop:
            self._cut()
        return self._give(0 if self.stopped else self._num_uncertain())

    def finish(self) -> str:
        """The text that was held back, when no more tokens follow."""
        if self.stopped:
            return ""
        self._held_back += self._characters.decode(b"", final=True)
        return self._give(0)

    def _cut(self) -> None:
        """Drop the first stop string and what follows it."""
        places = [(place, string) for string in self._stop if (place := self._held_back.find(string)) >= 0]
        if places:
            place, self.stopped_by = min(places)
            self._held_back = self._held_back[:place]

    def _num_uncertain(self) -> int:
        """Characters at the end that a stop string may begin with."""
        longest = max(map(len, self._stop), default=0)
        for number in range(min(longest - 1, len(self._held_back)), 0, -1):
            end = self._held_back[-number:]
            if any(len(string) > number and string.startswith(end) for string in self._stop):
                return number
        return 0

    def _give(self, num_held_back: int) -> str:
        num_given = len(self._held_back) - num_held_back
        given, self._held_back = self._held_back[:num_given], self._held_back[num_given:]
        self._parts.append(given)
        return given
