"""What one forward pass reads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, Self

import torch
from torch import Tensor

from glmforge.errors import DataError
from glmforge.kernels.documents import Documents

IGNORED_LABEL = -100
"""Cross-entropy's mark for a token that has no target."""

ROUTED_EXPERTS = "routed_experts"
"""In `Batch.per_token`, integers [B, S, L, K] (int16 will do): the experts that tokens are sent to in each MoE layer
instead of the router's choice; see `glmforge.model.inputs.Routing`."""


@dataclass(frozen=True)
class Batch:
    """B rows of S tokens, and the documents packed in each row. Legend: B batch, S sequence.

    Attributes:
        ids_BS: int64 token ids.
        labels_BS: int64, the token after each; `IGNORED_LABEL` at positions without a label.
        document_lengths: per row, the lengths of its documents in order; they add up to S.
        sample_indices: per row, its number in the phase's order.
        source_B: per row, the index of its source in the run's `data.sources`.
        per_token: further tensors per token, by name, [B, S, ...]: advantages, masks, a teacher's logits
            [B, S, K]. `ROUTED_EXPERTS` is read by the model.
        per_row: further tensors per row, by name, [B, ...].

    Raises:
        ValueError: a named tensor is not of these tokens or rows.
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
                if tensor.shape[: len(shape)] != shape:
                    raise ValueError(f"{kind}['{name}'] is {list(tensor.shape)} and must begin with {list(shape)}")

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
                f"parallel.micro_batch_size {size}: does not divide the rank's {num_rows} sequences; choose a "
                f"divisor of {num_rows}"
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


class PackedDocument(NamedTuple):
    """The tokens of one document of a row: `ids_N` and `labels_N` as in `Batch`, `per_token` [N, ...] by name."""

    ids_N: Tensor
    labels_N: Tensor
    per_token: Mapping[str, Tensor]


def pack(
    rows: Sequence[Sequence[PackedDocument]],
    seq_len: int,
    *,
    sample_indices: Sequence[int],
    source_B: Sequence[int],
    per_row: Mapping[str, Tensor] | None = None,
    fill_id: int = 0,
) -> Batch:
    """A batch of rows of one or more documents, each filled up to `seq_len` by a document without labels.

    Named tensors are 0 in the filling, and -1 if they are `ROUTED_EXPERTS`: its tokens choose their experts.

    Raises:
        DataError: documents are longer than their row, or differ in the names of their tensors.
    """
    names = rows[0][0].per_token.keys()
    lengths: list[tuple[int, ...]] = []
    for number, row in zip(sample_indices, rows, strict=True):
        of_row = tuple(len(document.ids_N) for document in row)
        if (left := seq_len - sum(of_row)) < 0:
            raise DataError(f"sample {number}: its documents have {sum(of_row):,} tokens; a row has {seq_len:,}")
        for document in row:
            if document.per_token.keys() != names:
                raise DataError(f"sample {number}: has {sorted(document.per_token)}, other documents {sorted(names)}")
        lengths.append((*of_row, left) if left else of_row)

    per_token = {
        name: _filled([[document.per_token[name] for document in row] for row in rows], seq_len, fill)
        for name, fill in ((name, -1 if name == ROUTED_EXPERTS else 0) for name in names)
    }
    return Batch(
        _filled([[document.ids_N for document in row] for row in rows], seq_len, fill_id),
        _filled([[document.labels_N for document in row] for row in rows], seq_len, IGNORED_LABEL),
        tuple(lengths),
        tuple(sample_indices),
        tuple(source_B),
        per_token,
        per_row or {},
    )


def _filled(rows: list[list[Tensor]], seq_len: int, fill: int) -> Tensor:
    """[B, S, ...]: the parts of each row one after another, then `fill`."""
    whole = rows[0][0].new_full((len(rows), seq_len, *rows[0][0].shape[1:]), fill)
    for of_row, parts in zip(whole, rows, strict=True):
        tokens = torch.cat(parts)
        of_row[: len(tokens)] = tokens
    return whole
