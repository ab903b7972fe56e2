"""The loop that cuts texts into words and counts on the way. `split.py` states the rule."""

from typing import Any

import numpy as np

from glmforge.data.bytes_kernels import TOP_BITS, between, character_at, hash_short, load64, trailing_zeros
from glmforge.data.compiled import compiled, non_allocating
from glmforge_corpus.words.characters import (
    ABUGIDA,
    ALPHABETIC,
    BREAK,
    CLASS,
    COMMA,
    CONNECTOR,
    DIGIT,
    EXTENDER,
    HAN,
    HIRAGANA,
    JOINER,
    KATAKANA,
    LEADING,
    LETTER,
    PUNCTUATION,
    SPACE,
)

WORDS, REAL_WORDS, REAL_CHARACTERS, ALPHABETIC_WORDS, HASHES, ELLIPSES, LINES, BULLET_LINES, ELLIPSIS_LINES = range(9)
CHARACTERS, NEWLINES, NUM_COUNTS = 9, 10, 11
"""Columns of the counts per document."""

_LONGEST = (1 << 31) - 1  # characters of a word, as far as they are counted
_WORD_LETTERS = 4  # of a word of an abugida written without spaces
_BLANK, _DOT, _HASH, _HYPHEN, _NEWLINE, _RETURN = 0x20, 0x2E, 0x23, 0x2D, 0x0A, 0x0D
_BULLET, _ELLIPSIS = 0x2022, 0x2026
_ONE, _THREE, _LOWER = np.uint64(1), np.uint64(3), np.uint64(0x2020202020202020)


@compiled(inline="always")
def _plain_run(text: Any, position: int, stop: int) -> Any:
    """(end, whether one is a letter) of the ASCII letters and digits from `position`; looks at eight bytes at once."""
    any_letter = np.uint64(0)
    while position + 8 <= stop:
        eight = load64(text, position)
        plain = eight & ~TOP_BITS
        letters = between(plain | _LOWER, 0x61, 0x7A) & ~eight
        others = ~(letters | between(plain, 0x30, 0x39)) & TOP_BITS | eight & TOP_BITS
        inside = (others - _ONE) & ~others  # the bits below the first other byte's
        any_letter |= letters & inside
        if others:
            return position + np.int64(trailing_zeros(others) >> _THREE), any_letter != 0
        position += 8
    while position < stop:
        byte = text[np.uintp(position)]
        is_letter = 0x61 <= byte | 0x20 <= 0x7A
        if not is_letter and not 0x30 <= byte <= 0x39:
            break
        any_letter |= np.uint64(is_letter)
        position += 1
    return position, any_letter != 0


@non_allocating
def _run(text: Any, position: int, stop: int, table: Any) -> Any:
    """(end, characters, marks) of the letters, digits, connectors and what they join that start at `position`.

    The marks are PUNCTUATION if all characters carry it, and ALPHABETIC if any does.
    """
    characters, last = 0, np.int64(EXTENDER)
    alphabetic, punctuation = np.int64(0), np.int64(PUNCTUATION)
    while position < stop:
        code, size = character_at(text, position, stop)
        entry = np.int64(table[code])
        kind = entry & CLASS
        if kind < LETTER or kind > EXTENDER:
            if kind != JOINER and (kind != COMMA or last != DIGIT):
                break
            if characters == 0 or position + size >= stop:
                break
            following = np.int64(table[character_at(text, position + size, stop)[0]]) & CLASS
            if following != DIGIT and (kind == COMMA or (following != LETTER and following != CONNECTOR)):
                break
        alphabetic |= entry & ALPHABETIC
        punctuation &= entry
        last = kind
        characters += 1
        position += size
    return position, characters, alphabetic | punctuation


@non_allocating
def _extenders(text: Any, position: int, stop: int, table: Any) -> Any:
    """(end, characters) of the marks that hang on the character before `position`."""
    characters = 0
    while position < stop and text[position] >= 0x80:
        code, size = character_at(text, position, stop)
        if np.int64(table[code]) & CLASS != EXTENDER:
            break
        characters += 1
        position += size
    return position, characters


