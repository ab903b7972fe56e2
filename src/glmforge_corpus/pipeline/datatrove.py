"""datatrove's steps in our pipelines, and our blocks in theirs."""

import functools
from collections.abc import Iterable, Iterator
from importlib import import_module
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import orjson
from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.filters.base_filter import BaseFilter
from pydantic import Field

from glmforge.data.documents.batch import DocumentBatch
from glmforge.errors import ConfigError, DataError
from glmforge_corpus.block import Block, Outcome

_ROW = "glmforge_row"


class DatatroveBlock(Block):
    """One of datatrove's filters or formatters as a block.

    A document that the step does not hand on is removed, for the reason it gives if it is a filter. The step sees a
    batch as one rank of one; a step that makes new documents, or must see the whole corpus, is no block.
    """

    kind: ClassVar[str] = "datatrove"
    step: str = Field(description="module:class, such as datatrove.pipeline.filters:UnigramLogProbFilter")
    options: dict[str, Any] = Field(default_factory=dict, description="arguments of the class")

    def process(self, batch: DocumentBatch) -> Outcome:
        step = _make(self.step, orjson.dumps(self.options, option=orjson.OPT_SORT_KEYS))
        reasons: dict[str, list[int]] = {}
        kept: dict[int, Document] = {}
        documents = to_documents(batch)
        if isinstance(step, BaseFilter):
            for row, document in enumerate(documents):
                verdict = step.filter(document)
                passed, reason = verdict if isinstance(verdict, tuple) else (verdict, "removed")
                if passed:
                    kept[row] = document
                else:
                    reasons.setdefault(reason, []).append(row)
        else:
            kept = {_row_of(document, self.step): document for document in step.run(_numbered(documents), 0, 1)}
            reasons["removed"] = [row for row in range(len(batch)) if row not in kept]
        name = self.step.rpartition(":")[2]
        failed = {f"{name}: {reason}": _mask(rows, len(batch)) for reason, rows in sorted(reasons.items()) if rows}
        return Outcome(_with_changes(batch, kept), failed)


class BlockStep(PipelineStep):  # type: ignore[misc]
    """One of our blocks as a step of a datatrove pipeline.

    Args:
        block: what to do.
        batch_documents: how many documents it gets at once.
    """

    type = "glmforge"

    def __init__(self, block: Block, batch_documents: int = 1000) -> None:
        super().__init__()
        self.name = block.kind
        self._block, self._batch_documents = block, batch_documents

    def run(self, data: Iterable[Document], rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """The documents that the block keeps, with its changes; scores and language go into `metadata`."""
        documents = iter(data)
        while chunk := list(islice(documents, self._batch_documents)):
            outcome = self._block.process(from_documents(chunk))
            failed = np.zeros(len(chunk), bool)
            for rule, mask in outcome.failed.items():
                failed |= mask
                self.stat_update(rule, value=int(mask.sum()), unit="doc")
            scores = {name: outcome.batch.score(name) for name in outcome.batch.score_names}
            languages = outcome.batch.table.column("language").to_pylist()
            for row, (document, text) in enumerate(zip(chunk, outcome.batch.texts, strict=True)):
                if failed[row]:
                    continue
                document.text = text
                document.metadata |= {name: float(values[row]) for name, values in scores.items()}
                if languages[row] is not None:
                    document.metadata["language"] = languages[row]
                yield document


def to_documents(batch: DocumentBatch) -> list[Document]:
    """A batch as datatrove's documents; source, language and scores stand in their metadata."""
    columns = {name: batch.table.column(name).to_pylist() for name in ("id", "text", "source", "language", "metadata")}
    scores = {name: batch.score(name) for name in batch.score_names}
    documents = []
    for row in range(len(batch)):
        metadata = orjson.loads(columns["metadata"][row] or b"{}")
        metadata |= {"source": columns["source"][row], "language": columns["language"][row]}
        metadata |= {name: float(values[row]) for name, values in scores.items() if not np.isnan(values[row])}
        documents.append(Document(text=columns["text"][row], id=columns["id"][row], metadata=metadata))
    return documents


def from_documents(documents: list[Document]) -> DocumentBatch:
    """datatrove's documents as a batch; `source` and `language` are taken from their metadata."""
    return DocumentBatch.from_columns(
        [document.id for document in documents],
        [document.text for document in documents],
        [str(document.metadata.get("source", "datatrove")) for document in documents],
        languages=[document.metadata.get("language") for document in documents],
        metadata=[orjson.dumps(document.metadata, default=str).decode() for document in documents],
    )


@functools.cache
def _make(name: str, options: bytes) -> PipelineStep:
    module, _, cls = name.partition(":")
    try:
        return getattr(import_module(module), cls)(**orjson.loads(options))
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"datatrove.step: '{name}' cannot be created: {error}: write it as module:Class") from error


def _numbered(documents: list[Document]) -> Iterator[Document]:
    for row, document in enumerate(documents):
        document.metadata[_ROW] = row
        yield document


def _row_of(document: Document, step: str) -> int:
    row = document.metadata.pop(_ROW, None)
    if not isinstance(row, int):
        raise DataError(
            f"datatrove.step: '{step}' produces documents itself; only filters and formatters can be blocks"
        )
    return row


def _mask(rows: list[int], num_documents: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    mask = np.zeros(num_documents, bool)
    mask[rows] = True
    return mask


def _with_changes(batch: DocumentBatch, kept: dict[int, Document]) -> DocumentBatch:
    texts = batch.texts
    changed = {row: document.text for row, document in kept.items() if document.text != texts[row]}
    return batch.with_texts([changed.get(row, text) for row, text in enumerate(texts)]) if changed else batch
