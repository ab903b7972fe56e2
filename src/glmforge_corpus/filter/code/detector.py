"""Is a text a program? And in which language?

A linear model on the features of `features`, trained by `benchmarks/data/code_detector.py` on installed sources
and well-known repositories against manuals, web pages, books and mathematics in forty languages. Programs here are
also markup, style sheets and configuration (HTML, CSS, JSON, YAML). Prose with listings in it stays prose. Texts in
capitals throughout are judged as if they were in small letters, and a text with next to no signs of syntax is prose
however short its lines are: the model was fitted on whole documents, in which such texts are rare.

A path in the metadata (`path`, `file_path`, `filename`), or else the id, is evidence too: a file extension that
only programs have outweighs a text that looks like prose to a degree (comments and licences do). Extensions that a
page of text may have as well (.html, .php, .md) are no evidence: what was extracted from such a page is prose.
"""

# mypy: disable-error-code="no-any-return"
# To type checkers, a compiled function may return anything.

from dataclasses import dataclass

import numpy as np
import orjson
from numpy.typing import NDArray

from glmforge.data.compiled import compiled
from glmforge.data.documents.batch import DocumentBatch
from glmforge_corpus.filter.code.features import FEATURES, NUM_FEATURES, text_features
from glmforge_corpus.filter.code.programming_language import language_of_content, language_of_path
from glmforge_corpus.filter.code.programming_signs import READ_BYTES
from glmforge_corpus.filter.code.weights import BIAS, WEIGHTS

CODE = "code"
PATH_KEYS = ("path", "file_path", "filename", "max_stars_repo_path")
EVIDENCE_OF_PATH = 3.0
"""In logits: a text that the model takes for a program with a probability of 5 % or more is one if its path says so."""

MIN_BYTES = 32
"""A shorter text tells too little: "123" might be anything."""

MIN_SYNTAX = 0.015
"""Signs of syntax (`features.SYNTAX`) per byte; one in a hundred excerpts of programs has fewer, mostly of comment."""

WITHOUT_SYNTAX = -2.0
"""The most that the logit of a text with fewer can be: a program only if its path says so."""

_NO_EVIDENCE = frozenset({"html", "php", "xml", "csv", "tex", "json", "vue"})
_WEIGHTS = np.array([WEIGHTS[name] for name in FEATURES])


@dataclass(frozen=True, slots=True)
class CodeFound:
    """What the detector says of a batch.

    Attributes:
        is_code: `[n]`.
        scores: `[n]`, the probability of being a program.
        languages: row -> programming language, for the programs whose language is known.
    """

    is_code: NDArray[np.bool_]
    scores: NDArray[np.float32]
    languages: dict[int, str]


def detect_code(batch: DocumentBatch) -> CodeFound:
    """Find the programs of a batch."""
    text, offsets = batch.text_bytes, batch.text_offsets
    logits = np.where(np.diff(offsets) < MIN_BYTES, -EVIDENCE_OF_PATH, code_logits(text, offsets))
    by_path = _languages_of_paths(batch)
    for row, language in by_path.items():
        logits[row] += EVIDENCE_OF_PATH if language not in _NO_EVIDENCE else 0
    is_code = logits > 0
    languages = {}
    for row in np.flatnonzero(is_code).tolist():
        stop = min(offsets[row] + READ_BYTES, offsets[row + 1])
        if known := by_path.get(row) or language_of_content(text[offsets[row] : stop].tobytes()):
            languages[row] = known
    return CodeFound(is_code, (1 / (1 + np.exp(-logits))).astype(np.float32), languages)


@compiled
def _logits(
    text: NDArray[np.uint8], offsets: NDArray[np.int64], weights: NDArray[np.float64], without_syntax: float
) -> NDArray[np.float64]:
    features = np.zeros(NUM_FEATURES)
    logits = np.zeros(len(offsets) - 1)
    for index in range(len(offsets) - 1):
        syntax = text_features(text, offsets[index], offsets[index + 1], features)
        for feature in range(NUM_FEATURES):
            logits[index] += weights[feature] * features[feature]
        if syntax < MIN_SYNTAX:
            logits[index] = min(logits[index], without_syntax)
    return logits


def code_logits(text: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """`[n]`: log odds of each text being a program, judged by the text alone."""
    return np.asarray(_logits(text, offsets, _WEIGHTS, WITHOUT_SYNTAX - BIAS) + BIAS)


def _languages_of_paths(batch: DocumentBatch) -> dict[int, str]:
    found: dict[int, str] = {}
    ids, metadata = batch.ids, batch.table.column("metadata").to_pylist()
    for row, (name, values) in enumerate(zip(ids, metadata, strict=True)):
        path = _path(values) if values and '"' in values else None
        language = language_of_path(path or name)
        if language:
            found[row] = language
    return found


def _path(metadata: str) -> str | None:
    """The path that metadata tell; they are parsed only if they have one of the keys."""
    if not any(key in metadata for key in PATH_KEYS):
        return None
    values = orjson.loads(metadata)
    return next((value for key in PATH_KEYS if isinstance(value := values.get(key), str)), None)
