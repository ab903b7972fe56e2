"""What engines are planned for: the architecture and the format of weights that a directory holds."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from glmforge.checkpoint.convert.hf_config import hf_config
from glmforge.config.load import load_model_config
from glmforge.deploy.served_model import served_model
from glmforge.errors import ConfigError

AIR = load_model_config("glm45_air_106b")


def written(directory: Path, quantised: Any = None) -> Path:
    config = hf_config(AIR, torch.bfloat16)
    (directory / "config.json").write_text(
        json.dumps(config | ({} if quantised is None else {"quantization_config": quantised}))
    )
    return directory


def group(bits: int, kind: str) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": kind}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}


@pytest.mark.parametrize(
    ("quantised", "name"),
    [
        (None, "bf16"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
        (group(8, "float"), "fp8"),
        (group(8, "int"), "int8"),
        (group(4, "int"), "int4"),
        ({"quant_method": "gptq", "bits": 4}, "int4"),
    ],
)
def test_directories(tmp_path: Path, quantised: Any, name: str) -> None:
    model, stored = served_model(written(tmp_path, quantised))
    assert stored == name
    assert (model.num_hidden_layers, model.n_routed_experts) == (AIR.num_hidden_layers, AIR.n_routed_experts)


def test_presets_need_no_weights() -> None:
    assert served_model(Path("glm45_air_106b")) == (AIR, "bf16")


@pytest.mark.parametrize("quantised", [{}, [], "fp8", group(3, "int"), {"config_groups": {"a": {"weights": []}}}])
def test_an_unknown_format_is_refused_in_one_line(tmp_path: Path, quantised: Any) -> None:
    with pytest.raises(ConfigError, match="pass --weights") as refused:
        served_model(written(tmp_path, quantised))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"model_type": "llama"}'])
def test_another_model_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError):
        served_model(tmp_path)
