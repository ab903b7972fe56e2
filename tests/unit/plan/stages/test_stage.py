"""What the stages train, hold, compute and send, by hand and against each other."""

from typing import Any

import pytest

from glmforge.config import OptimConfig, load_config, load_model_config
from glmforge.config.layout import resolve_layout
from glmforge.config.lora import LoraConfig
from glmforge.config.optim import ParameterRule
from glmforge.errors import ConfigError
from glmforge.plan.counts.flops import train_flops_per_token
from glmforge.plan.counts.memory import training_state
from glmforge.plan.stages.stage import PRETRAINING, TrainingStage, find_stage
from glmforge.plan.work.step import model_flops, step_operations
from glmforge.plan.work.traffic import step_traffic
from helpers.rl_stages import policy

AIR = "glm45_air_106b"
TRUNK, HEAD, MTP = 12_181_569_536, 620_756_992, 919_601_152
"""Elements of Air that multiply each token; those of MTP with its logits."""
ATTENTION = 16384 * 12288 * 46
"""Of the trunk at 16K."""
ADAPTERS = 31_653_888

RUN = """
name: run
model: MODEL
data: {tokenizer: none, sources: [{name: random, path: none}]}
phases: [{name: main, steps: 1, seq_len: 64, batch_size: 16, aux_loss_weight: 0}]
parallel: {micro_batch_size: 1}
"""

STAGES: dict[str, TrainingStage] = {
    "pretrain": PRETRAINING,
    "sft": find_stage("sft"),
    "lora": find_stage("lora", LoraConfig(rank=16)),
    "reward": find_stage("reward"),
    "reward lora": find_stage("reward", LoraConfig(rank=16)),
    "actor alone": policy(()),
    "policy": policy(),
    "policy lora": policy(lora=LoraConfig(rank=16)),
}


def run(model: str, *overrides: str) -> Any:
    return load_config(RUN.replace("MODEL", model), overrides)


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ("pretrain", 6 * (TRUNK + HEAD + ATTENTION)),
        ("sft", 6 * (TRUNK + HEAD + ATTENTION)),
        ("lora", 4 * (TRUNK + HEAD) + 6 * (ATTENTION + ADAPTERS)),
        ("reward", 6 * (TRUNK + ATTENTION)),
        ("actor alone", 8 * (TRUNK + HEAD + ATTENTION)),
        # The actor 6 and 2, the reference 2; without the vocabulary the critic 6 and 2, the reward model 2.
        ("policy", 10 * (TRUNK + HEAD + ATTENTION) + 10 * (TRUNK + ATTENTION)),
        # The reference is a second pass of the actor; adapters are passed through by it as well.
        (
            "policy lora",
            8 * (TRUNK + HEAD)
            + 10 * (ATTENTION + ADAPTERS)
            + 6 * TRUNK
            + 8 * (ATTENTION + ADAPTERS)
            + 2 * (TRUNK + ATTENTION),
        ),
    ],
)
def test_flops_by_hand(stage: str, expected: int) -> None:
    found = train_flops_per_token(load_model_config(AIR), 16384, with_mtp=False, stage=STAGES[stage])
    assert found == expected


def test_mtp_counts_where_a_vocabulary_is_trained() -> None:
    config = load_model_config(AIR)
    added = {
        name: train_flops_per_token(config, 0, True, stage) - train_flops_per_token(config, 0, False, stage)
        for name, stage in STAGES.items()
    }
    assert added == {
        "pretrain": 6 * MTP,
        "sft": 6 * MTP,
        "lora": 4 * MTP,
        "reward": 0,
        "reward lora": 0,
        "actor alone": 6 * MTP,
        "policy": 6 * MTP,
        "policy lora": 4 * MTP,
    }


@pytest.mark.parametrize(
    ("match", "saved"),
    [("*proj.bias", 0), ("*norm.weight", 0), ("model.embed_tokens.weight", 0), ("lm_head.weight", 2 * HEAD)],
)
def test_what_freezing_one_thing_saves(match: str, saved: int) -> None:
    """Vectors multiply nothing; without the embedding's gradient the first norm still asks for its input's."""
    config, rule = load_model_config(AIR), ParameterRule(match=match, lr_scale=0)
    found = train_flops_per_token(config, 16384, with_mtp=False, optim=OptimConfig(rules=[rule]))
    assert found == 6 * (TRUNK + HEAD + ATTENTION) - saved


@pytest.mark.parametrize(("model", "recompute"), [("tiny", "full"), (AIR, "none")])
@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_operations_add_up_to_the_closed_form(stage: TrainingStage, model: str, recompute: str) -> None:
    config = run(model, f"parallel.recompute={recompute}")
    found = model_flops(step_operations(config, resolve_layout(config, 1), stage=stage))
    assert found == train_flops_per_token(config.model, 64, stage=stage) * config.phases[0].tokens_per_step


