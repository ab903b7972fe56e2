"""The configurations in `configs/`: they load, lie on the GPUs they are written for, and say what they claim."""

from pathlib import Path

import pytest

from glmforge.config import RunConfig, load_config
from glmforge.config.layout import resolve_layout
from glmforge.config.load import dump_config, load_model_config
from glmforge.config.presets import preset_names
from glmforge.plan.counts.parameters import count_parameters
from glmforge.plan.layout import stages_of

DIRECTORY = Path(__file__).parents[3] / "configs"
CONFIGS = sorted(DIRECTORY.rglob("*.yaml"))
WORLD_SIZES = {
    "curriculum_local": 1,
    "demo": 1,
    "dpo_local": 1,
    "midtrain_128k": 128,
    "midtrain_200k": 1024,
    "midtrain_32k": 128,
    "midtrain_code": 128,
    "midtrain_finance": 128,
    "midtrain_medicine": 128,
    "pretrain_glm45_355b": 8192,
    "pretrain_glm45_355b_guide": 8192,
    "pretrain_glm45_355b_long": 8192,
    "pretrain_glm45_air_106b": 1024,
    "pretrain_glm46_355b": 8192,
    "reward_local": 1,
    "scaled_down_64gpu": 64,
    "small_1b": 1,
}
TRILLION = 10**12


def shipped(name: str) -> RunConfig:
    return load_config(DIRECTORY / f"{name}.yaml")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_they_load_and_round_trip(path: Path) -> None:
    config = load_config(path)
    assert config.name in {path.stem, "my_demo", path.stem.removesuffix("_long")}
    assert load_config(dump_config(config)) == config


def test_the_readme_tells_what_each_is() -> None:
    readme = (DIRECTORY / "README.md").read_text()
    assert {path.stem for path in CONFIGS} == set(WORLD_SIZES)
    for name, world_size in WORLD_SIZES.items():
        (line,) = [line for line in readme.splitlines() if line.startswith(f"| `{name}.yaml`")]
        assert line.split("|")[-2].strip() in ({"none", "1"} if world_size == 1 else {f"{world_size:,}"})


@pytest.mark.parametrize(("name", "world_size"), WORLD_SIZES.items())
def test_every_phase_and_batch_lies_on_the_gpus(name: str, world_size: int) -> None:
    config = shipped(name)
    layout = resolve_layout(config, world_size)
    assert layout.world_size == world_size
    assert sum(s.num_dense + s.num_moe for s in stages_of(config.model, layout)) == config.model.num_hidden_layers


@pytest.mark.parametrize("name", [name for name, world_size in WORLD_SIZES.items() if world_size > 1])
def test_the_run_goes_on_with_the_fewest_nodes_it_names(name: str) -> None:
    config = shipped(name)
    assert resolve_layout(config, 8 * config.fault_tolerance.min_nodes).world_size <= WORLD_SIZES[name]


def test_playing_with_the_demo_leaves_the_demo_s_own_run_alone() -> None:
    play, demo = shipped("demo"), load_config("demo")
    assert play.data == demo.data
    assert play.output_dir != demo.output_dir == Path("runs/demo")
    assert load_config(DIRECTORY / "demo.yaml", ["name=longer"]).output_dir == Path("runs/longer")


def test_there_are_configs_for_every_model_worth_a_run() -> None:
    trained = {load_config(path).model.model_dump_json() for path in CONFIGS}
    presets = {name: load_model_config(name).model_dump_json() for name in preset_names() if name != "tiny"}
    assert [name for name, model in presets.items() if model not in trained] == []


