"""Unicode repair and normalisation.

What every text of the corpus has afterwards: Unicode's form NFC; "\\n" as the only end of a line; no control characters
but tabs, no byte order marks, zero-width spaces or soft hyphens (joiners stay: Persian and Hindi need them); no white
space at the end of lines, at most `max_blank_lines` empty lines in a row, none at the beginning and the end.
Text that was decoded wrongly ("schÃ¶n") is repaired by ftfy (Speer 2019), where signs of it are seen.

Nearly all text needs nothing of this, so the work is in finding that out: one compiled pass over the bytes of a batch
finds what each document needs (`survey`). White space is fixed by a second (`rewrite`); only documents with signs of
mojibake, or with characters that may compose with the one before, become Python strings. Tables handed over with each
call come from Python's own `unicodedata`, so that the answer is the same as `unicodedata.normalize`.
"""

import functools
import unicodedata
from typing import ClassVar, Final

import ftfy
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from glmforge.data.compiled import compiled, non_allocating
from glmforge.data.documents.batch import DocumentBatch
from glmforge_corpus.block import Block, Outcome

SPACING: Final = 1
COMPOSITION: Final = 2
MOJIBAKE: Final = 4
"""What a document may need, as bits."""

_REMOVE, _BREAK, _COMPOSE = 1, 2, 4
_TABLE_SIZE: Final = 0x30000
_NEWLINE, _TAB, _SPACE = 10, 9, 32
_REMOVED: Final = (0x00AD, 0x200B, 0x2060, 0xFEFF)
_REMOVAL: Final = dict.fromkeys([*_REMOVED, *range(9), 11, 12, *range(14, 32), *range(0x7F, 0x85), *range(0x86, 0xA0)])
_BREAKS: Final = (0x0085, 0x2028, 0x2029)


class Normalise(Block):
    """Repairs and normalises the text; a document of which nothing is left is removed."""

    kind: ClassVar[str] = "normalise"

    mojibake: bool = Field(default=True, description="repair text that was decoded with the wrong character set")
    max_blank_lines: int = Field(default=2, ge=0, le=100, description="maximum number of consecutive empty lines")

    def process(self, batch: DocumentBatch) -> Outcome:
        if not len(batch):
            return Outcome(batch)
        text, offsets = batch.text_bytes, batch.text_offsets
        needs = survey(text, offsets, character_table(), self.max_blank_lines)
        if not needs.any():
            return Outcome(batch, {"empty": batch.text_lengths == 0})
        new_text, new_offsets = rewrite(text, offsets, needs & SPACING, character_table(), self.max_blank_lines)
        if (needs & SPACING).any():  # where something was taken out, characters may compose that stood apart
            again = survey(new_text, new_offsets, character_table(), self.max_blank_lines)
            needs |= np.where(needs, again, 0).astype(np.uint8)
        needs &= COMPOSITION | (MOJIBAKE if self.mojibake else 0)
        new_text, new_offsets, num_repaired = self._repair(new_text, new_offsets, needs)
        changed = _differs(text, offsets, new_text, new_offsets)
        counts = {"normalise: changed": int(changed.sum()), "normalise: mojibake repaired": num_repaired}
        empty = np.diff(new_offsets) == 0
        new_batch = batch.with_text_buffers(new_text, new_offsets) if changed.any() else batch
        return Outcome(new_batch, {"empty": empty}, {name: count for name, count in counts.items() if count})

    def _repair(
        self, text: NDArray[np.uint8], offsets: NDArray[np.int64], needs: NDArray[np.uint8]
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64], int]:
        """The texts, with documents fixed that need Python for it, and how many were mojibake."""
        pieces, done, num_repaired = list[NDArray[np.uint8]](), int(offsets[0]), 0
        lengths = np.diff(offsets)
        spacing = np.zeros(len(needs), np.uint8)
        for row in map(int, np.flatnonzero(needs)):
            old = bytes(text[offsets[row] : offsets[row + 1]]).decode()
            new = ftfy.fix_encoding(old).translate(_REMOVAL) if needs[row] & MOJIBAKE else old
            num_repaired += new != old
            new = unicodedata.normalize("NFC", new)
            if new == old:
                continue
            data = np.frombuffer(new.encode("utf-8", "replace"), np.uint8)
            pieces += [text[done : offsets[row]], data]
            done, lengths[row], spacing[row] = int(offsets[row + 1]), len(data), SPACING
        if not pieces:
            return text, offsets, 0
        joined = np.concatenate([*pieces, text[done : offsets[-1]]])
        new_offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        return *rewrite(joined, new_offsets, spacing, character_table(), self.max_blank_lines), num_repaired


@functools.cache
def character_table() -> NDArray[np.uint8]:
    """Code point -> what may have to be done about it; characters beyond plane 2 need nothing."""
    table = np.zeros(_TABLE_SIZE, np.uint8)
    for code in range(_TABLE_SIZE):
        if 0xD800 <= code < 0xE000:
            continue
        character = chr(code)
        if unicodedata.combining(character) or not unicodedata.is_normalized("NFC", character):
            table[code] = _COMPOSE
        parts = unicodedata.decomposition(character).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            table[int(parts[1], 16)] |= _COMPOSE
    table[0x1161:0x1176] |= _COMPOSE  # vowels and final consonants of Hangul, which compose by rule
    table[0x11A8:0x11C3] |= _COMPOSE
    table[list(_REMOVED)] = _REMOVE
    table[0x7F:0xA0] = _REMOVE
    table[:0x20] = _REMOVE
    table[[_TAB, _NEWLINE]] = 0
    table[13] = _BREAK
    table[list(_BREAKS)] = _BREAK
    return table


