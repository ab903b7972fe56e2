"""Activation offload: the same bits, no parameter is sent, nothing twice, and what is sent leaves the device."""

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from glmforge.config.layout import resolve_layout
from glmforge.kernels.target import kernels_of
from glmforge.model.layers import Linear, SwiGLU
from glmforge.parallel import build, offload
from glmforge.parallel.world import World
from helpers.equivalence import Case, run_case

REGULARISED: dict[str, Any] = {
    "phase": {"balance": "sinkhorn"},
    "regularization": {"dropout": 0.1, "attention_dropout": 0.1},
}


def run(parallel: dict[str, Any], options: dict[str, Any]) -> dict[str, Tensor]:
    config = Case({"micro_batch_size": 4} | parallel, 1, **options).config(single=False)
    return run_case(config, World(0, 1, torch.device("cpu"), resolve_layout(config, 1)))


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The tensors that went to host memory, however small."""
    tensors: list[Tensor] = []

    class Noted(offload._HostCopy):
        def __init__(self, tensor: Tensor, stream: Any) -> None:
            tensors.append(tensor)
            super().__init__(tensor, stream)

    monkeypatch.setattr(offload, "_HostCopy", Noted)
    monkeypatch.setattr(build, "apply_offload", functools.partial(offload.apply_offload, min_bytes=0))
    return tensors


@pytest.mark.parametrize("options", [{}, REGULARISED], ids=["usual", "regularised"])
@pytest.mark.parametrize("mode", ["none", "selective", "full"])
def test_offload_changes_no_bit(mode: str, options: dict[str, Any], sent: list[Tensor]) -> None:
    expected = run({"recompute": mode}, options)
    assert not sent
    results = run({"recompute": mode, "activation_offload": True}, options)
    assert sent
    for name, value in expected.items():
        assert torch.equal(results[name], value), name


class Layers(nn.Module):
    """Three dense blocks, as `model.layers`."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(SwiGLU(16, 32) for _ in range(3))
        for parameter in self.parameters():
            nn.init.normal_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


def test_parameters_stay_and_nothing_is_sent_twice(sent: list[Tensor]) -> None:
    model = Layers()
    build.apply_offload(model, torch.device("cpu"))  # type: ignore[arg-type]
    x = torch.randn(8, 16, requires_grad=True)
    model(x).sum().backward()
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    assert not any(tensor.untyped_storage().data_ptr() in parameters for tensor in sent)
    # Of each layer: the input, once for gate and up; gate, up, silu(gate) and their product.
    assert len(sent) == 3 * 5


def test_what_was_sent_is_no_longer_on_the_device(sent: list[Tensor]) -> None:
    """The CPU stands for a GPU, as in a dry run, and host memory is where nothing is counted."""
    model = Layers()
    build.apply_offload(model, torch.device("cpu"))  # type: ignore[arg-type]
    with kernels_of("cuda"):
        x = torch.randn(8, 16, requires_grad=True)
        y = model(x)
    references = [StorageWeakRef(tensor.untyped_storage()) for tensor in sent]
    kept = {tensor.untyped_storage()._cdata for tensor in (x, y)}
    sent.clear()
    assert all(reference.expired() for reference in references if reference.cdata not in kept)


def test_small_tensors_stay(sent: list[Tensor]) -> None:
    model = Layers()
    offload.apply_offload(model, torch.device("cpu"), min_bytes=8 * 32 * 4)  # type: ignore[arg-type]
    model(torch.randn(8, 16, requires_grad=True)).sum().backward()
    assert {tuple(tensor.shape) for tensor in sent} == {(8, 32)}


def test_a_pass_without_gradients_sends_nothing(sent: list[Tensor]) -> None:
    model = Layers()
    build.apply_offload(model, torch.device("cpu"))  # type: ignore[arg-type]
    with torch.no_grad():
        model(torch.randn(8, 16))
    assert not sent


def test_the_layer_below_is_fetched_while_the_one_above_is_differentiated(sent: list[Tensor]) -> None:
    """With a stream; here a stand-in for one, with which the copies are plain."""
    calls = [offload._Call(Linear(2, 2), None, None, 0)]
    for _ in range(2):
        calls.append(offload._Call(Linear(2, 2), calls[-1], None, 0))
    packed = [call.pack(torch.full((3,), float(index))) for index, call in enumerate(calls)]
    for call in calls:
        call.stream = object()  # type: ignore[assignment]
    assert calls[2].unpack(packed[2]).tolist() == [2.0] * 3
    assert [call.is_fetched for call in calls] == [False, True, True]
    assert calls[0].unpack(packed[0]).tolist() == [0.0] * 3
