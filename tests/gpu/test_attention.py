"""Attention back ends of a device against the plain reference in fp64: values, gradients, odd lengths, long rows."""

import pytest
import torch
from torch import Tensor

from glmforge.kernels.attention import attention
from glmforge.kernels.documents import Documents
from glmforge.kernels.segments import Segments, segment_attention
from glmforge.parallel.context import GatheredKeyValues, Ulysses, local_ranges, zigzag_index
from glmforge.parallel.world import World
from helpers.devices import on, relative_error
from helpers.kernels import module_with

# fp32 with sums in another order (flex on a GPU may multiply in TF32: 2^-11); bf16 rounds inputs, probabilities and
# outputs to 2^-9, and gradients are sums of such.
FP32, BF16 = (torch.float32, 2e-3), (torch.bfloat16, 2e-2)
BACKENDS = [
    on("cpu", "documents", *FP32),
    on("cpu", "documents", *BF16),
    on("cuda", "dense", *FP32),
    on("cuda", "flex", *FP32),
    on("cuda", "flex", *BF16),
    on("cuda", "varlen", *BF16),
]
SEGMENT_BACKENDS = [
    on("cpu", "documents", *FP32),
    on("cuda", "flex", *FP32),
    on("cuda", "flex", *BF16),
    on("cuda", "varlen", *BF16),
]
LENGTHS = {"packed": [1, 37, 128, 5, 85], "one": [129], "single tokens": [1, 1, 1], "block": [256, 128]}
HEADS = {"as Air": (12, 1, 128), "grouped": (8, 2, 64), "whole": (4, 4, 64)}


@pytest.fixture(autouse=True)
def each_test_compiles_anew() -> None:
    """After eight forms of a function torch.compile gives up on it, and FlexAttention would run uncompiled."""
    if torch.cuda.is_available():
        torch._dynamo.reset()


def qkv_of(num_tokens: int, heads: tuple[int, int, int] = (8, 2, 64)) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    num_heads, num_kv_heads, head_dim = heads
    shapes = [(num_tokens, n, head_dim) for n in (num_heads, num_kv_heads, num_kv_heads)]
    return [torch.randn(shape, generator=generator) for shape in shapes]


def with_gradients(output: Tensor, qkv: list[Tensor]) -> list[Tensor]:
    upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    return [output, *torch.autograd.grad(output, qkv, upstream.to(output))]


def assert_close(actual: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for name, a, e in zip(("output", "q", "k", "v"), actual, expected, strict=True):
        # A token alone sees itself whatever q and k are: their gradients are zero but for rounding.
        error = relative_error(a, e) if e.norm() > 1e-6 else a.detach().float().norm().item()
        assert error < tolerance, f"{name}: {error:.1e}"


@pytest.mark.parametrize(("device", "implementation", "dtype", "tolerance"), BACKENDS)
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS.keys())
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
def test_attention(
    device: str,
    implementation: str,
    dtype: torch.dtype,
    tolerance: float,
    heads: tuple[int, int, int],
    lengths: list[int],
) -> None:
    def run(device: str, dtype: torch.dtype, implementation: str) -> list[Tensor]:
        qkv = [x.to(device, dtype).requires_grad_() for x in qkv_of(sum(lengths), heads)]
        return with_gradients(
            attention(*qkv, Documents.from_lengths(lengths, device), implementation=implementation), qkv
        )

    assert_close(run(device, dtype, implementation), run("cpu", torch.float64, "dense"), tolerance)


@pytest.mark.parametrize(("device", "implementation", "dtype", "tolerance"), SEGMENT_BACKENDS)
@pytest.mark.parametrize(("cp", "rank"), [(1, 0), (2, 0), (2, 1), (4, 1)])
def test_attention_of_some_of_the_queries(
    device: str, implementation: str, dtype: torch.dtype, tolerance: float, cp: int, rank: int
) -> None:
    lengths = [1, 37, 128, 5, 85, 256]

    def run(device: str, dtype: torch.dtype, implementation: str) -> list[Tensor]:
        qkv = [x.to(device, dtype).requires_grad_() for x in qkv_of(512)]
        index = zigzag_index(2, 256, cp, rank, device)
        segments = Segments.cut(Documents.from_lengths(lengths, device), local_ranges(2, 256, cp, rank))
        return with_gradients(segment_attention(qkv[0][index], *qkv[1:], segments, implementation=implementation), qkv)

    assert_close(run(device, dtype, implementation), run("cpu", torch.float64, "dense"), tolerance)


@pytest.mark.parametrize(("device", "implementation", "dtype", "tolerance"), SEGMENT_BACKENDS)
@pytest.mark.parametrize("kind", ["gathered", "gathered again", "ulysses"])
def test_context_parallel_attention_on_one_rank(
    device: str, implementation: str, dtype: torch.dtype, tolerance: float, kind: str
) -> None:
    """The hooks around the kernels; with one rank the gather is the identity."""
    lengths = [1, 37, 128, 5, 85, 256]

    def run(device: str, dtype: torch.dtype, implementation: str) -> list[Tensor]:
        attend_class = Ulysses if kind == "ulysses" else GatheredKeyValues
        documents = Documents.from_lengths(lengths, device)
        attend = attend_class(documents, World.single(device), 2, 256)
        if kind == "gathered again":
            attend.regather = True
        qkv = [x.to(device, dtype).requires_grad_() for x in qkv_of(512)]
        return with_gradients(attend(module_with(attention=implementation), *qkv), qkv)

    assert_close(run(device, dtype, implementation), run("cpu", torch.float64, "dense"), tolerance)


@pytest.mark.parametrize(
    ("device", "implementation", "num_tokens"),
    [on("cpu", "documents", 3000), on("cuda", "varlen", 131072), on("cuda", "flex", 131072)],
)
def test_a_long_row(device: str, implementation: str, num_tokens: int) -> None:
    """Some queries of one long document against softmax written out; no mask of all by all tokens fits anywhere."""
    qkv = [x.to(device, torch.bfloat16).requires_grad_() for x in qkv_of(num_tokens, (2, 1, 128))]
    documents = Documents.from_lengths([num_tokens - 5, 5], device)
    output = attention(*qkv, documents, implementation=implementation)
    torch.autograd.grad(output.float().square().mean(), qkv)
    q, k, v = (x.detach().float() for x in qkv)
    for query in (0, 1, 127, num_tokens // 2 + 1, num_tokens - 6):
        scores = q[query] @ k[: query + 1, 0].T * 128**-0.5
        expected = scores.softmax(-1) @ v[: query + 1, 0]
        assert relative_error(output[query], expected) < 2e-2, query
