"""`glmforge plan --stage`, `--lora`, `--serve` and `--rollout`."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from glmforge.cli.app import app
from glmforge.errors import ConfigError

RUN = """
name: run
model: glm45_air_106b
data: {tokenizer: none, sources: [{name: random, path: none}]}
phases: [{name: main, steps: 1, seq_len: 16384, batch_size: 16}]
parallel: {micro_batch_size: 1, ep: 8, recompute: full}
"""
ROLLOUT = "prompts=64,samples=8,prompt=1024,response=8192"


@pytest.fixture
def air(tmp_path: Path) -> str:
    path = tmp_path / "air.yaml"
    path.write_text(RUN)
    return str(path)


def plan(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["plan", *arguments], catch_exceptions=False, env={"COLUMNS": "200"})
    assert result.exit_code == 0
    return result.stdout


def plan_json(*arguments: str) -> Any:
    return json.loads(plan(*arguments, "--json"))


def test_lora_trains_its_adapters(air: str) -> None:
    arguments = (air, "--gpus", "16", "--lora", "rank=16,target=self_attn")
    (model,) = plan_json(*arguments)["models"]
    assert (model["trained"], model["trained_tensors"]) == (31_653_888, 368)
    assert "31,653,888" in plan(*arguments)


def test_with_several_nodes_a_plan_says_what_crosses_between_them(air: str) -> None:
    machine = ("--gpus", "16", "--gpu", "H200 SXM", "--network", "tcp25")
    arguments = (air, "optim.matrix_optimizer=adamw", *machine, "--lora", "rank=16")
    copies, shards = plan_json(*arguments)["between_nodes"]
    assert (copies["way"], copies["planned"], shards["planned"]) == ("a copy on each node", False, True)
    assert copies["settings"] == "parallel.dp_replicate=2 parallel.dp_shard=8"
    assert copies["axes"] == {"dp_replicate": copies["adapter_bytes"]}
    text = plan(*arguments)
    assert "traffic of a node's adapter each way per step, at tcp25" in text
    assert "shards over all nodes (planned)" in text
    assert "Take a copy on each node: parallel.dp_replicate=2 parallel.dp_shard=8" in text


def test_a_configuration_says_its_stage_and_what_it_freezes(air: str) -> None:
    """Experts are most of Air's weights, but a token visits few of them."""
    frozen = "optim.rules=[{match: '*experts*', lr_scale: 0}]"
    of_file = (air, "stage=sft", "init_from=nowhere", "--gpus", "16", "--gpu", "H100 SXM")
    whole, found = plan_json(*of_file), plan_json(*of_file, frozen)
    assert (whole["stage"], found["stage"]) == ("sft", "sft")
    assert found["models"][0]["trained"] < 0.1 * whole["models"][0]["trained"]
    assert 4 / 6 < found["flops_per_token"] / whole["flops_per_token"] < 1
    assert found["step"]["seconds"] < whole["step"]["seconds"]
    assert "Stage sft in phase main" in plan(*of_file)


def test_a_policy_has_the_models_that_its_settings_need() -> None:
    """What each holds adds up; a step is sampling, scoring and training."""
    found = plan_json("ppo_air", "--gpus", "64", "--gpu", "H200 SXM")
    assert [model["name"] for model in found["models"]] == ["actor", "reference", "reward", "critic"]
    assert [model["trained"] > 0 for model in found["models"]] == [True, False, False, True]
    (place,) = found["memory"]["places"]
    held = sum(place["held_bytes"].values())
    assert held == place["at_peak_bytes"]["weights"] + place["at_peak_bytes"]["optimizer"]
    assert place["peak_in"] == "rollout"
    parts = found["step"]["parts"]
    assert parts["rollout"]["seconds"] == found["rollout"]["seconds"]
    assert parts["scoring"]["seconds"] > 0
    text = plan("ppo_air", "--gpus", "64", "--gpu", "H200 SXM")
    assert "Rollout or training? rollout" in " ".join(text.split())
    assert "held throughout: actor" in text


