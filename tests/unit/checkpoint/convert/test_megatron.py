"""Megatron checkpoints without Megatron: what is written is read, and what is damaged, hostile or of another model is
refused in one line. tests/backends/megatron compares with megatron-core itself."""

import argparse
import json
import os
import pickle
import shutil
import sys
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from typer.testing import CliRunner

from glmforge.checkpoint.convert import HfTensors, export_hf, megatron
from glmforge.checkpoint.convert.hf_llama import read_llama
from glmforge.checkpoint.convert.megatron import MegatronTensors, export_megatron
from glmforge.checkpoint.convert.megatron_arguments import arguments_of, check_arguments
from glmforge.cli.app import app
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import parameter_table
from glmforge.errors import CheckpointError, ConfigError
from helpers.models import tiny_config

CONFIG = tiny_config(vocab_size=500, num_hidden_layers=3)


def weights_of(config: ModelConfig) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(row.shape, generator=generator) for name, row in parameter_table(config).items()}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read-only."""
    directory = tmp_path_factory.mktemp("megatron") / "glm"
    export_megatron(weights_of(CONFIG), CONFIG, directory, dtype=torch.float32)
    return directory


def test_what_is_written_is_read_without_the_padding(written: Path) -> None:
    found, expected = MegatronTensors(written, CONFIG), weights_of(CONFIG)
    assert found.path == written / "release"
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_a_checkpoint_without_mtp_layers_is_a_model_without_them(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"num_nextn_predict_layers": 0})
    export_megatron(weights_of(config), config, tmp_path / "out", dtype=torch.float32)
    assert MegatronTensors(tmp_path / "out", CONFIG).config == config


def test_metadata_of_a_class_of_megatrons_is_read(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """megatron-core up to 0.15 derives from DCP's class."""
    shutil.copytree(written, tmp_path / "older")
    file = tmp_path / "older" / "release" / ".metadata"
    metadata = pickle.loads(file.read_bytes())
    module = types.ModuleType("megatron_strategies")
    module.MCoreMetadata = type("MCoreMetadata", (type(metadata),), {"__module__": module.__name__})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    metadata.__class__ = module.MCoreMetadata
    metadata.mcore_data = {"decoder.x": {"nd_reformulated_orig_global_shape": (1, 2)}}
    file.write_bytes(pickle.dumps(metadata))
    assert MegatronTensors(tmp_path / "older", CONFIG).keys() == weights_of(CONFIG).keys()


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("executed",)


def no_tracker_target(release: Path) -> None:
    (release.parent / "latest_checkpointed_iteration.txt").write_text("12")


def other_format(release: Path) -> None:
    (release / "metadata.json").write_text(json.dumps({"sharded_backend": "zarr"}))


def code_in_common(release: Path) -> None:
    torch.save({"args": Hostile()}, release / "common.pt")


def huge_common(release: Path) -> None:
    with zipfile.ZipFile(release / "common.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("common/data.pkl", b"\0" * 10_000_000)


def code_in_metadata(release: Path) -> None:
    (release / ".metadata").write_bytes(pickle.dumps(Hostile()))


def truncated(release: Path) -> None:
    file = next(release.glob("*.distcp"))
    os.truncate(file, file.stat().st_size // 2)


def other_heads(release: Path) -> None:
    """The same shapes."""
    config = CONFIG.model_copy(update={"head_dim": 8, "num_attention_heads": 8, "num_key_value_heads": 4})
    torch.save({"args": argparse.Namespace(**arguments_of(config, 512))}, release / "common.pt")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (no_tracker_target, r"iter_0000012.*metadata.json"),
        (other_format, "zarr: convert it with --ckpt-convert-format torch_dist"),
        (code_in_metadata, "not the metadata of a tensor checkpoint"),
        (huge_common, "packed or too large"),
        (lambda release: (release / "common.pt").write_bytes(b"\x80\x02."), "not Megatron's common.pt"),
        (lambda release: (release / "common.pt").unlink(), "not Megatron's common.pt"),
        (truncated, "no room"),
        (other_heads, "kv_channels is 8, but --config implies 16"),
    ],
)
def test_what_is_damaged_is_refused_in_one_line(
    damage: Callable[[Path], object], message: str, written: Path, tmp_path: Path
) -> None:
    shutil.copytree(written, tmp_path / "damaged")
    damage(tmp_path / "damaged" / "release")
    with pytest.raises(CheckpointError, match=message) as error:
        MegatronTensors(tmp_path / "damaged", CONFIG)
    assert "\n" not in str(error.value)


