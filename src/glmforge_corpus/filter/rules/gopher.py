"""Gopher's rules of quality and repetition (Rae et al. 2021, arXiv:2112.11446, appendix A).

Meaning and defaults are those of datatrove's filters, which FineWeb was made with; every rule is evaluated for every
document and counted. Words are those of `glmforge_corpus.words.split`. A document that is identified as another
language than English is judged by that language's limits (`language_limits.py`), and programs are passed on.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from glmforge.config.model import refuse
from glmforge.data.bytes_kernels import hash_bytes
from glmforge.data.compiled import compiled
from glmforge.data.documents.batch import DocumentBatch
from glmforge_corpus.block import Outcome
from glmforge_corpus.filter.rules.language_limits import (
    ENGLISH_STOP_WORDS,
    UNSPACED_LANGUAGES,
    LanguageLimits,
    language_limits,
)
from glmforge_corpus.filter.rules.prose import ENGLISH, SHORT_LINE, DocumentLanguages, ProseBlock, above, share
from glmforge_corpus.filter.rules.repetition import (
    DUPLICATE_LINE_CHARACTERS,
    DUPLICATE_LINES,
    DUPLICATE_PARAGRAPH_CHARACTERS,
    DUPLICATE_PARAGRAPHS,
    NUM_LINES,
    NUM_PARAGRAPHS,
    count_repetition,
)
from glmforge_corpus.filter.rules.shared_counts import lines_of_batch, words_of_batch
from glmforge_corpus.words.split import Words
from glmforge_corpus.words.word_kernels import (
    ALPHABETIC_WORDS,
    BULLET_LINES,
    CHARACTERS,
    ELLIPSES,
    ELLIPSIS_LINES,
    HASHES,
    LINES,
    REAL_CHARACTERS,
    REAL_WORDS,
    WORDS,
)


class GopherQuality(ProseBlock):
    """Lengths, symbols, bullets and stop words. 0 turns a limit off."""

    kind: ClassVar[str] = "gopher_quality"
    min_words: int = Field(default=50, ge=0, description="words other than punctuation")
    max_words: int = Field(default=100_000, ge=0)
    min_mean_word_length: float = Field(default=3, ge=0, description="characters; English")
    max_mean_word_length: float = Field(default=10, ge=0, description="characters; English")
    max_symbols: float = Field(default=0.1, ge=0, description="hash signs, or ellipses, per word")
    max_bullet_lines: float = Field(default=0.9, ge=0, description="share of lines that start with - or •")
    max_ellipsis_lines: float = Field(default=0.3, ge=0, description="share of lines that end in an ellipsis")
    min_alphabetic_words: float = Field(default=0.8, ge=0, le=1, description="share of words with a letter; English")
    min_stop_words: int = Field(default=2, ge=0, le=64, description="distinct stop words")
    stop_words: dict[str, list[str]] = Field(default={}, description="language -> words, instead of the built-in ones")

    @model_validator(mode="after")
    def _check_stop_words(self) -> Self:
        for language, words in self.stop_words.items():
            if not 1 <= len(words) <= 64 or not all(words):
                refuse("stop_words", f"'{language}' has {len(words)} words; use 1 to 64, none of them empty")
        return self

    def process(self, batch: DocumentBatch) -> Outcome:
        words, rows = words_of_batch(batch)
        counts = words.counts[rows].T
        languages = self.languages(batch)
        length = share(counts[REAL_CHARACTERS], counts[REAL_WORDS])
        shortest = languages.limits(self.min_mean_word_length, lambda limits: limits.min_mean_word_length, 0)
        longest = languages.limits(self.max_mean_word_length, lambda limits: limits.max_mean_word_length, 0)
        alphabetic = languages.limits(
            self.min_alphabetic_words, lambda limits: limits.min_alphabetic_words, self.min_alphabetic_words
        )
        rules = {
            "too few words": counts[REAL_WORDS] < self._least(languages, "min_words"),
            "too many words": above(counts[REAL_WORDS], self.max_words),
            "words too short": length < shortest,
            "words too long": above(length, longest),
            "too many hash signs": above(share(counts[HASHES], counts[WORDS]), self.max_symbols),
            "too many ellipses": above(share(counts[ELLIPSES], counts[WORDS]), self.max_symbols),
            "too many bullets": above(share(counts[BULLET_LINES], counts[LINES]), self.max_bullet_lines),
            "too many lines end in ellipses": above(
                share(counts[ELLIPSIS_LINES], counts[LINES]), self.max_ellipsis_lines
            ),
            "too few alphabetic words": share(counts[ALPHABETIC_WORDS], counts[WORDS]) < alphabetic,
            "too few stop words": ~self._has_stop_words(batch, languages),
        }
        return self.outcome(batch, rules)

    def _has_stop_words(self, batch: DocumentBatch, languages: DocumentLanguages) -> NDArray[np.bool_]:
        words, rows = words_of_batch(batch)
        spaced = [() if name in UNSPACED_LANGUAGES else self._stop_words(name) for name in languages.names]
        least = self._least(languages, "min_stop_words").astype(np.int64)
        fine = has_stop_words(words, rows, languages.codes, spaced, self.min_stop_words)
        for code, name in enumerate(languages.names):
            if name in UNSPACED_LANGUAGES and self._stop_words(name):
                documents = np.flatnonzero(languages.codes == code)
                fine[documents] = has_substrings(
                    batch, documents, self._stop_words(name), int(least[documents[0]]) if len(documents) else 0
                )
        return fine

    def _least(self, languages: DocumentLanguages, option: str) -> NDArray[np.float64]:
        """`[n]`: the language's own number where it has one and the option is no lower; else the option's."""
        given = int(getattr(self, option))

        def least(limits: LanguageLimits) -> float:
            own = getattr(limits, option)
            return given if own is None else min(given, own)

        return languages.limits(given, least, given)

    def _stop_words(self, language: str) -> tuple[str, ...]:
        if language in self.stop_words:
            return tuple(self.stop_words[language])
        if language == ENGLISH:
            return ENGLISH_STOP_WORDS
        limits = language_limits().get(language)
        return limits.stop_words if limits else ()


class GopherRepetition(ProseBlock):
    """Lines, paragraphs and n-grams of words that stand more than once. 0 turns a limit off."""

    kind: ClassVar[str] = "gopher_repetition"
    max_duplicate_lines: float = Field(default=0.3, ge=0, description="share of lines; English")
    max_duplicate_paragraphs: float = Field(default=0.3, ge=0, description="share of paragraphs")
    max_duplicate_line_characters: float = Field(default=0.2, ge=0, description="share of characters in such lines")
    max_duplicate_paragraph_characters: float = Field(default=0.2, ge=0)
    top_n_grams: dict[int, float] = Field(
        default={2: 0.2, 3: 0.18, 4: 0.16},
        description="n -> share of characters in the most frequent n-gram of n words; English",
    )
    repeated_n_grams: dict[int, float] = Field(
        default={5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10},
        description="n -> share of characters in repeated n-grams of n words; English",
    )

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        for field in ("top_n_grams", "repeated_n_grams"):
            for length in getattr(self, field):
                if not 1 <= length <= 64:
                    refuse(field, f"n-grams of {length} words; use 1 to 64")
        for length in self.top_n_grams.keys() & self.repeated_n_grams.keys():
            refuse("top_n_grams", f"{length} is also a length of repeated_n_grams; a length can have only one rule")
        return self

    def process(self, batch: DocumentBatch) -> Outcome:
        words, rows = words_of_batch(batch)
        characters = words.counts[rows, CHARACTERS]
        lines = lines_of_batch(batch, SHORT_LINE).T
        languages = self.languages(batch)
        duplicate_lines = languages.limits(
            self.max_duplicate_lines, lambda limits: limits.max_duplicate_lines, self.max_duplicate_lines
        )
        rules = {
            "duplicate paragraphs": above(
                share(lines[DUPLICATE_PARAGRAPHS], lines[NUM_PARAGRAPHS]), self.max_duplicate_paragraphs
            ),
            "characters in duplicate paragraphs": above(
                share(lines[DUPLICATE_PARAGRAPH_CHARACTERS], characters), self.max_duplicate_paragraph_characters
            ),
            "duplicate lines": above(share(lines[DUPLICATE_LINES], lines[NUM_LINES]), duplicate_lines),
            "characters in duplicate lines": above(
                share(lines[DUPLICATE_LINE_CHARACTERS], characters), self.max_duplicate_line_characters
            ),
        }
        return self.outcome(batch, rules | self._n_gram_rules(batch, characters, languages))

    def _n_gram_rules(
        self, batch: DocumentBatch, characters: NDArray[np.int64], languages: DocumentLanguages
    ) -> dict[str, NDArray[np.bool_]]:
        words, rows = words_of_batch(batch)
        lengths = range(max([*self.top_n_grams, *self.repeated_n_grams, 0]) + 1)
        is_top = np.array([n in self.top_n_grams for n in lengths])
        is_repeated = np.array([n in self.repeated_n_grams for n in lengths])
        counts = count_repetition(words.borders, words.hashes, words.characters, rows, is_top, is_repeated)
        rules = {}
        for n, limit in self.top_n_grams.items():
            own = languages.limits(limit, _n_gram_limit("top_n_grams", n, limit), limit)
            rules[f"one {n}-gram too often"] = above(share(counts[:, n], characters), own)
        for n, limit in self.repeated_n_grams.items():
            own = languages.limits(limit, _n_gram_limit("repeated_n_grams", n, limit), limit)
            rules[f"repeated {n}-grams"] = above(share(counts[:, n], characters), own)
        return rules


def _n_gram_limit(field: str, n: int, default: float) -> Callable[[LanguageLimits], float]:
    """A language's limit for n-grams of n words; `default` where only other lengths have one."""
    return lambda limits: float(getattr(limits, field).get(n, default))


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
