"""Attention of a part of the queries on CUDA kernels, against the CPU's plain reference."""

import pytest
import torch
from torch import Tensor

from glmforge.kernels.documents import Documents
from glmforge.kernels.segments import Segments, segment_attention
from glmforge.parallel.context import GatheredKeyValues, Ulysses, local_ranges, zigzag_index
from glmforge.parallel.world import World
from helpers.kernels import module_with

NUM_ROWS, SEQ_LEN = 2, 256
LENGTHS = [1, 37, 128, 5, 85, 256]
# bf16 rounds to 2^-9 relative; outputs and gradients are of size one.
KERNELS = [("flex", torch.float32, 2e-3), ("flex", torch.bfloat16, 5e-2), ("varlen", torch.bfloat16, 5e-2)]


def inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(NUM_ROWS * SEQ_LEN, heads, 64, generator=generator) for heads in (8, 2, 2)]


def results(output: Tensor, qkv: list[Tensor]) -> list[Tensor]:
    gradients = torch.autograd.grad(output.float().square().sum(), qkv)
    return [x.detach().float().cpu() for x in (output, *gradients)]


@pytest.mark.parametrize(("implementation", "dtype", "tolerance"), KERNELS)
@pytest.mark.parametrize(("cp", "rank"), [(1, 0), (2, 0), (2, 1), (4, 1)])
def test_segment_attention(implementation: str, dtype: torch.dtype, tolerance: float, cp: int, rank: int) -> None:
    def run(device: str, dtype: torch.dtype, implementation: str) -> list[Tensor]:
        qkv = [x.to(device, dtype).requires_grad_() for x in inputs()]
        index = zigzag_index(NUM_ROWS, SEQ_LEN, cp, rank, device)
        segments = Segments.cut(Documents.from_lengths(LENGTHS, device), local_ranges(NUM_ROWS, SEQ_LEN, cp, rank))
        return results(segment_attention(qkv[0][index], *qkv[1:], segments, implementation=implementation), qkv)

    for expected, actual in zip(run("cpu", torch.float32, "dense"), run("cuda", dtype, implementation), strict=True):
        assert (actual - expected).norm() < tolerance * expected.norm()


@pytest.mark.parametrize(("implementation", "dtype", "tolerance"), KERNELS)
def test_saved_keys_are_made_again(implementation: str, dtype: torch.dtype, tolerance: float) -> None:
    """The hooks around the kernels, on one rank: its gather is the identity."""
    on_cpu, on_gpu = (Documents.from_lengths(LENGTHS, device) for device in ("cpu", "cuda"))
    qkv = [x.requires_grad_() for x in inputs()]
    expected = results(GatheredKeyValues(on_cpu, World.single("cpu"), NUM_ROWS, SEQ_LEN)(module_with(), *qkv), qkv)
    attend = GatheredKeyValues(on_gpu, World.single("cuda"), NUM_ROWS, SEQ_LEN)
    attend.regather = True
    qkv = [x.detach().to("cuda", dtype).requires_grad_() for x in qkv]
    for e, a in zip(expected, results(attend(module_with(attention=implementation), *qkv), qkv), strict=True):
        assert (a - e).norm() < tolerance * e.norm()


@pytest.mark.parametrize(("implementation", "dtype", "tolerance"), KERNELS)
def test_ulysses_on_one_rank(implementation: str, dtype: torch.dtype, tolerance: float) -> None:
    on_cpu, on_gpu = (Documents.from_lengths(LENGTHS, device) for device in ("cpu", "cuda"))
    qkv = [x.requires_grad_() for x in inputs()]
    expected = results(Ulysses(on_cpu, World.single("cpu"), NUM_ROWS, SEQ_LEN)(module_with(), *qkv), qkv)
    attend = Ulysses(on_gpu, World.single("cuda"), NUM_ROWS, SEQ_LEN)
    qkv = [x.detach().to("cuda", dtype).requires_grad_() for x in qkv]
    for e, a in zip(expected, results(attend(module_with(attention=implementation), *qkv), qkv), strict=True):
        assert (a - e).norm() < tolerance * e.norm()
