"""One text of a corpus, and which texts are held out of training."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from glmforge.errors import DataError


@dataclass(frozen=True, slots=True)
class Document:
    """One text.

    Attributes:
        id: names the document within its corpus, the same on every machine and wherever the corpus lies.
        text: its text, never empty.
        source: the file it was read from.
    """

    id: str
    text: str
    source: str


class _Part:
    """The documents on one side of the split, read again at each iteration."""

    def __init__(self, documents: Iterable[Document], fraction: float, seed: int, held_out: bool) -> None:
        self._documents, self._fraction, self._seed, self._held_out = documents, fraction, seed, held_out

    def __iter__(self) -> Iterator[Document]:
        for document in self._documents:
            if is_held_out(document.id, self._fraction, self._seed) == self._held_out:
                yield document


def split_held_out(
    documents: Iterable[Document], fraction: float, seed: int = 0
) -> tuple[Iterable[Document], Iterable[Document]]:
    """(training documents, held-out documents); both can be iterated any number of times.

    `documents` is read once per iteration of a part, so that no corpus has to fit in memory; it must
    therefore be a collection or a corpus, not a generator.

    Raises:
        DataError: `fraction` is not in [0, 1), or `documents` can be read only once.
    """
    if not 0 <= fraction < 1:
        raise DataError(f"held-out fraction {fraction}: must be at least 0 and less than 1")
    if iter(documents) is documents:
        raise DataError("documents: a generator can be read only once; pass a list or read_documents(...)")
    return _Part(documents, fraction, seed, False), _Part(documents, fraction, seed, True)


def is_held_out(document_id: str, fraction: float, seed: int = 0) -> bool:
    """Whether a document is held out: a pure function of its ID, independent of the rest of the corpus.

    A document that is held out stays so when the corpus grows or the fraction is raised.
    """
    digest = hashlib.blake2b(document_id.encode(), digest_size=8, salt=seed.to_bytes(8, "little")).digest()
    return int.from_bytes(digest, "little") < fraction * 2**64
