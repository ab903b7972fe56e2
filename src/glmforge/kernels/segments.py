"""Causal attention of some of the tokens' queries over all tokens' keys, inside the documents of a packed batch.

A rank that holds a part of each sequence (`glmforge.parallel.context`) has the queries of its own tokens and has
gathered everybody's keys. Its queries fall into segments: a segment is an unbroken run of queries inside one document,
and it sees the keys from the document's beginning to the run's last token. So each segment is causal attention aligned
at the bottom right: its last query sees all its keys, each query before it one less. Two segments of one document see
overlapping keys.

As in `glmforge.kernels.attention`, one function with several implementations that compute the same thing:

- `dense`: scaled-dot-product attention under an explicit Q x T mask. The reference.
- `documents`: segment by segment, equal shapes batched; no mask over the whole batch ever exists. For the CPU.
- `flex`: FlexAttention under a block mask of document ids and places, compiled. For CUDA; on a CPU it has no backward.
- `varlen`: FlashAttention's variable-length kernel, which aligns at the bottom right and needs each segment's keys next
  to each other: they are copied, at most T * (1 + 1/2cp) rows for one document per row cut in 2cp chunks.
  For CUDA with 16-bit types.

Shapes: T tokens, Q queries, K keys of all segments one after another, H query heads, G key/value heads, P head_dim,
n segments.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask

from glmforge.kernels.attention import equal_segments, flex_under_mask
from glmforge.kernels.block_mask import interval_block_mask
from glmforge.kernels.documents import Documents
from glmforge.kernels.flash3 import causal_flash3
from glmforge.kernels.target import automatic, kernel_device, unknown_implementation
from glmforge.kernels.transfer import on_device
from glmforge.kernels.varlen import causal_varlen_attention


class QueryRange(NamedTuple):
    """An unbroken run of queries inside one document, and the keys it sees (places among the T tokens)."""

    first_key: int
    first_query: int
    end: int

    @property
    def shape(self) -> tuple[int, int]:
        """Number of queries and of keys."""
        return self.end - self.first_query, self.end - self.first_key


@dataclass(frozen=True, eq=False)
class Segments:
    """The segments of Q queries out of T tokens. Made once per micro-batch; what a implementation needs of it is kept.

    Attributes:
        documents: of all T tokens.
        runs: the segments in the order of the queries, on the host.
    """

    documents: Documents
    runs: tuple[QueryRange, ...]

    @classmethod
    def cut(cls, documents: Documents, ranges: Sequence[tuple[int, int]]) -> "Segments":
        """The segments of the queries in `ranges` [begin, end) of the T tokens, in this order.

        Raises:
            ValueError: for no range, or one that is empty or not inside the T tokens.
        """
        num_tokens = documents.num_tokens
        if not ranges or any(not 0 <= begin < end <= num_tokens for begin, end in ranges):
            raise ValueError(f"segments need ranges of one of {num_tokens} tokens or more; got {list(ranges)}")
        borders = [0, *accumulate(documents.lengths)]
        return cls(documents, tuple(run for begin, end in _joined(ranges) for run in _runs(borders, begin, end)))

    @property
    def num_queries(self) -> int:
        return sum(run.end - run.first_query for run in self.runs)

    @property
    def device(self) -> torch.device:
        return self.documents.cu_seqlens.device

    @cached_property
    def places_Q(self) -> Tensor:
        """int64: the place of each query among the T tokens."""
        return _places([(run.first_query, run.end) for run in self.runs], self.device)

    @cached_property
    def key_places_K(self) -> Tensor:
        """int64: the places of the keys of all segments, one segment after another."""
        return _places([(run.first_key, run.end) for run in self.runs], self.device)

    @cached_property
    def borders(self) -> tuple[Tensor, Tensor]:
        """int32 [n + 1] each: where segments begin and end among the Q queries and among the K keys."""
        queries, keys = zip(*(run.shape for run in self.runs), strict=True)
        both_2n = on_device([[0, *accumulate(lengths)] for lengths in (queries, keys)], self.device, torch.int32)
        return both_2n[0], both_2n[1]

    @cached_property
    def longest(self) -> tuple[int, int]:
        """The most queries, and the most keys, of a segment."""
        queries, keys = zip(*(run.shape for run in self.runs), strict=True)
        return max(queries), max(keys)

    @cached_property
    def block_mask(self) -> BlockMask:
        """FlexAttention's mask of Q queries and T keys."""
        places_Q = self.places_Q
        first_Q = places_Q - self.documents.positions_T[places_Q]
        return interval_block_mask(first_Q, places_Q, self.documents.num_tokens)


