"""What a user gets wrong with prompts, rewards and rollouts: one line, before anything is sampled."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from glmforge.config import dump_config
from glmforge.recipes.train import train
from helpers.bad_input import assert_one_line
from helpers.rl_runs import rl_config, write_prompts
from helpers.tiny_data import TinyData

JUDGE = "{kind: judge, judge: {url: '%s', model: m, rubric: r, %s}}"
RIGHT = {"kind": "number", "answer": "4"}


@pytest.fixture(scope="module")
def base(tiny_data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("base") / "run"
    phases = [{"name": "main", "steps": 2, "seq_len": 32, "batch_size": 2}]
    train(tiny_data.run_config(directory, phases=phases, checkpoint={"every_steps": 1}))
    return directory


@pytest.fixture
def rl(tiny_data: TinyData, base: Path, tmp_path: Path) -> Callable[..., Path]:
    """The file of a run of stage rl on good prompts with verifiers."""

    def make(**sections: Any) -> Path:
        prompts = write_prompts(tmp_path / "prompts.jsonl", 8, verifier=RIGHT)
        config = yaml.safe_load(dump_config(rl_config(tiny_data, tmp_path / "run", prompts, 1, init_from=str(base))))
        config["rl"]["rewards"]["terms"] = [{"kind": "verifier"}]
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(config | sections))
        return path

    return make


def line(**fields: Any) -> str:
    return json.dumps({"prompt": "2 + 2?", "verifier": RIGHT} | fields) + "\n"


@pytest.mark.parametrize("command", ["train", "rl try"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "other.jsonl: no such file"),
        ("", "there are no prompts"),
        ("[1, 2", "other.jsonl"),
        (line() + '{"prompt": "2', "other.jsonl:2:1: not valid JSON"),
        (line(verifier=None), "'verifier' needs a verifier in every prompt"),
        (line(verifier={"kind": "oracle"}), "verifier.kind: 'oracle' is unknown; choose one of"),
        (line(prompt="a number " * 200), "there are no prompts: 1 are longer than"),
    ],
)
def test_prompts_that_cannot_be_used(
    glmforge, rl, tmp_path: Path, command: str, content: str | None, said: str
) -> None:
    path = tmp_path / "other.jsonl"
    if content is not None:
        path.write_text(content)
    assert_one_line(glmforge(*command.split(), rl(), f"data.sources.0.path={path}"), said)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (["phases.0.batch_size=18"], ("phases.0.batch_size", "no multiple of rl.rollout.group_size = 4")),
        (["rl.rollout.max_new_tokens=64"], ("rl.rollout.max_new_tokens", "leaves no room for a prompt")),
        (["rl.rollout.max_new_tokens=0"], ("rl.rollout.max_new_tokens",)),
        (["rl.rollout.temperature=0"], ("rl.rollout.temperature",)),
        (["rl.rewards.terms=[{kind: format}, {kind: format}]"], ("terms", "two terms are called 'format'")),
        (["rl.rewards.terms=[]"], ("rl.rewards.terms",)),
        (["rl.rewards.terms=[{kind: python, function: 'no.such:one'}]"], ("rl.rewards.terms.0.function", "no.such")),
        (["rl.rewards.terms=[{kind: python, function: 'math:no_such'}]"], ("rl.rewards.terms.0.function", "no_such")),
        (["rl.rewards.terms=[{kind: refusal}]"], ("'refusal' needs harmful: true or false with '",)),
        (
            [f"rl.rewards.terms=[{JUDGE % ('http://127.0.0.1:9/v1', 'attempts: 1')}]"],
            ("'judge': no verdict from http",),
        ),
        ([f"rl.rewards.terms=[{JUDGE % ('http://h/v1', 'api_key_env: NO_SUCH')}]"], ("variable NO_SUCH is not set",)),
        (["init_from=null"], ("init_from",)),
        (["rl.advantage.kind=gae"], ("critic",)),
        (["phases.0.steps=null", "phases.0.tokens=100"], ("phases.0.tokens",)),
    ],
)
def test_settings_that_do_not_go_together(glmforge, rl, changes: list[str], named: tuple[str, ...]) -> None:
    assert_one_line(glmforge("train", rl(), *changes), *named)


@pytest.mark.parametrize(
    "fields",
    [{"url": "https://me:TOPSECRET@h/v1"}, {"url": "https://h/v1?key=TOPSECRET"}, {"api_key_env": "sk-TOPSECRET"}],
)
def test_a_key_in_a_file_is_not_repeated(glmforge, rl, tmp_path: Path, fields: dict[str, str]) -> None:
    path = rl()
    config = yaml.safe_load(path.read_text())
    judge = {"url": "https://h/v1", "model": "m", "rubric": "r"} | fields
    config["rl"]["rewards"]["terms"] = [{"kind": "judge", "judge": judge}]
    path.write_text(yaml.safe_dump(config))
    outcome = glmforge("train", path)
    assert_one_line(outcome, f"rl.rewards.terms.0.judge.{next(iter(fields))}: must be")
    assert "TOPSECRET" not in outcome[1]
    assert not (tmp_path / "run").exists()


def test_held_out_prompts_are_not_those_of_training(glmforge, rl, tmp_path: Path) -> None:
    held_out = [{"name": "same", "path": str(tmp_path / "prompts.jsonl")}]
    path = rl()
    config = yaml.safe_load(path.read_text())
    config["data"]["held_out"] = held_out
    path.write_text(yaml.safe_dump(config))
    assert_one_line(glmforge("train", path), "all prompts of data.sources are in data.held_out")


def test_weights_without_a_language_model_head(glmforge, rl, tiny_data: TinyData, base: Path) -> None:
    path = rl()
    config = yaml.safe_load(path.read_text())
    config["model"] |= {"lm_head": False, "heads": {"score": 1}}
    path.write_text(yaml.safe_dump(config))
    assert_one_line(glmforge("train", path), "lm_head")


def test_commands_on_what_is_no_run_of_the_stage(glmforge, rl, base: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert_one_line(glmforge("rl", "try", base), "stage: 'pretrain' has no prompts and rewards")
    assert_one_line(glmforge("rl", "show", base), "rollouts: has no answers")
    assert_one_line(glmforge("rl", "show", tmp_path / "none"), "none: no such directory")
    assert_one_line(glmforge("rl", "sample", base, "--out", out), "stage: 'pretrain'")
    assert_one_line(glmforge("rl", "sample", rl(), "--out", tmp_path), tmp_path)
    assert_one_line(glmforge("rl", "try", rl(), "init_from=/no/such"), "/no/such")
    out.write_text("mine")
    assert_one_line(glmforge("rl", "sample", rl(), "--out", out), out, "already exists")
    assert_one_line(glmforge("rl", "sample", rl(), "--out", out, "--keep-correct", "--force"), "not written: none of")
    assert out.read_text() == "mine"
