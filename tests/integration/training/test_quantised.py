"""A run with adapters beside 4-bit weights (QLoRA): what is read, how it trains, how it goes on, what is refused."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from glmforge.adapt.lora import adapters_of
from glmforge.checkpoint.convert import import_hf, load_hf_into
from glmforge.checkpoint.find import find_checkpoint
from glmforge.checkpoint.format.read import StoredTensors
from glmforge.checkpoint.pretrained import load_pretrained
from glmforge.checkpoint.quantised import QuantisedWeight, with_weights
from glmforge.config import RunConfig
from glmforge.config.layout import resolve_layout
from glmforge.deploy.export import export_run
from glmforge.dryrun.run import dry_run
from glmforge.errors import ConfigError
from glmforge.extras import MissingPackageError
from glmforge.kernels import nf4
from glmforge.kernels.nf4 import dequantise, quantise
from glmforge.parallel.build import build_model
from glmforge.parallel.world import World
from glmforge.plan.memory.estimate import estimate_memory
from glmforge.plan.memory.purposes import Purpose
from glmforge.plan.stages.stage import stage_of
from glmforge.recipes.train import train
from helpers.lora_runs import PHASE, lora_run, losses
from helpers.models import tiny_config
from helpers.stopping import StopAfter
from helpers.tiny_data import VOCAB_SIZE, TinyData

pytest.importorskip("torchao")

MODEL = tiny_config(
    vocab_size=VOCAB_SIZE, hidden_size=64, intermediate_size=128, moe_intermediate_size=64, num_hidden_layers=2
).model_dump()


@pytest.fixture(scope="module")
def run(tiny_data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("base") / "run"
    phase = PHASE | {"steps": 30, "batch_size": 8}
    train(tiny_data.run_config(directory, model=MODEL, phases=[phase], optim={"lr": 1e-2, "warmup_steps": 2}))
    return directory


@pytest.fixture(scope="module")
def base(run: Path) -> Path:
    """A Hugging Face directory in bf16, as a base model comes."""
    export_run(run, run.parent / "hf", dtype="bf16")
    return run.parent / "hf"


def run_of(data: TinyData, directory: Path, base: Path, frozen: str = "nf4", **sections: Any) -> RunConfig:
    settings = {"model": MODEL, "precision": {"compute": "bf16", "frozen": frozen}}
    return lora_run(data, directory, base, **(settings | sections))


def test_codes_are_those_of_the_weights_that_are_read(tiny_data: TinyData, base: Path, tmp_path: Path) -> None:
    config = run_of(tiny_data, tmp_path, base)
    model = build_model(config, World.single("cpu"), extend=adapters_of(config))
    tensors = {name: tensor for name, tensor in model.state_dict().items() if ".lora_" not in name}
    load_hf_into(base, tensors, config.model)
    published = dict(import_hf(base)[1])
    weights = with_weights(tensors)
    assert weights.keys() == published.keys()
    quantised = {name for name, weight in weights.items() if isinstance(weight, QuantisedWeight)}
    assert quantised == {
        name
        for name, tensor in published.items()
        if tensor.dim() > 1 and name.startswith(("model.layers.0.", "model.layers.1.")) and ".gate.weight" not in name
    }
    for name, weight in weights.items():
        if isinstance(weight, QuantisedWeight):
            codes, scales = quantise(published[name])
            assert torch.equal(weight.codes, codes), name
            assert torch.equal(weight.scales, scales), name
        else:
            assert torch.equal(weight, published[name].to(weight.dtype)), name


def test_it_trains_as_beside_bf16_and_goes_on_to_the_bit(tiny_data: TinyData, base: Path, tmp_path: Path) -> None:
    whole, parts = (run_of(tiny_data, tmp_path / name, base) for name in ("whole", "parts"))
    train(whole)
    train(parts, hooks=[StopAfter(4)])
    train(parts)
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    train(run_of(tiny_data, tmp_path / "bf16", base, "bf16"))
    rounded, exact = losses(tmp_path / "whole"), losses(tmp_path / "bf16")
    assert rounded != exact
    assert rounded == pytest.approx(exact, rel=0.05)  # weights are rounded by 9 % of their lengths
    stored = StoredTensors(find_checkpoint(tmp_path / "whole"))
    assert all(".lora_" in name for name in stored if name.startswith(("model.", "optim.")))
    assert load_pretrained(tmp_path / "whole").lm_head.weight.is_floating_point()  # merged into init_from's weights


def test_gradients_are_those_beside_the_weights_that_codes_stand_for(
    tiny_data: TinyData, base: Path, tmp_path: Path
) -> None:
    """Loss and gradients of one step in fp32, with adapters whose factors all matter."""
    found = []
    codes: dict[str, QuantisedWeight | torch.Tensor] = {}
    for frozen in ("nf4", "fp32"):
        config = run_of(tiny_data, tmp_path, base, precision={"compute": "fp32", "frozen": frozen})
        model = build_model(config, World.single("cpu"), extend=adapters_of(config))
        tensors = {name: tensor for name, tensor in model.state_dict().items() if ".lora_" not in name}
        load_hf_into(base, tensors, config.model)
        codes = codes or with_weights(tensors)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, weight in codes.items():
                if frozen == "fp32" and isinstance(weight, QuantisedWeight):
                    tensors[name].copy_(dequantise(weight.codes, weight.scales, torch.float32))
            for name, parameter in model.named_parameters():
                if ".lora_" in name:
                    parameter.normal_(std=0.1, generator=generator)
        (part,) = model.parts
        ids_BS = torch.randint(0, VOCAB_SIZE, (4, 32), generator=torch.Generator().manual_seed(1))
        loss = torch.nn.functional.cross_entropy(part(ids_BS).main, ids_BS.flatten())
        loss.backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        assert all(".lora_" in name for name in gradients)
        found.append({"loss": loss.detach()} | gradients)
    ours, expected = found
    assert ours.keys() == expected.keys()
    for name, gradient in expected.items():
        assert (ours[name] - gradient).norm() <= 1e-5 * gradient.norm(), name


def test_plan_and_dry_run_know_the_bytes(tiny_data: TinyData, base: Path, tmp_path: Path) -> None:
    held = {}
    for frozen in ("nf4", "bf16"):
        config = run_of(tiny_data, tmp_path, base, frozen)
        planned = estimate_memory(config, resolve_layout(config, 2), stage_of(config)).fullest.at_peak
        (place,) = dry_run(config, 2).classes
        assert planned[Purpose.WEIGHTS] == place.findings.held[Purpose.WEIGHTS]
        held[frozen] = planned[Purpose.WEIGHTS]
    assert held["nf4"] < held["bf16"]


def test_what_cannot_be_is_refused(tiny_data: TinyData, run: Path, base: Path, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="'nf4' is for runs with adapters"):
        run_of(tiny_data, tmp_path, base, lora=None)
    with pytest.raises(ValidationError, match="needs exact row norms, which 'nf4' rounds"):
        run_of(tiny_data, tmp_path, base, lora={"dora": True})
    with pytest.raises(ValidationError, match=r"blocks of 64 inputs together, which those of .*o_proj"):
        run_of(tiny_data, tmp_path, base, parallel={"tp": 2})
    with pytest.raises(ConfigError, match="'nf4' loads from a Hugging Face directory"):
        train(run_of(tiny_data, tmp_path, run))


def test_the_missing_extra_is_named(
    tiny_data: TinyData, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nf4.levels.cache_clear()
    monkeypatch.setitem(sys.modules, "torchao", None)
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(MissingPackageError, match=r"^precision\.frozen: nf4 needs the package 'torchao'"):
        train(run_of(tiny_data, tmp_path, base))