def _joined(ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The ranges, where one begins at another's end joined to one."""
    start, stop = ranges[0]
    for begin, end in ranges[1:]:
        if begin != stop:
            yield start, stop
            start = begin
        stop = end
    yield start, stop


def _runs(borders: list[int], begin: int, end: int) -> Iterator[QueryRange]:
    """Cut [begin, end) at the documents' borders."""
    document = bisect_right(borders, begin) - 1
    while begin < end:
        stop = min(end, borders[document + 1])
        yield QueryRange(borders[document], begin, stop)
        begin, document = stop, document + 1


def _places(ranges: Sequence[tuple[int, int]], device: torch.device) -> Tensor:
    """int64: the numbers of all ranges, one after another."""
    num_places = sum(end - begin for begin, end in ranges)
    begins, ends = on_device(ranges, device).unbind(1)
    lengths = ends - begins
    shifts = (begins - (lengths.cumsum(0) - lengths)).repeat_interleave(lengths, output_size=num_places)
    return torch.arange(num_places, device=device) + shifts


def segment_attention(
    q_QHP: Tensor, k_TGP: Tensor, v_TGP: Tensor, segments: Segments, *, implementation: str = "auto"
) -> Tensor:
    """o_QHP: softmax(q k^T * P**-0.5) v over the earlier tokens (and itself) of each query's own document.

    Args:
        q_QHP: the queries in the order of `segments`.
        k_TGP, v_TGP: of all T tokens, in their natural order.
        implementation: a name of `IMPLEMENTATIONS`, or "auto": see `glmforge.kernels.target.automatic`.
    """
    if len(k_TGP) != segments.documents.num_tokens:
        raise ValueError(f"attention: {len(k_TGP)} keys, but documents of {segments.documents.num_tokens} tokens")
    implementation = chosen_implementation(q_QHP, implementation)
    order = key_order(segments, implementation)
    if order is not None:
        # Its backward adds the gradients of overlapping segments: of two, so atomic additions stay deterministic.
        k_TGP, v_TGP = (x.index_select(0, order) for x in (k_TGP, v_TGP))
    return attention_of_ordered_keys(q_QHP, k_TGP, v_TGP, segments, implementation)


def chosen_implementation(q_QHP: Tensor, implementation: str) -> str:
    """The name of a implementation, "auto" resolved."""
    if implementation == "auto":
        return automatic("attention", kernel_device(q_QHP.device), q_QHP.dtype)
    if implementation not in IMPLEMENTATIONS:
        raise unknown_implementation("attention", implementation, IMPLEMENTATIONS)
    return implementation


def key_order(segments: Segments, implementation: str) -> Tensor | None:
    """int64: the places of the keys in the order in which the implementation needs them; None is the natural one."""
    return segments.key_places_K if implementation in ("varlen", "flash3") else None


def attention_of_ordered_keys(
    q_QHP: Tensor, k_KGP: Tensor, v_KGP: Tensor, segments: Segments, implementation: str
) -> Tensor:
    """`segment_attention` for a caller who orders keys and values by `key_order`, say while gathering them."""
    if len(q_QHP) != segments.num_queries:
        raise ValueError(f"attention: {len(q_QHP)} queries, but segments of {segments.num_queries}")
    return IMPLEMENTATIONS[implementation](q_QHP, k_KGP, v_KGP, segments)


def _dense(q_QHP: Tensor, k_TGP: Tensor, v_TGP: Tensor, segments: Segments) -> Tensor:
    ids_T, places_Q = segments.documents.ids_T(), segments.places_Q
    places_T = torch.arange(len(ids_T), device=ids_T.device)
    mask_QT = (ids_T[places_Q][:, None] == ids_T) & (places_Q[:, None] >= places_T)
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q_QHP, k_TGP, v_TGP))
    o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask_QT, enable_gqa=True)
    return o.squeeze(0).transpose(0, 1)


def _segments(q_QHP: Tensor, k_TGP: Tensor, v_TGP: Tensor, segments: Segments) -> Tensor:
    runs = segments.runs
    of_shape: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, run in enumerate(runs):
        of_shape[run.shape].append(index)
    queries = q_QHP.split([run.shape[0] for run in runs])
    keys, values = (_pieces(x, runs) for x in (k_TGP, v_TGP))
    outputs: dict[int, Tensor] = {}
    for shape, indices in of_shape.items():
        q = _cat([queries[i] for i in indices])
        k, v = (_cat([piece for i in indices for piece in x[i]]) for x in (keys, values))
        outputs.update(zip(indices, equal_segments(q, k, v, *shape).split(shape[0]), strict=True))
    return _cat([outputs[i] for i in range(len(runs))])


def _pieces(x_TGP: Tensor, runs: Sequence[QueryRange]) -> list[tuple[Tensor, ...]]:
    """The keys of each run in pieces that no run's borders cut, so that the gradients of all meet in one `split`."""
    borders = sorted({0, len(x_TGP)}.union(*((run.first_key, run.end) for run in runs)))
    pieces = x_TGP.split([end - begin for begin, end in pairwise(borders)])
    number = {border: i for i, border in enumerate(borders)}
    return [pieces[number[run.first_key] : number[run.end]] for run in runs]


def _cat(pieces: Sequence[Tensor]) -> Tensor:
    """Without a copy where there is one piece."""
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))


def _flex(q_QHP: Tensor, k_TGP: Tensor, v_TGP: Tensor, segments: Segments) -> Tensor:
    return flex_under_mask(q_QHP, k_TGP, v_TGP, segments.block_mask)


def _varlen(q_QHP: Tensor, k_KGP: Tensor, v_KGP: Tensor, segments: Segments) -> Tensor:
    return causal_varlen_attention()(q_QHP, k_KGP, v_KGP, *segments.borders, *segments.longest)


def _flash3(q_QHP: Tensor, k_KGP: Tensor, v_KGP: Tensor, segments: Segments) -> Tensor:
    return causal_flash3()(q_QHP, k_KGP, v_KGP, *segments.borders, *segments.longest)


IMPLEMENTATIONS: dict[str, Callable[[Tensor, Tensor, Tensor, Segments], Tensor]] = {
    "dense": _dense,
    "documents": _segments,
    "flex": _flex,
    "varlen": _varlen,
    "flash3": _flash3,
}
"""Each takes keys and values ordered by its `key_order`."""
