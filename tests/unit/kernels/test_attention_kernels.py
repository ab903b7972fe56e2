"""Every implementation against explicit softmax attention in float64, token by token."""

import pytest
import torch

from glmforge.kernels import attention as kernels
from glmforge.kernels.attention import attention
from glmforge.kernels.documents import Documents

H, G, P = 6, 2, 8
LENGTHS = [
    [1],
    [7],
    [64, 64],
    [1, 5, 1, 70, 5, 130],  # odd sizes, equal ones apart from each other, more than one block of queries
]


def reference(q_THP, k_TGP, v_TGP, documents):
    """Softmax over the earlier tokens of the same document, written out."""
    k_THP, v_THP = (x.repeat_interleave(H // G, dim=1) for x in (k_TGP, v_TGP))
    ids_T = documents.ids_T()
    visible_TT = (ids_T[:, None] == ids_T) & (torch.arange(len(ids_T))[:, None] >= torch.arange(len(ids_T)))
    scores_HTT = torch.einsum("thp,shp->hts", q_THP, k_THP) * P**-0.5
    probs_HTT = scores_HTT.masked_fill(~visible_TT, float("-inf")).softmax(dim=-1)
    return torch.einsum("hts,shp->thp", probs_HTT, v_THP)


def random_qkv(num_tokens, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(num_tokens, H, P), (num_tokens, G, P), (num_tokens, G, P)]
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for s in shapes]


def output_and_gradients(function, qkv):
    output = function(*qkv)
    upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return [output, *torch.autograd.grad(output, qkv, upstream.to(output.dtype))]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("implementation", ["dense", "documents"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        # float64 and float32: rounding of sums of some hundred terms of size one.
        (torch.float64, 1e-12),
        (torch.float32, 1e-5),
        # bfloat16 keeps 8 bits: inputs, scores and probabilities are each rounded by up to 2^-9 of values up to ~4,
        # and gradients sum some such terms.
        (torch.bfloat16, 8e-2),
    ],
    ids=str,
)
def test_equals_reference(implementation, lengths, dtype, tolerance):
    documents = Documents.from_lengths(lengths)
    qkv = random_qkv(documents.num_tokens, dtype)
    exact_qkv = [x.detach().double().requires_grad_() for x in qkv]
    expected = output_and_gradients(lambda q, k, v: reference(q, k, v, documents), exact_qkv)
    actual = output_and_gradients(lambda q, k, v: attention(q, k, v, documents, implementation=implementation), qkv)
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a.double(), e, atol=tolerance, rtol=tolerance)


def test_long_documents_take_the_flash_kernel_to_the_same_result(monkeypatch):
    monkeypatch.setattr(kernels, "MAX_LENGTH_IN_BLOCKS", 4)
    documents = Documents.from_lengths([3, 9, 9, 4])
    qkv = random_qkv(documents.num_tokens)
    expected = output_and_gradients(lambda q, k, v: reference(q, k, v, documents), qkv)
    actual = output_and_gradients(lambda q, k, v: attention(q, k, v, documents, implementation="documents"), qkv)
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, atol=1e-12, rtol=1e-12)


def test_gradcheck(monkeypatch):
    monkeypatch.setattr(kernels, "BLOCK_QUERIES", 2)
    documents = Documents.from_lengths([5, 1, 5])
    assert torch.autograd.gradcheck(lambda q, k, v: attention(q, k, v, documents), random_qkv(11))


def test_reads_strided_inputs():
    documents = Documents.from_lengths([5, 5])
    q, k, v = random_qkv(10)
    fused = torch.cat([x.flatten(1) for x in (q, k, v)], dim=1)
    views = [x.unflatten(1, (-1, P)) for x in fused.split([H * P, G * P, G * P], dim=1)]
    torch.testing.assert_close(attention(*views, documents), attention(q, k, v, documents))


# Inductor says once per process that 'dynamic' FlexAttention on a CPU is a prototype.
@pytest.mark.filterwarnings("ignore")
def test_flex_forward_without_compilation(monkeypatch):
    monkeypatch.setattr(kernels, "_compiled_flex", lambda: kernels.flex_attention)
    documents = Documents.from_lengths([1, 5, 30])
    q, k, v = (x.detach().float() for x in random_qkv(36))
    expected = reference(q, k, v, documents)
    torch.testing.assert_close(attention(q, k, v, documents, implementation="flex"), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("implementation", "dtype"), [("flex", torch.float32), ("varlen", torch.bfloat16)])
def test_cuda_implementations_equal_dense(implementation, dtype):
    documents = Documents.from_lengths([1, 100, 27, 128], device="cuda")
    shapes = [(256, 8, 64), (256, 2, 64), (256, 2, 64)]
    qkv = [torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for shape in shapes]
    expected = output_and_gradients_on_cuda("dense", qkv, documents)
    # bfloat16: as above. float32: TensorFloat-32 is off, sums of some hundred terms.
    tolerance = 1e-4 if dtype == torch.float32 else 8e-2
    for a, e in zip(output_and_gradients_on_cuda(implementation, qkv, documents), expected, strict=True):
        torch.testing.assert_close(a, e, atol=tolerance, rtol=tolerance)


def output_and_gradients_on_cuda(implementation, qkv, documents):
    output = attention(*qkv, documents, implementation=implementation)
    return [output, *torch.autograd.grad(output.float().square().sum(), qkv)]


def test_unknown_implementation_and_wrong_length_are_errors():
    q, k, v = random_qkv(4)
    with pytest.raises(ValueError, match="unknown implementation 'fast'; choose one of dense, documents"):
        attention(q, k, v, Documents.from_lengths([4]), implementation="fast")
    with pytest.raises(ValueError, match="4 queries, but documents of 5 tokens"):
        attention(q, k, v, Documents.from_lengths([5]))


def test_auto_on_the_cpu_never_sees_a_mask_of_the_whole_batch(monkeypatch):
    monkeypatch.setitem(kernels.IMPLEMENTATIONS, "dense", None)
    documents = Documents.from_lengths([4, 3])
    q, k, v = random_qkv(7)
    torch.testing.assert_close(attention(q, k, v, documents), reference(q, k, v, documents))
