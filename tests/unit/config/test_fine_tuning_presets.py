"""The packaged runs that fine-tune GLM-4.5 and Air: they load, lie on the GPUs that they are for, and are planned."""

import json

import pytest
from typer.testing import CliRunner

from glmforge.cli.app import app
from glmforge.config import RunConfig, load_config
from glmforge.config.layout import Layout, resolve_layout
from glmforge.config.load import dump_config
from glmforge.config.presets import preset_names
from glmforge.config.rl import RlConfig
from glmforge.plan.layout import STEPS_FOR_EPOCHS

ON = {
    "dpo_air": (64, "h100-80gb"),
    "grpo_355b": (256, "h200"),
    "grpo_air_64gpu": (64, "h100-80gb"),
    "lora_355b_2x8h200": (16, "h200"),
    "lora_355b_4x8h100": (32, "h100-80gb"),
    "lora_air_2x8h200": (16, "h200"),
    "lora_air_8x80gb": (8, "h100-80gb"),
    "ppo_air": (64, "h200"),
    "reward_air": (64, "h100-80gb"),
    "sft_air_8x8h100": (64, "h100-80gb"),
}
"""GPUs, and which."""
NODE = 8


def preset(name: str) -> tuple[RunConfig, Layout]:
    config = load_config(name)
    return config, resolve_layout(config, ON[name][0])


def test_none_is_left_out() -> None:
    on_one_machine = {"demo", "demo_sft", "lora"}
    assert set(ON) == set(preset_names("run")) - on_one_machine


@pytest.mark.parametrize("name", ON)
def test_they_load_and_each_batch_lies_on_the_gpus(name: str) -> None:
    config, layout = preset(name)
    assert config.name == name
    assert load_config(dump_config(config)) == config
    # Tokens go to their experts within a node, but where an engine's weights would not fit one beside its cache.
    assert layout.ep == {"grpo_355b": 4 * NODE, "grpo_air_64gpu": 2 * NODE}.get(name, NODE)
    (phase,) = config.phases
    if config.stage == "rl":
        assert layout.rank_batch_size(phase) == config.stage_settings(RlConfig).rollout.group_size  # one prompt a rank
        return
    at_a_time = 2 if config.stage in ("reward", "dpo") else 1  # a sequence, or both rows of a pair
    assert layout.rank_batch_size(phase) == at_a_time * layout.num_micro_batches(phase)


def test_air_on_two_nodes_is_what_guides_ask_for() -> None:
    config, layout = preset("lora_air_2x8h200")
    (phase,) = config.phases
    assert (phase.seq_len, phase.epochs, config.optim.lr) == (16384, 3, 2e-5)
    assert (layout.dp_replicate, layout.dp_shard, layout.num_micro_batches(phase)) == (2, NODE, 2)
    observe, checkpoint = config.observe, config.checkpoint
    assert (observe.evaluate_every, observe.evaluate_samples, observe.evaluate_seed) == (50, 200, 42)
    assert (checkpoint.every_steps, checkpoint.keep_last) == (100, 10)
    assert checkpoint.local_dir is not None


@pytest.mark.parametrize("name", ["lora_air_2x8h200", "lora_355b_2x8h200"])
def test_only_gradients_cross_the_link_between_two_nodes(name: str) -> None:
    _, layout = preset(name)
    assert layout.fsdp == layout.efsdp * layout.ep == NODE


@pytest.mark.parametrize("name", ON)
def test_they_are_planned_without_their_data(name: str) -> None:
    world_size, gpu = ON[name]
    result = CliRunner().invoke(app, ["plan", name, "--gpus", str(world_size), "--gpu", gpu, "--json"])
    assert result.exit_code == 0, result.output
    (phase,) = load_config(name).phases
    assert json.loads(result.stdout)["memory"]["share"] < 0.8  # the rest is for allocator, NCCL and uneven routing
    if phase.epochs is None:
        assert "planned as" in result.stderr
        return
    counted = f"phase {phase.name}: the number of steps in {phase.epochs:g} epochs depends on the data; planned as"
    assert f"{counted} {STEPS_FOR_EPOCHS:,} steps" in result.stderr
