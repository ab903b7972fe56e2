"""Compiled loops of language identification: a sample of each text, and lid.176's answer for it.

What a text is written in shows in a few hundred bytes of it. A short text is read whole; of a longer one, slices at
its beginning, its end and evenly between. A slice begins and ends where a word does, if one does nearby (languages
without spaces: at a character), and white space counts as one separator, as in fastText. Words without any letter
are omitted: numbers and rules of dashes are in no language. A sample in capitals throughout is put into small letters,
which the model has seen far more of: it takes a quarter of English in capitals for Japanese, German or others.

A sample lies in a scratch array as fastText needs its words: `<word><word>`.
"""

# mypy: disable-error-code="no-any-return"
# To type checkers, a compiled function may return anything.

import math

import numpy as np
from numpy.typing import NDArray

from glmforge.data.bytes_kernels import copy_bytes
from glmforge.data.compiled import compiled, non_allocating
from glmforge_corpus.filter.language_model import DIM, MAX_CHARACTERS, MIN_CHARACTERS, NUM_BUCKETS, Arrays

BORDER_SEARCH = 24
"""Bytes that a slice's ends may move to meet white space: most words are shorter."""

_MOSTLY = 8
"""Capitals for each small letter from which on a sample counts as written in capitals."""

_OPEN, _CLOSE = ord("<"), ord(">")
_PRIME, _BASIS = np.uint32(16777619), np.uint32(2166136261)


@non_allocating
def _is_space(byte: int) -> bool:
    return byte == 32 or 9 <= byte <= 13 or byte == 0


@non_allocating
def _has_letter(text: NDArray[np.uint8], start: int, stop: int) -> bool:
    for at in range(start, stop):
        byte = text[at]
        if byte >= 0x80 or 97 <= byte <= 122 or 65 <= byte <= 90:
            return True
    return False


@non_allocating
def _border(text: NDArray[np.uint8], at: int, low: int, high: int) -> int:
    """The first white space at or after `at`, or else the first beginning of a character."""
    for near in range(at, min(at + BORDER_SEARCH, high)):
        if _is_space(text[near]):
            return near
    while low < at < high and text[at] & 0xC0 == 0x80:
        at += 1
    return at


@non_allocating
def _add_words(text: NDArray[np.uint8], start: int, stop: int, sample: NDArray[np.uint8], size: int) -> int:
    """Append the words of `text[start:stop]` to the sample of `size` bytes; the size then."""
    at = start
    while at < stop:
        while at < stop and _is_space(text[at]):
            at += 1
        begin = at
        while at < stop and not _is_space(text[at]):
            at += 1
        if at > begin and _has_letter(text, begin, at):
            sample[size] = _OPEN
            size = copy_bytes(text, begin, at, sample, size + 1) + 1
            sample[size - 1] = _CLOSE
    return size


@non_allocating
def sample_text(
    text: NDArray[np.uint8], start: int, stop: int, slices: int, slice_bytes: int, sample: NDArray[np.uint8]
) -> int:
    """Write the sample of `text[start:stop]`; its size. `sample` has room for `sample_room(...)` bytes."""
    length = stop - start
    if length <= slices * slice_bytes:
        return _add_words(text, start, stop, sample, 0)
    size = 0
    for index in range(slices):
        begin = start + (length - slice_bytes) * index // max(slices - 1, 1)
        first = _border(text, begin, start, stop) if index else start
        last = _border(text, begin + slice_bytes, start, stop) if begin + slice_bytes < stop else stop
        size = _add_words(text, first, last, sample, size)
    return size


@non_allocating
def fold_capitals(sample: NDArray[np.uint8], size: int) -> None:
    """Put a sample of which hardly a letter is small into small letters: Latin, Greek, Cyrillic."""
    capitals = small = 0
    for at in range(size):
        byte, behind = sample[at], sample[min(at + 1, size - 1)]
        capitals += 65 <= byte <= 90 or _capital_distance(byte, behind) > 0
        small += 97 <= byte <= 122 or (byte == 0xC3 and behind >= 0xA0) or byte == 0xD1 or byte == 0xCF
        small += (byte == 0xD0 or byte == 0xCE) and behind >= 0xB0
    if capitals <= _MOSTLY * small:
        return
    for at in range(size):
        byte = sample[at]
        if 65 <= byte <= 90:
            sample[at] = byte + 32
        elif at + 1 < size:
            distance = _capital_distance(byte, sample[at + 1])
            if distance:
                behind = sample[at + 1] + distance
                sample[at] = byte + (behind >= 0xC0)
                sample[at + 1] = behind - 0x40 if behind >= 0xC0 else behind


@non_allocating
def _capital_distance(byte: int, behind: int) -> int:
    """How far the small letter is from the capital that is written in these two bytes of UTF-8, or 0."""
    if byte == 0xC3 and 0x80 <= behind <= 0x9E and behind != 0x97:  # À to Þ but for the sign of multiplication
        return 0x20
    if byte == 0xCE and 0x91 <= behind <= 0xA9:  # Α to Ω
        return 0x20
    if byte == 0xD0 and 0x90 <= behind <= 0xAF:  # А to Я
        return 0x20
    return 0


