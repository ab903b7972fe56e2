"""8-bit products, rounded states and offloaded activations on a device, against the CPU's."""

import pytest
import torch
from torch import Tensor, nn

from glmforge.kernels.fp8 import fp8_linear
from glmforge.model.layers import SwiGLU
from glmforge.optim.rounding import row_streams, store, stream_of
from glmforge.parallel.offload import apply_offload
from helpers.devices import DEVICES, relative_error


def has_fp8_products(device: str) -> bool:
    return device == "cpu" or torch.cuda.get_device_capability()[0] in (9, 10)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("counts", [None, [0, 40, 1, 87, 0], [0, 0, 128]], ids=str)
def test_fp8_products_are_those_of_the_emulation(device: str, counts: list[int] | None) -> None:
    if not has_fp8_products(device):
        pytest.skip("this GPU has no fp8 products")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(128, 256, generator=generator) * torch.logspace(-3, 3, 128)[:, None]
    weight = torch.randn(
        (len(counts),) * (counts is not None) + (96, 256) if counts else (96, 256), generator=generator
    )
    bias = None if counts is not None else torch.randn(96, generator=generator)
    upstream = torch.randn(128, 96, generator=generator).bfloat16()

    def run(device: str) -> list[Tensor]:
        inputs = [x.to(device, torch.bfloat16), weight.to(device), *([] if bias is None else [bias.to(device)])]
        for tensor in inputs:
            tensor.requires_grad_()
        counts_E = None if counts is None else torch.tensor(counts, device=device)
        options = {"bias": inputs[2] if bias is not None else None, "counts_E": counts_E, "block_size": None}
        y = fp8_linear(inputs[0], inputs[1], **options)
        return [y, *torch.autograd.grad(y, inputs, upstream.to(device))]

    for name, actual, expected in zip(("y", "x", "weight", "bias"), run(device), run("cpu"), strict=False):
        # The same factors; sums in another order, rounded to bf16 once.
        assert relative_error(actual, expected) < 2**-8, name


@pytest.mark.parametrize("device", DEVICES)
def test_states_are_rounded_to_the_same_bits(device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(33, 130, generator=generator) * torch.logspace(-30, 30, 33)[:, None]

    def rounded(device: str) -> Tensor:
        state = torch.zeros_like(values, dtype=torch.bfloat16, device=device)
        step = torch.tensor(7.0, device=device)
        store(state, values.to(device), *row_streams(stream_of(3, "momentum.x"), step, state))
        return state.cpu()

    assert torch.equal(rounded(device), rounded("cpu"))


class Layers(nn.Module):
    """Dense blocks of some megabytes of activations each, as `model.layers`."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(SwiGLU(256, 1024) for _ in range(4))
        generator = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.03, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


@pytest.mark.parametrize("device", DEVICES)
def test_offloaded_activations_come_back_as_they_were(device: str) -> None:
    """Several passes, whose memory is used again while copies are under way."""

    def gradients(offload: bool) -> list[Tensor]:
        model = Layers().to(device)
        if offload:
            apply_offload(model, torch.device(device))  # type: ignore[arg-type]
        for seed in range(5):
            x = torch.randn(2048, 256, generator=torch.Generator().manual_seed(seed)).to(device)
            model(x.requires_grad_()).square().mean().backward()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    for actual, expected in zip(gradients(True), gradients(False), strict=True):
        assert torch.equal(actual, expected)
