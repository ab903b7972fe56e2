"""Terms of word lists in a batch: found by one Hyperscan pass over all texts at once, judged at their borders.

A list is a directory with a file per language, named by its code, one term per line (the form of LDNOOBW), or one
such file. Hyperscan ignores case for ASCII only, which keeps every match as long as its term; spellings beyond ASCII
are entered in lower case, upper case and capitalised. It also looks at ASCII borders, so that "class" costs nothing;
a line end is put between documents for that, or one document's end would be the next one's border.

A hit counts where the term stands for itself (the town of Scunthorpe is none):

* before and behind a letter, digit or underscore of the term there must be none in the text; letters are Unicode's;
* kana counts as a word by its script: ピエロ does not contain エロ; Hangul takes endings, so that only the left border
  is looked at; Han and Thai have no borders, so a single character is no term there, even if it is in the list,
  and phrases in which a longer term is innocent are for the list of allowed phrases;
* of hits that overlap, the longest is the hit.
"""

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import hyperscan
import numpy as np
from numpy.typing import NDArray

from glmforge.data.compiled import compiled
from glmforge.errors import DataError

MAX_LANGUAGES = 63
"""One bit each; the last is for phrases that are allowed."""

_ALLOWED = 1 << 63
_SCAN_BYTES = 1 << 30
"""Hyperscan's lengths are 32-bit; documents are scanned in runs of about this many bytes."""

_LONGEST = 1 << 31


@dataclass(frozen=True)
class Term:
    """A spelling to look for.

    Attributes:
        data: in UTF-8.
        languages: bits of the lists that have it.
        left, right: what kind of border it needs, see `_border`.
    """

    data: bytes
    languages: int
    left: str
    right: str


@dataclass(frozen=True)
class Hits:
    """Where terms stand; arrays of equal length, ordered by place.

    Attributes:
        rows: index of the document.
        starts, stops: bytes from the beginning of the document.
    """

    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]


class WordLists:
    """Compiled lists; see the module.

    Args:
        lists: language -> terms.
        allowed: phrases within which nothing is a hit.
    """

    def __init__(self, lists: dict[str, Iterable[str]], allowed: Sequence[str] = ()) -> None:
        self.languages = {language: 1 << index for index, language in enumerate(sorted(lists))}
        if len(lists) > MAX_LANGUAGES:
            raise DataError(f"word lists: {len(lists)} languages; at most {MAX_LANGUAGES} at once")
        bits: dict[str, int] = {}
        for language, terms in lists.items():
            for term in _clean(terms):
                bits[term] = bits.get(term, 0) | self.languages[language]
        for phrase in _clean(allowed):
            bits[phrase] = _ALLOWED
        self.terms = _spellings(bits)
        if not any(term.languages != _ALLOWED for term in self.terms):
            raise DataError("word lists: no terms; pass a directory with a file per language, one term per line")
        self._database = hyperscan.Database()
        patterns = [_pattern(term) for term in self.terms]
        numbers, flags = list(range(len(patterns))), [hyperscan.HS_FLAG_CASELESS] * len(patterns)
        self._database.compile(expressions=patterns, ids=numbers, elements=len(patterns), flags=flags)

    def find(
        self, text_bytes: NDArray[np.uint8], text_offsets: NDArray[np.int64], languages: NDArray[np.uint64]
    ) -> Hits:
        """The hits in each document of the languages in its bits `[n]` (see `languages`), allowed phrases apart."""
        found: list[tuple[int, int, int]] = []
        for first, last in scan_runs(text_offsets):
            text, offsets = _with_line_ends(text_bytes, text_offsets[first : last + 1])
            self._scan(text, offsets, languages[first:last], first, found)
        rows, starts, stops = np.array(_longest(found), np.int64).reshape(-1, 3).T
        return Hits(rows, starts, stops)

    def _scan(
        self,
        text: NDArray[np.uint8],
        offsets: NDArray[np.int64],
        languages: NDArray[np.uint64],
        first: int,
        found: list[tuple[int, int, int]],
    ) -> None:
        """Add hits as (row, start, stop) and allowed phrases as (~row, start, stop), places within the document."""
        ids, ends = list[int](), list[int]()

        def note(identity: int, start: int, stop: int, flags: int, context: object) -> None:
            ids.append(identity)
            ends.append(stop)

        self._database.scan(text.data, match_event_handler=note)  # type: ignore[type-var]
        stops = np.array(ends, np.int64)
        rows = np.searchsorted(offsets, stops - 1, side="right") - 1
        for identity, stop, row in zip(ids, stops.tolist(), rows.tolist(), strict=True):
            term = self.terms[identity]
            begin, end = int(offsets[row]), int(offsets[row + 1]) - 1
            start, allowed = stop - len(term.data), term.languages == _ALLOWED
            wanted = allowed or term.languages & int(languages[row])
            if wanted and start >= begin and stop <= end and _is_separate_word(text, start, stop, (begin, end), term):
                found.append((~(first + row) if allowed else first + row, start - begin, stop - begin))


def scan_runs(offsets: NDArray[np.int64]) -> Iterable[tuple[int, int]]:
    """(first, last) documents of scans of about `_SCAN_BYTES`."""
    first, num_documents = 0, len(offsets) - 1
    while first < num_documents:
        last = int(np.searchsorted(offsets, offsets[first] + _SCAN_BYTES, side="right")) - 1
        last = min(max(last, first + 1), num_documents)
        yield first, last
        first = last


