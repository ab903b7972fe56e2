"""Initial weights: a pure function of seed and name, whichever rows a rank asks for."""

import pytest
import torch

from glmforge.config.parameters import COMPLETE, Parameter
from glmforge.model import GlmMoe
from glmforge.model.init import BLOCK_ROWS, initial_chunk
from helpers.models import tiny_config


def row(name: str, shape: tuple[int, ...]) -> Parameter:
    return Parameter(name=name, shape=shape, family="matrix", initial="normal", tp_dim=None, partial=COMPLETE)


@pytest.mark.parametrize("num_parts", [1, 2, 3, 7])
@pytest.mark.parametrize("shape", [(600, 16), (BLOCK_ROWS, 8), (5, 300, 4)], ids=str)
def test_parts_put_together_are_the_whole(shape: tuple[int, ...], num_parts: int) -> None:
    def make(start: int, stop: int) -> torch.Tensor:
        offsets, sizes = (start, *(0 for _ in shape[1:])), (stop - start, *shape[1:])
        return initial_chunk(row("a.weight", shape), offsets, sizes, seed=3, std=0.02)

    step = -(-shape[0] // num_parts)
    parts = [make(start, min(start + step, shape[0])) for start in range(0, shape[0], step)]
    assert torch.equal(torch.cat(parts), make(0, shape[0]))


def test_values_differ_by_seed_name_and_expert() -> None:
    def make(name: str, seed: int) -> torch.Tensor:
        return initial_chunk(row(name, (2, 64, 64)), (0, 0, 0), (2, 64, 64), seed=seed, std=0.02)

    reference = make("x.gate_up_proj", 0)
    assert not torch.equal(reference, make("x.gate_up_proj", 1))
    assert not torch.equal(reference, make("y.gate_up_proj", 0))
    assert not torch.equal(reference[0], reference[1])


def test_distribution_of_a_model() -> None:
    model = GlmMoe.create(tiny_config(hidden_size=128, vocab_size=2048), seed=1)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith("bias"):
            assert (tensor == 0).all(), name
        elif tensor.dim() == 1:
            assert (tensor == 1).all(), name
        else:
            # The standard error of a standard deviation over n draws is std / sqrt(2 n): five of them.
            n = tensor.numel()
            assert abs(tensor.std().item() - 0.02) < 5 * 0.02 / (2 * n) ** 0.5, name
            assert abs(tensor.mean().item()) < 5 * 0.02 / n**0.5, name
