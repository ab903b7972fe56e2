"""The loop behind C4's rules, which `c4.py` states: reads each text line by line and writes what is kept.

Phrases are found in any case, and citation marks are cut out.
"""

from typing import Any

import numpy as np

from glmforge.data.bytes_kernels import TOP_BITS, character_at, copy_bytes, load64
from glmforge.data.compiled import compiled, non_allocating
from glmforge_corpus.filter.rules.repetition import last_character, num_characters, stripped
from glmforge_corpus.words.characters import BREAK, CLASS, HAN, LEADING, TERMINAL
from glmforge_corpus.words.split import num_sentences

JAVASCRIPT_RULE, POLICY_RULE, LOREM_IPSUM_RULE, CURLY_BRACKET_RULE = 1, 2, 4, 8
"""Bits: rules of phrases."""

_PHRASES = (
    (JAVASCRIPT_RULE, "javascript", 2),
    (POLICY_RULE, "privacy policy", 3),
    (POLICY_RULE, "cookie policy", 3),
    (POLICY_RULE, "uses cookies", 8),
    (POLICY_RULE, "use of cookies", 10),
    (POLICY_RULE, "use cookies", 7),
    (POLICY_RULE, "terms of use", 3),
    (LOREM_IPSUM_RULE, "lorem ipsum", 7),
)  # rule, phrase, place of a pair of letters in it that is rare: va, ki, ms, ps
_LONGEST = max(len(phrase) for _, phrase, _ in _PHRASES)
_PHRASE_BYTES = np.array([list(phrase.encode().ljust(_LONGEST, b"\0")) for _, phrase, _ in _PHRASES], np.uint8)
_PHRASE_SIZES = np.array([len(phrase) for _, phrase, _ in _PHRASES], np.int64)
_PHRASE_RULES = np.array([rule for rule, _, _ in _PHRASES], np.int64)
_PHRASE_PLACES = np.array([place for _, _, place in _PHRASES], np.int64)
_AFTER_ANCHOR = np.zeros(256, np.uint8)  # byte of a pair's first letter -> the second; of a bracket -> anything
for _, _phrase, _place in _PHRASES:
    _AFTER_ANCHOR[[ord(_phrase[_place]), ord(_phrase[_place].upper())]] = ord(_phrase[_place + 1])
_AFTER_ANCHOR[[ord("{"), ord("[")]] = 1
_MARKS = tuple(np.frombuffer(mark, np.uint8) for mark in (b"edit]", b"citation needed]"))

_OPEN, _CURLY = 0x5B, 0x7B


@non_allocating
def _lowered(byte: int) -> int:
    return byte | 0x20 if 0x41 <= byte <= 0x5A else byte


@non_allocating
def find_phrases(text: Any, start: int, stop: int) -> tuple[int, bool]:
    """(bits of the phrases that a line has, whether it has an opening bracket)."""
    found, has_bracket = 0, False
    for position in range(start, stop):
        byte = text[np.uintp(position)]
        after = _AFTER_ANCHOR[byte]
        if after == 0:
            continue
        if byte == _CURLY:
            found |= CURLY_BRACKET_RULE
        elif byte == _OPEN:
            has_bracket = True
        elif position + 1 < stop and text[position + 1] | 0x20 == after:
            for phrase in range(len(_PHRASE_SIZES)):
                if _lowered(byte) != _PHRASE_BYTES[phrase, _PHRASE_PLACES[phrase]]:
                    continue
                first = position - _PHRASE_PLACES[phrase]
                size = _PHRASE_SIZES[phrase]
                if first < start or first + size > stop:
                    continue
                place = 0
                while place < size and _lowered(text[first + place]) == _PHRASE_BYTES[phrase, place]:
                    place += 1
                if place == size:
                    found |= _PHRASE_RULES[phrase]
    return found, has_bracket


@non_allocating
def _citation_end(text: Any, position: int, stop: int) -> int:
    """Where the citation mark ends whose bracket is at `position`, or `position`."""
    after = position + 1
    while after < stop and 0x30 <= text[after] <= 0x39:
        after += 1
    if after < stop and text[after] == _CLOSE:
        return after + 1
    for mark in _MARKS:
        if position + 1 + len(mark) <= stop:
            place = 0
            while place < len(mark) and text[position + 1 + place] == mark[place]:
                place += 1
            if place == len(mark):
                return position + 1 + place
    return position


@non_allocating
def copy_without_citations(text: Any, start: int, stop: int, out: Any, position: int) -> tuple[int, int]:
    """Write a line without its citation marks to `out`; (its end there, number of marks)."""
    marks = 0
    while start < stop:
        if text[start] == _OPEN:
            end = _citation_end(text, start, stop)
            if end > start:
                marks += 1
                start = end
                continue
        out[position] = text[start]
        position += 1
        start += 1
    return position, marks