def test_longer_answers_are_more_rows() -> None:
    arguments = ("grpo_air_64gpu", "--gpus", "64", "--gpu", "H100 SXM", "--rollout")
    short, long = (plan_json(*arguments, f"response={tokens}") for tokens in (3072, 11264))
    assert long["step"]["tokens"] == 3 * short["step"]["tokens"]
    assert long["rollout"]["generate"] > 3 * short["rollout"]["generate"]
    assert long["rollout"]["tail"] < short["rollout"]["tail"]


def test_what_does_not_fit_is_said(air: str) -> None:
    text = plan(air, "--serve", "--gpus", "2", "--gpu", "RTX 4090")
    assert "q4_0: 61 GB of weights do not fit 2 x 24 GB; 4 GPUs do" in text
    assert "bf16: 218 GB of weights do not fit 2 x 24 GB; 16 GPUs do" in text


def test_a_service_batch_by_batch(air: str) -> None:
    arguments = (air, "--serve", "--gpus", "8", "--gpu", "H200 SXM", "--weights", "fp8", "--cache", "fp8")
    (found,) = plan_json(*arguments, "--context", "131072", "--latency", "20")["formats"]
    assert found["cache_bytes_per_token"] == 188_416 / 2
    assert found["batched"]["seconds_per_token"] <= 0.02
    assert "Batch by batch, weights in fp8" in plan(*arguments)
    assert "acceptance rate of the MTP layer's drafts: 80%" in plan(*arguments, "--acceptance", "0.8")


def test_rollouts_of_an_engine_alone(air: str) -> None:
    rollout = plan_json(air, "--gpus", "16", "--gpu", "H100 SXM", "--rollout", ROLLOUT)
    assert rollout["copies"] * rollout["gpus_of_a_copy"] == 16


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--serve",), "--serve: needs the GPU; add --gpu, such as --gpu"),
        (("--serve", "--gpu", "H100 SXM", "--weights", "q3"), "--weights: unknown format 'q3'; choose one of bf16"),
        (("--serve", "--gpu", "H100 SXM", "--cache", "int8"), "--cache: unknown format 'int8'; choose one of bf16"),
        (
            ("--stage", "rlhf"),
            "--stage: unknown stage 'rlhf'; choose one of pretrain, midtrain, sft, reward, dpo, rl, lora",
        ),
        (("--stage", "rollout"), "without training see --rollout and --serve"),
        (("--lora", "rank=8", "--dry-run"), "not stage lora; remove it"),
        (("--stage", "sft"), "--stage: the configuration says 'pretrain'; use stage=sft instead"),
        (("--weights", "fp8"), "--weights: needs --serve or --rollout"),
        (("--serve", "--gpu", "H100 SXM", "--lora", "rank=8"), "--serve: does not train; remove --stage, --lora and"),
        (("--serve", "--gpu", "H100 SXM", "--search"), "--serve: cannot be combined with --search; remove one of them"),
        (("--rollout", ROLLOUT, "--gpu", "H100 SXM", "--lora", "rank=8"), "but this is stage lora; use stage: rl"),
        (("--rollout", "prompts=1", "--gpu", "H100 SXM"), "--rollout: samples is missing"),
        (("--rollout", ROLLOUT + ",longest=9", "--gpu", "H100 SXM"), "longest=9 is less than response"),
        (("--rollout", ROLLOUT + ",prompt=-1", "--gpu", "H100 SXM"), "prompt='-1' must be a number from 1 to"),
        (
            ("--rollout", ROLLOUT + ",top_p=1", "--gpu", "H100 SXM"),
            "'top_p'; write prompts=64,samples=8,prompt=1024,response=8192,longest=65536 (the last three in",
        ),
        (("--rollout", ROLLOUT, "--gpu", "RTX 4090"), "cannot hold the weights"),
    ],
)
def test_wrong_questions_are_refused_in_one_line(air: str, arguments: tuple[str, ...], words: str) -> None:
    result = CliRunner().invoke(app, ["plan", air, "--gpus", "8", *arguments])
    assert isinstance(result.exception, ConfigError)
    assert words in str(result.exception)
    assert "\n" not in str(result.exception)