@compiled
def _with_line_ends(text: NDArray[np.uint8], offsets: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The texts with a line end behind each, and where they then begin; of 2 GB and more, the beginning."""
    joined_offsets = np.zeros(len(offsets), np.int64)
    for row in range(len(offsets) - 1):
        length = min(offsets[row + 1] - offsets[row], np.int64(_LONGEST))
        joined_offsets[row + 1] = joined_offsets[row] + length + 1
    joined = np.empty(joined_offsets[-1], np.uint8)
    for row in range(len(offsets) - 1):
        begin, length = joined_offsets[row], joined_offsets[row + 1] - joined_offsets[row] - 1
        joined[begin : begin + length] = text[offsets[row] : offsets[row] + length]
        joined[begin + length] = 10
    return joined, joined_offsets


def _pattern(term: Term) -> bytes:
    """The term as a regular expression, with the borders that are ASCII's."""
    escaped = b"".join(b"\\x%02x" % byte for byte in term.data)
    left = b"\\b" if term.left == "word" and _is_ascii_word(term.data[0]) else b""
    right = b"\\b" if term.right == "word" and _is_ascii_word(term.data[-1]) else b""
    return left + escaped + right


def _is_ascii_word(byte: int) -> bool:
    return byte < 0x80 and (chr(byte).isalnum() or byte == 0x5F)


def _clean(terms: Iterable[str]) -> Iterable[str]:
    for line in terms:
        term = unicodedata.normalize("NFC", line.strip()).lower()
        if len(term) > 1 or (term and _script(term) == "word" and term.isalnum()):
            yield term


def _spellings(bits: dict[str, int]) -> list[Term]:
    spelled: dict[bytes, Term] = {}
    for term, languages in sorted(bits.items()):
        variants = {term} if term.isascii() else {term, term.upper(), term.capitalize(), term.title()}
        for variant in variants:
            data = variant.encode()
            known = spelled[data].languages if data in spelled else 0
            spelled[data] = Term(data, languages | known, _border(variant[0], True), _border(variant[-1], False))
    return [spelled[data] for data in sorted(spelled)]


def _border(character: str, left: bool) -> str:
    """What may not stand beside this end of a term: "word" characters, "kana", or "" nothing in particular."""
    script = _script(character)
    if script == "hangul":
        return "word" if left else ""
    return script if script in ("word", "kana") else ""


def _script(text: str) -> str:
    """ "word", "kana", "hangul", "spaceless" (Han, Thai, ...) or "sign", by the first character."""
    point = ord(text[0])
    if 0x3041 <= point <= 0x30FF or 0x31F0 <= point <= 0x31FF or 0xFF66 <= point <= 0xFF9F:
        return "kana"
    if 0xAC00 <= point <= 0xD7A3 or 0x1100 <= point <= 0x11FF or 0x3131 <= point <= 0x318E:
        return "hangul"
    if 0x2E80 <= point <= 0x9FFF or 0xF900 <= point <= 0xFAFF or point >= 0x20000:
        return "spaceless"
    if 0x0E00 <= point <= 0x0EFF or 0x1000 <= point <= 0x109F or 0x1780 <= point <= 0x17FF:
        return "spaceless"
    if text[0] == "_" or text[0].isalnum() or unicodedata.combining(text[0]):
        return "word"
    return "sign"


def _is_separate_word(text: NDArray[np.uint8], start: int, stop: int, document: tuple[int, int], term: Term) -> bool:
    if term.left and start > document[0]:
        before = start - 1
        while before > document[0] and text[before] & 0xC0 == 0x80:
            before -= 1
        if _joins(text[before:start].tobytes(), term.left):
            return False
    if term.right and stop < document[1]:
        behind = text[stop : min(stop + 4, document[1])].tobytes()
        return not _joins(behind.decode(errors="ignore")[:1].encode(), term.right)
    return True


def _joins(character: bytes, border: str) -> bool:
    """Whether a neighbour makes the term a part of a longer word."""
    if not character:
        return False
    script = _script(character.decode(errors="replace"))
    return script == border if border == "kana" else script in ("word", "hangul")


def _longest(found: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Hits not inside an allowed phrase or a longer hit; overlapping ones count once, for the one that begins first."""
    kept: list[tuple[int, int, int]] = []
    current = allowed_stop = -1
    for row, start, stop in sorted(found, key=lambda hit: (max(hit[0], ~hit[0]), hit[1], -hit[2], hit[0])):
        if max(row, ~row) != current:
            current, allowed_stop = max(row, ~row), -1
        if row < 0:
            allowed_stop = max(allowed_stop, stop)
            while kept and kept[-1][0] == current and kept[-1][1] >= start and kept[-1][2] <= stop:
                kept.pop()
        elif stop > allowed_stop and not (kept and kept[-1][0] == row and start < kept[-1][2]):
            kept.append((row, start, stop))
    return kept


@lru_cache(maxsize=8)
def load_word_lists(path: Path, allowed: tuple[str, ...] = ()) -> WordLists:
    """The lists of a directory (or one file, named by its language), compiled once per process.

    Raises:
        DataError: no word lists, or a file is not UTF-8.
    """
    hint = "pass a directory with a file per language code (en, zh ...), one term per line"
    files = sorted(file for file in path.iterdir() if _is_list(file)) if path.is_dir() else [path]
    if not path.exists() or not files:
        raise DataError(f"{path}: no word lists: {hint}")
    lists: dict[str, list[str]] = {}
    for file in files:
        try:
            lists.setdefault(file.stem.split("-")[0].lower(), []).extend(file.read_text("utf-8").splitlines())
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{file}: not readable as a word list ({error}): {hint}") from error
    return WordLists({language: terms for language, terms in lists.items()}, allowed)


def _is_list(file: Path) -> bool:
    code = file.stem.split("-")[0]
    return file.is_file() and file.suffix in ("", ".txt") and code.islower() and code.isalpha() and len(code) in (2, 3)