PUBLISHED, ANY_SCRIPT, UNTERMINATED, UNTOUCHED, WHOLE = range(5)
"""Modes of a document: rules for English, for other languages, for those without full stops; none; phrases alone."""

TERMINAL_PUNCTUATION, MIN_WORDS, MAX_WORD_LENGTH, REMOVE_CITATIONS, PHRASES, MIN_SENTENCES, NUM_OPTIONS = range(7)
"""Places of the options."""

FEW_SENTENCES, FEW_LONG_LINES, NOTHING_LEFT = 16, 32, 64
"""Bits: why documents fail, besides those of phrases."""

NO_TERMINAL, FEW_WORDS, LONG_WORD, JAVASCRIPT, POLICY, CITATIONS, NUM_LINE_REASONS = range(7)
"""Columns of the counts per document."""

_LONG_LINE, _LONG_LINES = 200, 3  # mC4's

_ENDS_ASCII = np.zeros(128, np.bool_)
_ENDS_ASCII[[ord(c) for c in ".?!\"'"]] = True
_QUOTES = np.array([ord(c) for c in "\"'”’“»«」』"], np.int64)

_NEWLINE, _RETURN, _CLOSE, _DOT = 0x0A, 0x0D, 0x5D, 0x2E
_ONES = np.uint64(0x0101010101010101)
_BLANKS = _ONES * np.uint64(0x20)


@non_allocating
def _line_end(text: Any, position: int, stop: int, table: Any) -> tuple[int, int]:
    """(end of the line that `position` is in, start of the next), as `str.splitlines` cuts."""
    while position < stop:
        if position + 8 <= stop:
            eight = load64(text, position)
            if not ((eight - _BLANKS) & ~eight | eight) & TOP_BITS:  # eight printable ASCII characters
                position += 8
                continue
        code, size = character_at(text, position, stop)
        if np.int64(table[code]) & CLASS == BREAK:
            following = position + size
            if code == _RETURN and following < stop and text[following] == _NEWLINE:
                following += 1
            return position, following
        position += size
    return stop, stop


@non_allocating
def _ends_well(text: Any, start: int, stop: int, mode: int, table: Any) -> bool:
    """Whether a line ends in terminal punctuation, and not in three dots."""
    if start == stop:
        return False
    last = text[stop - 1]
    if last < 0x80:
        is_ellipsis = stop - start >= 3 and last == _DOT and text[stop - 2] == _DOT and text[stop - 3] == _DOT
        return bool(_ENDS_ASCII[last] and not is_ellipsis)
    if mode == PUBLISHED:
        return False
    code = character_at(text, last_character(text, start, stop), stop)[0]
    if table[code] & TERMINAL:
        return True
    for quote in _QUOTES:  # noqa: SIM110
        if code == quote:
            return True
    return False


@non_allocating
def _has_words(text: Any, start: int, stop: int, least: int, mode: int, table: Any) -> bool:
    """Whether a line has `least` words; outside of `PUBLISHED`, two characters without spaces make one."""
    halves, in_word = 0, False
    position = start
    while position < stop and halves < 2 * least:
        code, size = character_at(text, position, stop)
        kind = np.int64(table[code]) & CLASS
        if kind <= BREAK:
            in_word = False
        elif mode != PUBLISHED and HAN <= kind <= LEADING:
            halves += 1
            in_word = False
        elif not in_word:
            in_word = True
            halves += 2
        position += size
    return halves >= 2 * least


@non_allocating
def _has_long_word(text: Any, start: int, stop: int, longest: int, table: Any) -> bool:
    """Whether more than `longest` characters follow each other without white space."""
    length = 0
    position = start
    while position < stop:
        code, size = character_at(text, position, stop)
        kind = np.int64(table[code]) & CLASS
        length = 0 if kind <= BREAK else length + 1
        if length > longest:
            return True
        position += size
    return False


