import pytest
import torch
from torch import Tensor

from helpers.triton_device import TRITON_DEVICE, assert_near

triton_symmetric_matmul = pytest.importorskip("glmforge.kernels.triton.symmetric_matmul")
symmetric_matmul = triton_symmetric_matmul.symmetric_matmul

# The interpreter cannot multiply bf16; fp16 goes the same way through the kernel.
DTYPES = [torch.float32, torch.float16 if TRITON_DEVICE == "cpu" else torch.bfloat16]


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator).to(TRITON_DEVICE, dtype)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_symmetric_matmul, "_ROWS", 16)
    monkeypatch.setattr(triton_symmetric_matmul, "_INNER", 16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 70, 45), (2, 33, 33), (3, 5, 100), (2, 16, 16), (1, 1, 1), (0, 5, 4)], ids=str)
def test_equals_float64(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x_NAB = random(*shape, dtype=dtype) / shape[-1] ** 0.5
    exact_NAB = x_NAB.cpu().double()
    gram_NAA = symmetric_matmul(x_NAB)
    # Rounded once at the end; fp32 sums of 100 products in a row have the error of at most 16 roundings, as vectors.
    num_roundings = 16 if dtype == torch.float32 else 1
    assert_near(gram_NAA, exact_NAB @ exact_NAB.mT, num_roundings, dtype)
    polynomial_NAA = symmetric_matmul(gram_NAA, gram_NAA, alpha=2.0315, beta=-4.775)
    exact_gram_NAA = gram_NAA.cpu().double()
    # The terms cancel: the error is that of their size.
    terms = 2.0315 * exact_gram_NAA @ exact_gram_NAA, -4.775 * exact_gram_NAA
    magnify = (terms[0].norm() + terms[1].norm()) / (terms[0] + terms[1]).norm() if len(x_NAB) else 1
    assert_near(polynomial_NAA, terms[0] + terms[1], num_roundings * float(magnify), dtype)


def test_matrices_that_lie_transposed() -> None:
    x_NAB = random(2, 20, 37).mT
    exact_NAB = x_NAB.cpu().double()
    assert_near(symmetric_matmul(x_NAB), exact_NAB @ exact_NAB.mT, 16, torch.float32)


def test_nothing_outside_of_the_matrices_is_read() -> None:
    wide = torch.full((2, 40, 60), float("nan"), device=TRITON_DEVICE)
    wide[:, :20, :37] = random(2, 20, 37)
    exact_NAB = wide[:, :20, :37].cpu().double()
    assert_near(symmetric_matmul(wide[:, :20, :37]), exact_NAB @ exact_NAB.mT, 16, torch.float32)


def test_every_tile_is_computed_once() -> None:
    """The number of a tile gives its row by a square root, which is rounded: 12 rows of tiles are all met."""
    x_NAB = random(1, 190, 2)
    exact_NAB = x_NAB.cpu().double()
    assert_near(symmetric_matmul(x_NAB), exact_NAB @ exact_NAB.mT, 16, torch.float32)


def test_interpreted_bfloat16_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="interpreter cannot multiply bfloat16"):
        symmetric_matmul(torch.ones(1, 2, 2, dtype=torch.bfloat16))


def test_operation_is_well_formed() -> None:
    x_NAB = random(2, 5, 7)
    torch.library.opcheck(symmetric_matmul, (x_NAB,))
    torch.library.opcheck(symmetric_matmul, (x_NAB, x_NAB @ x_NAB.mT, 0.5, -1.0))