@non_allocating
def _unspaced(text: Any, position: int, stop: int, table: Any) -> Any:
    """(end, characters) of the piece of a script without spaces that starts at `position`."""
    code, size = character_at(text, position, stop)
    kind = np.int64(table[code]) & CLASS
    if kind == KATAKANA:
        limit = 1 << 40
    elif kind <= HIRAGANA:
        limit = 2
    else:
        limit = _WORD_LETTERS
    letters, characters = 0, 0
    while position < stop and letters < limit:
        code, size = character_at(text, position, stop)
        other = np.int64(table[code]) & CLASS
        if kind == LEADING:  # a vowel written before its consonant: it begins the piece
            kind = np.int64(ABUGIDA)
        elif other != kind:
            break
        position, marks = _extenders(text, position + size, stop, table)
        characters += 1 + marks
        letters += 1
    return position, characters


@non_allocating
def _symbols(text: Any, position: int, stop: int, table: Any) -> Any:
    """(end, characters, repetitions) of the run of one symbol that starts at `position`, with its marks."""
    code, size = character_at(text, position, stop)
    repetitions = 1
    position += size
    while position < stop and character_at(text, position, stop)[0] == code:
        repetitions += 1
        position += size
    position, marks = _extenders(text, position, stop, table)
    return position, repetitions + marks, repetitions


@non_allocating
def _ends_in_ellipsis(text: Any, start: int, stop: int) -> bool:
    if stop - start < 3:
        return False
    a, b, c = text[stop - 3], text[stop - 2], text[stop - 1]
    return bool((a == _DOT and b == _DOT and c == _DOT) or (a == 0xE2 and b == 0x80 and c == 0xA6))


@compiled
def _followers(table: Any) -> Any:
    """`[256]` of bytes: 1 if it may go on with a run of letters and digits, 2 if it may join it to another, or 0."""
    follows = np.ones(256, np.uint8)
    for byte in range(128):
        kind = table[byte] & CLASS
        follows[byte] = 1 if LETTER <= kind <= EXTENDER else 2 if JOINER <= kind <= COMMA else 0
    return follows


@compiled(inline="always")
def _goes_on(text: Any, position: int, stop: int, follows: Any) -> bool:
    """Whether a run may go on at `position`, as far as the next two bytes tell."""
    first = follows[text[np.uintp(position)]]
    if first != 2:
        return bool(first == 1)
    return bool(position + 1 < stop and follows[text[np.uintp(position + 1)]] == 1)


@compiled(inline="always")
def _next_word(text: Any, position: int, stop: int, code: int, size: int, entry: Any, table: Any, follows: Any) -> Any:
    """(end, characters, marks, repetitions) of the word whose first character, no white space, is at `position`.

    Args:
        code, size, entry: of that character: its code point, its bytes, what the table says of it.

    The marks are PUNCTUATION if all characters carry it, and ALPHABETIC if any does; repetitions are those of a
    symbol, and 0 for other words.
    """
    kind = entry & CLASS
    repetitions = np.int64(0)
    if LETTER <= kind <= EXTENDER:
        end, any_letter = _plain_run(text, position, stop)
        characters, marks = end - position, np.int64(ALPHABETIC if any_letter else 0)
        if end < stop and _goes_on(text, end, stop, follows):
            end, characters, marks = _run(text, position, stop, table)
    elif HAN <= kind <= LEADING:
        end, characters = _unspaced(text, position, stop, table)
        marks = np.int64(ALPHABETIC)
    elif size == 1 and position + 1 < stop and text[position + 1] < 0x80 and text[position + 1] != code:
        end, characters, repetitions = position + 1, 1, np.int64(1)
        marks = entry & PUNCTUATION
    else:
        end, characters, repetitions = _symbols(text, position, stop, table)
        marks = entry & PUNCTUATION if characters == repetitions else np.int64(0)
    return end, characters, marks, repetitions


@compiled(inline="always")
def _line_break(text: Any, position: int, stop: int, code: int, size: int) -> Any:
    """(end, characters, line feeds) of the line break at `position`, whose first character has this code and size."""
    end = position + size
    if code == _RETURN and end < stop and text[end] == _NEWLINE:
        return end + 1, 2, 1
    return end, 1, 1 if code == _NEWLINE else 0


