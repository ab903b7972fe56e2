"""The memory of a stage of several models, against sums that are made by other means, and against runs of one model."""

from collections.abc import Iterator

import pytest

from glmforge.config.layout import resolve_layout
from glmforge.config.model import ModelConfig, Strict
from glmforge.config.role import Role
from glmforge.config.schema import RunConfig
from glmforge.config.stage import StageDeclaration
from glmforge.errors import ConfigError
from glmforge.plan.counts.memory import training_state
from glmforge.plan.counts.parameters import count_parameters
from glmforge.plan.fit import Capacity, fits
from glmforge.plan.machine.machine import find_machine
from glmforge.plan.memory.estimate import PlaceMemory, estimate_memory
from glmforge.plan.memory.purposes import Purpose
from glmforge.plan.stages.stage import PRETRAINING, TrainingStage, find_stage, stage_of
from glmforge.plan.time.step_time import predict_step
from helpers.models import run_config, tiny_config
from helpers.stages import declared

CRITIC = tiny_config(hidden_size=32, num_nextn_predict_layers=0, heads={"value": 3})
REWARD = tiny_config(num_hidden_layers=6, num_nextn_predict_layers=0)
CACHE = 123_457
HELD = {Purpose.WEIGHTS, Purpose.OPTIMIZER}


class RolesConfig(Strict):
    """Section of the stage."""

    cache_bytes: int = CACHE
    critic: ModelConfig = CRITIC
    reward: ModelConfig = REWARD


def roles_of(run: RunConfig) -> tuple[Role, ...]:
    given = run.stage_settings(RolesConfig)
    return (
        Role("actor"),
        Role("reference", is_trained=False, forwards=1, base_of="actor"),
        Role("critic", has_vocabulary=False, model=given.critic),
        Role("reward", is_trained=False, forwards=1, has_vocabulary=False, model=given.reward),
        Role("engine", is_trained=False, weights_of="actor", cache_bytes=given.cache_bytes),
    )


@pytest.fixture(autouse=True)
def stage_of_four() -> Iterator[None]:
    stage = StageDeclaration(name="four", starts_from_weights=False, roles=roles_of, sections={"roles": RolesConfig})
    with declared(stage):
        yield


def four(**fields: object) -> RunConfig:
    return run_config(optim={"matrix_optimizer": "adamw"}, **({"stage": "four"} | fields))


def place(config: RunConfig, stage: TrainingStage | None = None, ranks: int = 1) -> PlaceMemory:
    stage = stage_of(config) if stage is None else stage
    return estimate_memory(config, resolve_layout(config, ranks), stage).fullest


def moving(found: PlaceMemory) -> int:
    """What comes and goes in a step."""
    return found.peak - sum(found.at_peak[purpose] for purpose in HELD)


def elements(model: ModelConfig, *, has_vocabulary: bool = True, with_mtp: bool = True) -> tuple[int, int]:
    """Of parameters and of the routers' biases, which are fp32 in every role."""
    counts = count_parameters(model)
    count = counts.with_mtp if with_mtp else counts.without_mtp
    more_rows = 0 if has_vocabulary else (not model.heads) - model.vocab_size  # a score, if it has no heads of its own
    return count.parameters + more_rows * model.hidden_size, count.buffers


def test_memory_is_the_sum_of_its_parts() -> None:
    """fp32 and AdamW's moments of what is trained, bf16 of what is not, and the largest turn, not the engine's."""
    config = four()
    actor, critic = elements(config.model), elements(CRITIC, has_vocabulary=False)
    reference = elements(config.model, with_mtp=False)
    reward = elements(REWARD, has_vocabulary=False)
    weights = sum(4 * parameters + 4 * biases for parameters, biases in (actor, critic))
    weights += sum(2 * parameters + 4 * biases for parameters, biases in (reference, reward))
    found, alone = place(config), place(run_config(optim={"matrix_optimizer": "adamw"}), PRETRAINING)
    assert found.at_peak[Purpose.WEIGHTS] == weights
    assert training_state(config.model, config.optim, stage_of(config)).weights == weights
    moments = 8 * (actor[0] + critic[0])
    trained = [role for role in roles_of(config) if role.is_trained]
    moments += 4 * sum(len(role.parameters(config.model).trained()) for role in trained)  # the number of steps
    assert found.at_peak[Purpose.OPTIMIZER] == moments
    assert dict(found.held).keys() == {"actor", "reference", "critic", "reward"}
    assert sum(dict(found.held).values()) == weights + moments
    assert found.at_peak[Purpose.CACHE] == 0
    assert moving(found) == moving(alone)
    assert found.peak == weights + moments + moving(alone)