@non_allocating
def _decode(text, i, stop):  # type: ignore[no-untyped-def]
    """(code point, bytes) of the character at `i`, which is not ASCII."""
    byte = np.int64(text[i])
    if byte < 0xE0:
        return (byte & 31) << 6 | np.int64(text[i + 1]) & 63, 2
    if byte < 0xF0:
        return (byte & 15) << 12 | (np.int64(text[i + 1]) & 63) << 6 | np.int64(text[i + 2]) & 63, 3
    high = (byte & 7) << 18 | (np.int64(text[i + 1]) & 63) << 12
    return high | (np.int64(text[i + 2]) & 63) << 6 | np.int64(text[i + 3]) & 63, 4


@non_allocating
def _announced(code):  # type: ignore[no-untyped-def]
    """How many bytes follow a first byte of UTF-8, for a character that such a byte becomes in Latin-1."""
    if 0xC2 <= code <= 0xDF:
        return 1
    if 0xE0 <= code <= 0xEF:
        return 2
    return 3 if 0xF0 <= code <= 0xF4 else 0


@non_allocating
def _is_later_byte(code):  # type: ignore[no-untyped-def]
    """Whether a later byte of UTF-8 becomes this character in Latin-1 or Windows-1252."""
    if 0x80 <= code <= 0xBF:
        return True
    return code in (
        0x20AC, 0x201A, 0x0192, 0x201E, 0x2026, 0x2020, 0x2021, 0x02C6, 0x2030, 0x0160, 0x2039, 0x0152, 0x017D, 0x2018,
        0x2019, 0x201C, 0x201D, 0x2022, 0x2013, 0x2014, 0x02DC, 0x2122, 0x0161, 0x203A, 0x0153, 0x017E, 0x0178,
    )  # fmt: skip


@compiled
def survey(text, offsets, table, max_blank_lines):  # type: ignore[no-untyped-def]
    """`[n]`: what each of n documents may need."""
    needs = np.zeros(len(offsets) - 1, np.uint8)
    for row in range(len(needs)):
        begin, stop = offsets[row], offsets[row + 1]
        need = np.uint8(0)
        if begin < stop and (text[begin] == _NEWLINE or text[stop - 1] <= _SPACE):
            need |= np.uint8(SPACING)
        newlines = 0
        announced = 0  # later bytes that the characters before would announce, were they bytes
        i = begin
        while i < stop:
            byte = text[i]
            if byte < 0x80:
                announced = 0
                if byte > _SPACE:
                    newlines = 0
                    if byte == 0x7F:
                        need |= np.uint8(SPACING)
                elif byte == _NEWLINE:
                    newlines += 1
                    if newlines > max_blank_lines + 1 or (i > begin and (text[i - 1] == _SPACE or text[i - 1] == _TAB)):
                        need |= np.uint8(SPACING)
                elif byte != _SPACE and byte != _TAB:
                    need |= np.uint8(SPACING)
                i += 1
                continue
            newlines = 0
            code, length = _decode(text, i, stop)
            kind = table[code] if code < len(table) else 0
            if kind & (_REMOVE | _BREAK):
                need |= np.uint8(SPACING)
            if kind & _COMPOSE:
                need |= np.uint8(COMPOSITION)
            if announced and _is_later_byte(code):
                announced -= 1
                if announced == 0:
                    need |= np.uint8(MOJIBAKE)
            else:
                announced = _announced(code)
            i += length
        needs[row] = need
    return needs


@non_allocating
def _rewrite_one(text, begin, stop, table, max_blank_lines, out, at):  # type: ignore[no-untyped-def]
    start, newlines, space_from = at, 0, at
    i = begin
    while i < stop:
        byte = text[i]
        length = 1
        code = np.int64(byte)
        if byte >= 0x80:
            code, length = _decode(text, i, stop)
        kind = table[code] if code < len(table) else 0
        if kind & _REMOVE:
            i += length
            continue
        if code == _NEWLINE or kind & _BREAK:
            if code == 13 and i + 1 < stop and text[i + 1] == _NEWLINE:
                length = 2
            at = space_from  # white space at the end of the line
            if at > start:
                newlines += 1
                if newlines <= max_blank_lines + 1:
                    out[at] = _NEWLINE
                    at += 1
            space_from = at
            i += length
            continue
        for _ in range(length):
            out[at] = text[i]
            at += 1
            i += 1
        if code != _SPACE and code != _TAB:
            space_from, newlines = at, 0
    at = space_from
    while at > start and out[at - 1] == _NEWLINE:
        at -= 1
    return at


@compiled
def rewrite(text, offsets, wanted, table, max_blank_lines):  # type: ignore[no-untyped-def]
    """(bytes, offsets) with the white space of the `wanted` documents fixed; the others unchanged."""
    n = len(offsets) - 1
    out = np.empty(offsets[n] - offsets[0], np.uint8)
    new_offsets = np.zeros(n + 1, np.int64)
    at = 0
    for row in range(n):
        begin, stop = offsets[row], offsets[row + 1]
        if wanted[row]:
            at = _rewrite_one(text, begin, stop, table, max_blank_lines, out, at)
        else:
            out[at : at + stop - begin] = text[begin:stop]
            at += stop - begin
        new_offsets[row + 1] = at
    return out[:at], new_offsets


@compiled
def _differs(text, offsets, new_text, new_offsets):  # type: ignore[no-untyped-def]
    """`[n]`: whether a document changed."""
    n = len(offsets) - 1
    changed = np.zeros(n, np.bool_)
    for row in range(n):
        length = offsets[row + 1] - offsets[row]
        if length != new_offsets[row + 1] - new_offsets[row]:
            changed[row] = True
            continue
        for i in range(length):
            if text[offsets[row] + i] != new_text[new_offsets[row] + i]:
                changed[row] = True
                break
    return changed