@compiled(inline="always")
def _num_ellipses(code: int, repetitions: Any) -> Any:
    """Ellipses in a run of one symbol."""
    return repetitions if code == _ELLIPSIS else repetitions // 3 if code == _DOT else 0


@non_allocating
def _cut(text: Any, position: Any, stop: int, tables: Any, word: int, found: Any, row: Any) -> int:
    """Cut the text `text[position:stop]` into words from number `word` on; the number after them, or -1 without room.

    Args:
        tables: `character_table()` and what `_followers` makes of it.
        found: starts, lengths and hashes, as in `cut_words`.
        row: the text's row of the counts.
    """
    table, follows = tables
    starts, lengths, hashes = found
    first_word = word
    spaces = newlines = lines = bullets = endings = np.int64(0)
    real_words = real_characters = all_characters = alphabetic_words = num_hashes = ellipses = np.int64(0)
    line_start, line_word, line_end = position, word, position
    while position < stop:
        byte = text[np.uintp(position)]
        if byte == _BLANK:
            spaces += 1
            position += 1
            continue
        if byte < 0x80:
            code, size = np.int64(byte), 1
        else:
            code, size = character_at(text, position, stop)
        entry = np.int64(table[code])
        kind = entry & CLASS
        if kind == SPACE:
            spaces += 1
            position += size
            continue
        if kind == BREAK:
            position, characters, line_feeds = _line_break(text, position, stop, code, size)
            spaces += characters
            newlines += line_feeds
            lines += 1
            endings += word > line_word and _ends_in_ellipsis(text, line_start, line_end)
            line_start, line_word = position, word
            continue
        if word == len(hashes):
            return -1
        bullets += word == line_word and ((code == _HYPHEN) | (code == _BULLET))
        start = position
        position, characters, marks, repetitions = _next_word(text, position, stop, code, size, entry, table, follows)
        num_hashes += repetitions if code == _HASH else 0
        ellipses += _num_ellipses(code, repetitions)
        starts[word], lengths[word] = start, min(characters, _LONGEST)
        hashes[word] = hash_short(text, start, position)
        all_characters += characters
        alphabetic_words += marks & ALPHABETIC > 0
        if not marks & PUNCTUATION:
            real_words += 1
            real_characters += characters
        line_end = position
        word += 1
        if position < stop:  # one blank comes after most words
            is_blank = np.int64(text[np.uintp(position)] == _BLANK)
            position += is_blank
            spaces += is_blank
    if position > line_start:
        lines += 1
        endings += word > line_word and _ends_in_ellipsis(text, line_start, line_end)
    row[WORDS], row[REAL_WORDS], row[REAL_CHARACTERS] = word - first_word, real_words, real_characters
    row[ALPHABETIC_WORDS], row[HASHES], row[ELLIPSES] = alphabetic_words, num_hashes, ellipses
    row[LINES], row[BULLET_LINES], row[ELLIPSIS_LINES] = lines, bullets, endings
    row[CHARACTERS], row[NEWLINES] = all_characters + spaces, newlines
    return word


@compiled
def cut_words(
    text: Any, offsets: Any, table: Any, first: int, borders: Any, starts: Any, lengths: Any, hashes: Any, counts: Any
) -> int:
    """Cut texts from number `first` on into words; the number of the first that does not fit into the arrays.

    Args:
        text, offsets: text d is `text[offsets[d]:offsets[d + 1]]`.
        table: `character_table()`.
        borders: `[n + 1]`, out: words `borders[d]` to `borders[d + 1]` are those of text d.
        starts, lengths, hashes: `[capacity]`, out: position in `text`, characters, hash of each word.
        counts: `[n, NUM_COUNTS]`, out.
    """
    tables, found = (table, _followers(table)), (starts, lengths, hashes)
    for d in range(first, len(offsets) - 1):
        word = _cut(text, offsets[d], offsets[d + 1], tables, borders[d], found, counts[d])
        if word < 0:
            return d
        borders[d + 1] = word
    return len(offsets) - 1
