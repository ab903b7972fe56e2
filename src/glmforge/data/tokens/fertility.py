"""How well a tokenizer fits a corpus: tokens per word and bytes per token, by language, and what it does to digits.

A language whose words fall into many tokens costs more to train on and to serve, and has shorter contexts; a
vocabulary with many entries that nothing uses pays for rows of the embedding that never learn. All figures are exact
counts over the texts given, special tokens and ends of documents not counted.

A word here is a run of characters other than ASCII white space. Languages written without spaces have long ones; read
the tokens per character there. `partial` counts tokens that are incomplete characters: bytes of a character that the
vocabulary does not have, and pieces across characters' borders.
"""

import html
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glmforge.data.documents.document import Document
from glmforge.data.tokens.special import SPECIAL_TOKENS
from glmforge.data.tokens.spelling import unspell
from glmforge.data.tokens.text_chunks import TextChunk, chunks_of
from glmforge.data.tokens.tokenizer import Tokenizer, token_byte_lengths

PROBES = ("1234567890", "3.14159", " " * 8, "\t\t", "\n\n\n", "    return x", " 2026-01-31", "你好世界", "👩‍💻")
"""Texts whose tokens are shown one by one."""

TOTAL = "total"


@dataclass
class Counts:
    """Sums over the documents of one language."""

    documents: int = 0
    bytes: int = 0
    characters: int = 0
    words: int = 0
    tokens: int = 0
    single_byte: int = 0
    partial: int = 0

    @property
    def bytes_per_token(self) -> float:
        return self.bytes / max(self.tokens, 1)

    @property
    def tokens_per_word(self) -> float:
        return self.tokens / max(self.words, 1)

    @property
    def characters_per_token(self) -> float:
        return self.characters / max(self.tokens, 1)

    def to_json(self) -> dict[str, Any]:
        """Counts and what is divided of them."""
        return asdict(self) | {
            "bytes_per_token": round(self.bytes_per_token, 4),
            "characters_per_token": round(self.characters_per_token, 4),
            "tokens_per_word": round(self.tokens_per_word, 4),
            "single_byte_share": round(self.single_byte / max(self.tokens, 1), 6),
            "partial_share": round(self.partial / max(self.tokens, 1), 6),
        }


