import pytest
import torch
from torch import Tensor

from glmforge.kernels.swiglu import swiglu
from helpers.far_apart import far_apart
from helpers.triton_device import TRITON_DEVICE, assert_near

fused = pytest.importorskip("glmforge.kernels.triton.swiglu")

SHAPES = [(1, 1), (7, 5), (3, 512), (4, 513), (2, 1408), (0, 6)]
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
WEIGHTED = pytest.mark.parametrize("weighted", [False, True], ids=["unweighted", "weighted"])
# Each element takes about 10 float32 operations, of which the exponential is off by 2 roundings; a weight's gradient
# is a sum by blocks of at most 3, and a tree of 10 levels. In bfloat16 only the result is rounded.
NUM_ROUNDINGS = {torch.float32: 24, torch.bfloat16: 1.1}


def inputs(num_rows: int, width: int, dtype: torch.dtype, weighted: bool) -> list[Tensor]:
    """gate and up, and weights if asked for; gates that saturate either way among them."""
    generator = torch.Generator().manual_seed(num_rows + width)
    gate_up = 3 * torch.randn(num_rows, 2 * width, generator=generator)
    weights = [torch.rand(num_rows, generator=generator)] if weighted else []
    return [x.requires_grad_() for x in (gate_up.to(TRITON_DEVICE, dtype), *(w.to(TRITON_DEVICE) for w in weights))]


def exact(tensors: list[Tensor]) -> list[Tensor]:
    return [x.detach().cpu().double().requires_grad_() for x in tensors]


def upstream(out: Tensor) -> Tensor:
    return torch.linspace(-2, 3, out.numel()).view(out.shape).bfloat16().to(out)


@WEIGHTED
@DTYPES
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_float64(shape: tuple[int, int], dtype: torch.dtype, weighted: bool) -> None:
    given = inputs(*shape, dtype, weighted)
    exact_given = exact(given)
    expected = swiglu(*exact_given)
    actual = swiglu(*given, implementation="triton")
    assert actual.dtype == dtype
    assert_near(actual, expected, NUM_ROUNDINGS[dtype], dtype)
    gradients = torch.autograd.grad(actual, given, upstream(actual))
    expected_gradients = torch.autograd.grad(expected, exact_given, upstream(expected))
    for a, e, x in zip(gradients, expected_gradients, given, strict=True):
        assert a.dtype == x.dtype
        # A weight's gradient is not rounded to bfloat16, but the terms of its sum cancel each other.
        assert_near(a, e, NUM_ROUNDINGS[x.dtype] * (8 if x.ndim == 1 else 1), x.dtype)


@WEIGHTED
def test_strided_inputs_and_gradients(weighted: bool) -> None:
    """Rows apart in memory, columns apart, an expanded gradient."""
    wide, *weights = inputs(6, 12, torch.float32, weighted)
    exact_wide, *exact_weights = exact([wide, *weights])
    for columns in (slice(3, 13), slice(0, 20, 2)):
        out = swiglu(wide[:, columns], *weights, implementation="triton")
        expected = swiglu(exact_wide[:, columns], *exact_weights)
        gradients = torch.autograd.grad(out.sum(), [wide, *weights])
        for a, e in zip(gradients, torch.autograd.grad(expected.sum(), [exact_wide, *exact_weights]), strict=True):
            assert_near(a, e, 24, torch.float32)
        gradients = torch.autograd.grad(swiglu(wide[:, columns], *weights, implementation="triton")[:, 1:].sum(), wide)
        expected_gradients = torch.autograd.grad(
            swiglu(exact_wide[:, columns], *exact_weights)[:, 1:].sum(), exact_wide
        )
        assert_near(gradients[0], expected_gradients[0], 24, torch.float32)


def test_weights_may_be_strided() -> None:
    gate_up, weights = inputs(4, 3, torch.float32, True)
    apart = torch.stack([weights, -weights], dim=1)[:, 0]
    assert torch.equal(
        swiglu(gate_up, apart, implementation="triton"), swiglu(gate_up, weights, implementation="triton")
    )


def test_rows_further_apart_than_int32_counts() -> None:
    gate_up, weights = (x.detach() for x in inputs(3, 4, torch.bfloat16, True))
    grad = torch.ones_like(gate_up[:, :4])
    assert torch.equal(fused.swiglu(far_apart(gate_up), weights), fused.swiglu(gate_up, weights))
    given = [(x, weights, g) for x, g in ((far_apart(gate_up), far_apart(grad)), (gate_up, grad))]
    for a, e in zip(*(fused.swiglu_backward(*x) for x in given), strict=True):
        assert torch.equal(a, e)


@WEIGHTED
def test_operations_are_well_formed(weighted: bool) -> None:
    gate_up, *weights = inputs(3, 5, torch.bfloat16, weighted)
    given = (gate_up, weights[0] if weights else None)
    torch.library.opcheck(fused.swiglu, given)
    detached = tuple(None if x is None else x.detach() for x in given)
    torch.library.opcheck(fused.swiglu_backward, (*detached, torch.ones_like(gate_up.detach()[:, :5])))
