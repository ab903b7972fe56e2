"""`glmforge rl try`, `show` and `sample` on a small run."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from glmforge.cli.app import app
from glmforge.config import dump_config
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.recipes.train import train
from glmforge.rl.written import read_samples
from helpers.rl_runs import rl_config, write_prompts
from helpers.tiny_data import TinyData

ENDING = ("rl.rollout.temperature=2", "rl.rollout.max_new_tokens=40")
"""For some answers of a model that knows nothing to end."""


@pytest.fixture(scope="module")
def run(tiny_data: TinyData, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("rl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", "src:tests")
        prompts = write_prompts(directory / "prompts.jsonl", 12)
        config = rl_config(tiny_data, directory / "run", prompts, 2, init_from=str(base))
        (directory / "run.yaml").write_text(dump_config(config))
        train(config)
    return directory / "run"


@pytest.fixture(autouse=True)
def _helpers_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the processes that compute rewards."""
    monkeypatch.setenv("PYTHONPATH", "src:tests")


def output(*arguments: object) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_try_shows_rewards_and_writes_nothing(run: Path) -> None:
    before = sorted(run.parent.rglob("*"))
    text = output("rl", "try", f"{run}.yaml", "--num-prompts", 3, "--num-samples", 2)
    assert sorted(run.parent.rglob("*")) == before
    assert text.count("  reward ") == 6
    assert text.count("what is ") == 3
    assert "6 answers to 3 prompts" in text
    assert "groups without a spread of rewards: " in text
    failing = output("rl", "try", f"{run}.yaml", "rl.rewards.terms=[{kind: python, function: 'math:isnan'}]")
    assert "reward unknown" in failing
    assert "failed, not to be trained on: 30 (python: error" in failing


def test_show_orders_groups(run: Path) -> None:
    records = read_samples(run / "rollouts", 2)
    means = {
        group: sum(one["reward"] for one in records if one["group"] == group) / 4
        for group in {one["group"] for one in records}
    }
    assert len(means) == 4
    for option, pick in (("--best", max), ("--worst", min)):
        text = output("rl", "show", run, option, "--num-groups", 1)
        assert text.startswith("step 2: 16 answers in 4 groups, mean reward ")
        assert f"\ngroup {pick(means, key=means.__getitem__)}, " in text
        assert text.count("\ngroup ") == 1
        assert text.count("  reward ") == text.count("  advantage ") == 4
    only = output("rl", "show", run, "--step", 1, "--group", read_samples(run / "rollouts", 1)[0]["group"])
    assert only.startswith("step 1: ")
    assert only.count("\ngroup ") == 1


def test_sample_writes_conversations_that_can_be_trained_on(run: Path, tiny_data: TinyData, tmp_path: Path) -> None:
    out = tmp_path / "all.jsonl"
    told = output("rl", "sample", run, "--out", out, "--num-samples", 24, *ENDING)
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert f"{out}: {len(records)} of 288 answers" in told
    assert records
    tokenizer = Tokenizer.load(tiny_data.tokenizer)
    for one in records:
        roles = [message["role"] for message in one["messages"]]
        assert roles == ["user", "assistant"]
        assert tokenizer.apply_chat_template(one["messages"])
    assert "trained on" in output("data", "chat", out, "--tokenizer", tiny_data.tokenizer, "--show", 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.jsonl"]


def test_only_correct_answers_are_kept(run: Path, tmp_path: Path) -> None:
    """By the sign of the reward, where there is no verifier."""
    terms = "rl.rewards.terms=[{kind: python, function: 'helpers.rl_runs:says_e', weight: 1}]"
    options = ["rl", "sample", f"{run}@1", "--num-samples", 24, *ENDING, terms, "--out"]
    output(*options, tmp_path / "all.jsonl")
    told = output(*options, tmp_path / "right.jsonl", "--keep-correct")
    everything, right = (
        [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        for name in ("all", "right")
    )
    assert 0 < len(right) < len(everything)
    assert right == [one for one in everything if one["reward"] > 0]
    assert f"{len(everything) - len(right)} wrong" in told


def test_prompts_are_selected_by_how_many_answers_are_right(run: Path, tmp_path: Path) -> None:
    terms = "rl.rewards.terms=[{kind: python, function: 'helpers.rl_runs:says_e', weight: 1}]"
    options = ["rl", "select", f"{run}@1", "--num-samples", 4, "rl.rollout.max_new_tokens=3", terms, "--right"]
    told = output(*options, "0:1", "--out", tmp_path / "hard.jsonl")
    output(*options, "2:4", "--out", tmp_path / "easy.jsonl")
    hard, easy = (
        {one["id"]: one for one in map(json.loads, (tmp_path / f"{name}.jsonl").read_text().splitlines())}
        for name in ("hard", "easy")
    )
    assert f"{len(hard)} of 12 prompts (left out: {len(easy)} too easy)" in told
    assert hard.keys().isdisjoint(easy)
    assert len(hard) + len(easy) == 12
    assert {one["difficulty"] for one in hard.values()} <= {0.75, 1.0}
    assert {one["difficulty"] for one in easy.values()} <= {0.0, 0.25, 0.5}
    tried = output("rl", "try", f"{run}.yaml", f"data.sources.0.path={tmp_path}/hard.jsonl", "--num-prompts", 12)
    assert f"answers to {len(hard)} prompts" in tried


@pytest.mark.parametrize("right", ["two", "3:1", "0:9", "-1", "1:2:3", ""])
def test_a_range_that_is_none(right: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["rl", "select", "rl.yaml", "--out", str(tmp_path / "a"), f"--right={right}"])
    assert result.exit_code == 2
    assert result.output.count("\n") == 1
    assert "--right" in result.output