@dataclass
class Fertility:
    """What one tokenizer makes of a corpus.

    Attributes:
        name: of the tokenizer.
        vocab_size: its ids, special tokens included.
        languages: language, or name of the input where unknown -> counts; and "total".
        unused: entries of the vocabulary, special tokens aside, that the corpus does not use.
        probes: text -> the tokens that it becomes.
    """

    name: str
    vocab_size: int
    languages: dict[str, Counts]
    unused: int
    probes: dict[str, list[str]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        languages = {name: counts.to_json() for name, counts in self.languages.items()}
        return {**vars(self), "languages": languages}


def measure_fertility(
    tokenizer: Tokenizer,
    corpora: Sequence[tuple[str, Iterable[Document]]],
    name: str = "",
    progress: Callable[[int], None] | None = None,
) -> Fertility:
    """Encode all documents of (name, corpus) and count; `progress` is told the bytes of text of each chunk.

    Raises:
        DataError: a corpus has no documents or cannot be read.
    """
    meter = _Meter(tokenizer)
    for corpus_name, corpus in corpora:
        for work in chunks_of(corpus):
            chunk = work.read()
            meter.add(chunk, corpus_name)
            if progress is not None:
                progress(chunk.num_bytes)
    languages = dict(sorted(meter.languages.items(), key=lambda item: -item[1].bytes))
    unused = int(np.count_nonzero(meter.uses == 0)) - len(SPECIAL_TOKENS)
    probes = {text: [tokenizer.decode([index]) for index in tokenizer.encode(text)] for text in PROBES}
    total = Counts(*(sum(getattr(counts, key) for counts in languages.values()) for key in vars(Counts())))
    return Fertility(name, tokenizer.vocab_size, languages | {TOTAL: total}, unused, probes)


class _Meter:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._single = token_byte_lengths(tokenizer) == 1
        self._partial = _partial_tokens(tokenizer)
        self.uses = np.zeros(tokenizer.vocab_size, np.int64)
        self.languages: dict[str, Counts] = {}

    def add(self, chunk: TextChunk, corpus_name: str) -> None:
        ids, lengths = self._tokenizer.encode_utf8(chunk.data, chunk.offsets)
        self.uses += np.bincount(ids, minlength=len(self.uses))
        data = chunk.data[chunk.offsets[0] : chunk.offsets[-1]]
        offsets = chunk.offsets - chunk.offsets[0]
        token_offsets = np.concatenate([[0], np.cumsum(lengths)])
        names, codes = np.unique([language or corpus_name for language in chunk.languages], return_inverse=True)
        columns = {
            "documents": np.ones(len(lengths), np.int64),
            "bytes": np.diff(offsets),
            "characters": _sums((data & 0xC0) != 0x80, offsets),
            "words": _sums(_word_starts(data, offsets), offsets),
            "tokens": lengths,
            "single_byte": _sums(self._single[ids], token_offsets),
            "partial": _sums(self._partial[ids], token_offsets),
        }
        for key, values in columns.items():
            for name, value in zip(names, np.bincount(codes, values, len(names)), strict=True):
                counts = self.languages.setdefault(str(name), Counts())
                setattr(counts, key, getattr(counts, key) + int(value))


def _sums(values: NDArray[np.bool_], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sum of each slice `values[offsets[i]:offsets[i + 1]]`."""
    upto = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
    return np.diff(upto[offsets])


def _word_starts(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    is_space = (data == 0x20) | ((data >= 0x09) & (data <= 0x0D))
    starts: NDArray[np.bool_] = ~is_space
    starts[1:] &= is_space[:-1]
    first = offsets[:-1][np.diff(offsets) > 0]
    starts[first] = ~is_space[first]
    return starts


def _partial_tokens(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    partial = np.zeros(tokenizer.vocab_size, bool)
    special = set(SPECIAL_TOKENS)
    for index in range(tokenizer.vocab_size):
        token = tokenizer.id_to_token(index)
        if token not in special:
            try:
                unspell(token).decode()
            except UnicodeDecodeError:
                partial[index] = True
    return partial


_COLUMNS: dict[str, Callable[[Counts], str]] = {
    "bytes/token": lambda counts: f"{counts.bytes_per_token:.3f}",
    "characters/token": lambda counts: f"{counts.characters_per_token:.3f}",
    "tokens/word": lambda counts: f"{counts.tokens_per_word:.3f}",
    "single bytes": lambda counts: f"{counts.single_byte / max(counts.tokens, 1):.2%}",
    "partial": lambda counts: f"{counts.partial / max(counts.tokens, 1):.2%}",
}


def fertility_table(reports: Sequence[Fertility]) -> list[list[str]]:
    """Rows of a table that sets tokenizers side by side, the header first; one row per language and tokenizer."""
    rows = [["language", "documents", "MB", "tokenizer", *_COLUMNS]]
    for language in reports[0].languages:
        for report in reports:
            counts = report.languages[language]
            first = [language, f"{counts.documents:,}", f"{counts.bytes / 1e6:.2f}"]
            begin = first if report is reports[0] else ["", "", ""]
            rows.append([*begin, report.name, *(show(counts) for show in _COLUMNS.values())])
    return rows


def vocabulary_table(reports: Sequence[Fertility]) -> list[list[str]]:
    """Rows on what does not depend on language: size, unused entries, the tokens of the probes."""
    rows = [["", *(report.name for report in reports)]]
    rows.append(["vocabulary", *(f"{report.vocab_size:,}" for report in reports)])
    rows.append(["not used by this corpus", *(f"{report.unused:,}" for report in reports)])
    for probe in PROBES:
        rows.append([repr(probe), *(" ".join(map(repr, report.probes[probe])) for report in reports)])
    return rows


def fertility_page(reports: Sequence[Fertility]) -> bytes:
    """The tables as one HTML page without scripts or links."""
    tables = "".join(map(_html_table, (fertility_table(reports), vocabulary_table(reports))))
    style = (
        "body{font-family:sans-serif;margin:2em}td,th{padding:.2em .8em;text-align:right}"
        "td:first-child,th:first-child{text-align:left}tr:nth-child(even){background:#f4f4f4}"
    )
    head = f"<!doctype html><meta charset='utf-8'><title>Fertility</title><style>{style}</style>"
    return f"{head}<h1>Tokenizers on a corpus</h1>{tables}\n".encode()


def _html_table(rows: list[list[str]]) -> str:
    cells = [[html.escape(cell) for cell in row] for row in rows]
    head = "".join(f"<th>{cell}</th>" for cell in cells[0])
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in cells[1:])
    return f"<table><tr>{head}</tr>{body}</table>"


def default_name(path: Path, others: Sequence[Path]) -> str:
    """A tokenizer's name in tables: its directory's, or the whole path if another has the same."""
    return path.name if [other.name for other in others].count(path.name) == 1 else str(path)
