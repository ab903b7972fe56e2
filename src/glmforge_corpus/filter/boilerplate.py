"""Lines that belong to a web page rather than to its text: cookie notices, menus, buttons, counters.

Published pipelines do this line by line: RefinedWeb (Penedo et al. 2023, appendix G.2) drops lines that are counters,
one word, or calls to sign in or to read on; C4 (Raffel et al. 2020) those that speak of JavaScript or cookies. Here a
line matches one of our phrase lists, or belongs to a menu: many short lines in a row that are no sentences. Only lines
of at most `max_line` bytes are checked: a long one is a paragraph, regardless of its text. What repeats over many
documents is found by deduplication of passages.

All short lines of a batch are put end to end, without the arrows, bars and dots that pages decorate them with, and
hyperscan looks for all phrases at once: the cost grows little with the lists. A single word ("Search") that stands
alone between paragraphs is a heading as likely as a button, and stays; next to another line that goes it goes, too.

The phrases are in `boilerplate.toml`, one per line, in fourteen languages, for editors who know the language better
than Python. There are three kinds, by rule and language, in hyperscan's syntax and ignoring case:

    whole     the line is this, apart from decoration (white space, arrows, bars, brackets, full stops)
    start     the line begins so
    anywhere  the line contains it; whole notices, too distinctive to stand in prose about something else

A word that is also an ordinary one-word answer or heading ("Yes", "Contents") is not listed. A blank at a line's end
is written `[ ]`.
"""

import functools
import tomllib
from importlib.resources import files
from typing import Any, ClassVar, Literal, get_args

import hyperscan
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from glmforge.data.documents.batch import DocumentBatch
from glmforge_corpus.block import Block, Outcome
from glmforge_corpus.filter import boilerplate_kernel as kernel

Rule = Literal[
    "cookies", "scripts", "account", "sharing", "copyright", "navigation", "continuation", "counters", "menus"
]
RULES: tuple[Rule, ...] = get_args(Rule)
"""In this order of precedence where a line matches several."""

MENUS = RULES.index("menus") + 1

_SCAN_BYTES = 1 << 28
"""Hyperscan takes less than 4 GB at once."""


class Boilerplate(Block):
    """Removes lines that are boilerplate, and documents of which too little is left. Programs pass untouched."""

    kind: ClassVar[str] = "boilerplate"

    rules: tuple[Rule, ...] = Field(default=RULES, strict=False, description="kinds of lines to remove")
    max_line: int = Field(default=300, ge=1, le=10_000, description="longer lines (in bytes) are not checked")
    menu_lines: int = Field(default=8, ge=2, description="consecutive short lines that count as a menu")
    min_kept: float = Field(
        default=0.0, ge=0, le=1, description="remove a document that keeps less than this share of its bytes"
    )

    def process(self, batch: DocumentBatch) -> Outcome:
        prose = batch.table.column("language").fill_null("").to_numpy(zero_copy_only=False) != "code"
        text, offsets = batch.text_bytes, batch.text_offsets
        starts, document = kernel.find_lines(text, offsets, prose)
        reason = _match_lines(text, starts, self.rules, self.max_line)
        kernel.spare_wrapped_lines(text, starts, document, reason)
        kernel.spare_lonely_words(text, starts, document, reason)
        if "menus" in self.rules:
            kernel.mark_menus(text, starts, document, self.menu_lines, MENUS, reason)
        before = np.maximum(batch.text_lengths, 1)
        removed = np.bincount(reason, minlength=len(RULES) + 1)
        if removed[1:].any():
            batch = batch.with_text_buffers(*kernel.remove_lines(text, offsets, starts, document, reason))
        counts = {f"boilerplate: {rule} lines": int(removed[index + 1]) for index, rule in enumerate(RULES)}
        after = batch.text_lengths
        failed = {"boilerplate: nothing else": after == 0, "boilerplate: little else": after / before < self.min_kept}
        return Outcome(batch, failed, counts)


def _match_lines(
    text: NDArray[np.uint8], starts: NDArray[np.int64], rules: tuple[Rule, ...], max_line: int
) -> NDArray[np.uint8]:
    """`[lines]`: 1 + the first rule of `RULES` with a phrase that the line matches, or 0.

    `starts` `[lines, 2]` are the lines' first byte and the end of their last one.
    """
    database, rule_of = _database(tuple(rule for rule in RULES if rule in rules))
    reason = np.zeros(len(starts), np.uint8)
    first = 0
    while database is not None and first < len(starts):
        packed, line_of, ends, first = kernel.pack_short_lines(text, starts, first, max_line, _SCAN_BYTES)
        hits = _scan(database, packed)
        if not len(hits):
            continue
        lines = line_of[np.searchsorted(ends, hits[:, 1] - 1)]  # a match ends behind its last byte
        order = np.argsort(-rule_of[hits[:, 0]], kind="stable")  # the first rule is written last
        reason[lines[order]] = rule_of[hits[order, 0]] + 1
    return reason


def _scan(database: Any, packed: NDArray[np.uint8]) -> NDArray[np.int64]:
    """`[matches, 2]`: pattern and end."""
    hits: list[int] = []

    def found(pattern: int, _start: int, end: int, _flags: int, _context: object) -> None:
        hits.append(pattern)
        hits.append(end)

    if len(packed):
        database.scan(packed.data, match_event_handler=found)
    return np.array(hits, np.int64).reshape(-1, 2)


@functools.cache
def _database(rules: tuple[Rule, ...]) -> tuple[Any, NDArray[np.int64]]:
    """The compiled phrases of some rules, or None; and the index in `RULES` of each pattern."""
    patterns = [(RULES.index(rule), pattern) for rule in rules for pattern in _patterns(rule)]
    if not patterns:
        return None, np.zeros(0, np.int64)
    flags = hyperscan.HS_FLAG_CASELESS | hyperscan.HS_FLAG_MULTILINE | hyperscan.HS_FLAG_UTF8
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    expressions = [pattern.encode() for _, pattern in patterns]
    database.compile(expressions=expressions, ids=list(range(len(patterns))), flags=[flags] * len(patterns))
    return database, np.array([rule for rule, _ in patterns])


def _patterns(rule: Rule) -> list[str]:
    """One expression per list of phrases."""
    whole = [rf"^(?:{phrases})$" for phrases in PHRASES["whole"].get(rule, {}).values()]
    start = [rf"^(?:{phrases})" for phrases in PHRASES["start"].get(rule, {}).values()]
    bars = [rf"^(?:{BARS[rule]})$"] if rule in BARS else []
    return [*whole, *start, *PHRASES["anywhere"].get(rule, {}).values(), *bars]


Kind = Literal["whole", "start", "anywhere"]


def _read() -> dict[Kind, dict[str, dict[str, str]]]:
    tables = tomllib.loads(files(__package__).joinpath("boilerplate.toml").read_text(encoding="utf-8"))
    return {
        kind: {
            rule: {language: "|".join(phrases.splitlines()) for language, phrases in lists.items()}
            for rule, lists in tables[kind].items()
        }
        for kind in get_args(Kind)
    }


PHRASES = _read()
"""Kind -> rule -> language -> one expression of all phrases."""

_SIGN = r"[^\s|·•»›\d.,:;=<>+_(){}\[\]`\"\\-]"
_ITEM = rf"{_SIGN}(?:{_SIGN}| {_SIGN}){{1,28}}"
BARS = {
    "navigation": rf"{_ITEM}(?: [|·•»›] {_ITEM}){{2,12}}",
}
"""Several short items in one line with signs between them: `Home | News | Contact`."""