def test_code_in_common_pt_is_not_run(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(written, tmp_path / "hostile")
    code_in_common(tmp_path / "hostile" / "release")
    assert MegatronTensors(tmp_path / "hostile", CONFIG).keys() == weights_of(CONFIG).keys()
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 4}, "num_layers is 3"),
        ({"use_qk_norm": False}, "qk_layernorm is True"),
        ({"rope_theta": 10000.0}, "rotary_base is 1000000.0"),
        ({"first_k_dense_replace": 2}, r"moe_layer_freq is \[0, 1, 1\]"),
    ],
)
def test_another_model_is_refused_by_the_argument(changes: dict[str, Any], message: str, written: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        MegatronTensors(written, CONFIG.model_copy(update=changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 4}, r"lacks decoder.layers.3.self_attention.linear_qkv.layer_norm_weight"),
        ({"num_hidden_layers": 2}, r"has decoder.layers.2.*and \d+ more, which the model lacks"),
        ({"moe_intermediate_size": 64}, r"experts.linear_fc1.weight is \[8, 64, 48\].* \[8, 128, 48\]"),
        ({"vocab_size": 600, "eos_token_id": [], "pad_token_id": None}, r"word_embeddings.weight is \[512, 48\]"),
    ],
)
def test_without_arguments_another_model_is_refused_by_the_tensors(
    changes: dict[str, Any], message: str, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(megatron, "_arguments", lambda file: {})
    with pytest.raises(CheckpointError, match=message):
        MegatronTensors(written, CONFIG.model_copy(update=changes))


def test_arguments_as_megatron_keeps_them_agree() -> None:
    """Without grouped queries the number of groups is not used; a pattern may be a number; None is a default."""
    config = CONFIG.model_copy(update={"num_key_value_heads": 4, "first_k_dense_replace": 0})
    kept = arguments_of(config, 640) | {"group_query_attention": False, "num_query_groups": 1, "moe_layer_freq": 1}
    check_arguments(kept | {"moe_router_num_groups": None, "rotary_base": 1000000}, config, "here")
    with pytest.raises(CheckpointError, match="num_query_groups is 4"):
        check_arguments(kept, CONFIG.model_copy(update={"first_k_dense_replace": 0}), "here")


LLAMA = {
    **{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 500, "hidden_size": 48},
    **{"num_hidden_layers": 2, "intermediate_size": 80, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}, "attention_bias": False},
}


def convert(*arguments: object) -> None:
    result = CliRunner().invoke(app, ["checkpoint", *map(str, arguments)])
    assert result.exit_code == 0, (result.output, result.exception)


@pytest.mark.parametrize("kind", ["glm", "llama"])
def test_commands_convert_to_megatron_and_back(kind: str, tmp_path: Path) -> None:
    """A Llama keeps its `config.json`, with a RoPE that ours has not."""
    source = tmp_path / "hf"
    export_hf(weights_of(CONFIG), CONFIG, source, dtype=torch.float32)
    config = CONFIG
    if kind == "llama":
        shutil.rmtree(source)
        source.mkdir()
        (source / "config.json").write_text(json.dumps(LLAMA))
        found = read_llama(source)
        assert found is not None
        config = found[0]
        save_file(weights_of(config), source / "model.safetensors")
    convert("to-megatron", source, tmp_path / "megatron", "--dtype", "fp32", "--vocab-multiple", 256)
    convert("from-megatron", tmp_path / "megatron", tmp_path / "back", "--dtype", "fp32", "--config", source)
    back = HfTensors(tmp_path / "back", config)
    assert all(torch.equal(back[name], tensor) for name, tensor in weights_of(config).items())
    if kind == "llama":
        kept = json.loads((tmp_path / "back" / "config.json").read_text())
        assert kept == LLAMA | {"dtype": "float32", "torch_dtype": "float32"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads must be a positive number"),
        ({"hidden_size": None}, "hidden_size must be a positive number"),
        ({"attention_bias": True}, "attention_bias and mlp_bias cannot be converted"),
        ({"hidden_act": "gelu"}, "hidden_act"),
    ],
)
def test_a_llama_that_cannot_be_converted_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | changes))
    with pytest.raises(ConfigError, match=message):
        read_llama(tmp_path)


def test_a_model_with_another_head_has_no_form_in_megatron(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"heads": {"value": 1}})
    with pytest.raises(CheckpointError, match="lm_head and no other head"):
        export_megatron(weights_of(config), config, tmp_path / "out", dtype=torch.float32)
    assert not (tmp_path / "out").exists()
