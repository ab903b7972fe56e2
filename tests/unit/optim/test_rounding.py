"""Rounding to bf16: right in the mean, only to neighbours, and what a state of small changes needs."""

import pytest
import torch

from glmforge.config.optim import OptimConfig
from glmforge.kernels.random import fold, uniform_bits
from glmforge.optim.optimizer import build_optimizer
from glmforge.optim.rounding import round_stochastically, stream_of
from helpers.parameters import table_of

NUM_DRAWS = 2**18


def draws(length: int, seed: int = 0) -> torch.Tensor:
    return uniform_bits(fold(stream_of(seed, "exp_avg.weight"), torch.arange(4)), 0, length)


@pytest.mark.parametrize("value", [1.0 + 2**-8, 1.0 + 2**-7 * 0.9, -3.14159, 1e-38, 1.37e-40, -1e30])
def test_the_mean_of_roundings_is_the_value(value: float) -> None:
    values = torch.full((4, NUM_DRAWS), value)
    rounded = round_stochastically(values, draws(NUM_DRAWS))
    low, high = rounded.double().min(), rounded.double().max()
    exact = values[0, 0].double()
    assert low < exact < high
    # The two are neighbours in bf16: there is nothing between them.
    assert torch.nextafter(low.bfloat16(), torch.tensor(torch.inf).bfloat16()) == high
    # A rounding has a standard deviation of at most half the spacing; five of the mean of a million.
    assert (rounded.double().mean() - exact).abs() < 5 * (high - low) / 2 / (4 * NUM_DRAWS) ** 0.5


def test_what_bf16_has_stays() -> None:
    values = torch.randn(4, 1000).bfloat16().float()
    values[0, :4] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf])
    assert torch.equal(round_stochastically(values, draws(1000)).float(), values)


def test_a_nan_stays_one() -> None:
    """Also the one of all ones that GPUs make, to which a carry would give a sign and nothing else."""
    values = torch.tensor([0x7FFFFFFF, 0x7FC00000, -1], dtype=torch.int32).view(torch.float32)
    assert round_stochastically(values, torch.full((3,), 2**16 - 1, dtype=torch.int32)).isnan().all()


def test_draws_of_a_part_are_those_of_the_whole() -> None:
    whole = draws(23)
    for start, stop in ((0, 23), (1, 2), (3, 9), (4, 8), (22, 23)):
        assert torch.equal(
            uniform_bits(fold(stream_of(0, "exp_avg.weight"), torch.arange(4)), start, stop - start),
            whole[:, start:stop],
        )
    assert not torch.equal(draws(23, seed=1), whole)


def second_moment(state_dtype: str, num_steps: int) -> torch.Tensor:
    name = "model.norm.weight"
    parameter = torch.nn.Parameter(torch.ones(512))
    config = OptimConfig(betas=(0.9, 0.999), state_dtype=state_dtype)
    optimizer = build_optimizer([(name, parameter)], table_of({name: (512,)}), config)
    for _ in range(num_steps):
        parameter.grad = torch.ones(512)
        optimizer.step()
    return optimizer.state_dict()[f"exp_avg_sq.{name}"].float()


def test_a_slow_moment_does_not_stand_still() -> None:
    """Each step adds 0.001 * (1 - v): below v's spacing from v = 0.13 on, where rounding to the nearest would stop."""
    num_steps = 1000
    expected = 1 - 0.999**num_steps
    found = second_moment("bf16", num_steps)
    # A rounding's variance is at most spacing^2 / 4, and decays like the moment: over 1 / (2 * 0.001) steps it adds up
    # to 500 of them. Five standard deviations of the mean of 512 elements.
    spacing = 2**-8
    assert (found.mean() - expected).abs() < 5 * spacing / 2 * (500 / 512) ** 0.5
    assert second_moment("fp32", num_steps).sub(expected).abs().max() < 1e-4
