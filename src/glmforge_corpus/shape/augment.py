"""The stage that adds altered copies of documents.

A model that has seen clean prose only is put off by what users type. A share of the documents goes on a second time,
altered in a known way, beside the original: with its metadata in front (Gao et al., "Metadata Conditioning Accelerates
Language Model Pre-training", 2025, arXiv:2501.01956), with the slips of a hurried typist, in another case, or with its
lines broken anew. Which documents, and which letters, is a matter of a hash of the id and the seed.
"""

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import orjson
import xxhash
from pydantic import Field

from glmforge.data.documents.batch import DocumentBatch, concatenate
from glmforge_corpus.pipeline.stage import PerShard, Stage, StageContext, Step, TaskOutput

Operation = Literal["metadata", "typing", "case", "lines"]
Generator = np.random.Generator

_SHOWN_METADATA = ("title", "url", "date", "author", "licence", "path", "programming_language")
_NEIGHBOURS = {
    letter: "".join(row[max(0, i - 1) : i] + row[i + 1 : i + 2])
    for row in ("qwertyuiop", "asdfghjkl", "zxcvbnm")
    for i, letter in enumerate(row)
}
_WIDTHS = (60, 72, 80, 100)


class Augment(Stage):
    """Altered copies of a share of the documents, beside the originals; the copy of `a` has the id `a#typing`."""

    kind: ClassVar[str] = "augment"
    operations: dict[Operation, Annotated[float, Field(gt=0, le=1)]] = Field(
        min_length=1,
        description="operation -> share of the documents that get such a copy: metadata, typing, case, lines",
    )
    typing_rate: float = Field(default=0.01, gt=0, le=0.2, description="share of letters with a typing error")

    def steps(self, context: StageContext) -> list[Step]:
        return [_Augment(tuple(context.shards), self, context.seed)]

    def describe(self) -> str:
        return "augment: " + ", ".join(f"{name} {share:.1%}" for name, share in self.operations.items())


@dataclass(frozen=True)
class _Augment(PerShard):
    options: Augment
    seed: int

    def process(self, batch: DocumentBatch, output: TaskOutput) -> DocumentBatch:
        return concatenate([batch, *(self._copies(batch, name, output) for name in self.options.operations)])

    def _copies(self, batch: DocumentBatch, name: Operation, output: TaskOutput) -> DocumentBatch:
        hashes = np.array(
            [xxhash.xxh3_64_intdigest(f"{name} {id_}".encode(), self.seed) for id_ in batch.ids], np.uint64
        )
        rows = np.flatnonzero(hashes < np.uint64(min(int(self.options.operations[name] * 2**64), 2**64 - 1)))
        chosen = batch.take(rows)
        altered, ids = [], []
        metadata = chosen.table.column("metadata").to_pylist()
        for id_, text, about, seed in zip(chosen.ids, chosen.texts, metadata, hashes[rows].tolist(), strict=True):
            altered.append(
                _OPERATIONS[name](text, orjson.loads(about or b"{}"), np.random.default_rng(seed), self.options)
            )
            ids.append(f"{id_}#{name}")
        changed = np.array([new != old for new, old in zip(altered, chosen.texts, strict=True)], bool)
        output.statistics.counts[f"copies: {name}"] += int(changed.sum())
        output.statistics.counts[f"nothing to change: {name}"] += int((~changed).sum())
        return chosen.with_texts(altered).with_ids(ids).keep(changed)


def _with_metadata(text: str, metadata: Mapping[str, object], random: Generator, options: Augment) -> str:
    lines = [f"{name}: {metadata[name]}" for name in _SHOWN_METADATA if metadata.get(name)]
    return "\n".join([*lines, "", text]) if lines else text


def _with_slips(text: str, metadata: Mapping[str, object], random: Generator, options: Augment) -> str:
    """Letters swapped with the next, omitted, doubled, or mistaken for a neighbour on the keyboard."""
    letters = list(text)
    for position in np.flatnonzero(random.random(len(letters)) < options.typing_rate).tolist():
        letter = letters[position]
        if not letter.isalpha():
            continue
        match random.integers(4):
            case 0 if position + 1 < len(letters) and letters[position + 1].isalpha():
                letters[position], letters[position + 1] = letters[position + 1], letter
            case 1:
                letters[position] = ""
            case 2:
                letters[position] = letter * 2
            case _ if letter.lower() in _NEIGHBOURS:
                near = _NEIGHBOURS[letter.lower()]
                chosen = near[int(random.integers(len(near)))]
                letters[position] = chosen.upper() if letter.isupper() else chosen
    return "".join(letters)


def _in_other_case(text: str, metadata: Mapping[str, object], random: Generator, options: Augment) -> str:
    return (text.lower(), text.upper(), text.title())[int(random.choice(3, p=(0.7, 0.15, 0.15)))]


def _with_other_lines(text: str, metadata: Mapping[str, object], random: Generator, options: Augment) -> str:
    """Paragraphs filled to another width, or each in one line."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    if random.random() < 0.5:
        return "\n\n".join(paragraphs)
    width = _WIDTHS[int(random.integers(len(_WIDTHS)))]
    return "\n\n".join(textwrap.fill(paragraph, width, break_long_words=False) for paragraph in paragraphs)


_OPERATIONS: dict[Operation, Callable[[str, Mapping[str, object], Generator, Augment], str]] = {
    "metadata": _with_metadata,
    "typing": _with_slips,
    "case": _in_other_case,
    "lines": _with_other_lines,
}
