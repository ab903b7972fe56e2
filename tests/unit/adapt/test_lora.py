"""Adapters of routed experts: which operators compute them."""

from pathlib import Path

import pytest
import torch

from glmforge.adapt.lora import adapters_of
from glmforge.config.schema import RunConfig
from glmforge.model.moe import Experts
from glmforge.parallel.build import build_model
from glmforge.parallel.world import World
from helpers.flops import flop_counter, flops_by_operator
from helpers.models import run_config, tiny_config


def a_run(**sections: object) -> RunConfig:
    model = tiny_config(num_nextn_predict_layers=0, num_hidden_layers=2)
    return run_config(model=model.model_dump(), init_from=Path("base"), **sections)


def experts_of(config: RunConfig) -> Experts:
    model = build_model(config, World.single("cpu"), extend=adapters_of(config))
    (moe,) = model.parts[0].moe_layers.values()
    return moe.experts


def run(experts: Experts, dtype: torch.dtype = torch.float32) -> None:
    """A forward pass of 40 rows."""
    counts_e = torch.tensor([5] * experts.num_experts)
    x_ND = torch.randn(40, experts.gate_up_proj.shape[-1], dtype=dtype, requires_grad=True)
    experts.swiglu(x_ND, counts_e)


TARGETS = pytest.mark.parametrize("targets", [["experts"], ["experts.gate_up_proj", "experts.down_proj"]], ids=str)


@TARGETS
def test_base_and_adapter_of_experts_are_one_operator(targets: list[str]) -> None:
    experts = experts_of(a_run(lora={"rank": 4, "targets": targets}))
    with flop_counter() as counter:
        run(experts)
    assert set(flops_by_operator(counter)) == {"glmforge.adapted_mm"}


@TARGETS
def test_so_they_are_when_compiled(targets: list[str]) -> None:
    experts = experts_of(a_run(lora={"rank": 4, "targets": targets}))
    traced: list[str] = []

    def backend(graph: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        traced.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    experts.swiglu = torch.compile(experts.swiglu, backend=backend, fullgraph=True)
    run(experts)
    assert [name for name in traced if "glmforge" in name] == ["glmforge.adapted_mm.default"] * 2


def test_beside_products_in_8_bits_the_adapter_is_computed_for_itself() -> None:
    precision = {"compute": "bf16", "low_precision": "fp8", "low_precision_maps": ["experts"]}
    experts = experts_of(a_run(lora={"rank": 4, "targets": ["experts"]}, precision=precision))
    with flop_counter() as counter:
        run(experts, torch.bfloat16)
    assert "glmforge.adapted_mm" not in flops_by_operator(counter)