def test_the_paper_s_recipe() -> None:
    config = shipped("pretrain_glm45_355b")
    phases = config.phases
    wanted = [15 * TRILLION, 7 * TRILLION, TRILLION // 2, TRILLION // 2, TRILLION // 10]
    assert [phase.tokens for phase in phases] == wanted
    assert [phase.seq_len for phase in phases] == [4096, 4096, 32768, 32768, 131072]
    assert [phase.rope_theta for phase in phases] == [1e4, 1e4, 1e6, 1e6, 1e6]
    assert [phase.packing for phase in phases] == ["truncate"] * 2 + ["best_fit"] * 3
    assert [phase.router_bias_rate for phase in phases] == [1e-3, 0, 0, 0, 0]
    assert [phase.mtp_loss_weight for phase in phases] == [0.3, 0.1, 0.1, 0.1, 0.1]
    assert {phase.aux_loss_weight for phase in phases} == {1e-4}
    assert {phase.tokens_per_step for phase in phases} == {64 * 2**20}
    optim = config.optim
    assert (optim.schedule, optim.lr, optim.min_lr, optim.weight_decay) == ("cosine", 2.5e-4, 2.5e-5, 0.1)


def test_the_paper_s_batches_grow_from_16m_to_64m_over_500b_tokens() -> None:
    first, *_, last = shipped("pretrain_glm45_355b").phases[0].batch_spans
    assert first.batch_size * 4096 == 16 * 2**20
    # Each of six smaller sizes ends with a whole step of at most 59M tokens.
    assert 0 <= last.first_sample * 4096 - 500 * 10**9 <= 6 * 59e6


def test_the_long_phases_are_the_same_run_in_another_layout() -> None:
    whole, long = shipped("pretrain_glm45_355b"), shipped("pretrain_glm45_355b_long")
    assert whole.parallel != long.parallel
    assert whole == long.model_copy(update={"parallel": whole.parallel})


def test_the_guide_s_figures() -> None:
    config = shipped("pretrain_glm45_355b_guide")
    assert [phase.tokens for phase in config.phases] == [15 * TRILLION, 7 * TRILLION, TRILLION]
    assert {phase.tokens_per_step for phase in config.phases} == {4 * 2**20}
    assert (config.optim.matrix_optimizer, config.optim.lr, config.optim.warmup_steps) == ("muon", 0.02, 2000)
    layout = resolve_layout(config, 8192)
    assert (layout.tp, layout.pp, layout.ep, layout.dp_shard, layout.cp) == (8, 16, 32, 32 * 2, 1)


def test_the_guide_s_learning_rate_is_small_for_what_muon_does_not_train() -> None:
    config = shipped("pretrain_glm45_355b_guide")
    scales = {rule.match: rule.lr_scale for rule in config.optim.rules}
    assert scales.keys() == {"model.embed_tokens.weight", "*norm.weight", "*.bias"}
    (scale,) = {scale for scale in scales.values() if scale is not None}
    assert config.optim.lr * scale == pytest.approx(2.5e-4)  # decimal fractions in binary


def test_the_scaled_down_model_has_the_parameters_that_its_file_names() -> None:
    config = shipped("scaled_down_64gpu")
    counts = count_parameters(config.model)
    assert (config.model.num_hidden_layers, config.model.n_routed_experts) == (24, 32)
    assert sum(phase.tokens or 0 for phase in config.phases) == 100 * 10**9
    text = (DIRECTORY / "scaled_down_64gpu.yaml").read_text()
    assert f"{counts.with_mtp.total / 1e9:.3f} billion parameters" in text
    assert f"{counts.active.total / 1e9:.2f} billion are active" in text


@pytest.mark.parametrize("name", [name for name in WORLD_SIZES if name.startswith("midtrain_")])
def test_mid_training_is_careful_with_what_is_there(name: str) -> None:
    """It begins with weights, keeps general text in the mixture and held out, and learns more slowly."""
    config = shipped(name)
    assert config.stage == "midtrain"
    assert config.init_from is not None
    assert "general" in {source.name for source in config.data.held_out}
    assert config.optim.lr < shipped("pretrain_glm45_air_106b").optim.lr
    for phase in config.phases:
        assert config.source_weights(phase)["general"] > 0
        assert phase.packing == "best_fit"
        assert (phase.router_bias_rate, phase.aux_loss_weight, phase.mtp_loss_weight) == (0, 1e-4, 0.1)


@pytest.mark.parametrize("name", ["midtrain_32k", "midtrain_128k", "midtrain_200k"])
def test_long_contexts_are_tested_at_their_full_length(name: str) -> None:
    config = shipped(name)
    assert config.observe.needles is not None
    assert max(config.observe.needles.lengths) == max(phase.seq_len for phase in config.phases)
    assert config.observe.needles.haystack in {source.name for source in config.data.held_out}


def test_the_local_curriculum_changes_everything_that_a_phase_can() -> None:
    phases = shipped("curriculum_local").phases
    assert len(phases) >= 5
    for field in ("seq_len", "rope_theta", "packing", "fim_rate", "router_bias_rate", "mtp_loss_weight", "batch_size"):
        assert len({getattr(phase, field) for phase in phases}) > 1, field
    assert phases[0].batch_ramp is not None
    assert phases[0].sources != phases[1].sources