def sample_room(slices: int, slice_bytes: int) -> int:
    """Bytes that a sample takes at most: words of one letter become three bytes from two."""
    return 2 * slices * (slice_bytes + BORDER_SEARCH) + 2


@non_allocating
def _add_row(hidden: NDArray[np.float32], rows: NDArray[np.float32], row: int) -> None:
    for dim in range(DIM):
        hidden[dim] += rows[row, dim]


@non_allocating
def _count_bits(word: np.uint64) -> int:
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return int((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@non_allocating
def _hash_byte(value: np.uint32, byte: np.uint8) -> np.uint32:
    return np.uint32((value ^ np.uint32(np.int8(byte))) * _PRIME)


@non_allocating
def _find_word(sample: NDArray[np.uint8], start: int, stop: int, model: Arrays) -> int:
    value = _BASIS
    for at in range(start, stop):
        value = _hash_byte(value, sample[at])
    mask = len(model.word_slots) - 1
    slot = np.int64(value) & mask
    while model.word_slots[slot] >= 0:
        word = model.word_slots[slot]
        first = model.word_offsets[word]
        if model.word_offsets[word + 1] - first == stop - start:
            same = True
            for at in range(stop - start):
                same = same and model.word_bytes[first + at] == sample[start + at]
            if same:
                return int(word)
        slot = (slot + 1) & mask
    return -1


@non_allocating
def _add_ngrams(sample: NDArray[np.uint8], start: int, stop: int, model: Arrays, hidden: NDArray[np.float32]) -> int:
    """Add the rows of the n-grams of `sample[start:stop]`, brackets included; how many there are in the model."""
    count = 0
    for first in range(start, stop):
        if sample[first] & 0xC0 == 0x80:
            continue
        value = _BASIS
        at = first
        for length in range(1, MAX_CHARACTERS + 1):
            if at >= stop:
                break
            value = _hash_byte(value, sample[at])
            at += 1
            while at < stop and sample[at] & 0xC0 == 0x80:
                value = _hash_byte(value, sample[at])
                at += 1
            if length < MIN_CHARACTERS:
                continue
            bucket = value % np.uint32(NUM_BUCKETS)
            place, bit = bucket >> np.uint32(6), np.uint64(bucket & np.uint32(63))
            word = model.present[place]
            if (word >> bit) & np.uint64(1):
                below = word & ((np.uint64(1) << bit) - np.uint64(1))
                _add_row(hidden, model.ngrams_RD, model.before[place] + _count_bits(below))
                count += 1
    return count


@non_allocating
def embed(sample: NDArray[np.uint8], size: int, model: Arrays, hidden: NDArray[np.float32]) -> None:
    """The mean of the rows of a sample's words and n-grams, into `hidden` `[D]`."""
    for dim in range(DIM):
        hidden[dim] = model.words_WD[0, dim]
    count = 1
    at = 0
    while at < size:
        stop = at + 2  # the closing bracket of a word is followed by an opening one; text may hold either
        while not (sample[stop] == _CLOSE and (stop + 1 == size or sample[stop + 1] == _OPEN)):
            stop += 1
        word = _find_word(sample, at + 1, stop, model)
        if word >= 0:
            _add_row(hidden, model.words_WD, word)
            count += 1
        count += _add_ngrams(sample, at, stop + 1, model, hidden)
        at = stop + 1
    for dim in range(DIM):
        hidden[dim] /= np.float32(count)


@compiled
def best_label(hidden: NDArray[np.float32], model: Arrays, reached: NDArray[np.float64]) -> int:
    """The most probable label; `reached` `[2 labels - 1]` becomes the probability of each node, labels first."""
    num_inner = len(model.children)
    num_labels = num_inner + 1
    logits = np.zeros(num_inner, np.float32)
    for dim in range(DIM):  # outermost, so that the loop over nodes is vectorised
        for inner in range(num_inner):
            logits[inner] += model.outputs_DN[dim, inner] * hidden[dim]
    reached[num_labels + num_inner - 1] = 1.0
    for inner in range(num_inner - 1, -1, -1):
        yes = 1.0 / (1.0 + math.exp(-logits[inner]))
        mass = reached[num_labels + inner]
        reached[model.children[inner, 0]] = mass * (1.0 - yes)
        reached[model.children[inner, 1]] = mass * yes
    return int(np.argmax(reached[:num_labels]))


@compiled
def identify(
    text: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    wanted: NDArray[np.bool_],
    slices: int,
    slice_bytes: int,
    model: Arrays,
    sample: NDArray[np.uint8],
    labels: NDArray[np.int32],
    scores: NDArray[np.float32],
) -> None:
    """Label and its probability of each text that is wanted; label -1 and score 0 where a text has no letters."""
    hidden = np.zeros(DIM, np.float32)
    reached = np.zeros(2 * len(model.children) + 1)
    for index in range(len(offsets) - 1):
        if not wanted[index]:
            continue
        size = sample_text(text, offsets[index], offsets[index + 1], slices, slice_bytes, sample)
        labels[index], scores[index] = -1, 0.0
        if size:
            fold_capitals(sample, size)
            embed(sample, size, model, hidden)
            labels[index] = best_label(hidden, model, reached)
            scores[index] = reached[labels[index]]
