"""Training with Triton's kernels is training with plain ones: steps of the whole model, by the interpreter."""

import functools
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from glmforge.config import load_config
from glmforge.config.layout import resolve_layout
from glmforge.kernels.choice import UNMEASURED, ChoosesKernels, choose
from glmforge.model.moe import MoE
from glmforge.parallel.world import World
from glmforge.recipes.train import train
from helpers import equivalence
from helpers.equivalence import Case, run_case
from helpers.models import randomize_, tiny_config
from helpers.tiny_data import TinyData
from helpers.triton_device import TRITON_DEVICE

pytest.importorskip("triton")

FUSED = {"router": "triton", "permute": "triton", "swiglu": "triton"}
SIZE = {"seq_len": 6, "batch_size": 2}
LAYERS = {"num_hidden_layers": 2, "num_nextn_predict_layers": 0}
NUM_STEPS = 2
"""The interpreter takes milliseconds for what a GPU does in a microsecond."""

CASES: dict[str, dict[str, Any]] = {
    "usual": {},
    "dropped choices": {"phase": {"capacity_factor": 1.0}},
    "sinkhorn": {"phase": {"balance": "sinkhorn"}},
    "groups of experts": {"model": {"n_group": 4, "topk_group": 2}},
}


@functools.cache
def run(name: str, *, fused: tuple[str, ...], recompute: str = "none") -> dict[str, Tensor]:
    phase, model = (CASES[name].get(section, {}) for section in ("phase", "model"))
    config = Case({"recompute": recompute}, 1, phase=SIZE | phase, model=LAYERS | model).config(single=False)
    kernels = config.kernels.model_copy(update={operation: "triton" for operation in fused})
    config = config.model_copy(update={"kernels": kernels})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(equivalence, "NUM_STEPS", NUM_STEPS)
        return run_case(config, World(0, 1, torch.device(TRITON_DEVICE), resolve_layout(config, 1)))


@pytest.mark.parametrize("name", CASES)
def test_steps_equal_those_of_plain_kernels(name: str) -> None:
    expected, actual = run(name, fused=()), run(name, fused=tuple(FUSED))
    assert expected.keys() == actual.keys()
    for key, value in expected.items():
        if value.dtype == torch.int64:
            assert torch.equal(actual[key], value), key
            continue
        # float32 sums in another order, two layers deep, then two updates: 1e-5 of the whole, and Adam's update
        # of a gradient that is zero but for rounding may differ by more.
        error, size = (actual[key] - value).norm(), value.norm()
        assert error <= 1e-4 * size + 1e-6, f"{key}: {error:.1e} of {size:.1e}"


def test_recomputation_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    from glmforge.kernels.triton import router

    expected = run("usual", fused=tuple(FUSED))
    launches, launch = [], router._forward_kernel

    class Counted:
        def __getitem__(self, grid: Any) -> Any:
            launches.append(grid)
            return launch[grid]

    monkeypatch.setattr(router, "_forward_kernel", Counted())
    results = run("usual", fused=tuple(FUSED), recompute="full")
    for key, value in expected.items():
        assert torch.equal(results[key], value), key
    assert len(launches) == 1 + NUM_STEPS, "the router's choice is kept"


def test_the_run_stores_and_shows_what_it_computes_with(
    tiny_data: TinyData, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tiny_data.run_config(
        tmp_path / "run",
        phases=[{"name": "main", "steps": 2, "seq_len": 16, "batch_size": 2}],
        kernels={"experts": "loop"},
    )
    with caplog.at_level(logging.INFO):
        train(config)
    stored = load_config(config.output_dir / "config.yaml").kernels
    assert stored == choose(config.kernels, torch.device("cpu"), torch.float32)
    assert (stored.router, stored.attention, stored.experts) == ("plain", "documents", "loop")
    assert "kernels:" not in caplog.text  # they are in config.yaml


def test_a_layer_with_kernels_is_one_graph() -> None:
    config = tiny_config()
    moe = MoE(config).to(TRITON_DEVICE)
    randomize_(moe)
    for module in moe.modules():
        if isinstance(module, ChoosesKernels):
            module.kernels = UNMEASURED.model_copy(update=FUSED)
    x_TD = torch.randn(3, config.hidden_size, device=TRITON_DEVICE, requires_grad=True)
    results = []
    for function in (moe, torch.compile(moe, backend="aot_eager", fullgraph=True)):
        output = function(x_TD)
        results.append((output.y_TD, *torch.autograd.grad(output.y_TD.square().sum(), [x_TD, *moe.parameters()])))
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)


def test_kernels_need_no_numbers() -> None:
    """A dry run has shapes only."""
    from glmforge.kernels.dispatch import combine, permute, row_weights, sort_by_expert
    from glmforge.kernels.router import RoutingRule, route
    from glmforge.kernels.swiglu import swiglu

    with FakeTensorMode():
        x_TD, logits_TE = torch.empty(5, 8, requires_grad=True), torch.empty(5, 6, requires_grad=True)
        routes = route(logits_TE, torch.empty(6), RoutingRule(2, 1, 1, True, 1.0), implementation="triton")
        routing = sort_by_expert(routes.experts_TK, 6, implementation="triton")
        weights_N = row_weights(routes.weights_TK, routing)
        a_NI = swiglu(permute(x_TD, routing), weights_N, implementation="triton")
        y_TD = combine(a_NI, None, routing) + combine(a_NI, routes.weights_TK, routing)
        assert y_TD.shape == (5, 4)
        gradients = torch.autograd.grad(y_TD.sum() + routes.scores_TE.sum(), (x_TD, logits_TE))
    assert [tuple(x.shape) for x in gradients] == [(5, 8), (5, 6)]
