"""The `glmforge model show` command."""

import json
from typing import Any

from typer.testing import CliRunner

from glmforge.cli.model import app
from glmforge.errors import ConfigError


def show(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["show", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def show_json(model: str) -> Any:
    return json.loads(show(model, "--json"))


def test_tables() -> None:
    text = show("glm46_355b")
    for cell in ("356,785,898,816", "32,856,319,904", "232.3 GFLOP", "1.103 TFLOP", "664.6 GiB", "376,832"):
        assert cell in text
    for cell in ("92: 3 dense, 89 MoE, and 1 MTP", "96, 8 for keys and values, 128 wide, QK-norm", "160, 8 per token"):
        assert cell in text


def test_json_has_the_same_figures() -> None:
    summary = show_json("glm45_air_106b")
    assert summary["config"]["hidden_size"] == 4096
    assert summary["parameters"]["trunk + embedding + head"] == 106_852_251_264
    assert [row["seq_len"] for row in summary["train_flops_per_token"]] == [4096, 8192, 32768, 131072]
    assert summary["bytes"]["KV cache per token, bf16"] == 188_416


def test_sequences_are_as_long_as_the_model_s_positions() -> None:
    assert [row["seq_len"] for row in show_json("demo")["train_flops_per_token"]] == [2048]


def test_an_unknown_model_is_the_user_s_error() -> None:
    result = CliRunner().invoke(app, ["show", "glm47"])
    assert isinstance(result.exception, ConfigError)


def test_adapters() -> None:
    text = show("glm45_air_106b", "--lora", "rank=16,target=q_proj+k_proj+v_proj+o_proj")
    assert "31,653,888" in text
    assert "368" in text
    assert "0.0290% of the model" in text
    summary = json.loads(show("glm45_air_106b", "--lora", "rank=16,target=experts", "--json"))["lora"]
    assert (summary["trained"], summary["tensors"]) == (1_521_745_920, 270)
    assert [one["adapters"] for one in summary["maps"]] == [45 * 128] * 3


def test_adapters_of_nothing_are_the_user_s_error() -> None:
    result = CliRunner().invoke(app, ["show", "demo", "--lora", "rank=16,target=gate_up"])
    assert isinstance(result.exception, ConfigError)
    assert "'gate_up' matches no module of the model; nearest: '" in str(result.exception)
