from typing import NamedTuple

import pytest
from pydantic import ValidationError

from glmforge.config.optim import OptimConfig, ParameterRule
from glmforge.config.optimizers import OPTIMIZERS
from glmforge.config.parameter_groups import optimizer_states, parameter_groups
from glmforge.config.parameters import Shape, parameter_table
from helpers.models import run_config, tiny_config
from helpers.parameters import table_of
from helpers.sgd import SGD


class Trained(NamedTuple):
    """The group of a parameter."""

    optimizer: str
    weight_decay: float
    lr_scale: float = 1.0


MUON = Trained("muon", 0.1)
DECAYED = Trained("adamw", 0.1)
UNDECAYED = Trained("adamw", 0.0)

# Every kind of parameter of a model with one dense, one MoE and one MTP layer: D = 64, V = 512, E = 8, I = 32
PARAMETERS = {
    "model.embed_tokens.weight": ((512, 64), DECAYED),
    "model.layers.0.input_layernorm.weight": ((64,), UNDECAYED),
    "model.layers.0.post_attention_layernorm.weight": ((64,), UNDECAYED),
    "model.layers.0.self_attn.q_proj.weight": ((128, 64), MUON),
    "model.layers.0.self_attn.q_proj.bias": ((128,), UNDECAYED),
    "model.layers.0.self_attn.k_proj.weight": ((32, 64), MUON),
    "model.layers.0.self_attn.k_proj.bias": ((32,), UNDECAYED),
    "model.layers.0.self_attn.v_proj.weight": ((32, 64), MUON),
    "model.layers.0.self_attn.v_proj.bias": ((32,), UNDECAYED),
    "model.layers.0.self_attn.o_proj.weight": ((64, 128), MUON),
    "model.layers.0.self_attn.q_norm.weight": ((16,), UNDECAYED),
    "model.layers.0.self_attn.k_norm.weight": ((16,), UNDECAYED),
    "model.layers.0.mlp.gate_proj.weight": ((96, 64), MUON),
    "model.layers.0.mlp.up_proj.weight": ((96, 64), MUON),
    "model.layers.0.mlp.down_proj.weight": ((64, 96), MUON),
    "model.layers.1.mlp.gate.weight": ((8, 64), MUON),
    "model.layers.1.mlp.experts.gate_up_proj": ((8, 64, 64), MUON),
    "model.layers.1.mlp.experts.down_proj": ((8, 64, 32), MUON),
    "model.layers.1.mlp.shared_experts.gate_proj.weight": ((32, 64), MUON),
    "model.layers.1.mlp.shared_experts.down_proj.weight": ((64, 32), MUON),
    "model.layers.2.enorm.weight": ((64,), UNDECAYED),
    "model.layers.2.hnorm.weight": ((64,), UNDECAYED),
    "model.layers.2.eh_proj.weight": ((64, 128), MUON),
    "model.layers.2.shared_head.norm.weight": ((64,), UNDECAYED),
    "model.norm.weight": ((64,), UNDECAYED),
    "lm_head.weight": ((512, 64), MUON),
}
SHAPES: dict[str, Shape] = {name: shape for name, (shape, _) in PARAMETERS.items()}


def trained(config: OptimConfig, shapes: dict[str, Shape] = SHAPES) -> dict[str, Trained]:
    found = [
        (parameter.name, Trained(group.optimizer.name, group.weight_decay, group.lr_scale))
        for group in parameter_groups(table_of(shapes), config)
        for parameter in group.parameters
    ]
    assert sorted(name for name, _ in found) == sorted(shapes)
    return dict(found)


def test_groups_are_those_of_the_report():
    assert trained(OptimConfig(weight_decay=0.1)) == {name: expected for name, (_, expected) in PARAMETERS.items()}
    assert len(parameter_groups(table_of(SHAPES), OptimConfig())) == 3


def test_head_goes_to_adamw_if_the_config_says_so():
    by_name = trained(OptimConfig(lm_head="adamw", weight_decay=0.1))
    assert by_name["lm_head.weight"] == DECAYED
    assert by_name["model.layers.0.mlp.up_proj.weight"] == MUON


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_another_optimizer_takes_all_matrices_and_still_decays_only_them(optimizer):
    by_name = trained(OptimConfig(matrix_optimizer=optimizer, weight_decay=0.1))
    for name, (shape, by_muon) in PARAMETERS.items():
        assert by_name[name] == (by_muon._replace(optimizer=optimizer) if len(shape) > 1 else by_muon)


def test_each_layer_learns_slower_than_the_one_above():
    """And an adapter as its layer, whoever declares it."""
    mtp_adapter = "model.layers.4.self_attn.q_proj.lora_A.weight"
    scales = {
        "model.embed_tokens.weight": 1 / 16,
        "model.layers.0.self_attn.q_proj.weight": 1 / 8,
        "model.layers.0.input_layernorm.weight": 1 / 8,
        "model.layers.1.input_layernorm.weight": 1 / 4,
        "model.layers.2.mlp.experts.gate_up_proj": 1 / 2,
        "model.norm.weight": 1.0,
        "lm_head.weight": 1.0,
        # MTP layers are not below the head, and the second is not above the first
        "model.layers.3.eh_proj.weight": 1.0,
        "model.layers.4.eh_proj.weight": 1.0,
        "model.layers.4.self_attn.q_proj.weight": 1.0,
        mtp_adapter: 1.0,
    }
    config = tiny_config(num_hidden_layers=3, num_nextn_predict_layers=2)
    table = parameter_table(config).extended(table_of({mtp_adapter: (4, 64)}).values())
    groups = parameter_groups(table, OptimConfig(layer_lr_decay=0.5))
    assert {row.name: group.lr_scale for group in groups for row in group.parameters if row.name in scales} == scales


