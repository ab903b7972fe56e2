"""Is a document a program? And in which language?

A path in the metadata (`path`, `file_path`, `filename`), or else the id, is believed if its name or extension is one
that only programs have. A `#!` line is believed next. Extensions that a page of text may have as well (.html, .php,
.json) and the path of a URL, which names what a server made, are no evidence: there, as where nothing is named, the
text decides (`content`). Programs here are also markup, style sheets and configuration (HTML, CSS, JSON, YAML).
"""

from dataclasses import dataclass

import numpy as np
import orjson
from numpy.typing import NDArray

from glmforge.data.documents.batch import DocumentBatch
from glmforge_corpus.filter.code.content import language_of_text
from glmforge_corpus.filter.code.programming_language import language_of_interpreter, language_of_path

CODE = "code"
PATH_KEYS = ("path", "file_path", "filename", "max_stars_repo_path")

_NO_EVIDENCE = frozenset({"html", "php", "xml", "csv", "tex", "json", "vue"})


@dataclass(frozen=True, slots=True)
class CodeFound:
    """What the detector says of a batch.

    Attributes:
        is_code: `[n]`.
        scores: `[n]`, the probability of being a program; 1 where a name says so, 0 for what is none.
        languages: row -> programming language, of the programs.
    """

    is_code: NDArray[np.bool_]
    scores: NDArray[np.float32]
    languages: dict[int, str]


def detect_code(batch: DocumentBatch, *, by_text: bool = True) -> CodeFound:
    """Find the programs of a batch: by their names, and where those say nothing by their texts, unless told not to."""
    scores, languages = np.zeros(len(batch), np.float32), dict[int, str]()
    text, offsets = batch.text_bytes, batch.text_offsets
    for row, (name, metadata) in enumerate(zip(batch.ids, batch.table.column("metadata").to_pylist(), strict=True)):
        path = _path(metadata) or name
        named = None if "://" in path else language_of_path(path)
        start, stop = offsets[row], offsets[row + 1]
        certain = None if named in _NO_EVIDENCE else named
        certain = certain or language_of_interpreter(text[start : min(start + 200, stop)].tobytes())
        if certain:
            languages[row], scores[row] = certain, 1
        elif by_text and (found := language_of_text(text[start:stop].tobytes())):
            languages[row], scores[row] = named or found[0], found[1]
    is_code = np.zeros(len(batch), np.bool_)
    is_code[list(languages)] = True
    return CodeFound(is_code, scores, languages)


def _path(metadata: str | None) -> str | None:
    """The path that metadata tell; they are parsed only if they have one of the keys."""
    if not metadata or not any(key in metadata for key in PATH_KEYS):
        return None
    values = orjson.loads(metadata)
    return next((value for key in PATH_KEYS if isinstance(value := values.get(key), str)), None)
