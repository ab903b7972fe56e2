"""Whether documents have stop words of their language."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glmforge.data.bytes_kernels import hash_bytes
from glmforge.data.compiled import compiled
from glmforge.data.documents.batch import DocumentBatch
from glmforge_corpus.words.split import Words


def has_stop_words(
    words: Words, rows: NDArray[np.int64], codes: NDArray[np.integer], lists: Sequence[tuple[str, ...]], least: int
) -> NDArray[np.bool_]:
    """`[n]`: whether `least` different words of `lists[codes[i]]` are among the words of text `rows[i]`.

    A document whose list is empty passes. Lists have at most 64 words.
    """
    hashes, lengths, filters = _hashed(tuple(lists))
    return _find(words.borders, words.hashes, rows, codes, hashes, lengths, filters, least)  # type: ignore[no-any-return]


def has_substrings(
    batch: DocumentBatch, documents: NDArray[np.int64], words: tuple[str, ...], least: int
) -> NDArray[np.bool_]:
    """For each document of `documents`, whether `least` different words stand anywhere in its text."""
    encoded = [word.encode() for word in words]
    text, offsets = batch.text_bytes, batch.text_offsets
    found = np.zeros(len(documents), np.bool_)
    for index, document in enumerate(documents):
        data = text[offsets[document] : offsets[document + 1]].tobytes()
        missing = len(encoded) - least
        for word in encoded:
            missing -= word not in data
            if missing < 0:
                break
        found[index] = missing >= 0
    return found


@cache
def _hashed(lists: tuple[tuple[str, ...], ...]) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.bool_]]:
    """(hashes `[lists, 64]`, lengths `[lists]`, whether a hash's low 12 bits occur `[lists, 4096]`)."""
    hashes, filters = np.zeros((len(lists), 64), np.uint64), np.zeros((len(lists), 4096), np.bool_)
    for index, words in enumerate(lists):
        for place, word in enumerate(words):
            data = np.frombuffer(word.encode(), np.uint8)
            hashes[index, place] = hash_bytes(data, 0, len(data))
            filters[index, hashes[index, place] & np.uint64(4095)] = True
    return hashes, np.array([len(words) for words in lists], np.int64), filters


@compiled
def _find(
    borders: Any, word_hashes: Any, rows: Any, codes: Any, hashes: Any, lengths: Any, filters: Any, least: int
) -> Any:
    fine = np.zeros(len(rows), np.bool_)
    for index in range(len(rows)):
        code = codes[index]
        found, count = np.uint64(0), 0
        for word in range(borders[rows[index]], borders[rows[index] + 1]):
            value = word_hashes[word]
            if not filters[code, value & np.uint64(4095)]:
                continue
            if count >= least:
                break
            for place in range(lengths[code]):
                bit = np.uint64(1) << np.uint64(place)
                if hashes[code, place] == value and not found & bit:
                    found |= bit
                    count += 1
        fine[index] = count >= least or lengths[code] == 0
    return fine
