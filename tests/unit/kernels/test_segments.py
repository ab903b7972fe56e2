"""Attention of a part of the queries equals the same rows of attention of all, outputs and gradients."""

import random

import pytest
import torch
from torch import Tensor

from glmforge.kernels import attention as kernels
from glmforge.kernels import segments as module
from glmforge.kernels.attention import attention
from glmforge.kernels.documents import Documents
from glmforge.kernels.segments import QueryRange, Segments, key_order, segment_attention
from glmforge.kernels.varlen import causal

H, G, P = 4, 2, 16
SEQ_LEN = 48
# float32: sums of some dozen terms of size one. bfloat16 keeps 8 bits: inputs, scores and probabilities are each
# rounded by up to 2^-9 of values up to ~4, and gradients sum some such terms.
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 8e-2}


def packed(num_rows: int, seed: int) -> Documents:
    """Rows of random documents, at least one of them long, and one row that is a single document."""
    draw = random.Random(seed)
    lengths = []
    for row in range(num_rows):
        left = SEQ_LEN
        while left:
            length = SEQ_LEN if row == 1 else min(left, draw.choice([1, 2, 7, 30]))
            lengths.append(length)
            left -= length
    return Documents.from_lengths(lengths)


def zigzag(num_rows: int, cp: int, rank: int) -> list[tuple[int, int]]:
    """Chunks `rank` and 2cp - 1 - `rank` of every row, written down independently of glmforge.parallel.context."""
    chunk = SEQ_LEN // (2 * cp)
    begins = [row * SEQ_LEN + number * chunk for row in range(num_rows) for number in (rank, 2 * cp - 1 - rank)]
    return [(begin, begin + chunk) for begin in begins]


def random_qkv(num_tokens: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(num_tokens, H, P), (num_tokens, G, P), (num_tokens, G, P)]
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def local(x: Tensor, ranges: list[tuple[int, int]]) -> Tensor:
    return torch.cat([x[begin:end] for begin, end in ranges])


def output_and_gradients(output: Tensor, qkv: list[Tensor], upstream: Tensor) -> list[Tensor]:
    return [output, *torch.autograd.grad(output, qkv, upstream.to(output.dtype))]


@pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)
@pytest.mark.parametrize("num_rows", [1, 2, 3])
@pytest.mark.parametrize("cp", [1, 2, 4])
@pytest.mark.parametrize("implementation", ["dense", "documents"])
def test_ranks_together_equal_whole_rows(implementation: str, cp: int, num_rows: int, dtype: torch.dtype) -> None:
    documents = packed(num_rows, seed=num_rows)
    exact_qkv, qkv = random_qkv(documents.num_tokens, torch.float32), random_qkv(documents.num_tokens, dtype)
    upstream = torch.randn(documents.num_tokens, H, P, generator=torch.Generator().manual_seed(1))
    expected = output_and_gradients(attention(*exact_qkv, documents, implementation="dense"), exact_qkv, upstream)
    gradients = [torch.zeros_like(x, dtype=torch.float32) for x in qkv]
    for rank in range(cp):
        ranges = zigzag(num_rows, cp, rank)
        segments = Segments.cut(documents, ranges)
        output = segment_attention(local(qkv[0], ranges), qkv[1], qkv[2], segments, implementation=implementation)
        assert output.dtype == dtype
        actual = output_and_gradients(output, qkv, local(upstream, ranges))
        torch.testing.assert_close(
            actual[0].float(), local(expected[0], ranges), atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype]
        )
        for total, part in zip(gradients, actual[1:], strict=True):
            total += part
    for total, e in zip(gradients, expected[1:], strict=True):
        torch.testing.assert_close(total, e, atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])


RANGES = [
    [(0, 1)],  # one token
    [(95, 96), (0, 3)],  # out of order
    [(5, 40), (50, 51), (60, 96)],  # across documents' and rows' borders
]