def test_what_lora_saves_is_the_weights_gradients() -> None:
    """Of each map all but a third; adapters of every map are added."""
    config = run(AIR)
    full, lora = (
        {
            (operation.name, operation.times): operation
            for operation in step_operations(config, resolve_layout(config, 1), stage=stage)
            if operation.kind == "matmul" and operation.name != "adapters" and not operation.is_update
        }
        for stage in (find_stage("sft"), find_stage("lora", LoraConfig(rank=16)))
    )
    for key, operation in lora.items():
        assert 3 * operation.flops == 2 * full[key].flops, key
        assert operation.backward.bytes == pytest.approx(operation.forward.bytes, rel=0.05), key


def test_state_of_lora() -> None:
    config = load_model_config(AIR)
    adamw = OptimConfig(matrix_optimizer="adamw")
    full, lora = training_state(config, adamw), training_state(config, adamw, find_stage("lora", LoraConfig(rank=16)))
    biases = 4 * 46 * 128  # the routers', fp32 in every stage
    assert full.weights == training_state(config, adamw, find_stage("sft")).weights
    assert lora.weights == (full.weights - biases) // 2 + biases + 4 * ADAPTERS
    assert (lora.gradients, lora.optimizer) == (4 * ADAPTERS, 8 * ADAPTERS)


def test_state_of_four_models() -> None:
    config, adamw = load_model_config(AIR), OptimConfig(matrix_optimizer="adamw")
    # Without the routers' biases: with MTP and head, and with a score in place of them.
    trained = 109_227_310_848 - 46 * 128, 106_231_494_272 - 45 * 128 + 4096
    state = training_state(config, adamw, policy())
    assert state.gradients == 4 * sum(trained)
    assert state.optimizer == 2 * state.gradients
    frozen = state.weights - training_state(config, adamw, policy(["critic"])).weights
    reference, reward = 106_852_251_264 - 45 * 128, trained[1]
    assert frozen == 2 * (reference + reward) + 4 * 2 * 45 * 128


def test_lora_on_two_nodes() -> None:
    """Shards over both nodes gather Air twice across the network; a copy for each node exchanges adapters alone."""
    stage = find_stage("lora", LoraConfig(rank=16))
    shards, copies = (
        {traffic.axis: traffic for traffic in step_traffic(config, resolve_layout(config, 16), stage=stage)}
        for config in (run(AIR), run(AIR, "parallel.dp_replicate=2"))
    )
    assert shards["fsdp"].bytes == pytest.approx(436e9, rel=0.005)
    assert (shards["fsdp"].ranks_per_node, shards["fsdp"].num_ranks) == (8, 16)
    assert copies["fsdp"].ranks_per_node == copies["fsdp"].num_ranks == 8
    assert copies["dp_replicate"].bytes * 8 == 4 * ADAPTERS  # 0.13 GB from the ranks of a node together


@pytest.mark.parametrize(
    ("method", "more"),
    [
        # A training pass goes over a boundary or layer twice, a forward pass alone once. Keys and values are gathered
        # twice and their gradients scattered, against one gathering. Weights are gathered twice, and reduced in fp32.
        ("gather", {"tp": 3 / 2, "ep": 3 / 2, "cp": 4 / 3, "pp": 3 / 2}),
        ("ulysses", {"tp": 3 / 2, "ep": 3 / 2, "cp": 3 / 2, "pp": 3 / 2}),
    ],
)
def test_a_forward_pass_sends_activations_once(method: str, more: dict[str, float]) -> None:
    overrides = ["parallel.tp=2", "parallel.pp=2", "parallel.ep=4", "parallel.cp=2", "model.num_nextn_predict_layers=0"]
    config = run(
        "tiny",
        "model.num_hidden_layers=4",
        "model.num_key_value_heads=4",
        f"parallel.context_method={method}",
        *overrides,
    )
    layout = resolve_layout(config, 16)
    twice = policy(["reference"], LoraConfig(rank=4))  # the actor, with its adapters and without
    usual, actor, both = (
        {traffic.axis: traffic.bytes for traffic in step_traffic(config, layout, stage=stage)}
        for stage in (PRETRAINING, STAGES["actor alone"], twice)
    )
    assert {axis: actor[axis] / usual[axis] for axis in more} == pytest.approx(more)
    assert {axis: both[axis] - usual[axis] for axis in more} == {axis: 2 * (actor[axis] - usual[axis]) for axis in more}


def test_weights_are_gathered_for_every_pass_and_reduced_where_they_are_trained() -> None:
    config = run("tiny", "phases.0.batch_size=2", "model.num_nextn_predict_layers=0")
    layout = resolve_layout(config, 2)

    def sent(stage: TrainingStage) -> int:
        (fsdp,) = step_traffic(config, layout, stage=stage)
        return fsdp.bytes

    table = [row for row in PRETRAINING.roles[0].parameters(config.model).values() if row.trained]
    gathered = sum((4 if "mlp.gate." in row.name else 2) * row.size for row in table)
    assert sent(STAGES["actor alone"]) - sent(PRETRAINING) == gathered
    reference = policy(["reference"])
    assert sent(reference) - sent(STAGES["actor alone"]) == gathered


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "finetune"}, "choose one of pretrain, midtrain, sft, reward, dpo, rl, lora;"),
        ({"name": "lora"}, "needs its rank"),
    ],
)
def test_wrong_stages(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        find_stage(**arguments)
