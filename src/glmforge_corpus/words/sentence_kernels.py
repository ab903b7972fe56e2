"""Loops that find where sentences end. `split.py` states the rule."""

from typing import Any

import numpy as np

from glmforge.data.bytes_kernels import TOP_BITS, character_at, equal_to, load64
from glmforge.data.compiled import compiled, non_allocating
from glmforge_corpus.words.characters import BREAK, CLASS, TERMINAL

# Quotation marks and brackets that may follow a full stop and still belong to the sentence.
_CLOSERS = np.array([ord(c) for c in "\"'”’»)]}」』）】》"], np.int64)
_FIRST_FULL_WIDTH = 0x3000


@non_allocating
def is_closer(code: int) -> bool:
    """Whether the character is a closing quotation mark or bracket."""
    for closer in _CLOSERS:  # noqa: SIM110
        if code == closer:
            return True
    return False


@non_allocating
def next_sentence(text: Any, position: int, stop: int, table: Any) -> int:
    """Where the sentence that holds `position` ends; `stop` if nothing ends it. -1 if only white space is left."""
    blank, ended, full_width = True, False, False
    while position < stop:
        if not blank and not ended and position + 8 <= stop:
            eight = load64(text, position)
            if not (eight & TOP_BITS or equal_to(eight, 0x2E) or equal_to(eight, 0x21) or equal_to(eight, 0x3F)):
                position += 8
                continue
        code, size = character_at(text, position, stop)
        entry = np.int64(table[code])
        kind = entry & CLASS
        if kind <= BREAK:
            if ended:
                return position
        else:
            blank = False
            if entry & TERMINAL:
                ended, full_width = True, code >= _FIRST_FULL_WIDTH
            elif ended and not is_closer(code):
                if full_width:
                    return position
                ended = False
        position += size
    return -1 if blank else stop


@non_allocating
def num_sentences(text: Any, start: int, stop: int, table: Any, limit: int) -> int:
    """Sentences of a text, counted up to `limit`."""
    count = 0
    while start < stop and count < limit:
        start = next_sentence(text, start, stop, table)
        if start < 0:
            break
        count += 1
    return count


@compiled
def sentence_ends(text: Any, start: int, stop: int, table: Any) -> Any:
    """Ends of all sentences of a text."""
    ends = np.empty(stop - start, np.int64)
    count = 0
    while start < stop:
        start = next_sentence(text, start, stop, table)
        if start < 0:
            break
        ends[count] = start
        count += 1
    return ends[:count]
