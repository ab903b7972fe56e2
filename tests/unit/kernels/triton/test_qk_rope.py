import pytest
import torch
from torch import Tensor

from glmforge.kernels.qk_rope import qk_rope
from helpers.triton_device import TRITON_DEVICE, assert_near

triton_qk_rope = pytest.importorskip("glmforge.kernels.triton.qk_rope")

EPS = 1e-5


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(TRITON_DEVICE, dtype).requires_grad_()


def angles(num_tokens: int, rotary_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    angles_TR = (3 * torch.randn(num_tokens, rotary_dim // 2, generator=generator)).repeat(1, 2)
    return tuple(f(angles_TR)[:, None].to(TRITON_DEVICE, dtype) for f in (torch.cos, torch.sin))


def exact(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.detach().cpu().double().requires_grad_()


def exact_norm_rope(x: Tensor, cos: Tensor, sin: Tensor, weight: Tensor | None) -> Tensor:
    """Dim i of the first R turns with dim i + R / 2 by the angle of its token."""
    if weight is not None:
        x = x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight
    half = cos.shape[-1] // 2
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    c, s = cos[..., :half].cpu().double(), sin[..., :half].cpu().double()
    return torch.cat((a * c - b * s, b * c + a * s, rest), dim=-1)


def upstream(x: Tensor) -> Tensor:
    values = torch.arange(x.numel(), device=x.device) % 7 - 2
    return values.view(x.shape).to(x.dtype)


# Roundings of one element: normed, weight, their product, and the turned dim in either direction. fp32 sums: under 32.
NUM_ROUNDINGS = {torch.float32: 32, torch.bfloat16: 4}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("norms", [True, False], ids=["norm", "no norm"])
@pytest.mark.parametrize(
    ("num_tokens", "num_heads", "head_dim", "rotary_dim"),
    [(5, 3, 128, 64), (13, 5, 20, 12), (3, 1, 16, 16), (7, 2, 6, 2), (0, 2, 16, 8)],
)
def test_equals_float64(
    num_tokens: int, num_heads: int, head_dim: int, rotary_dim: int, norms: bool, dtype: torch.dtype
) -> None:
    q, k = random(num_tokens, num_heads, head_dim, dtype=dtype), random(num_tokens, 1, head_dim, seed=1, dtype=dtype)
    weights = [random(head_dim, seed=seed) if norms else None for seed in (2, 3)]
    cos, sin = angles(num_tokens, rotary_dim, dtype)
    outputs = qk_rope(q, k, cos, sin, *weights, EPS, implementation="triton")
    for x, weight, output in zip((q, k), weights, outputs, strict=True):
        exact_x, exact_weight = exact(x), exact(weight)
        expected = exact_norm_rope(exact_x, cos, sin, exact_weight)
        assert_near(output, expected, NUM_ROUNDINGS[dtype], dtype)
        assert output.dtype == dtype
        gradients = torch.autograd.grad(output, [x] if weight is None else [x, weight], upstream(output))
        exact_inputs = [exact_x] if exact_weight is None else [exact_x, exact_weight]
        for a, e in zip(gradients, torch.autograd.grad(expected, exact_inputs, upstream(expected)), strict=True):
            assert_near(a, e, NUM_ROUNDINGS[dtype], dtype)


@pytest.mark.parametrize("norms", [True, False])
def test_plain_equals_float64(norms: bool) -> None:
    q, k = random(5, 3, 20).double(), random(5, 1, 20, seed=1).double()
    weights = [random(20, seed=seed).double() if norms else None for seed in (2, 3)]
    cos, sin = angles(5, 12, torch.float64)
    for x, weight, output in zip((q, k), weights, qk_rope(q, k, cos, sin, *weights, EPS), strict=True):
        expected = exact_norm_rope(exact(x), cos, sin, exact(weight))
        assert_near(output, expected, 4, torch.float32)  # the plain norm is fp32 inside


@pytest.mark.parametrize("num_tokens", [1, 3, 4, 11])
def test_weight_gradient_counts_every_row_once(num_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several programs of several tiles each, tiles that end within a token, and rows past the end."""
    monkeypatch.setattr("glmforge.kernels.triton.rms_norm._MAX_PARTIAL_SUMS", 3)
    monkeypatch.setattr(triton_qk_rope, "_TILE", 32)  # four rows of eight
    x, weight, (cos, sin) = random(num_tokens, 3, 8), random(8, seed=1), angles(num_tokens, 4, torch.float32)
    output = triton_qk_rope.norm_rope(x, cos, sin, weight, EPS)
    exact_x, exact_weight = exact(x), exact(weight)
    expected = exact_norm_rope(exact_x, cos, sin, exact_weight)
    actual = torch.autograd.grad(output, (x, weight), upstream(output))
    for a, e in zip(actual, torch.autograd.grad(expected, (exact_x, exact_weight), upstream(expected)), strict=True):
        assert_near(a, e, 32, torch.float32)


@pytest.mark.parametrize("norms", [True, False])
def test_heads_before_tokens(norms: bool) -> None:
    """Strides as attention leaves them: of the input, and of the gradient that comes back."""
    x_HTP, weight = random(3, 5, 16), random(16, seed=1) if norms else None
    cos, sin = angles(5, 8, torch.float32)
    output = triton_qk_rope.norm_rope(x_HTP.transpose(0, 1), cos, sin, weight, EPS)
    exact_HTP = exact(x_HTP)
    expected = exact_norm_rope(exact_HTP.transpose(0, 1), cos, sin, exact(weight))
    assert_near(output, expected, 32, torch.float32)
    (actual,) = torch.autograd.grad(output, x_HTP, upstream(x_HTP).transpose(0, 1))
    (gradient,) = torch.autograd.grad(expected, exact_HTP, upstream(exact_HTP).transpose(0, 1))
    assert_near(actual, gradient, 32, torch.float32)


@pytest.mark.parametrize("norms", [True, False])
def test_operations_are_well_formed(norms: bool) -> None:
    """Schema, shapes without data, autograd and tracing, as torch checks them."""
    x, weight, (cos, sin) = random(3, 2, 8), random(8, seed=1) if norms else None, angles(3, 4, torch.float32)
    torch.library.opcheck(triton_qk_rope.norm_rope, (x, cos, sin, weight, EPS))
    without_graph = None if weight is None else weight.detach()
    gradient_of = x.detach() if norms else None
    torch.library.opcheck(triton_qk_rope.norm_rope_backward, (x.detach(), gradient_of, cos, sin, without_graph, EPS))
