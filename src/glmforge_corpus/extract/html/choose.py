"""Which blocks of a page are its main text.

*Where the text is*: a block of running text is worth its length, one of links or scraps costs something, and the
element whose blocks are worth most in sum is the main content. This is the maximum subsequence of Pasternack and Roth
(2009, "Extracting article text from the web with maximum subsequence segmentation") asked of the tree instead of the
text, so that what is found is an element; lengths and link density stand for their trained classifier, as in
boilerpipe (Kohlschuetter et al. 2010). Names and tags that promise an article add a bonus, as in Readability.

*What does not belong inside it*: blocks that are mostly links, headings that nothing follows, and set phrases: short
blocks that say "share this", "read also" or "all rights reserved" in many languages (`phrases.toml`). They are found
with the automaton of `hints`, over the letters of a block: everything that is no ASCII letter separates words, in the
phrases as in the text, so that "condividi" and "À lire aussi:" are read alike.
"""

import tomllib
from importlib.resources import files
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from glmforge.data.compiled import compiled
from glmforge_corpus.extract.html import hints, tags
from glmforge_corpus.extract.html.blocks import (
    LEAST_TEXT,
    Blocks,
    Measures,
    Without,
    cut_blocks,
    measure,
    said_by_readers,
)
from glmforge_corpus.extract.html.hints import SEPARATOR, SYMBOLS, automaton
from glmforge_corpus.extract.html.scan import Nodes
from glmforge_corpus.extract.html.tags import TAG, TEXT

AT_START: Final = 1
ANYWHERE: Final = 2
WHOLE: Final = 4
"""Bits of a phrase: tells a short block by its beginning; wherever it stands in one; if the block says nothing else."""

START_BYTES: Final = 120
ANYWHERE_BYTES: Final = 350
"""Blocks of more text than this are prose, regardless of their content."""


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


_TEXT, _CELL, _CONTAINER, _HEADING, _PROSE = tags.TEXT, tags.CELL, tags.CONTAINER, tags.HEADING, tags.PROSE
_CONTENT, _ARTICLE, _POST = hints.CONTENT, hints.ARTICLE, hints.POST
_LI, _TD, _BODY, _ARTICLE_TAG, _MAIN_TAG = TAG["li"], TAG["td"], TAG["body"], TAG["article"], TAG["main"]

MOST_BONUS = 200.0
"""What a name or tag adds at most to an element's worth: it decides between near equals, not against a paragraph."""

SHORT_COST = 10.0
"""What a block of a few words costs: some ten of them outweigh a sentence."""

SMALL, LARGER = 0.4, 3
"""Main text that is less than this share of a page's unlinked text is doubted, and given up for one this many times as
large."""

LEAST_COMMENTS = 0.02
"""Share of a page's text from which comments are looked at."""

FORUM_SHARE = 0.5
"""Share of a page's text in an element with a forum's name: then the comments are the content."""

DISCUSSION_SIGNS = (b'"DiscussionForumPosting"', b'"QAPage"')
"""What a page of a forum says of itself in JSON for search engines."""

HARDLY_ANY = ((400, 3), (1000, 8))
"""Bytes of main text below which comments are taken for it as well, if there is then this many times as much."""


@compiled
def _worth(tag, kind, element, text, links, stops):  # type: ignore[no-untyped-def]
    """What a block adds to the element around it."""
    worth = np.zeros(len(text))
    for b in range(len(text)):
        number, properties = tag[element[b]], kind[element[b]]
        plain = text[b] - links[b]
        density = links[b] / text[b]
        if properties & _HEADING:
            worth[b] = 0
        elif density > 0.5:
            worth[b] = -10 - 0.5 * links[b]
        elif (properties & _PROSE and plain >= 20) or (stops[b] >= 1 and plain >= 60):
            worth[b] = plain - links[b]
        elif plain >= 40:
            worth[b] = 0.3 * plain - links[b]
        else:
            worth[b] = -SHORT_COST if number != _TD and (number != _LI or links[b]) else 0
    return worth


@compiled
def _main_element(tag, kind, stop, hint, first, worth, plain):  # type: ignore[no-untyped-def]
    """(the element whose blocks are worth most, its score); without any, the one called an article with most text."""
    n = len(tag)
    summed, length = np.zeros(n + 1), np.zeros(n + 1)
    for b in range(len(first)):
        summed[first[b] + 1] += worth[b]
        length[first[b] + 1] += plain[b]
    for i in range(n):
        summed[i + 1] += summed[i]
        length[i + 1] += length[i]
    best, best_score, named, named_length, body = -1, 0.0, -1, 0.0, -1
    for i in range(n):
        number = tag[i]
        body = i if number == _BODY else body
        if number == _TEXT or not kind[i] & _CONTAINER:
            continue
        score = summed[stop[i]] - summed[i]
        factor = 0.0
        if hint[i] & _ARTICLE:
            factor = 0.2
        elif number == _ARTICLE_TAG or hint[i] & _POST:
            factor = 0.1
        elif number == _MAIN_TAG or hint[i] & _CONTENT:
            factor = 0.05
        score += min(factor * score, MOST_BONUS)
        if score >= best_score and score > 0:
            best, best_score = i, score
        own = length[stop[i]] - length[i]
        if factor >= 0.1 and own >= named_length:
            named, named_length = i, own
    if best_score < LEAST_TEXT and named_length > LEAST_TEXT / 2:
        return named, float(LEAST_TEXT)
    if best_score < LEAST_TEXT and length[n] > LEAST_TEXT / 2:
        return body, float(LEAST_TEXT)
    return best, best_score


