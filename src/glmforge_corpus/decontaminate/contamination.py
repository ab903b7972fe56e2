"""Which items of evaluation sets stand in which texts.

    sets = [EvaluationSet(name="gsm8k", path="gsm8k-test.jsonl")]
    for finding in Contamination.load(sets).find(["How many bolts ..."]):
        print(finding.set_name, finding.item, finding.share)

Three rules. *Exact*: a run of 13 words in common, the rule of GPT-3 (arXiv:2005.14165, appendix C); items shorter than
that must stand there whole. *Fuzzy*: the n-grams that an item shares with one stretch of text cover at
least half of its words, and no fewer than 13, as in PaLM (arXiv:2204.02311: 70 % of 8-grams), Llama 3
(arXiv:2407.21783: a share of words covered by 8-grams, per set) and Tülu 3 (arXiv:2411.15124: half the words); it
holds when words were changed here and there so that no 13 are left in a row. N-grams have 6 words here: measured,
they find nine in ten copies with a tenth of their words edited where those of 8 find 84 %, and no more in clean text;
with 5, solutions of one pattern are taken for each other. *Edited*: a short item stands there with at most a fifth of
its words replaced, omitted or added (`edited_passages.py`). Words are compared without case, punctuation and accents;
n-grams that prove nothing are omitted (`glmforge.data.passages`).
"""

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from glmforge.config.fields import YamlPath
from glmforge.config.model import Strict
from glmforge.data.documents.batch import DocumentBatch
from glmforge.data.passages.normalised_words import fold_table
from glmforge.data.passages.passage_index import (
    COMMON_ITEMS,
    MIN_WORDS,
    RUN_WORDS,
    SEED_WORDS,
    PassageIndex,
    build_index,
)
from glmforge.data.passages.passage_search import scan
from glmforge.errors import DataError
from glmforge_corpus.decontaminate.edited_passages import EditedPassages, build_edited
from glmforge_corpus.decontaminate.evaluation_sets import (
    PROGRAM_FIELDS,
    EvaluationSet,
    Item,
    read_items,
)

EXCERPT_CHARACTERS = 300


class Matching(Strict):
    """When a text is said to hold an item."""

    run_words: int = Field(
        default=RUN_WORDS,
        ge=2,
        description="consecutive words that count as contamination; shorter items must occur completely",
    )
    seed_words: int = Field(
        default=SEED_WORDS, ge=2, le=32, description="words per n-gram in the search for runs and shares"
    )
    min_words: int = Field(
        default=MIN_WORDS,
        ge=1,
        description="shorter items are not searched for, since many texts contain them by chance",
    )
    share: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="fraction of an item's words, in n-grams shared with one passage, that counts as contamination",
    )
    edited: float = Field(
        default=0.2,
        ge=0,
        le=0.5,
        description="share of an item's words that may be edited, for items of up to 40 words",
    )
    common_items: int = Field(
        default=COMMON_ITEMS,
        ge=1,
        description="n-grams in more items than this count as boilerplate and are ignored",
    )
    ignore: Annotated[tuple[YamlPath, ...], Field(strict=False)] = Field(
        default=(), description="text files whose n-grams are ignored: licences, famous texts that items quote"
    )

    def check(self) -> None:
        """Raises `DataError` for what cannot be."""
        if self.run_words < self.seed_words:
            raise DataError(
                f"run_words {self.run_words}: must be at least seed_words ({self.seed_words}): n-grams find runs"
            )
        for path in self.ignore:
            if not path.is_file():
                raise DataError(f"ignore: {path}: no such file: check the path")


MIN_PROGRAM_WORDS = 16
"""Shorter programs, and shorter runs of them, are idiom, which anybody may have written (two nested loops over ranges
have 14)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A place of a text that an item was found at.

    Attributes:
        document: which text.
        set_name, item, field: what was found.
        rule: "run", "whole" (an item shorter than a run), "share" or "edited".
        start, stop: bytes of the text's UTF-8.
        run_words: longest run of words in common; 0 for "edited".
        share: of the item's searchable words that are there; for "edited" of all its words.
        excerpt: the beginning of the place.
    """

    document: int
    set_name: str
    item: str
    field: str
    rule: str
    start: int
    stop: int
    run_words: int
    share: float
    excerpt: str


@dataclass(frozen=True, slots=True)
class SetSummary:
    """How much of a set is searched for; `num_short` items have no passage with enough words that say something."""

    name: str
    num_items: int
    num_searchable: int
    num_short: int


