"""Dropout's masks and Sinkhorn's bias on a device: the bits, or the numbers, of the CPU."""

import pytest
import torch

from glmforge.kernels.attention_dropout import attention_with_dropout
from glmforge.kernels.documents import Documents
from glmforge.kernels.random import drop_out, drops, fold
from glmforge.kernels.sinkhorn import sinkhorn_bias
from helpers.devices import DEVICES, on


@pytest.mark.parametrize(("device", "compiled"), [on("cpu", False), on("cuda", False), on("cuda", True)])
def test_masks_are_the_cpu_s(device: str, compiled: bool) -> None:
    def function(keys: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return drop_out(x, drops(keys, x.shape[1], 0.3), 0.3)

    keys, x = fold(torch.tensor(1), torch.arange(100)), torch.randn(100, 50)
    expected = function(keys, x)
    assert torch.equal(fold(torch.tensor(1), torch.arange(100, device=device)).cpu(), keys)
    actual = (torch.compile(function) if compiled else function)(keys.to(device), x.to(device))
    assert torch.equal(actual.cpu(), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_attention_drops_what_the_cpu_drops(device: str) -> None:
    lengths, generator = [70, 3, 70], torch.Generator().manual_seed(0)
    qkv = [torch.randn(143, heads, 16, generator=generator, dtype=torch.float64) for heads in (4, 2, 2)]
    streams = fold(fold(torch.tensor(1), torch.arange(143))[:, None], torch.arange(4))
    results = []
    for where in ("cpu", device):
        inputs = [x.to(where).requires_grad_() for x in qkv]
        output = attention_with_dropout(*inputs, Documents.from_lengths(lengths, where), streams.to(where), 0.3)
        results.append([output, *torch.autograd.grad(output.square().sum(), inputs)])
    for ours, theirs in zip(*reversed(results), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("device", DEVICES)
def test_sinkhorn_is_the_cpu_s(device: str) -> None:
    logits_TE, row_BT = torch.randn(64, 8), torch.eye(2).repeat_interleave(32, dim=1)
    expected = sinkhorn_bias(logits_TE, row_BT, 32, [])
    # Sums of 32 numbers in fp32, eight times over.
    torch.testing.assert_close(
        sinkhorn_bias(logits_TE.to(device), row_BT.to(device), 32, []).cpu(), expected, rtol=0, atol=1e-4
    )
