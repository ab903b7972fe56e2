"""Drafts by lookup: what followed the last tokens where they stood before, in the prompt or the answer.

It costs next to nothing, and is right where a text repeats itself: code, summaries, quotations, tool calls (Saxena,
2023, "Prompt lookup decoding").
"""

from array import array
from collections.abc import Mapping
from collections.abc import Sequence as Items
from weakref import WeakKeyDictionary

from glmforge.generate.sequence import Sequence
from glmforge.generate.speculate.drafter import Computed

_ITEM = array("i").itemsize


class NgramDrafter:
    """Looks for the last `longest` tokens, then for one less, down to the last `shortest`; the latest place counts."""

    def __init__(self, longest: int = 4, shortest: int = 2) -> None:
        self.longest, self.shortest = longest, shortest
        self._texts: WeakKeyDictionary[Sequence, bytearray] = WeakKeyDictionary()

    def draft(self, computed: Items[Computed], lengths: Mapping[Sequence, int]) -> None:
        for sequence, number in lengths.items():
            sequence.drafts = self._continuation(self._text(sequence), number)

    def _text(self, sequence: Sequence) -> bytearray:
        """Its tokens as bytes: a bytearray can be searched, and grows with the answer."""
        text = self._texts.setdefault(sequence, bytearray())
        text += array("i", sequence.tokens[len(text) // _ITEM :]).tobytes()
        return text

    def _continuation(self, text: bytearray, number: int) -> list[int]:
        for length in range(self.longest, self.shortest - 1, -1):
            start = _end_of_last(text[-length * _ITEM :], text)
            if start is not None:
                return array("i", bytes(text[start : start + number * _ITEM])).tolist()
        return []


def _end_of_last(tokens: bytearray, text: bytearray) -> int | None:
    """Where `tokens`, with which `text` ends, end where they stood the last time before; None if they never did."""
    place = text.rfind(tokens, 0, len(text) - 1)
    while place >= 0 and place % _ITEM:  # these bytes are parts of other tokens
        place = text.rfind(tokens, 0, place + len(tokens) - 1)
    return place + len(tokens) if place >= 0 else None
