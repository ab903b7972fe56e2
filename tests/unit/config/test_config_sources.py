"""A model's configuration from presets, files, run directories and Hugging Face's config.json."""

import json
from pathlib import Path
from typing import Any

import pytest

from glmforge.config import ModelConfig, dump_config, load_config, load_model_config
from glmforge.config.hf import DEFAULTS
from glmforge.errors import ConfigError

TINY = load_model_config("tiny")


def published(**changes: Any) -> dict[str, Any]:
    """What a GLM checkpoint's config.json holds, with keys that do not concern the architecture."""
    return {
        **TINY.model_dump(),
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "attention_dropout": 0.0,
        "rope_scaling": None,
        "use_cache": True,
        **changes,
    }


def write_json(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def test_a_yaml_file_of_a_model(tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(dump_config(TINY))
    assert load_model_config(path) == TINY
    path.write_text("preset: tiny\nnum_hidden_layers: 7\n")
    assert load_model_config(str(path)) == TINY.model_copy(update={"num_hidden_layers": 7})


def test_a_model_file_that_names_itself(tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(f"preset: {path}\n")
    with pytest.raises(ConfigError, match="extends itself"):
        load_model_config(path)


def test_the_model_of_a_run(tmp_path: Path) -> None:
    run = load_config("demo", ["model.num_hidden_layers=7"])
    (tmp_path / "config.yaml").write_text(dump_config(run))
    assert load_model_config(tmp_path) == load_model_config(tmp_path / "config.yaml") == run.model


def test_a_run_can_name_any_source_of_a_model(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", published())
    config = load_config(
        "demo",
        [
            f"model={tmp_path}",
            "model.rope_theta=5e5",
            "phases=[{name: p, steps: 1, seq_len: 64, batch_size: 1}]",
        ],
    )
    assert config.model == TINY.model_copy(update={"rope_theta": 5e5})


def test_a_published_config(tmp_path: Path) -> None:
    assert load_model_config(write_json(tmp_path / "config.json", published())) == TINY
    assert load_model_config(tmp_path) == TINY


def test_transformers_5_keeps_rope_settings_together(tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.25}
    content = published(rope_parameters=rope)
    del content["rope_theta"], content["partial_rotary_factor"]
    config = load_model_config(write_json(tmp_path / "config.json", content))
    assert (config.rope_theta, config.partial_rotary_factor) == (5e5, 0.25)


def test_what_transformers_writes_can_be_read(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    fields = TINY.model_dump(exclude={"rope_theta", "partial_rotary_factor"})
    rope = {"rope_type": "default", "rope_theta": TINY.rope_theta, "partial_rotary_factor": 0.5}
    transformers.Glm4MoeConfig(**fields, rope_parameters=rope).save_pretrained(tmp_path)
    assert load_model_config(tmp_path) == TINY


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "glm4"}, "model_type is 'glm4'; only 'glm4_moe' can be read"),
        ({"attention_dropout": "x"}, "attention_dropout is 'x'; must be between 0 and"),
        ({"attention_dropout": True}, "attention_dropout is True; must be between 0 and"),
        ({"rope_parameters": [1]}, r"rope_parameters is \[1\]; must be an object or null"),
        ({"rope_parameters": {"type": "linear", "factor": 2}}, "rope_parameters: scaled RoPE"),
        ({"eos_token_id": [None]}, "eos_token_id.*valid integer"),
        ({"num_hidden_layers": 2**31}, "num_hidden_layers: should be less than or equal to 1000"),
        ({"head_dim": None, "num_attention_heads": "4"}, "head_dim is missing and hidden_size / num_attention_heads"),
        ({"quantization_config": {"bits": 4}}, "quantization_config: quantized weights cannot be read"),
        ({"rope_scaling": {"type": "yarn"}}, "scaled RoPE .*yarn.* is not part of GLM"),
        ({"hidden_act": "gelu"}, r"config\.json: hidden_act: should be 'silu', not 'gelu'"),
    ],
)
def test_other_models_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_model_config(write_json(tmp_path / "config.json", published(**changes)))


def test_what_is_left_out_is_read_as_transformers_does_and_named(tmp_path: Path, caplog) -> None:
    content = published()
    left_out = ("use_qk_norm", "attention_bias", "first_k_dense_replace", "rope_theta", "head_dim")
    for name in left_out:
        del content[name]
    with caplog.at_level("WARNING", logger="glmforge"):
        config = load_model_config(write_json(tmp_path / "config.json", content))
    assert [getattr(config, name) for name in left_out] == [
        False,
        False,
        1,
        1e4,
        TINY.hidden_size // TINY.num_attention_heads,
    ]
    assert all(f"{name} = " in caplog.text for name in left_out)


def test_the_defaults_are_those_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.Glm4MoeConfig().to_dict()
    theirs |= theirs["rope_parameters"]
    assert {name: theirs[name] for name in DEFAULTS} == dict(DEFAULTS)
    assert DEFAULTS.keys() == ModelConfig.model_fields.keys() - {
        "head_dim",
        "heads",
        "lm_head",
        "eos_token_id",
        "pad_token_id",
    }


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"eos_token_id": None, "pad_token_id": None}, {"eos_token_id": [], "pad_token_id": None}),
        ({"eos_token_id": 476, "pad_token_id": None}, {"eos_token_id": [476], "pad_token_id": 476}),
        ({"eos_token_id": 3, "pad_token_id": 4}, {"eos_token_id": [3], "pad_token_id": 4}),
        ({"tie_word_embeddings": True}, {"tie_word_embeddings": True}),
        ({"head_dim": None}, {"head_dim": TINY.hidden_size // TINY.num_attention_heads}),
        ({"rope_scaling": {"type": "default"}}, {}),
        ({"attention_dropout": 0.1}, {}),
        ({"attention_dropout": None}, {}),
    ],
)
def test_legal_forms(tmp_path: Path, changes: dict[str, Any], expected: dict[str, Any]) -> None:
    config = load_model_config(write_json(tmp_path / "config.json", published(**changes)))
    assert config == TINY.model_copy(update=expected)


def test_the_other_name_of_mtp_layers(tmp_path: Path) -> None:
    content = published(num_mtp_layers=2)
    del content["num_nextn_predict_layers"]
    assert load_model_config(write_json(tmp_path / "config.json", content)).num_nextn_predict_layers == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [("{\n'a': 1}", "config.json:2: not valid JSON"), ("[]", r"must contain one JSON object, not \[\]")],
)
def test_broken_json(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_model_config(tmp_path)


def test_a_directory_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds neither config\.json"):
        load_model_config(tmp_path)


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'glm46_355b'"):
        load_model_config("glm46_355")
    with pytest.raises(ConfigError, match=r"a file needs its suffix\. Presets: demo, "):
        load_model_config("llama")
