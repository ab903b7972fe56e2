"""Limits of the rules for languages other than English.

The published limits of Gopher, C4 and FineWeb are for English: words of other languages are longer or shorter, their
stop words are others, and of some no line ends with a full stop. FineWeb-2 (Penedo et al. 2025, arXiv:2506.20920) took
limits for each language from the distribution of the same measures in its Wikipedia and ablated them by training; the
table in `language_limits.txt` holds those figures for the languages that matter most (configs/*.yml of
github.com/huggingface/fineweb-2 at d0defb24, Apache-2.0; the punctuation and the English word among the stop words left
out). They were found with the tokeniser of each language (jieba, Sudachi, PyThaiNLP, spaCy), ours are coarser: see
docs/corpus/filters.md.

What FineWeb-2 does alike for all languages: FineWeb's rule of short lines is not applied, and a tenth instead of a
hundredth of a document's characters may be in repeated lines. C4's rules were not used there; mC4 (Xue et al. 2021)
replaced the one of terminal punctuation, since Thai, for one, has none.
"""

from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

FINEWEB2_DUPLICATE_CHARACTERS = 0.1

UNSPACED_LANGUAGES = frozenset({"bo", "ja", "km", "ko", "lo", "my", "th", "yue", "zh"})
"""A stop word may stand within a run of letters: it is looked for anywhere. Korean's are endings."""

UNTERMINATED_LANGUAGES = frozenset({"km", "lo", "my", "th"})
"""Lines and sentences end in white space; FineWeb-2 has a punctuation limit of 0 for these."""


WHOLE_LINE_LANGUAGES = frozenset({"yue", "zh"})
"""Languages whose lines C4's rules of punctuation, words and sentences do not remove."""


@dataclass(frozen=True, slots=True)
class LanguageLimits:
    """Limits for one language; the blocks' options of the same names say what they are.

    Attributes:
        stop_words: the commonest words.
        min_words, min_stop_words: the options' values stand where None.
        top_n_grams, repeated_n_grams: length -> greatest share of characters.
    """

    min_mean_word_length: float
    max_mean_word_length: float
    min_alphabetic_words: float
    min_ended_lines: float
    max_new_lines: float
    max_duplicate_lines: float
    top_n_grams: dict[int, float]
    repeated_n_grams: dict[int, float]
    stop_words: tuple[str, ...]
    min_words: int | None = None
    min_stop_words: int | None = None


ENGLISH_STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
"""Gopher's (Rae et al. 2021, arXiv:2112.11446, appendix A)."""


def _lines() -> list[str]:
    text = files(__package__).joinpath("language_limits.txt").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if not line.startswith("#")]


@cache
def language_limits() -> dict[str, LanguageLimits]:
    """ISO 639-1 code -> limits."""
    limits: dict[str, LanguageLimits] = {}
    entries: list[list[str]] = []
    for line in _lines():
        if line.startswith(" "):
            entries[-1] += line.split()
        else:
            entries.append(line.split())
    for language, *fields in entries:
        figures, words = [float(field) for field in fields[:15]], tuple(fields[15:])
        top = dict(zip((2, 3, 4), figures[6:9], strict=True))
        repeated = dict(zip(range(5, 11), figures[9:], strict=True))
        limits[language] = LanguageLimits(
            min_mean_word_length=figures[0],
            max_mean_word_length=figures[1],
            min_alphabetic_words=figures[2],
            min_ended_lines=figures[3],
            max_new_lines=figures[4],
            max_duplicate_lines=figures[5],
            top_n_grams=top,
            repeated_n_grams=repeated,
            stop_words=words,
        )
    return limits | {
        language: replace(limits[language], **_CHINESE) for language in WHOLE_LINE_LANGUAGES & limits.keys()
    }


_CHINESE: dict[str, Any] = {
    "min_alphabetic_words": 0.5,
    "min_ended_lines": 0.0,
    "max_new_lines": 0.6,
    "top_n_grams": {2: 0.3, 3: 0.4, 4: 0.4},
    "min_words": 20,
    "min_stop_words": 1,
}
"""What differs from FineWeb-2 in Chinese. Its limits come from an encyclopedia and jieba's words, and remove
examination questions, dialogues and poems: our words are pairs of characters, so that punctuation marks and numbers are
a larger share of all words, and a pair that a verse repeats a larger share of its characters; a couplet of forty
characters has twenty words. Verses have a line feed after every two to four words and seldom a full stop."""
