"""Set phrases of web pages: short blocks that say "share this", "read also" or "all rights reserved" in many languages.

Found with the automaton of `hints`, over the letters of a block: everything that is no ASCII letter separates words,
in the phrases as in the text, so that "condividi" and "À lire aussi:" are read alike. `phrases.toml` has them.
"""

import tomllib
from importlib.resources import files
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from glmforge.data.compiled import compiled
from glmforge_corpus.extract.html.hints import SEPARATOR, SYMBOLS, automaton
from glmforge_corpus.extract.html.tags import TEXT

AT_START: Final = 1
ANYWHERE: Final = 2
WHOLE: Final = 4
"""Bits of a phrase: tells a short block by its beginning; wherever it stands in one; if the block says nothing else."""

START_BYTES: Final = 120
ANYWHERE_BYTES: Final = 350
"""Blocks of more text than this are prose, whatever they begin with or hold."""


def _read() -> dict[int, str]:
    lists = tomllib.loads(files(__package__).joinpath("phrases.toml").read_text(encoding="utf-8"))
    return {AT_START: "".join(lists["at_start"].values()), ANYWHERE: lists["anywhere"], WHOLE: lists["whole"]}


def _words(phrases: list[str]) -> tuple[str, ...]:
    """The phrases as the automaton reads text: one separator between words, and at both ends."""
    reduced = ("".join(c if c.isascii() and c.isalpha() else "-" for c in phrase) for phrase in phrases)
    return tuple("-" + "-".join(part for part in phrase.split("-") if part) + "-" for phrase in reduced)


_TRANSITIONS, _ENDS, _DEPTHS = automaton({bit: _words(phrases.splitlines()) for bit, phrases in _read().items()})


class Phrases(NamedTuple):
    """The automaton, handed over with each call as the scanner's tables are."""

    symbols: NDArray[np.uint8] = SYMBOLS
    transitions: NDArray[np.uint16] = _TRANSITIONS
    ends: NDArray[np.uint8] = _ENDS
    depths: NDArray[np.int64] = _DEPTHS


PHRASES: Final = Phrases()


@compiled
def is_set_phrase(html, tag, begin, end, drop, first, last, text, phrases):  # type: ignore[no-untyped-def]
    """Whether a short block is one of those that pages of many sites have."""
    if text > ANYWHERE_BYTES:
        return False
    i = begin[first]
    while html[i] <= 32:
        i += 1
    if html[i] == 0xC2 and html[i + 1] == 0xA9:  # the copyright sign
        return True
    state = phrases.transitions[0, SEPARATOR]
    depth, separated = 1, True
    for i in range(first, last):
        if tag[i] != TEXT or drop[i]:
            continue
        for j in range(begin[i], end[i]):
            symbol = phrases.symbols[html[j]]
            if symbol == SEPARATOR and separated:
                continue
            separated = symbol == SEPARATOR
            state = phrases.transitions[state, symbol]
            depth += 1
            bits = phrases.ends[state]
            if bits & ANYWHERE or (bits & AT_START and text <= START_BYTES and phrases.depths[state] == depth):
                return True
    if not separated:
        state = phrases.transitions[state, SEPARATOR]
        depth += 1
    return (phrases.ends[state] & (WHOLE | AT_START)) != 0 and phrases.depths[state] == depth
