"""PEFT adapters from strangers: what would be computed otherwise than PEFT does, or cannot be read, is one line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from glmforge.checkpoint.adapter.find import find_adapter
from glmforge.checkpoint.adapter.from_peft import import_peft, read_peft
from glmforge.checkpoint.adapter.peft_config import WEIGHTS_FILE, peft_config
from glmforge.checkpoint.adapter.to_peft import peft_tensors
from glmforge.checkpoint.convert import export_hf
from glmforge.checkpoint.format.sharded_adapter import CONFIG_FILE
from glmforge.config.adapters import table_with
from glmforge.config.lora import LoraConfig
from glmforge.config.parameters import parameter_table
from glmforge.errors import CheckpointError
from helpers.models import tiny_config

MODEL = tiny_config(num_nextn_predict_layers=0, num_hidden_layers=2)
LORA = LoraConfig(rank=2, alpha=4.0, targets=("q_proj", "experts"))
Q = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("base") / "model"
    export_hf({name: torch.zeros(row.shape) for name, row in parameter_table(MODEL).items()}, MODEL, directory)
    return directory


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    directory = tmp_path / "adapter"
    directory.mkdir()
    rows = [row for row in table_with(MODEL, LORA).trained().values() if row.lr_scale]
    own = {row.name: torch.ones(row.shape) for row in rows}
    tensors = {name: tensor.make() for name, tensor in peft_tensors(own, MODEL, LORA).items()}
    save_file(tensors, directory / WEIGHTS_FILE)
    (directory / CONFIG_FILE).write_text(json.dumps(peft_config(MODEL, LORA, None)))
    return directory


def refusals(adapter: Path, base: Path) -> set[str]:
    """What both ways say: to begin with it, and to convert it, of which nothing stays."""
    said = set()
    for read in (
        lambda: dict(read_peft(adapter, MODEL, LORA)),
        lambda: import_peft(adapter, adapter / "out", base=base),
    ):
        with pytest.raises(CheckpointError) as error:
            read()
        said.add(str(error.value))
    assert not list((adapter / "out").glob("*"))
    assert not any("\n" in line for line in said)
    return said


PACKED = "mlp.experts.gate_up_proj"
SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "rank true": ({"r": True}, "is not of a LoRA adapter"),
    "rank 2.0": ({"r": 2.0}, "is not of a LoRA adapter"),
    "rank '2'": ({"r": "2"}, "is not of a LoRA adapter"),
    "rank 0": ({"r": 0}, "is not of a LoRA adapter"),
    "alpha true": ({"lora_alpha": True}, "is not of a LoRA adapter"),
    "rslora 1": ({"use_rslora": 1}, "is not of a LoRA adapter"),
    "dora yes": ({"use_dora": "yes"}, "is not of a LoRA adapter"),
    "another kind": ({"peft_type": "IA3"}, "is not of a LoRA adapter"),
    "a map's own rank": ({"rank_pattern": {PACKED: 4, "q_proj": 1}}, "rank_pattern is .* adapter's"),
    "a map's own alpha": ({"alpha_pattern": {PACKED: 8, "q_proj": 1}}, "alpha_pattern is .* adapter's"),
    "packed alpha not doubled": ({"alpha_pattern": None}, r"alpha_pattern is \{\}.* adapter's"),
    "biases": ({"bias": "lora_only"}, "biases, which are not supported"),
    "layers repeated": ({"layer_replication": [[0, 2]]}, "layer_replication is set"),
    "after a token only": ({"alora_invocation_tokens": [5]}, "alora_invocation_tokens is set"),
    "PiSSA": ({"init_lora_weights": "pissa_niter_16"}, "has changed the base weights"),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_settings_that_mean_something_else_are_refused(case: str, adapter: Path, base: Path) -> None:
    changes, expected = SETTINGS[case]
    config = json.loads((adapter / CONFIG_FILE).read_text())
    (adapter / CONFIG_FILE).write_text(json.dumps(config | changes))
    (said,) = refusals(adapter, base)
    with pytest.raises(CheckpointError, match=expected):
        raise CheckpointError(said)


def test_settings_that_change_nothing_are_no_reason(adapter: Path, base: Path) -> None:
    config = json.loads((adapter / CONFIG_FILE).read_text())
    patterns = {"rank_pattern": {PACKED: 4, "q_proj": 2}, "alpha_pattern": {PACKED: 8, "q_proj": 4}}
    harmless = {"target_modules": r".*\.q_proj", "init_lora_weights": "gaussian", "lora_dropout": 0.5, "unknown": 1}
    (adapter / CONFIG_FILE).write_text(json.dumps(config | patterns | harmless))
    assert len(dict(read_peft(adapter, MODEL, LORA))) == len(table_with(MODEL, LORA).trained()) - len(
        parameter_table(MODEL).trained()
    )
    assert import_peft(adapter, adapter / "out", base=base).name == "step-00000000"


def other_shape(tensors: dict[str, Tensor]) -> None:
    tensors[Q] = torch.zeros(2, 47)


def no_number(tensors: dict[str, Tensor]) -> None:
    tensors[Q][0, 0] = torch.nan


def half(tensors: dict[str, Tensor]) -> None:
    del tensors[Q]


def one_more(tensors: dict[str, Tensor]) -> None:
    tensors["base_model.model.../../x\nglmforge: all is well"] = torch.zeros(2)


def foreign(tensors: dict[str, Tensor]) -> None:
    tensors["../../x\nglmforge: all is well"] = torch.zeros(2)


def fewer_experts(tensors: dict[str, Tensor]) -> None:
    name = next(name for name in tensors if "experts.lora_A" in name)
    tensors[name] = tensors[name][:-1].contiguous()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (other_shape, "q_proj.lora_A.weight: has shape [2, 47] in the adapter, the run needs [2, 48]"),
        (no_number, "q_proj.lora_A.weight contains non-finite values"),
        (half, "q_proj.lora_A.weight: is not in the adapter"),
        (one_more, r"'base_model.model.../../x\nglmforge: all is well': not adapted by this run"),
        (foreign, r"'../../x\nglmforge: all is well' is not a PEFT tensor name"),
        (fewer_experts, "mlp.experts: the adapter has A ["),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    change: Callable[[dict[str, Tensor]], None], expected: str, adapter: Path, base: Path
) -> None:
    tensors = load_file(adapter / WEIGHTS_FILE)
    change(tensors)
    save_file(tensors, adapter / WEIGHTS_FILE)
    assert all(expected in said for said in refusals(adapter, base))


def test_a_pickle_is_not_opened(adapter: Path, base: Path) -> None:
    (adapter / WEIGHTS_FILE).rename(adapter / "adapter_model.bin")
    (said,) = refusals(adapter, base)
    assert "has only adapter_model.bin, and loading a pickle can" in said
    shutil.rmtree(adapter)
    assert all("not a PEFT adapter" in said for said in refusals(adapter, base))


def test_what_is_no_checkpoint_of_adapters_is_named(adapter: Path, base: Path) -> None:
    for source, what in ((adapter, "is a PEFT adapter; convert it with 'glmforge"), (base, "is a Hugging Face model")):
        with pytest.raises(CheckpointError, match=f"{source}: {what}"):
            find_adapter(source)
    checkpoint = import_peft(adapter, adapter / "out", base=base)
    assert find_adapter(adapter / "out")[0] == checkpoint
    with pytest.raises(CheckpointError, match="is already an adapter checkpoint"):
        import_peft(checkpoint, adapter / "again", base=base)
    with pytest.raises(CheckpointError, match=r"is not a Hugging Face directory"):
        import_peft(adapter, adapter / "again", base=adapter)


def test_an_interrupted_conversion_leaves_nothing(
    adapter: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("glmforge.checkpoint.adapter.from_peft.write_manifest", interrupt)
    with pytest.raises(KeyboardInterrupt):
        import_peft(adapter, tmp_path / "out", base=base)
    assert list((tmp_path / "out").iterdir()) == []
