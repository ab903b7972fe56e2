"""What one forward pass reads."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from glmforge.errors import DataError
from glmforge.kernels.documents import Documents

IGNORED_LABEL = -100
"""Cross-entropy's mark for a token that has no target."""


@dataclass(frozen=True)
class Batch:
    """B rows of S tokens, and the documents packed in each row. Legend: B batch, S sequence.

    Attributes:
        ids_BS: int64 token ids.
        labels_BS: int64, the token after each; `IGNORED_LABEL` where there is none to predict.
        document_lengths: per row, the lengths of its documents in order; they add up to S.
        sample_indices: per row, its number in the phase's order.
        source_B: per row, the index of its source in the run's `data.sources`.
        per_token: whatever else an objective reads of each token, by name, [B, S]: advantages, masks.
        per_row: whatever else it reads of each row, by name, [B].

    Raises:
        ValueError: a named tensor has another shape.
    """

    ids_BS: Tensor
    labels_BS: Tensor
    document_lengths: tuple[tuple[int, ...], ...]
    sample_indices: tuple[int, ...]
    source_B: tuple[int, ...]
    per_token: Mapping[str, Tensor] = field(default_factory=dict)
    per_row: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        expected = {"per_token": self.ids_BS.shape, "per_row": self.ids_BS.shape[:1]}
        for kind, shape in expected.items():
            for name, tensor in getattr(self, kind).items():
                if tensor.shape != shape:
                    raise ValueError(f"{kind}['{name}'] is {list(tensor.shape)}, not {list(shape)}")

    @property
    def num_tokens(self) -> int:
        return self.ids_BS.numel()

    @property
    def num_label_tokens(self) -> int:
        """Tokens that have a target: the loss's denominator. Waits for the device if the batch is on one."""
        return int((self.labels_BS != IGNORED_LABEL).sum())

    def to(self, device: torch.device | str) -> Self:
        """On `device`; a GPU's copy from page-locked memory runs beside what it computes."""
        ahead = torch.device(device).type == "cuda"
        return self._with_tensors(lambda tensor: tensor.to(device, non_blocking=ahead))

    def pin_memory(self) -> Self:
        """A copy in page-locked memory, from which a GPU fetches while it computes."""
        return self._with_tensors(Tensor.pin_memory)

    def documents(self) -> Documents:
        """The documents of all B*S tokens, row after row, on the batch's device; none crosses a row. Made once."""
        return self._documents

    @cached_property
    def _documents(self) -> Documents:
        lengths = [length for row in self.document_lengths for length in row]
        return Documents.from_lengths(lengths, self.ids_BS.device)

    def rows(self, start: int, stop: int) -> Self:
        """The batch of rows [start, stop)."""
        return replace(
            self._with_tensors(lambda tensor: tensor[start:stop]),
            document_lengths=self.document_lengths[start:stop],
            sample_indices=self.sample_indices[start:stop],
            source_B=self.source_B[start:stop],
        )

    def micro_batches(self, size: int) -> list[Self]:
        """The batch cut in batches of `size` rows.

        Raises:
            DataError: `size` does not divide the number of rows.
        """
        num_rows = len(self.ids_BS)
        if size < 1 or num_rows % size:
            raise DataError(
                f"parallel.micro_batch_size {size}: does not divide the {num_rows} sequences of a rank's "
                f"share; choose a divisor of {num_rows}"
            )
        return [self.rows(start, start + size) for start in range(0, num_rows, size)]

    def _with_tensors(self, change: Callable[[Tensor], Tensor]) -> Self:
        return replace(
            self,
            ids_BS=change(self.ids_BS),
            labels_BS=change(self.labels_BS),
            per_token={name: change(tensor) for name, tensor in self.per_token.items()},
            per_row={name: change(tensor) for name, tensor in self.per_row.items()},
        )