@compiled
def _kept(  # type: ignore[no-untyped-def]
    html, tag, kind, begin, end, drop, first, last, element, text, links, stops, main, main_stop, phrases
):
    """`[n]`: the blocks that are output."""
    n = len(first)
    keep = np.zeros(n, np.bool_)
    for b in range(n):
        if not main <= first[b] < main_stop:
            continue
        density = links[b] / text[b]
        plain = text[b] - links[b]
        properties = kind[element[b]]
        if is_set_phrase(html, tag, begin, end, drop, first[b], last[b], text[b], phrases):
            continue
        if plain < 30 and density > 0.6 and text[b] > 40 and not properties & _HEADING:
            continue
        if properties & _HEADING:
            keep[b] = density < 0.9
        elif properties & _PROSE:
            keep[b] = density < 0.8 or 30 <= text[b] <= 100
        else:
            keep[b] = density < 0.5 or plain > 100
    for b in range(n):
        if keep[b]:
            if kind[element[b]] & _HEADING:
                continue
            if text[b] >= 50 or stops[b] or kind[element[b]] & (_CELL | _PROSE) or tag[element[b]] == _LI:
                break
            keep[b] = False
    below = 0  # tag of the heading that comes next, a large one for text, 0 for nothing
    for b in range(n - 1, -1, -1):
        if not keep[b]:
            continue
        number = tag[element[b]]
        if not kind[element[b]] & _HEADING or text[b] > LEAST_TEXT:
            below = 255
        elif number < below:
            below = number
        else:
            keep[b] = False
    return keep


class Main(NamedTuple):
    """What was decided about a page.

    Attributes:
        blocks: of the page, without what was dropped.
        keep: `[len(blocks)]`, the blocks that are main text.
        drop: `[n]`, nodes that are no text of the page.
        score: what its blocks are worth.
    """

    blocks: Blocks
    keep: NDArray[np.bool_]
    drop: NDArray[np.bool_]
    score: float

    @property
    def size(self) -> int:
        """Bytes of text that are kept."""
        return int(self.blocks.text[self.keep].sum())


def _look(html: NDArray[np.uint8], nodes: Nodes, measures: Measures, without: Without, whole: bool = False) -> Main:
    """The main text once `without` is gone: the blocks of one element, or of the `whole` page."""
    tag, kind, _, stop, begin, end, hint = nodes
    blocks, drop = cut_blocks(html, nodes, measures, without)
    worth = _worth(tag, kind, *blocks[2:])
    element, score = _main_element(tag, kind, stop, hint, blocks.first, worth, blocks.text)
    if whole and len(blocks.first):
        element = 0
    if element < 0:
        return Main(blocks, np.zeros(len(blocks.first), np.bool_), drop, score)
    keep = _kept(html, tag, kind, begin, end, drop, *blocks, element, stop[element], PHRASES)
    return Main(blocks, keep, drop, score)


def find_main(html: NDArray[np.uint8], nodes: Nodes, recall_first: bool = False) -> Main:
    """The blocks of a page, and which of them are its main text.

    The page is looked at again, each time with less omitted, if what was found is suspiciously little of it: with the
    words of its readers if it is a discussion or has hardly any others, without believing names of elements, and in
    the end with what is not shown at first. With `recall_first`, running text of the whole page is kept, comments too.
    """
    measures = measure(html, nodes)
    if recall_first:
        found = _look(html, nodes, measures, Without(names=False, comments=False), whole=True)
        return found if found.size else _look(html, nodes, measures, Without(False, False, False), whole=True)
    plain = int(measures.text[-1] - measures.links[-1])
    without = Without()
    found = _look(html, nodes, measures, without)
    other = _with_readers(html, nodes, measures, found)
    if other is not None:
        found, without = other, without._replace(comments=False)
    if found.size < SMALL * plain or found.score < LEAST_TEXT:
        other = _look(html, nodes, measures, without._replace(names=False))
        if other.size > LARGER * found.size:
            found = other
    if not found.size:
        found = _look(html, nodes, measures, Without(False, False, False))
    return found


def _with_readers(html: NDArray[np.uint8], nodes: Nodes, measures: Measures, found: Main) -> Main | None:
    """What is main text if comments are; None where they are only the readers' answer to it."""
    comments, forum = said_by_readers(nodes, measures)
    if comments < LEAST_COMMENTS:
        return None
    other = _look(html, nodes, measures, Without(comments=False))
    if any(found.size < size and other.size > times * found.size for size, times in HARDLY_ANY):
        return other
    is_discussion = forum >= FORUM_SHARE or any(sign in html.tobytes() for sign in DISCUSSION_SIGNS)
    return other if is_discussion and other.size > found.size else None
