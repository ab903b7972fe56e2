"""Settings of servers that do not go together, refused before anything is loaded."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from glmforge.config.rl import RlConfig
from glmforge.errors import ConfigError
from glmforge.recipes.rl import check_settings
from helpers.rl_runs import rl_config
from helpers.tiny_data import TinyData

ENGINE = {"kind": "glmforge", "urls": ["http://127.0.0.1:8100"]}
AHEAD = {"kind": "asynchronous"}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"engine": ENGINE, "rollout": {"partial": True}}, "rollout.partial"),
        ({"engine": ENGINE | {"kind": "vllm"}}, "is what shows that weights arrive"),
        ({"engine": ENGINE | {"kind": "sglang"}}, "is what shows that weights arrive"),
        ({"engine": ENGINE | {"restart": True, "command": ["x"]}}, "restart is for kind 'vllm'"),
        ({"engine": ENGINE | {"kind": "tgi"}}, "glmforge"),
        ({"engine": ENGINE | {"urls": []}}, "urls"),
        ({"engine": ENGINE | {"command": []}}, "command"),
        ({"engine": ENGINE | {"url": "x"}}, "url"),
        ({"schedule": {"kind": "one_step_off"}}, "needs servers that sample while the run trains"),
        ({"schedule": AHEAD, "engine": ENGINE | {"kind": "vllm"}, "max_gap": 1.0}, "use 'one_step_off'"),
        ({"schedule": AHEAD, "engine": ENGINE, "steps_per_rollout": 2}, "steps_per_rollout and rollout.over_sampling"),
        (
            {"schedule": AHEAD, "engine": ENGINE, "rollout": {"over_sampling": 1.5}},
            "steps_per_rollout and rollout.over",
        ),
        ({"schedule": AHEAD, "engine": ENGINE}, "set surrogate.ratio_to to 'rollout', or a surrogate.correction"),
        ({"schedule": AHEAD | {"max_age": 1}, "engine": ENGINE}, "1 is less than steps_ahead = 2"),
    ],
)
def test_settings_that_cannot_be(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        RlConfig.model_validate(changes)
    RlConfig.model_validate({"engine": ENGINE | {"kind": "vllm"}, "max_gap": 0.1})


@pytest.mark.parametrize(
    ("changes", "lora", "problem"),
    [
        ({"urls": ["127.0.0.1:8100"]}, None, r"^rl\.engine\.urls: not a server URL"),
        ({"urls": ["http://me:secret@host"]}, None, r"^rl\.engine\.urls: a URL with a password"),
        ({"urls": ["http://host"], "command": ["x"]}, None, r"^rl\.engine\.urls: http://host has no port, which"),
        ({}, {"rank": 2}, r"^rl\.engine\.kind: 'glmforge' does not take adapters"),
    ],
)
def test_settings_that_do_not_fit_the_run(
    changes: dict[str, Any], lora: Any, problem: str, tiny_data: TinyData, tmp_path: Path
) -> None:
    rl = {"engine": ENGINE | changes, "rollout": {"group_size": 4, "max_new_tokens": 12}}
    sections = {"lora": lora} if lora else {}
    config = rl_config(tiny_data, tmp_path, tmp_path / "prompts.jsonl", rl=rl, init_from="base", **sections)
    with pytest.raises(ConfigError, match=problem) as raised:
        check_settings(config, config.stage_settings(RlConfig))
    assert "secret" not in str(raised.value)
