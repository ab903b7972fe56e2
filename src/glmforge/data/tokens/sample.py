"""A sample of a corpus to train a tokenizer on: this many bytes of each source, chosen by a hash of document ids.

What is sampled depends on the ids and the seed alone, not on the order of the files or on who reads them; a document
that is in a sample is also in every larger one. A source is read twice: first only to see how many bytes fall into
each of 65,536 bins of the hash, so that nothing must be kept in memory, then for the text of the bins that fit.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import Field, ValidationError, model_validator

from glmforge.config.explain import explain
from glmforge.config.fields import YamlPath, refuse_duplicates
from glmforge.config.model import Strict
from glmforge.config.tree import as_mapping, parse, to_value
from glmforge.data.documents.document import Document
from glmforge.data.tokens.text_chunks import Selection, TextChunk, chunks_of
from glmforge.errors import ConfigError, DataError

NUM_BINS = 1 << 16


class SampleSource(Strict):
    """One source of a mixture."""

    name: str = Field(min_length=1, description="name in reports")
    paths: tuple[YamlPath, ...] = Field(strict=False, min_length=1, description="its files and directories")
    weight: float = Field(default=1.0, gt=0, description="its weight in the sample, relative to the others")


class SampleMixture(Strict):
    """A mixture file of `glmforge data tokenizer`: sources and their weights."""

    sources: tuple[SampleSource, ...] = Field(strict=False, min_length=1, description="what to sample from")

    @model_validator(mode="after")
    def _check_names(self) -> "SampleMixture":
        refuse_duplicates("sources", [source.name for source in self.sources])
        return self


@dataclass(frozen=True)
class Sampled:
    """The documents whose hash lies in the first `num_bins` bins."""

    num_bins: int
    seed: int = 0

    def __call__(self, document_id: str) -> bool:
        return _bin(document_id, self.seed) < self.num_bins


@dataclass(frozen=True)
class Share:
    """How much of a source a sample has.

    Attributes:
        name: of the source.
        selection: its documents.
        num_bytes: of text in the sample.
        num_bytes_there: of text in the source.
        num_bytes_wanted: what its weight would give it.
    """

    name: str
    selection: Selection
    num_bytes: int
    num_bytes_there: int
    num_bytes_wanted: int


def load_mixture(path: str | Path) -> SampleMixture:
    """Read a mixture file; relative paths are relative to the working directory.

    Raises:
        ConfigError: the file cannot be read, or a key of it is wrong.
    """
    path = Path(path)
    try:
        tree = as_mapping(parse(path.read_text(encoding="utf-8"), str(path)))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"{path}: cannot be read: {reason}") from None
    try:
        return SampleMixture.model_validate(to_value(tree))
    except ValidationError as error:
        raise ConfigError(explain(error, SampleMixture, tree)) from None


def plan_sample(
    corpora: Sequence[tuple[str, Iterable[Document], float]],
    num_bytes: int,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> list[Share]:
    """Which documents of each (name, corpus, weight) make up `num_bytes` of text; reads the corpora once.

    A source that has less than its weight asks for is taken whole; others do not make up for it. `progress` is told
    the bytes of text of each chunk that was read.

    Raises:
        DataError: the sample is so small that no document is in it; a corpus has no documents or cannot be read.
    """
    total = sum(weight for _, _, weight in corpora)
    shares = [_share(name, corpus, int(num_bytes * weight / total), seed, progress) for name, corpus, weight in corpora]
    if not any(share.num_bytes for share in shares):
        there = sum(share.num_bytes_there for share in shares)
        raise DataError(
            f"a sample of {num_bytes:,} of the {there:,} available bytes contains no document; use a larger one"
        )
    return shares


def _share(
    name: str, corpus: Iterable[Document], wanted: int, seed: int, progress: Callable[[int], None] | None
) -> Share:
    sizes = np.zeros(NUM_BINS, np.int64)
    for work in chunks_of(corpus):
        chunk = work.read()
        bins = np.fromiter((_bin(id_, seed) for id_ in chunk.ids), np.int64, len(chunk.ids))
        np.add.at(sizes, bins, np.diff(chunk.offsets))
        if progress is not None:
            progress(chunk.num_bytes)
    upto = np.cumsum(sizes)
    num_bins = int(np.searchsorted(upto, wanted, "right"))
    taken = int(upto[num_bins - 1]) if num_bins else 0
    return Share(name, Sampled(num_bins, seed), taken, int(upto[-1]), wanted)


def sampled_chunks(
    corpora: Sequence[tuple[str, Iterable[Document], float]], shares: Sequence[Share] | None
) -> Iterator[TextChunk]:
    """The texts of the sample, or of everything; reads the corpora once more."""
    for number, (_, corpus, _) in enumerate(corpora):
        for work in chunks_of(corpus, shares[number].selection if shares else None):
            yield work.read()


def _bin(document_id: str, seed: int) -> int:
    digest = hashlib.blake2b(document_id.encode(), digest_size=2, salt=seed.to_bytes(8, "little"), person=b"sample")
    return int.from_bytes(digest.digest(), "little")
