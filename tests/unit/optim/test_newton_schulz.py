import pytest
import torch

from glmforge.optim.newton_schulz import coefficients, newton_schulz
from helpers.triton_device import TRITON_DEVICE

SHAPES = [(16, 16), (24, 8), (8, 24), (1, 12), (12, 1)]


def random_matrices(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def polar_factor(matrices: torch.Tensor) -> torch.Tensor:
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    return left @ right


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "num_steps", "low", "high"),
    [
        # The quintic maps [0.68, 1.14] into itself and never settles within it. 0.02 is left for bf16.
        ("quintic", 10, 0.66, 1.16),
        # Five Polar Express steps bring every value above 5e-3 to within 0.13 of 1.
        ("polar_express", 5, 0.85, 1.15),
        # Eight converge: what is left is rounding, a bf16 unit (4e-3) and more.
        ("polar_express", 8, 0.99, 1.01),
    ],
)
def test_singular_values_end_in_the_methods_band(shape, dtype, name, num_steps, low, high):
    result = newton_schulz(random_matrices(5, *shape).to(dtype), coefficients(name, num_steps))
    assert result.dtype == dtype
    values = torch.linalg.svdvals(result.double())
    # A vector's elements are rounded one by one, up to 0.08 before convergence
    slack = 0.08 if dtype == torch.bfloat16 and 1 in shape and num_steps < 8 else 0.0
    assert values.min() > low - slack
    assert values.max() < high + slack


@pytest.mark.parametrize("shape", [(20, 20), (24, 8), (8, 24)])
def test_by_triangles_equals_whole_products(shape):
    pytest.importorskip("triton")
    matrices, steps = random_matrices(3, *shape).to(TRITON_DEVICE, torch.float32), coefficients("polar_express", 8)
    actual = newton_schulz(matrices, steps, symmetric_matmul="triton")
    torch.testing.assert_close(actual, newton_schulz(matrices, steps), rtol=0, atol=1e-5)  # values near 1 in fp32


@pytest.mark.parametrize("shape", SHAPES)
def test_converged_result_is_the_polar_factor(shape):
    matrices = random_matrices(3, *shape)
    result = newton_schulz(matrices.float(), coefficients("polar_express", 10)).double()
    # 2e-6 is seen in fp32 (eps 1.2e-7, ten steps); the iteration itself has converged to below that
    torch.testing.assert_close(result, polar_factor(matrices), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["quintic", "polar_express"])
@pytest.mark.parametrize("shape", SHAPES)
def test_five_bf16_steps_point_along_the_polar_factor(name, shape):
    matrices = random_matrices(3, *shape)
    result = newton_schulz(matrices.bfloat16(), coefficients(name, 5)).double()
    cosine = torch.cosine_similarity(result.flatten(1), polar_factor(matrices).flatten(1))
    # Singular values spread over [0.68, 1.14] cost at most 3 % of the cosine; a tiny value not lifted yet,
    # 1 % more
    assert cosine.min() > 0.95


@pytest.mark.parametrize("shape", SHAPES)
def test_batch_equals_loop(shape):
    matrices = random_matrices(4, *shape).float()
    steps = coefficients("polar_express", 5)
    loop = torch.cat([newton_schulz(matrix[None], steps) for matrix in matrices])
    # Sums may run in another order: fp32 rounding, amplified by at most 8.2 * 4.1 * 3.9 * 3.3 * 2.3 for
    # tiny singular values
    torch.testing.assert_close(newton_schulz(matrices, steps), loop, rtol=0, atol=1e-4)


def test_scale_does_not_matter_and_zero_stays_zero():
    matrices = random_matrices(1, 8, 8).float()
    steps = coefficients("quintic", 5)
    # A power of two changes no rounding
    assert torch.equal(newton_schulz(matrices * 2.0**-10, steps), newton_schulz(matrices, steps))
    assert newton_schulz(torch.zeros(2, 4, 6), steps).abs().max() == 0


def test_coefficients_go_on_after_the_last_of_the_sequence():
    steps = coefficients("polar_express", 10)
    assert steps[0] == (8.2051, -22.9019, 16.4607)
    assert steps[7:] == [(1.875, -1.25, 0.375)] * 3
    assert coefficients("quintic", 5) == [(3.4445, -4.7750, 2.0315)] * 5