@dataclass(frozen=True, slots=True)
class Contamination:
    """Evaluation sets, ready to be looked for. Made by `load`.

    Attributes:
        passages: (item, field) per passage of the index.
        items: all items that are searched for.
        run_words: `[p]` words in a row that are proof.
        least_words: `[p]` words that each passage must have.
    """

    matching: Matching
    items: Sequence[Item]
    passages: Sequence[tuple[int, str]]
    index: PassageIndex
    edited: EditedPassages
    run_words: NDArray[np.int64]
    least_words: NDArray[np.int64]
    summaries: Sequence[SetSummary]

    @staticmethod
    def load(against: Sequence[EvaluationSet], matching: Matching | None = None) -> "Contamination":
        """Read sets and index them.

        Raises:
            DataError: a set or a file to ignore cannot be read, or nothing in the sets is long enough to search for.
        """
        items = [item for evaluation_set in against for item in read_items(evaluation_set)]
        return Contamination.of_items(items, matching)

    @staticmethod
    def of_items(items: Sequence[Item], matching: Matching | None = None) -> "Contamination":
        """As `load`, for items that are in memory."""
        matching = matching or Matching()
        matching.check()
        passages = [
            _Passage(i, field, text, joined)
            for i, item in enumerate(items)
            for joined, own in ((False, item.passages), (True, item.joined))
            for field, text in own
        ]
        text, offsets = _as_bytes(passage.text for passage in passages)
        owners = np.array([passage.item for passage in passages], np.int64)
        programs = np.array([passage.field in PROGRAM_FIELDS for passage in passages], np.bool_)
        least = np.where(programs, max(matching.min_words, MIN_PROGRAM_WORDS), matching.min_words)
        run = np.where(programs, max(matching.run_words, MIN_PROGRAM_WORDS), matching.run_words)
        ignored = _as_bytes(_read_text(path) for path in matching.ignore) if matching.ignore else None
        build = functools.partial(
            build_index, text, offsets, owners, matching.seed_words, matching.common_items, ignored
        )
        wanted = np.array([not passage.joined for passage in passages], np.bool_)
        index = build(only=wanted)
        enough = index.searchable(run, least) & (index.num_words >= run)
        joined = ~wanted & ~np.isin(owners, owners[enough])
        if joined.any():
            wanted |= joined
            index = build(only=wanted)
        editable = wanted & ~programs & (index.num_words >= least)
        edited = build_edited(text, offsets, owners, editable, matching.edited, matching.common_items, ignored)
        searchable = index.searchable(run, least) | (edited.edits >= 0)
        summaries = _summaries(items, owners.tolist(), searchable)
        if not any(summary.num_searchable for summary in summaries):
            names = ", ".join(summary.name for summary in summaries)
            raise DataError(
                f"evaluation sets {names}: no item has {matching.min_words} searchable words; list longer fields "
                "under 'fields', or lower min_words"
            )
        named = [(passage.item, passage.field) for passage in passages]
        return Contamination(matching, items, named, index, edited, run, least, summaries)

    def find(self, texts: Sequence[str]) -> list[Finding]:
        """Every place where a text holds an item, by text, set, place."""
        return self.find_in(DocumentBatch.from_columns([""] * len(texts), texts, ""))

    def find_in(self, batch: DocumentBatch) -> list[Finding]:
        """As `find`, for the texts of a batch."""
        text, offsets = batch.text_bytes, batch.text_offsets
        hits, short_hits = scan(text, offsets, fold_table(), self.index.table, self.edited.index.table)
        found = self.index.judge(hits, self.run_words, self.matching.share, self.least_words)
        known = set(zip(found[:, 0].tolist(), found[:, 1].tolist(), strict=True))
        places = [(row, "") for row in found.tolist()]
        for row in self.edited.judge(short_hits, text, offsets).tolist():
            if (row[0], row[1]) not in known:
                places.append((row, "whole" if row[5] == self.index.num_words[row[1]] else "edited"))
        places.sort(key=lambda place: place[0][:3])
        return [self._finding(row, rule, text, offsets) for row, rule in places]

    def _finding(self, row: list[int], rule: str, text: NDArray[np.uint8], offsets: NDArray[np.int64]) -> Finding:
        document, passage, start, stop, run_words, covered, is_run = row
        item, field = self.passages[passage]
        whole = self.index.num_words[passage] < self.matching.run_words
        return Finding(
            document=document,
            set_name=self.items[item].set_name,
            item=self.items[item].id,
            field=field,
            rule=rule or (("whole" if whole else "run") if is_run else "share"),
            start=start - int(offsets[document]),
            stop=stop - int(offsets[document]),
            run_words=run_words,
            share=covered / int((self.index.num_words if rule else self.index.num_searchable)[passage]),
            excerpt=text[start : min(stop, start + 4 * EXCERPT_CHARACTERS)]
            .tobytes()
            .decode(errors="ignore")[:EXCERPT_CHARACTERS],
        )


@dataclass(frozen=True, slots=True)
class _Passage:
    item: int
    field: str
    text: str
    joined: bool


@functools.lru_cache(maxsize=1)
def load_once(against: tuple[EvaluationSet, ...], matching: Matching) -> Contamination:
    """`Contamination.load`, kept for the next task of this process."""
    return Contamination.load(against, matching)


def _summaries(items: Sequence[Item], owners: Sequence[int], searchable: NDArray[np.bool_]) -> list[SetSummary]:
    found = {owner for owner, can_be in zip(owners, searchable, strict=True) if can_be}
    totals = Counter(item.set_name for item in items)
    can_be_found = Counter(items[owner].set_name for owner in found)
    return [SetSummary(name, total, can_be_found[name], total - can_be_found[name]) for name, total in totals.items()]


def _as_bytes(texts: Iterable[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Texts as UTF-8 end to end, and where each begins."""
    encoded = [text.encode(errors="replace") for text in texts]
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    return np.frombuffer(b"".join(encoded), np.uint8), offsets


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError as error:
        raise DataError(f"ignore: {path}: cannot be read ({error}): check the path") from error
