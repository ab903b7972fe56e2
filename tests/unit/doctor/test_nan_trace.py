"""The trace names module, operation and line of what made a value non-finite, and leaves masks alone."""

import torch
from torch import Tensor, nn

from glmforge.doctor.nan_trace import NonFiniteTrace, Origin


class Masked(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        mask = torch.zeros(x.shape[-1]).masked_fill(torch.arange(x.shape[-1]) > 0, float("-inf"))
        return (x + mask).softmax(-1) + x


class Root(nn.Module):
    """sqrt at 0 is finite, its gradient is not; the logarithm of a negative number is not finite itself."""

    def __init__(self, *, log: bool) -> None:
        super().__init__()
        self.log = log

    def forward(self, x: Tensor) -> Tensor:
        return x.log() if self.log else x.sqrt()


def traced(model: nn.Module, x: Tensor, *, backward: bool) -> Origin | None:
    trace = NonFiniteTrace({module: name or "model" for name, module in model.named_modules()}, (2, 3))
    with trace.watching():
        model(x).sum().backward()
    return trace.origin(backward=backward)


def test_forward() -> None:
    x = torch.ones(6, 4, requires_grad=True).clone()
    x[4, 1] = -9.0
    origin = traced(nn.Sequential(Masked(), Root(log=True), Root(log=False)), x, backward=False)
    assert origin is not None
    assert (origin.module, origin.operation, origin.token, origin.micro_batch) == ("1", "log", (1, 1), 0)


def test_backward() -> None:
    x = torch.ones(6, 4).index_fill(0, torch.tensor([2]), 0.0).requires_grad_()
    origin = traced(nn.Sequential(Root(log=False), Masked()), x * 1, backward=True)
    assert origin is not None
    assert (origin.module, origin.token) == ("0", (0, 2))
    assert origin.operation.startswith("SqrtBackward0 (")


def test_masks_are_meant_to_be_infinite() -> None:
    for backward in (False, True):
        x = torch.ones(6, 4, requires_grad=True) * 1
        assert traced(nn.Sequential(Masked()), x, backward=backward) is None
