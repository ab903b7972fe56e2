"""A model's configuration from presets, files, run directories and Hugging Face's config.json."""

import json
from pathlib import Path
from typing import Any

import pytest

from glmforge.config import dump_config, load_config, load_model_config
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


def test_a_single_end_token_is_also_the_padding(tmp_path: Path) -> None:
    path = write_json(tmp_path / "config.json", published(eos_token_id=476, pad_token_id=None))
    config = load_model_config(path)
    assert (config.eos_token_id, config.pad_token_id) == ([476], 476)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "glm4"}, "model_type is 'glm4'; only 'glm4_moe' can be read"),
        ({"attention_dropout": 0.1}, "attention_dropout is 0.1"),
        ({"rope_scaling": {"type": "yarn"}}, "scaled RoPE .*yarn.* is not part of GLM"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "scaled RoPE .*yarn.* is not part of GLM"),
        ({"hidden_act": "gelu"}, r"config\.json: hidden_act: should be 'silu', not 'gelu'"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings: should be False, not True"),
        ({"n_group": 3}, "n_group: 3 does not divide n_routed_experts = 8"),
    ],
)
def test_other_models_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_model_config(write_json(tmp_path / "config.json", published(**changes)))


def test_class_defaults_of_transformers_do_not_slip_in(tmp_path: Path) -> None:
    content = published()
    del content["use_qk_norm"], content["attention_bias"]
    with pytest.raises(ConfigError, match="use_qk_norm, attention_bias missing"):
        load_model_config(write_json(tmp_path / "config.json", content))


@pytest.mark.parametrize(
    ("text", "message"),
    [("{\n'a': 1}", "config.json:2: not valid JSON"), ("[]", "must hold one JSON object")],
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