def test_a_larger_critic_has_the_largest_turn() -> None:
    large = tiny_config(hidden_size=192, num_nextn_predict_layers=0)
    config = four(roles={"critic": large.model_dump()})
    alone = place(config.model_copy(update={"model": large}), find_stage("reward"))
    found = place(config)
    assert moving(found) == moving(alone)
    assert found.at_peak[Purpose.CACHE] == 0  # the engine gives it back before the critic's turn


def test_an_engine_has_a_turn_of_its_own() -> None:
    """A cache that is larger than what training needs, declared for each rank, and no gradients beside it."""
    large = 10**12
    for ranks in (1, 4):
        found = place(four(roles={"cache_bytes": large}), ranks=ranks)
        assert (found.moment, found.at_peak[Purpose.CACHE], found.at_peak[Purpose.GRADIENTS]) == ("rollout", large, 0)
        assert moving(found) == large + found.at_peak[Purpose.GATHERED]


def test_a_frozen_model_has_the_working_memory_of_a_forward_pass_alone() -> None:
    large = tiny_config(hidden_size=4096, num_nextn_predict_layers=0)
    phase = {"name": "main", "steps": 4, "seq_len": 256, "batch_size": 8}
    found = place(four(roles={"reward": large.model_dump()}, phases=[phase], parallel={"recompute": "full"}))
    assert found.moment == "forward"
    backward = {Purpose.GRADIENTS, Purpose.ACTIVATIONS, Purpose.UNREDUCED}
    assert all(found.at_peak[purpose] == 0 for purpose in backward)


def test_models_are_laid_on_ranks_each_by_its_own_size() -> None:
    config = four()
    whole, parts = place(config), place(config, ranks=4)
    for purpose in (Purpose.WEIGHTS, Purpose.OPTIMIZER):
        assert 4 * parts.at_peak[purpose] == pytest.approx(whole.at_peak[purpose], rel=0.05)


def test_a_reference_beside_adapters_is_the_actor_without_them() -> None:
    fields = {"lora": {"rank": 4}, "init_from": "base"}
    stage = stage_of(four(**fields))
    assert [role.name for role in stage.roles] == ["actor", "critic", "reward"]
    assert stage.roles[0].forwards == 1
    assert [role.lora is not None for role in stage.roles] == [True, True, False]
    assert stage.roles[0].cache_bytes == CACHE


def test_what_fits_is_decided_by_all_models() -> None:
    config, layout = four(), resolve_layout(four(), 1)
    peak = place(config).peak
    assert fits(config, layout, Capacity(peak, "a GPU has")).missing is None
    missing = fits(config, layout, Capacity(peak - 1, "a GPU has")).missing
    assert missing is not None
    assert missing.startswith("phase 'main' does not fit: a rank of pipeline stage 0 would need")
    on_four, each = resolve_layout(config, 4), place(config, ranks=4).peak
    nodes = [range(1), range(1, 4)]
    assert fits(config, on_four, Capacity(3 * each, "which has", nodes, "of a node")).missing is None
    missing = fits(config, on_four, Capacity(3 * each - 1, "which has", nodes, "of a node")).missing
    assert "3 ranks of a node would need" in str(missing)


def test_a_model_that_cannot_be_laid_so_is_named() -> None:
    few = tiny_config(n_routed_experts=6)
    config = four(roles={"reward": few.model_dump()}, parallel={"ep": 4})
    with pytest.raises(ConfigError, match=r"the model of role .reward. does not fit the run.s layout: .*ep"):
        place(config, ranks=4)


def test_no_time_is_predicted_for_models_of_several_sizes() -> None:
    config = four(precision={"compute": "bf16"})
    with pytest.raises(ConfigError, match="role 'critic' has a model of another size"):
        predict_step(config, resolve_layout(config, 1), find_machine("H100 SXM"), stage=stage_of(config))
