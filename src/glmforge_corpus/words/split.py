"""Words and sentences of texts in any language, cut from UTF-8 by one compiled loop.

The rule is a reduction of Unicode's word boundaries (UAX #29) that needs no dictionary and no language:

1. White space ends a word and belongs to none. Tibetan's tsheg counts as white space: a syllable is a word there.
2. A *run* is made of letters, digits, connectors (`_`) and the marks and format characters on them. Within a run, `'`,
   `’`, `.` and `·` join what they stand between if a letter, digit or connector follows (`don't`, `e.g`, `3.14`,
   `example.com`), and a comma joins two digits (`1,000`).
3. Scripts without spaces are cut into pieces about as long as their words: Han and hiragana into pairs, a katakana
   run is one word, Thai, Lao, Khmer, Burmese and their relatives are cut after four letters and before a vowel that
   is written before its consonant. Marks stay with their letter and are not counted. Cutting begins anew after
   anything else, so that a clause that is repeated is cut alike wherever it stands.
4. Every other character (punctuation, symbols, emoji, controls) is a word, together with its direct repetitions and
   marks: `...`, `-----`.

So hyphens and slashes separate, as they do for UAX #29 and spaCy, and punctuation is counted as words, as it is by the
tokenisers with which Gopher's thresholds were applied to FineWeb. `docs/corpus/filters.md` compares the decisions
that follow with those of spaCy's words.

A *sentence* ends after a run of characters of Sentence_Terminal with the closing quotation marks and brackets that
follow, if white space or nothing comes next, or if the run is of full-width characters, which no space follows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glmforge.data.bytes_kernels import TOP_BITS, character_at, equal_to, load64
from glmforge.data.compiled import compiled, non_allocating
from glmforge_corpus.words.characters import BREAK, CLASS, TERMINAL, character_table
from glmforge_corpus.words.word_kernels import NUM_COUNTS, cut_words

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


@dataclass(frozen=True, slots=True)
class Words:
    """The words of n texts.

    Attributes:
        borders: `[n + 1]` int64; words `borders[d]` to `borders[d + 1]` are those of text d.
        starts: `[words]` int64, positions in the bytes that the texts stand in.
        characters: `[words]` int32, code points; of a longer word 2^31 - 1.
        hashes: `[words]` uint64 of the bytes; equal words have equal hashes in any text, run and machine.
        counts: `[n, NUM_COUNTS]` int64 per text; `word_kernels` names the columns.
    """

    borders: NDArray[np.int64]
    starts: NDArray[np.int64]
    characters: NDArray[np.int32]
    hashes: NDArray[np.uint64]
    counts: NDArray[np.int64]


def split_words(text_bytes: NDArray[np.uint8], text_offsets: NDArray[np.int64]) -> Words:
    """The words of the texts `text_bytes[text_offsets[d]:text_offsets[d + 1]]`."""
    num_texts, table = len(text_offsets) - 1, character_table()
    borders = np.zeros(num_texts + 1, np.int64)
    counts = np.zeros((num_texts, NUM_COUNTS), np.int64)
    starts, lengths, hashes = np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.uint64)
    done, capacity = 0, 1024 + int(text_offsets[-1] - text_offsets[0]) // 4
    while True:
        used = int(borders[done])
        starts, lengths, hashes = (_grown(array, capacity, used) for array in (starts, lengths, hashes))
        done = cut_words(text_bytes, text_offsets, table, done, borders, starts, lengths, hashes, counts)
        if done == num_texts:
            num = int(borders[-1])
            return Words(borders, starts[:num], lengths[:num], hashes[:num], counts)
        capacity *= 2


def _grown(array: NDArray[Any], capacity: int, used: int) -> NDArray[Any]:
    larger = np.empty(capacity, array.dtype)
    larger[:used] = array[:used]
    return larger


def words_of(text: str) -> list[str]:
    """The words of one text as strings; for tests, comparisons and the curious."""
    data = np.frombuffer(text.encode(), np.uint8)
    words = split_words(data, np.array([0, len(data)]))
    starts, lengths = words.starts.tolist(), words.characters.tolist()
    return [data[a : a + 4 * n].tobytes().decode(errors="ignore")[:n] for a, n in zip(starts, lengths, strict=True)]


def sentence_spans(text: str) -> Iterator[tuple[int, int]]:
    """(start, stop) of each sentence, in characters; what stands between sentences belongs to the one that follows."""
    data = np.frombuffer(text.encode(), np.uint8)
    start = 0
    ends = sentence_ends(data, 0, len(data), character_table()).tolist()
    for first, last in zip([0, *ends], ends, strict=False):
        stop = start + len(data[first:last].tobytes().decode())
        yield start, stop
        start = stop
