"""A block: one operation on every document of a batch.

Blocks change texts (normalise, mask), add scores and languages, and judge. They are configuration themselves: a
frozen pydantic model whose fields are the options of the pipeline file, so that an option cannot be misspelled and a
pickled block is small. What takes long to load (a model, a compiled pattern) is loaded by the process that needs it, at
first use: keep it in a module-level `functools.cache` keyed by the options.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from glmforge.config.model import Strict
from glmforge.data.documents.batch import DocumentBatch


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a block made of a batch of n documents.

    Attributes:
        batch: all n documents, in order, with what the block changed or added.
        failed: rule -> `[n]` bool, true where a document fails the rule. A document that fails any rule is removed;
            the first rule in the mapping's order that it fails is the reason, each rule's failures are counted.
        counts: anything else worth adding up over the corpus, such as addresses masked.
    """

    batch: DocumentBatch
    failed: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)


class Block(Strict, ABC):
    """One step over batches of documents; its fields are the options in the pipeline file.

    Attributes:
        kind: the block's name in a pipeline file, such as "gopher_quality".
        revision: raise it when the block's results change, so that finished tasks are not taken for current ones.
    """

    kind: ClassVar[str]
    revision: ClassVar[int] = 1

    @abstractmethod
    def process(self, batch: DocumentBatch) -> Outcome:
        """Apply the block. A pure function of the batch: the order and number of batches must not matter."""

    def check(self) -> Self:
        """Refuse what this machine lacks (a model, a list) before anything runs. Raises `DataError`."""
        return self
