"""Which maps multiply 8-bit numbers, and what is refused."""

import pytest
import torch
from pydantic import ValidationError

from glmforge.config.parallel import PrecisionConfig
from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError
from glmforge.model import low_precision
from glmforge.model.low_precision import Fp8Matmul, check_device
from glmforge.model.transformer import GlmMoe
from glmforge.parallel.build import build_model
from glmforge.parallel.world import World
from helpers.models import run_config


def config_of(**precision: object) -> RunConfig:
    return run_config(precision={"compute": "bf16"} | precision)


def maps_in_fp8(config: RunConfig) -> set[str]:
    """Names of the matmuls that are replaced, each layer's number left out."""
    found = set()
    part: GlmMoe = build_model(config, World.single("cpu")).parts[0]
    for name, module in part.named_modules():
        for attribute in ("matmul", "gate_up_matmul", "down_matmul"):
            if isinstance(getattr(module, attribute, None), Fp8Matmul):
                found.add(f"{name.split('.', 3)[3]}.{attribute}")
    return found


PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
MAPS = {
    "attention": {f"self_attn.{name}_proj.matmul" for name in "qkvo"},
    "dense_mlp": {f"mlp.{name}.matmul" for name in PROJECTIONS},
    "shared_experts": {f"mlp.shared_experts.{name}.matmul" for name in PROJECTIONS},
    "experts": {"mlp.experts.gate_up_matmul", "mlp.experts.down_matmul"},
}


def test_all_maps_of_a_layer_and_nothing_else() -> None:
    assert maps_in_fp8(config_of()) == set()
    assert maps_in_fp8(config_of(low_precision="fp8")) == set().union(*MAPS.values())


@pytest.mark.parametrize("chosen", MAPS)
def test_the_maps_that_are_named(chosen: str) -> None:
    assert maps_in_fp8(config_of(low_precision="fp8", low_precision_maps=[chosen])) == MAPS[chosen]


def test_fp32_results_are_refused() -> None:
    with pytest.raises(ValidationError, match="'fp8' gives bf16 results: set compute to bf16"):
        PrecisionConfig.model_validate({"compute": "fp32", "low_precision": "fp8"})


def test_widths_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"a weight is \[40, 48\] on each rank, but"):
        Fp8Matmul(None)(torch.zeros(3, 48), torch.zeros(40, 48))


def test_a_gpu_without_fp8_products_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    precision, device = PrecisionConfig(low_precision="fp8"), torch.device("cuda")
    monkeypatch.setattr(low_precision.torch.cuda, "get_device_capability", lambda device: (9, 0))
    check_device(device, precision)
    monkeypatch.setattr(low_precision.torch.cuda, "get_device_capability", lambda device: (8, 9))
    with pytest.raises(ConfigError, match=r"compute capability 9 or 10 .* this one has 8\.9; set it to none"):
        check_device(device, precision)
    check_device(device, PrecisionConfig(low_precision="mxfp8_emulated"))
    check_device(torch.device("cpu"), precision)
