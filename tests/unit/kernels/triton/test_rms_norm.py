import pytest
import torch
from torch import Tensor

from glmforge.kernels import rms_norm as plain
from helpers.triton_device import TRITON_DEVICE, assert_near

triton_rms_norm = pytest.importorskip("glmforge.kernels.triton.rms_norm")

EPS = 1e-5
SHAPES = [(70, 37), (3, 5, 128), (2, 4096), (3, 5120), (1, 3), (0, 8)]
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(TRITON_DEVICE, dtype).requires_grad_()


def exact(x: Tensor) -> Tensor:
    return x.detach().cpu().double().requires_grad_()


def exact_norm(x: Tensor, weight_D: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight_D


def upstream(x: Tensor) -> Tensor:
    """A gradient that differs between elements and is exact in every type."""
    values = torch.arange(x.numel(), device=x.device) % 7 - 2
    return values.view(x.shape).to(x.dtype)


# Roundings of one element: h, normed, weight and product in the forward pass; in the backward pass the same of what it
# reads, and its own. Sums are fp32: over D = 5,120 or N = 70 terms by trees or runs of at most 70, under 32 roundings.
NUM_ROUNDINGS = {torch.float32: 32, torch.bfloat16: 4}


@DTYPES
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_norm_equals_float64(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight_D = random(*shape, dtype=dtype), random(shape[-1], seed=1)
    out = triton_rms_norm.rms_norm(x, weight_D, EPS)
    exact_x, exact_weight = exact(x), exact(weight_D)
    expected = exact_norm(exact_x, exact_weight)
    assert_near(out, expected, NUM_ROUNDINGS[dtype], dtype)
    assert out.dtype == dtype
    gradients = torch.autograd.grad(out, (x, weight_D), upstream(out))
    expected_gradients = torch.autograd.grad(expected, (exact_x, exact_weight), upstream(expected))
    for actual, e in zip(gradients, expected_gradients, strict=True):
        assert_near(actual, e, NUM_ROUNDINGS[dtype], dtype)
    assert [g.dtype for g in gradients] == [dtype, torch.float32]


@DTYPES
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sum_and_norm_equal_float64(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, y, weight_D = random(*shape, dtype=dtype), random(*shape, seed=2, dtype=dtype), random(shape[-1], seed=1)
    h, out = triton_rms_norm.add_rms_norm(x, y, weight_D, EPS)
    exact_x, exact_y, exact_weight = exact(x), exact(y), exact(weight_D)
    exact_h = exact_x + exact_y
    expected = exact_norm(exact_h, exact_weight)
    assert_near(h, exact_h, 1, dtype)
    assert_near(out, expected, NUM_ROUNDINGS[dtype], dtype)
    upstreams = (3 * upstream(h).flip(-1), upstream(out))  # h is used by more than the norm
    gradients = torch.autograd.grad((h, out), (x, y, weight_D), upstreams)
    upstreams = (3 * upstream(exact_h).flip(-1), upstream(expected))
    expected_gradients = torch.autograd.grad((exact_h, expected), (exact_x, exact_y, exact_weight), upstreams)
    for actual, e in zip(gradients, expected_gradients, strict=True):
        assert_near(actual, e, NUM_ROUNDINGS[dtype], dtype)


@pytest.mark.parametrize("num_rows", [1, 7, 9, 32, 33])
def test_weight_gradient_counts_every_row_once(num_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several programs of several tiles each, the last ones partly or wholly past the end."""
    monkeypatch.setattr(triton_rms_norm, "_MAX_PARTIAL_SUMS", 3)
    monkeypatch.setattr(triton_rms_norm, "_TILE", 16)  # four rows of four
    x, weight_D = random(num_rows, 4), random(4, seed=1)
    actual = torch.autograd.grad(triton_rms_norm.rms_norm(x, weight_D, EPS), (x, weight_D), upstream(x))
    exact_x, exact_weight = exact(x), exact(weight_D)
    expected = torch.autograd.grad(exact_norm(exact_x, exact_weight), (exact_x, exact_weight), upstream(exact_x))
    for a, e in zip(actual, expected, strict=True):
        assert_near(a, e, 32, torch.float32)


def test_strided_inputs_and_gradients() -> None:
    wide, weight_D = random(6, 10), random(5, seed=1)
    exact_wide, exact_weight = exact(wide), exact(weight_D)
    for columns in (slice(0, 5), slice(1, 10, 2)):
        h, out = triton_rms_norm.add_rms_norm(wide[:, columns], wide[:, 5:], weight_D, EPS)
        (gradient,) = torch.autograd.grad(
            h.sum() + out[:, 1:].sum(), wide
        )  # a gradient that is expanded, and one with 0
        exact_h = exact_wide[:, columns] + exact_wide[:, 5:]
        expected = exact_h.sum() + exact_norm(exact_h, exact_weight)[:, 1:].sum()
        assert_near(gradient, torch.autograd.grad(expected, exact_wide)[0], 32, torch.float32)


def test_sum_alone_may_be_used() -> None:
    x, y, weight_D = random(3, 8), random(3, 8, seed=1), random(8, seed=2)
    h, _ = triton_rms_norm.add_rms_norm(x, y, weight_D, EPS)
    gradients = torch.autograd.grad(h, (x, y, weight_D), upstream(h))
    assert torch.equal(gradients[0], upstream(h))
    assert torch.equal(gradients[1], upstream(h))
    assert not gradients[2].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_operations_are_well_formed(dtype: torch.dtype) -> None:
    """Schema, shapes without data, autograd and tracing, as torch checks them."""
    x, weight_D = random(3, 2, 8, dtype=dtype), random(8, seed=1)
    torch.library.opcheck(triton_rms_norm.rms_norm, (x, weight_D, EPS))
    torch.library.opcheck(triton_rms_norm.add_rms_norm, (x, random(3, 2, 8, seed=2, dtype=dtype), weight_D, EPS))
    torch.library.opcheck(triton_rms_norm.rms_norm_backward, (x.detach(), weight_D.detach(), x.detach(), None, EPS))


def test_plain_sum_and_norm_are_the_two_operations() -> None:
    x, y, weight_D = random(3, 8), random(3, 8, seed=1), random(8, seed=2)
    h, out = plain.add_rms_norm(x, y, weight_D, EPS)
    assert torch.equal(h, x + y)
    assert torch.equal(out, plain.rms_norm(x + y, weight_D, EPS))