@non_allocating
def _keep_line(
    text: Any, start: int, stop: int, out: Any, position: int, mode: int, options: Any, table: Any, row: Any
) -> tuple[int, int]:
    """Write a line to `out` if it is kept; (end of what is written, `position` if nothing; bits of the phrases)."""
    wants_end = options[TERMINAL_PUNCTUATION] and mode != UNTERMINATED and mode != WHOLE
    cites = options[REMOVE_CITATIONS] and text[stop - 1] == _CLOSE
    if wants_end and not cites and not _ends_well(text, start, stop, mode, table):
        row[NO_TERMINAL] += 1
        return position, 0
    longest = options[MAX_WORD_LENGTH]
    if longest and stop - start > longest and _has_long_word(text, start, stop, longest, table):
        row[LONG_WORD] += 1
        return position, 0
    enough_words = mode == WHOLE or _has_words(text, start, stop, options[MIN_WORDS], mode, table)
    found, has_bracket = find_phrases(text, start, stop)
    if has_bracket and options[REMOVE_CITATIONS]:
        end, marks = copy_without_citations(text, start, stop, out, position)
        row[CITATIONS] += marks
        if marks:
            found = find_phrases(out, position, end)[0]
    else:
        end = copy_bytes(text, start, stop, out, position)
    if wants_end and cites and not _ends_well(out, position, end, mode, table):
        row[NO_TERMINAL] += 1
        return position, 0
    if not enough_words:
        row[FEW_WORDS] += 1
        return position, 0
    found &= options[PHRASES] & ~CURLY_BRACKET_RULE if mode == WHOLE else options[PHRASES]
    if found & LOREM_IPSUM_RULE:
        return position, LOREM_IPSUM_RULE
    if found & JAVASCRIPT_RULE:
        row[JAVASCRIPT] += 1
        return position, 0
    if found & CURLY_BRACKET_RULE:
        return position, CURLY_BRACKET_RULE
    if found & POLICY_RULE:
        row[POLICY] += 1
        return position, 0
    return end, 0


@non_allocating
def _keep_lines(
    text: Any, start: int, stop: int, out: Any, first: int, mode: int, options: Any, table: Any, row: Any
) -> tuple[int, int, int]:
    """Write the kept lines of a text to `out`; (start and end of what is written, why the document fails)."""
    position, kept, sentences, long_lines, failure = first, 0, 0, 0, 0
    wanted = options[MIN_SENTENCES] if mode != UNTERMINATED and mode != WHOLE else 0
    while start < stop:
        line_stop, following = _line_end(text, start, stop, table)
        line_start, line_stop = stripped(text, start, line_stop, table)
        start = following
        if line_start == line_stop and mode != WHOLE and (options[TERMINAL_PUNCTUATION] or options[MIN_WORDS]):
            continue
        begin = position
        if kept:
            out[begin] = _NEWLINE
            begin += 1
        if line_start == line_stop:
            position, kept = begin, kept + 1
            continue
        end, failed = _keep_line(text, line_start, line_stop, out, begin, mode, options, table, row)
        failure |= failed
        if end == begin:
            continue
        if sentences < wanted:
            sentences += num_sentences(out, begin, end, table, wanted - sentences)
        if mode == UNTERMINATED and long_lines < _LONG_LINES:
            long_lines += num_characters(out, begin, end) >= _LONG_LINE
        position, kept = end, kept + 1
    first, position = stripped(out, first, position, table)
    if sentences < wanted:
        failure |= FEW_SENTENCES
    if mode == UNTERMINATED and options[MIN_SENTENCES] and long_lines < _LONG_LINES:
        failure |= FEW_LONG_LINES
    if first == position:
        failure |= NOTHING_LEFT
    return first, position, failure


@compiled
def keep_sentences(text: Any, offsets: Any, modes: Any, options: Any, table: Any) -> tuple[Any, Any, Any, Any]:
    """Apply the rules to n texts; those that fail are handed on as they are.

    Args:
        text, offsets: text d is `text[offsets[d]:offsets[d + 1]]`.
        modes: `[n]` int64, a mode each.
        options: `[NUM_OPTIONS]` int64.
        table: `character_table()`.

    Returns:
        (bytes, offsets `[n + 1]`, counts of lines `[n, NUM_LINE_REASONS]`, failures `[n]` as bits).
    """
    num_texts = len(offsets) - 1
    out = np.empty(offsets[-1] - offsets[0] + 1, np.uint8)
    out_offsets = np.zeros(num_texts + 1, np.int64)
    counts = np.zeros((num_texts, NUM_LINE_REASONS), np.int64)
    failures = np.zeros(num_texts, np.int64)
    position = 0
    for document in range(num_texts):
        start, stop = offsets[document], offsets[document + 1]
        first, end = position, position
        if modes[document] != UNTOUCHED:
            first, end, failures[document] = _keep_lines(
                text, start, stop, out, position, modes[document], options, table, counts[document]
            )
        if modes[document] == UNTOUCHED or failures[document]:
            position = copy_bytes(text, start, stop, out, position)
        elif first == position:
            position = end
        else:
            position = copy_bytes(out, first, end, out, position)
        out_offsets[document + 1] = position
    return out[:position], out_offsets, counts, failures
