"""Answers become rows: prompt and answer are one document, packed with others, with what the objective reads of each.

What is about a token stands at the token before it, like labels. The prompt has no labels, and what an
environment said has none.

Shapes: B rows, S tokens per row.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from glmforge.data.stream.batch import IGNORED_LABEL, ROUTED_EXPERTS, Batch, PackedDocument, pack
from glmforge.objectives.policy import ADVANTAGE, OLD_LOGPROB, REFERENCE_LOGPROB, ROLLOUT_LOGPROB
from glmforge.objectives.value import OLD_VALUE, RETURN
from glmforge.rl.samples import Answer

_FIELDS = {
    ROLLOUT_LOGPROB: "logprobs_N",
    ADVANTAGE: "advantages_N",
    OLD_LOGPROB: "old_N",
    REFERENCE_LOGPROB: "reference_N",
    OLD_VALUE: "values_N",
    RETURN: "returns_N",
}


def rows_of(answers: Sequence[Answer], seq_len: int) -> list[list[Answer]]:
    """Answers in rows of at most `seq_len` tokens: the longest first, each into the fullest row that has room."""
    rows: list[list[Answer]] = []
    left: list[int] = []
    for one in sorted(answers, key=lambda one: (-one.num_tokens, one.key)):
        fitting = [place for place, room in enumerate(left) if room >= one.num_tokens]
        if fitting:
            place = min(fitting, key=lambda place: (left[place], place))
            rows[place].append(one)
            left[place] -= one.num_tokens
        else:
            rows.append([one])
            left.append(seq_len - one.num_tokens)
    return rows


def batch_of(
    rows: Sequence[Sequence[Answer]], seq_len: int, num_rows: int, *, num_layers: int, num_choices: int
) -> Batch:
    """A batch of `num_rows` rows; those beyond `rows` are filling, and train nothing.

    Args:
        num_layers, num_choices: MoE layers of the trunk, and experts of a token, of recorded experts.
    """
    some = next((one for row in rows for one in row), None)
    names = [name for name, of in _FIELDS.items() if some is None or getattr(some, of) is not None]
    has_experts = some is not None and some.experts is not None
    documents = [[_document(one, names, has_experts) for one in row] for row in rows]
    filling = _filling(names, (num_layers, num_choices) if has_experts else None)
    documents += [[filling] for _ in range(num_rows - len(rows))]
    return pack(documents, seq_len, sample_indices=range(num_rows), source_B=[0] * num_rows)


def _document(one: Answer, names: Sequence[str], has_experts: bool) -> PackedDocument:
    start, number = len(one.prompt_P) - 1, len(one.tokens_N)
    ids_N = torch.from_numpy(np.concatenate((one.prompt_P, one.tokens_N)).astype(np.int64))
    labels_N = torch.full_like(ids_N, IGNORED_LABEL)
    labels_N[start : start + number] = ids_N[start + 1 :]
    labels_N[start : start + number][torch.from_numpy(~one.own_N)] = IGNORED_LABEL
    per_token: dict[str, Tensor] = {}
    for name in names:
        values_N = torch.zeros(len(ids_N))
        values_N[start : start + number] = torch.from_numpy(getattr(one, _FIELDS[name]))
        per_token[name] = values_N
    if has_experts:
        assert one.experts is not None, "recorded of all answers, or of none"
        experts = torch.from_numpy(one.experts.astype(np.int16))
        per_token[ROUTED_EXPERTS] = torch.cat((experts, experts.new_full((1, *experts.shape[1:]), -1)))
    return PackedDocument(ids_N, labels_N, per_token)


def _filling(names: Sequence[str], shape: tuple[int, int] | None) -> PackedDocument:
    ids_N = torch.zeros(1, dtype=torch.int64)
    per_token: dict[str, Tensor] = {name: torch.zeros(1) for name in names}
    if shape is not None:
        per_token[ROUTED_EXPERTS] = torch.full((1, *shape), -1, dtype=torch.int16)
    return PackedDocument(ids_N, torch.full_like(ids_N, IGNORED_LABEL), per_token)


def unpacked(values_BS: Tensor, rows: Sequence[Sequence[Answer]]) -> dict[tuple[int, int], np.ndarray]:
    """Answer's key -> float32 [N], what a forward pass over the batch of `rows` says of its tokens."""
    found = {}
    for row, values_S in zip(rows, values_BS, strict=False):
        place = 0
        for one in row:
            start = place + len(one.prompt_P) - 1
            found[one.key] = values_S[start : start + len(one.tokens_N)].float().numpy().copy()
            place += one.num_tokens
    return found


def last_values(values_BS: Tensor, rows: Sequence[Sequence[Answer]]) -> dict[tuple[int, int], float]:
    """Answer's key -> what a forward pass over the batch of `rows` says at its last token."""
    found = {}
    for row, values_S in zip(rows, values_BS, strict=False):
        end = 0
        for one in row:
            end += one.num_tokens
            found[one.key] = float(values_S[end - 1])
    return found
