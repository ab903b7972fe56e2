"""What a rank needs in each stage, against whole-model sums and against each other."""

import pytest

from glmforge.config import load_config
from glmforge.config.layout import resolve_layout
from glmforge.config.lora import LoraConfig
from glmforge.plan.counts.flops import train_flops_per_token
from glmforge.plan.counts.memory import training_state
from glmforge.plan.memory.estimate import estimate_memory
from glmforge.plan.memory.purposes import Memory, Purpose
from glmforge.plan.stages.stage import PRETRAINING, TrainingStage, find_stage
from glmforge.plan.work.traffic import step_traffic
from helpers.rl_stages import policy

RUN = """
name: run
model: glm45_air_106b
data: {tokenizer: none, sources: [{name: random, path: none}]}
phases: [{name: main, steps: 1, seq_len: 4096, batch_size: 16}]
optim: {matrix_optimizer: adamw}
parallel: {micro_batch_size: 1, ep: 8, recompute: full}
"""
LORA = find_stage("lora", LoraConfig(rank=16))


def held(stage: TrainingStage, *overrides: str) -> Memory:
    config = load_config(RUN, overrides)
    return estimate_memory(config, resolve_layout(config, 16), stage).fullest.at_peak


@pytest.mark.parametrize(
    "stage",
    [PRETRAINING, LORA, find_stage("reward"), policy(), policy(lora=LoraConfig(rank=16))],
    ids=["pretrain", "lora", "reward", "policy", "policy lora"],
)
@pytest.mark.parametrize("copies", [1, 2])
def test_a_rank_holds_its_share_of_the_state(stage: TrainingStage, copies: int) -> None:
    """All ranks of a copy together hold the model, with little that is padded or on every rank."""
    config = load_config(RUN)
    state = training_state(config.model, config.optim, stage)
    found = held(stage, f"parallel.dp_replicate={copies}")
    ranks = 16 // copies
    assert found[Purpose.WEIGHTS] * ranks == pytest.approx(state.weights, rel=1e-3)
    # Beside adapters the one row of a score head is padded to a row for each rank.
    assert found[Purpose.OPTIMIZER] * ranks == pytest.approx(state.optimizer, rel=2e-3)


def test_elastic_weight_consolidation_holds_two_more_numbers_per_weight() -> None:
    """The Fisher information and the earlier weights, in fp32, cut like the weights themselves."""
    without, with_it = held(PRETRAINING), held(PRETRAINING, "regularization.ewc={fisher: runs/fisher}")
    more = with_it[Purpose.OPTIMIZER] - without[Purpose.OPTIMIZER]
    assert more == pytest.approx(2 * without[Purpose.WEIGHTS], rel=1e-6)  # router biases are weights without a gradient
    assert all(with_it[purpose] == without[purpose] for purpose in Purpose if purpose != Purpose.OPTIMIZER)


def test_lora_fits_where_training_everything_does_not() -> None:
    config = load_config(RUN, ["parallel.dp_replicate=2"])
    layout = resolve_layout(config, 16)
    everything, lora = (estimate_memory(config, layout, stage).peak for stage in (PRETRAINING, LORA))
    assert lora < 80e9 < everything


def test_models_take_turns() -> None:
    """A policy needs the weights and states of its models, and of all else what the most demanding of them needs."""
    actor, every = held(policy(())), held(policy())
    working = set(Purpose) - {Purpose.WEIGHTS, Purpose.OPTIMIZER}
    assert {purpose: every.get(purpose, 0) for purpose in working} == {
        purpose: actor.get(purpose, 0) for purpose in working
    }


def test_a_reward_model_needs_no_logits() -> None:
    overrides = ("parallel.pp=2", "parallel.ep=4", "phases.0.mtp_loss_weight=0")
    config = load_config(RUN, overrides)
    layout = resolve_layout(config, 16)
    last = {
        stage.name: estimate_memory(config, layout, stage).places[-1] for stage in (PRETRAINING, find_stage("reward"))
    }
    head = 620_756_992
    saved = last["pretrain"].at_peak[Purpose.WEIGHTS] - last["reward"].at_peak[Purpose.WEIGHTS]
    # An eighth of the head and of the MTP layer that is held without a loss.
    assert saved == pytest.approx(4 * (head + 2_375_059_584) / 8, rel=0.01)


@pytest.mark.parametrize("tp", [1, 2])
def test_a_model_that_ends_in_a_score_head_is_planned_as_a_reward_model(tp: int) -> None:
    overrides = ["model.num_nextn_predict_layers=0", "model.heads={score: 1}", f"parallel.tp={tp}"]
    whole = load_config(RUN, overrides)
    config = whole.model_copy(update={"model": whole.model.model_copy(update={"lm_head": False})})
    layout, reward = resolve_layout(config, 16), find_stage("reward")
    found, same, more = (
        (
            estimate_memory(run, layout, stage).fullest.at_peak,
            step_traffic(run, layout, stage=stage),
            train_flops_per_token(run.model, 4096, stage=stage),
            training_state(run.model, run.optim, stage),
        )
        for run, stage in ((config, PRETRAINING), (whole, reward), (whole, PRETRAINING))
    )
    assert found == same
    assert more[2] - found[2] == 6 * whole.model.vocab_size * whole.model.hidden_size
