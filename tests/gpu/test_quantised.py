"""Adapters beside 4-bit weights on a device: bf16 gradients against those beside the weights that codes stand for."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from glmforge.adapt.lora import adapters_of
from glmforge.checkpoint.quantised import QuantisedWeight, with_weights
from glmforge.kernels.nf4 import dequantise
from glmforge.parallel.build import build_model
from glmforge.parallel.model import ParallelModel
from glmforge.parallel.world import World
from helpers.devices import DEVICES, relative_error
from helpers.equivalence import begin_quantised
from helpers.models import run_config, tiny_config

pytest.importorskip("torchao")

WIDTHS = {"hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 64, "num_nextn_predict_layers": 0}


def model_on(device: str, frozen: str) -> ParallelModel:
    config = run_config(
        model=tiny_config(**WIDTHS, num_hidden_layers=2, initializer_range=0.1).model_dump(),
        lora={"rank": 8, "targets": ["all-linear"]},
        init_from=Path("weights"),
        precision={"compute": "bf16", "frozen": frozen},
    )
    model = build_model(config, World.single(device), extend=adapters_of(config))
    begin_quantised(model, config.seed)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def results(model: ParallelModel, device: str) -> dict[str, Tensor]:
    ids_BS = torch.randint(0, 512, (4, 32), generator=torch.Generator().manual_seed(1)).to(device)
    (part,) = model.parts
    loss = F.cross_entropy(part(ids_BS).main.float(), ids_BS.flatten())
    loss.backward()
    return {"loss": loss} | {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_are_those_beside_the_weights_that_codes_stand_for(device: str) -> None:
    rounded, exact = (model_on(device, frozen) for frozen in ("nf4", "bf16"))
    tensors = exact.state_dict()
    with torch.no_grad():
        for name, weight in with_weights(rounded.state_dict()).items():
            if isinstance(weight, QuantisedWeight):
                tensors[name].copy_(dequantise(weight.codes, weight.scales, torch.bfloat16))
    ours, expected = results(rounded, device), results(exact, device)
    assert ours.keys() == expected.keys()
    # On the CPU base and adapter of experts are one operator beside bf16, which rounds their sum once, not three times.
    errors = {name: relative_error(ours[name], expected[name]) for name in expected}
    assert {name: error for name, error in errors.items() if not error < 0.05} == {}
    assert errors["loss"] < 1e-3