@pytest.mark.parametrize("ranges", RANGES, ids=str)
@pytest.mark.parametrize("longest", [1024, 8])
def test_any_ranges_equal_dense(ranges: list[tuple[int, int]], longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where keys are more than go in blocks, and queries more than go in one block."""
    monkeypatch.setattr(kernels, "MAX_LENGTH_IN_BLOCKS", longest)
    monkeypatch.setattr(kernels, "BLOCK_QUERIES", 5)
    documents = packed(2, seed=0)
    segments = Segments.cut(documents, ranges)
    results = []
    for implementation in ("dense", "documents"):
        qkv = random_qkv(documents.num_tokens, torch.float32)
        output = segment_attention(local(qkv[0], ranges), *qkv[1:], segments, implementation=implementation)
        results.append([output, *torch.autograd.grad(output.square().sum(), qkv)])
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("longest", [1024, 1], ids=["blocks", "flash"])
def test_gradcheck(longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "BLOCK_QUERIES", 2)
    monkeypatch.setattr(kernels, "MAX_LENGTH_IN_BLOCKS", longest)
    segments = Segments.cut(Documents.from_lengths([5, 1, 5]), [(3, 5), (5, 6), (9, 11)])
    shapes = [(5, H, P), (11, G, P), (11, G, P)]
    qkv = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(lambda q, k, v: segment_attention(q, k, v, segments), qkv)


def test_long_segments_save_nothing_of_queries_times_keys() -> None:
    num_queries, num_keys = 1024, 2048
    segments = Segments.cut(Documents.from_lengths([num_keys]), [(num_keys - num_queries, num_keys)])
    shapes = [(num_queries, H, P), (num_keys, G, P), (num_keys, G, P)]
    q, k, v = (torch.randn(shape, requires_grad=True) for shape in shapes)
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        segment_attention(q, k, v, segments, implementation="documents")
    # Queries and outputs, keys and values, and a number for each query and head.
    assert sum(x.numel() for x in saved) == 2 * q.numel() + 2 * k.numel() + num_queries * H


def test_runs_are_cut_at_documents_and_joined_where_ranges_meet() -> None:
    documents = Documents.from_lengths([4, 8, 4])
    segments = Segments.cut(documents, [(2, 6), (6, 10), (13, 14)])
    assert segments.runs == (QueryRange(0, 2, 4), QueryRange(4, 4, 10), QueryRange(12, 13, 14))
    assert [run.shape for run in segments.runs] == [(2, 4), (6, 6), (1, 2)]
    assert segments.places_Q.tolist() == [2, 3, 4, 5, 6, 7, 8, 9, 13]
    assert segments.num_queries == 9


def varlen_by_the_book(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    window_size: tuple[int, int],
    enable_gqa: bool,
) -> Tensor:
    """What the CUDA kernel documents: sequence by sequence, causal aligned at the bottom right."""
    assert (window_size, enable_gqa) == ((-1, 0), True)
    q, k, v, cu_q, cu_k = query, key, value, cu_seq_q, cu_seq_k
    assert (cu_q.dtype, cu_k.dtype) == (torch.int32, torch.int32)
    assert (int(cu_q.diff().max()), int(cu_k.diff().max())) == (max_q, max_k)
    assert (len(q), len(k), len(v)) == (int(cu_q[-1]), int(cu_k[-1]), int(cu_k[-1]))
    outputs = []
    for i in range(len(cu_q) - 1):
        rows, columns = slice(cu_q[i], cu_q[i + 1]), slice(cu_k[i], cu_k[i + 1])
        keys, values = (x[columns].repeat_interleave(H // G, dim=1) for x in (k, v))
        scores = torch.einsum("qhp,khp->hqk", q[rows], keys) * P**-0.5
        future = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1 + len(keys) - len(q[rows]))
        outputs.append(torch.einsum("hqk,khp->qhp", scores.masked_fill(future, -torch.inf).softmax(-1), values))
    return torch.cat(outputs)


@pytest.mark.parametrize("ranges", RANGES, ids=str)
def test_what_the_varlen_kernel_is_given(ranges: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "causal_varlen_attention", lambda: causal(varlen_by_the_book))
    documents = packed(2, seed=0)
    segments = Segments.cut(documents, ranges)
    qkv = random_qkv(documents.num_tokens, torch.float32)
    results = []
    for implementation in ("dense", "varlen"):
        output = segment_attention(local(qkv[0], ranges), *qkv[1:], segments, implementation=implementation)
        results.append([output, *torch.autograd.grad(output.square().sum(), qkv)])
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


# Inductor says once per process that 'dynamic' FlexAttention on a CPU is a prototype.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ranges", RANGES, ids=str)
def test_flex_forward_without_compilation(ranges: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_compiled_flex", lambda: kernels.flex_attention)
    documents = packed(2, seed=0)
    segments = Segments.cut(documents, ranges)
    q, k, v = (x.detach() for x in random_qkv(documents.num_tokens, torch.float32))
    expected, actual = (
        segment_attention(local(q, ranges), k, v, segments, implementation=implementation)
        for implementation in ("dense", "flex")
    )
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def test_auto_on_the_cpu_never_sees_a_mask_of_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = packed(1, seed=0)
    segments = Segments.cut(documents, [(8, 20)])
    q, k, v = random_qkv(SEQ_LEN, torch.float32)
    expected = segment_attention(q[8:20], k, v, segments, implementation="dense")
    monkeypatch.setitem(module.IMPLEMENTATIONS, "dense", None)
    torch.testing.assert_close(segment_attention(q[8:20], k, v, segments), expected)
    assert key_order(segments, "documents") is None


def test_wrong_arguments_are_errors() -> None:
    documents = Documents.from_lengths([4])
    segments = Segments.cut(documents, [(1, 3)])
    q, k, v = random_qkv(4, torch.float32)
    with pytest.raises(ValueError, match="unknown implementation 'fast'; choose one of dense, documents"):
        segment_attention(q[1:3], k, v, segments, implementation="fast")
    with pytest.raises(ValueError, match="4 queries, but segments of 2"):
        segment_attention(q, k, v, segments)
    with pytest.raises(ValueError, match="3 keys, but documents of 4 tokens"):
        segment_attention(q[1:3], k[:3], v[:3], segments)
    for ranges in ([], [(2, 2)], [(3, 5)], [(-1, 2)]):
        with pytest.raises(ValueError, match="ranges of one of 4 tokens or more"):
            Segments.cut(documents, ranges)