def rules(*fields: dict[str, object], **others: object) -> OptimConfig:
    return OptimConfig(rules=[ParameterRule(**rule) for rule in fields], **others)


def test_the_first_rule_that_matches_decides_and_changes_only_what_it_names():
    config = rules(
        {"match": "model.layers.1.mlp.gate.weight"},
        {"match": "model.layers.*.mlp.gate.weight", "weight_decay": 0.0, "optimizer": "adamw"},
        {"match": "*.mlp.gate.*", "lr_scale": 0.0},
        {"match": "*norm.weight", "weight_decay": 0.3, "lr_scale": 0.5},
    )
    by_name = trained(config, SHAPES | {"model.layers.2.mlp.gate.weight": (8, 64)})
    assert by_name["model.layers.1.mlp.gate.weight"] == MUON
    assert by_name["model.layers.2.mlp.gate.weight"] == UNDECAYED
    assert by_name["model.norm.weight"] == Trained("adamw", 0.3, 0.5)
    assert by_name["model.layers.1.mlp.experts.down_proj"] == MUON


def test_a_rule_comes_on_top_of_the_layers_decay():
    config = rules({"match": "*down_proj.weight", "lr_scale": 3.0}, layer_lr_decay=0.5)
    shapes = {f"model.layers.{layer}.mlp.down_proj.weight": (8, 8) for layer in range(2)}
    assert [group.lr_scale for group in trained(config, shapes).values()] == [0.75, 1.5]


def test_a_rule_may_give_the_embedding_to_muon_and_freeze():
    config = rules({"match": "*embed_tokens*", "optimizer": "muon"}, {"match": "lm_head.weight", "lr_scale": 0.0})
    assert trained(config)["model.embed_tokens.weight"] == MUON
    frozen = [group for group in parameter_groups(table_of(SHAPES), config) if group.is_frozen]
    assert [parameter.name for group in frozen for parameter in group.parameters] == ["lm_head.weight"]
    assert not any(key.endswith("lm_head.weight") for key in optimizer_states(table_of(SHAPES), config))


def test_buffers_are_in_no_group():
    table = parameter_table(tiny_config())
    names = {parameter.name for group in parameter_groups(table, OptimConfig()) for parameter in group.parameters}
    assert names == table.trained().keys() < table.keys()


def test_an_optimizer_that_does_not_exist_is_refused_with_the_ones_that_do():
    for wrong in ("muno", 3, ["muon"]):
        with pytest.raises(ValidationError, match="should be 'muon', 'adamw' or 'lamb'"):
            OptimConfig(matrix_optimizer=wrong)
        with pytest.raises(ValidationError, match="should be 'muon', 'adamw' or 'lamb'"):
            ParameterRule(match="*", optimizer=wrong)


WRONG = {
    "no such name": (
        [{"match": "model.layers.*.mlp.router.weight", "weight_decay": 0.0}],
        r"'model.layers.\*.mlp.router.weight' matches no parameter; nearest: 'model.layers.\*.mlp.gate.w",
    ),
    "no such layer": (
        [{"match": "model.layers.77.mlp.gate.weight", "lr_scale": 0.5}],
        r"matches no parameter; nearest: 'model.layers.\*.mlp.gate.weight'",
    ),
    "never reached": (
        [{"match": "model.layers.*", "lr_scale": 0.5}, {"match": "*.self_attn.*", "lr_scale": 1.0}],
        r"'\*.self_attn.\*' never applies: earlier rules match everything it",
    ),
    "Muon for vectors": (
        [{"match": "model.layers.0.self_attn.*", "optimizer": "muon"}],
        r"'muon' trains matrices, but .* also matches 'model.layers.0.self_attn.q_proj.bias', a vector",
    ),
    "LAMB for vectors": ([{"match": "model.norm.weight", "optimizer": "lamb"}], r"'lamb' trains matrices"),
}


@pytest.mark.parametrize(("wrong", "message"), WRONG.values(), ids=WRONG)
def test_rules_that_cannot_be_meant_are_refused(wrong, message):
    with pytest.raises(ValidationError, match=message):
        run_config(optim={"rules": wrong})


def test_bf16_states_are_refused_for_an_optimizer_that_would_not_round_them(monkeypatch):
    monkeypatch.setitem(OPTIMIZERS, "sgd", SGD)
    for wrong in ({"matrix_optimizer": "sgd"}, {"rules": [{"match": "*", "optimizer": "sgd"}]}):
        OptimConfig.model_validate(wrong)
        with pytest.raises(ValidationError, match="optimizer 'sgd' does not support states in bf16; use"):
            OptimConfig.model_validate(wrong | {"state_dtype": "bf16"})


def test_rules_that_an_earlier_one_leaves_only_matrices_are_well():
    run_config(
        optim={
            "rules": [
                {"match": "*.bias", "lr_scale": 2.0},
                {"match": "*norm.weight"},
                {"match": "model.layers.0.self_attn.*", "optimizer": "muon"},
            ]
        }
    )
