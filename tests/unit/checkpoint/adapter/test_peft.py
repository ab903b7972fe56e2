"""Against PEFT on the same weights and batches: logits, loss and every adapter's gradient, and adapters both ways."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from glmforge.adapt.begin import begin_magnitudes
from glmforge.adapt.lora import adapters_of
from glmforge.checkpoint.adapter.from_peft import PeftTensors, from_peft, lora_of, read_peft
from glmforge.checkpoint.adapter.peft_config import peft_config
from glmforge.checkpoint.adapter.to_peft import peft_tensors
from glmforge.checkpoint.merged import MergedWeights
from glmforge.config.adapters import table_with
from glmforge.config.schema import RunConfig
from glmforge.errors import CheckpointError
from glmforge.model.transformer import GlmMoe
from glmforge.parallel.build import build_model
from glmforge.parallel.model import ParallelModel
from glmforge.parallel.world import World
from helpers.models import randomize_, run_config, tiny_config, transformers_model

peft = pytest.importorskip("peft")

SETTINGS: dict[str, dict[str, Any]] = {
    "attention": {"targets": ["self_attn"]},
    "dora": {"targets": ["self_attn"], "dora": True, "rslora": True},
    "dense": {"targets": ["shared_experts", "model.layers.0.mlp.up_proj"]},
    "experts as PEFT": {"targets": ["experts.gate_up_proj", "experts.down_proj"]},
    "every map": {"targets": ["all-linear"]},
    "every map, rslora": {"targets": ["all-linear"], "rslora": True},
    "router": {"targets": ["gate", "v_proj"]},
    "vocabulary": {"targets": ["embed_tokens", "lm_head"]},
    "saved": {"targets": ["q_proj"], "modules_to_save": ["lm_head", "model.norm.weight"]},
}


def a_run(name: str) -> RunConfig:
    model = tiny_config(num_nextn_predict_layers=0, num_hidden_layers=2)
    return run_config(model=model.model_dump(), lora={"rank": 4} | SETTINGS[name], init_from=Path("base"))


def with_adapters(config: RunConfig) -> tuple[GlmMoe, Any]:
    """Ours with adapters that matter, and transformers' model of the same base weights."""
    theirs = transformers_model(config.model)
    randomize_(theirs)
    model: ParallelModel = build_model(config, World.single("cpu"), extend=adapters_of(config))
    with torch.no_grad():
        for key, tensor in model.state_dict().items():
            if ".lora_" in key:
                torch.nn.init.normal_(tensor, std=0.1)
            else:
                tensor.copy_(theirs.state_dict()[key])
        begin_magnitudes(model.state_dict(), model.table, model.world)
        for key, tensor in model.state_dict().items():
            if ".lora_magnitude" in key:
                tensor.mul_(1.2)
    return model.parts[0], theirs


def write_peft(model: GlmMoe, config: RunConfig, directory: Path) -> None:
    directory.mkdir()
    tensors = peft_tensors(model.state_dict(), config.model, config.lora)
    made = {name: tensor.make() for name, tensor in tensors.items()}
    assert {name: tuple(tensor.shape) for name, tensor in made.items()} == {n: t.shape for n, t in tensors.items()}
    save_file(made, directory / "adapter_model.safetensors")
    (directory / "adapter_config.json").write_text(json.dumps(peft_config(config.model, config.lora, "base")))


def loss_of(logits_BSV: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(logits_BSV[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


@pytest.mark.parametrize("name", SETTINGS)
def test_the_same_as_peft(name: str, tmp_path: Path) -> None:
    config = a_run(name)
    model, theirs = with_adapters(config)
    write_peft(model, config, tmp_path / "adapter")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of layers that are compared all the same
        adapted = peft.PeftModel.from_pretrained(theirs, tmp_path / "adapter", is_trainable=True)
    ids = torch.randint(0, config.model.vocab_size, (2, 24), generator=torch.Generator().manual_seed(1))
    expected, actual = adapted(ids).logits, model.differentiable_logits(ids)
    # fp32, sums in another order.
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())
    losses = loss_of(actual, ids), loss_of(expected, ids)
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-5)
    for loss in losses:
        loss.backward()
    gradients = {
        key.replace(".default", "").replace(".modules_to_save", "").removesuffix(".weight"): parameter.grad
        for key, parameter in adapted.named_parameters()
        if parameter.grad is not None
    }
    saved = peft.get_peft_model_state_dict(adapted)
    theirs_by_name = {
        key: gradients[key.removesuffix(".weight")] for key in saved if key.removesuffix(".weight") in gradients
    }
    found = dict(from_peft(theirs_by_name, config.model, config.lora, strict=False))
    own = {key: parameter.grad for key, parameter in model.named_parameters() if parameter.grad is not None}
    assert own.keys() == found.keys()
    for key, gradient in own.items():
        assert (gradient - found[key]).norm() < 1e-5 * found[key].norm(), key


def test_dora_that_peft_cannot_read_is_refused() -> None:
    config = a_run("dense")
    lora = config.lora.model_copy(update={"dora": True})
    with pytest.raises(CheckpointError, match="PEFT does not support DoRA on this layer"):
        peft_tensors({}, config.model, lora)


@pytest.mark.parametrize("name", SETTINGS)
def test_merged_weights_say_the_same(name: str) -> None:
    config = a_run(name)
    model, _ = with_adapters(config)
    plain = GlmMoe(config.model)
    state = model.state_dict()
    trained = {row.name for row in table_with(config.model, config.lora).trained().values() if row.lr_scale}
    apart = [{name: t for name, t in state.items() if (name in trained) == own} for own in (True, False)]
    plain.load_state_dict(MergedWeights(*apart, config.model, config.lora))
    ids = torch.randint(0, config.model.vocab_size, (2, 24), generator=torch.Generator().manual_seed(1))
    expected = model.logits(ids)
    torch.testing.assert_close(plain.logits(ids), expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())


@pytest.mark.parametrize("name", SETTINGS)
def test_read_back_as_written(name: str, tmp_path: Path) -> None:
    config = a_run(name)
    model, _ = with_adapters(config)
    state = model.state_dict()
    write_peft(model, config, tmp_path / "adapter")
    for lora in (config.lora, lora_of(tmp_path / "adapter", config.model)):
        found = dict(read_peft(tmp_path / "adapter", config.model, lora))
        assert {key for key in state if ".lora_" in key} <= found.keys()
        assert all(torch.equal(tensor, state[key]) for key, tensor in found.items())


@pytest.mark.parametrize(
    ("other", "error"),
    [
        ({"targets": ["all-linear"], "rank": 2}, "rank"),
        ({"targets": ["self_attn"]}, "not adapted by this run"),
        ({"targets": ["all-linear", "gate"]}, "is not in the adapter"),
        (
            {"targets": ["self_attn", "shared_experts", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]},
            "not adapted by this run",
        ),
    ],
)
def test_an_adapter_of_other_settings_is_refused(other: dict[str, Any], error: str, tmp_path: Path) -> None:
    config = a_run("every map")
    model, _ = with_adapters(config)
    write_peft(model, config, tmp_path / "adapter")
    lora = config.lora.model_validate({"rank": 4} | other)
    with pytest.raises(CheckpointError, match=error):
        dict(from_peft(PeftTensors(tmp_path / "adapter"), config.model, lora))
