"""8-bit products: rounding by hand, the emulation against float64, each gradient by its own recipe."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from glmforge.kernels.fp8 import E4M3, E4M3_MAX, MX_BLOCK, fp8_linear, quantise
from glmforge.kernels.target import kernels_of

FORMATS = [None, MX_BLOCK]
COUNTS = [0, 5, 33, 1, 0, 25]
ROWS, IN, OUT = sum(COUNTS), 64, 96


def tensors(num_experts: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of very different sizes, a weight (fp32 as masters are), and a gradient of the output."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.logspace(-6, 6, ROWS)[torch.randperm(ROWS, generator=generator), None]
    x = (torch.randn(ROWS, IN, generator=generator) * sizes).bfloat16()
    shape = (num_experts, OUT, IN) if num_experts else (OUT, IN)
    return x, torch.randn(shape, generator=generator), torch.randn(ROWS, OUT, generator=generator).bfloat16()


def rounded(x: Tensor, block_size: int | None) -> Tensor:
    """float64: to e4m3 number by number, after a scale by powers of two found by search."""
    result = torch.empty(x.shape, dtype=torch.float64)
    size = block_size or x.shape[-1]
    for before, after in zip(x.double().reshape(-1, size), result.view(-1, size), strict=True):
        exponent = -120
        while before.abs().max() / 2.0**exponent > E4M3_MAX:
            exponent += 1
        after[:] = (before / 2.0**exponent).to(E4M3).double() * 2.0**exponent
    return result


def products(x: Tensor, weight: Tensor, counts: list[int] | None) -> Tensor:
    """float64 x @ weight.T, by expert if there are counts."""
    if counts is None:
        return x @ weight.mT
    return torch.cat([rows @ matrix.mT for rows, matrix in zip(x.split(counts), weight, strict=True)])


@pytest.mark.parametrize("block_size", FORMATS)
def test_rounding_is_to_the_nearest_of_e4m3_below_the_largest(block_size: int | None) -> None:
    x, _, _ = tensors()
    x[3, :MX_BLOCK] = 0
    found = quantise(x, block_size)
    assert found.data.dtype == E4M3
    assert torch.equal(found.scale.log2(), found.scale.log2().round())
    # Exact: the scale is a power of two, and bf16 has all numbers of e4m3 times one.
    assert torch.equal(found.dequantise(torch.bfloat16).double(), rounded(x, block_size))
    largest = found.data.float().abs().unflatten(-1, (found.scale.shape[-1], -1)).amax(-1)
    assert ((largest >= E4M3_MAX / 2) | (largest == 0)).all()


@pytest.mark.parametrize("largest", [448.0, 449.0, 1.75, 1.76, 2.0**-120, 3e38])
def test_the_largest_number_is_never_beyond_e4m3(largest: float) -> None:
    found = quantise(torch.tensor([[largest, -largest / 3]]), None)
    assert found.data.float().isfinite().all()
    # Three bits of mantissa
    assert found.dequantise(torch.float32)[0, 0].item() == pytest.approx(largest, rel=2**-4)


def test_what_is_not_finite_stays_so() -> None:
    x = torch.ones(3, 32)
    x[0, 3], x[1, 4] = torch.inf, torch.nan
    finite = quantise(x, None).dequantise(torch.float32).isfinite().all(1)
    assert finite.tolist() == [False, False, True]


@pytest.mark.parametrize("block_size", FORMATS)
@pytest.mark.parametrize("counts", [None, COUNTS], ids=["dense", "experts"])
def test_each_product_has_its_recipe(counts: list[int] | None, block_size: int | None) -> None:
    x, weight, grad = tensors(len(counts or []))
    x.requires_grad_()
    weight.requires_grad_()
    bias = torch.randn(OUT, requires_grad=True) if counts is None else None
    counts_E = None if counts is None else torch.tensor(counts)
    y = fp8_linear(x, weight, bias=bias, counts_E=counts_E, block_size=block_size)
    y.backward(grad)

    weight16 = weight.detach().bfloat16()
    exact = products(rounded(x.detach(), block_size), rounded(weight16, block_size), counts)
    exact = exact if bias is None else exact + bias.detach().bfloat16().double()
    exact_x = products(rounded(grad, block_size), rounded(weight16.mT.contiguous(), block_size), counts)
    parts = [(grad.double(), x.detach().double())]
    if counts is not None:
        edges = [0, *torch.tensor(counts).cumsum(0).tolist()]
        parts = [(grad[a:b].double(), x.detach()[a:b].double()) for a, b in pairwise(edges)]
    exact_weight = torch.stack([g.mT @ rows for g, rows in parts]).reshape(weight.shape)

    for found, expected in ((y, exact), (x.grad, exact_x), (weight.grad, exact_weight)):
        # Sums in fp32 (2^-24 for each of up to 96 terms, which may cancel), rounded to bf16 once: half of 2^-7 of it.
        scale = expected.abs().amax(-1, keepdim=True)
        assert ((found.double() - expected).abs() <= 2**-8 * expected.abs() + 1e-4 * scale).all()
    assert weight.grad.dtype == torch.float32
    if bias is not None:
        torch.testing.assert_close(bias.grad, grad.float().sum(0), rtol=2**-7, atol=1e-2)


def test_frozen_weights_get_no_gradient_and_inputs_need_none() -> None:
    x, weight, grad = tensors()
    fp8_linear(x, weight.requires_grad_(), block_size=None).backward(grad)
    assert x.grad is None
    fp8_linear(x.requires_grad_(), weight.detach(), block_size=None).backward(grad)
    assert x.grad is not None


@pytest.mark.parametrize("counts", [None, COUNTS], ids=["dense", "experts"])
def test_the_operations_of_a_gpu_take_these_shapes(counts: list[int] | None) -> None:
    """On fake tensors: torch's own checks of layouts, scales and types."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), kernels_of("cuda"):
        x = torch.empty(64, IN, dtype=torch.bfloat16, requires_grad=True)
        weight = torch.empty((len(COUNTS),) * (counts is not None) + (OUT, IN), requires_grad=True)
        counts_E = None if counts is None else torch.empty(len(COUNTS), dtype=torch.int64)
        y = fp8_linear(x, weight, counts_E=counts_E, block_size=None)
        assert (y.shape, y.dtype) == ((64, OUT), torch.bfloat16)
        y.backward(torch.empty_like(y))
        assert (weight.grad.shape, weight.grad.dtype, x.grad.dtype) == (weight.shape, torch.float32, torch.bfloat16)


@pytest.mark.parametrize("block_size", FORMATS)
def test_parts_of_a_map_round_like_the_whole(block_size: int | None) -> None:
    """As tp cuts it: outputs are those of the whole; parts of the sum add up to it but for their own bf16."""
    x, weight, _ = tensors()
    whole = fp8_linear(x, weight, block_size=block_size)
    by_outputs = [fp8_linear(x, part.contiguous(), block_size=block_size) for part in weight.chunk(2)]
    assert torch.equal(torch.cat(by_outputs, dim=1), whole)
    cut = zip(x.chunk(2, dim=1), weight.chunk(2, dim=1), strict=True)
    by_inputs = sum(fp8_linear(a.contiguous(), b.contiguous(), block_size=block_size).double() for a, b in cut)
    # Each of the three is rounded to bf16; numbers below 2^-14 of a row's largest lose digits.
    scale = whole.abs().amax(-1, keepdim=True).double()
    assert ((by_inputs - whole.double()).abs() <= 3 * 2**-8 * scale).all()
