"""Each scenario wins what it is named for, among all ways to serve that fit; what cannot fit is refused."""

import itertools

import pytest

from glmforge.config.load import load_model_config
from glmforge.config.model import ModelConfig
from glmforge.errors import ConfigError
from glmforge.plan.machine.machine import Machine, find_machine
from glmforge.plan.serving.deployment import Deployment, generation_step, prefill_seconds
from glmforge.plan.serving.formats import find_format
from glmforge.plan.serving.scenario import FEW_USERS, GOALS, ServingPlan, find_goal, plan_serving

AIR, FULL = load_model_config("glm45_air_106b"), load_model_config("glm45_355b")
H100, H200 = find_machine("h100-80gb"), find_machine("h200-141gb")
CASES = [(AIR, H100, 8, "bf16"), (AIR, H100, 4, "fp8"), (FULL, H200, 8, "fp8"), (FULL, H100, 32, "bf16")]


def plans(model: ModelConfig, machine: Machine, num_gpus: int, weights: str, **more: bool) -> dict[str, ServingPlan]:
    return {
        goal.name: plan_serving(
            goal, model, machine, num_gpus, find_format(weights), context=32_768, length=4_096, **more
        )
        for goal in GOALS
    }


@pytest.mark.parametrize(("model", "machine", "num_gpus", "weights"), CASES)
def test_each_wins_what_it_is_named_for(model: ModelConfig, machine: Machine, num_gpus: int, weights: str) -> None:
    found = plans(model, machine, num_gpus, weights)
    assert max(found, key=lambda name: found[name].tokens_per_second) == "high-throughput"
    fastest = min(found, key=lambda name: found[name].step.seconds_per_token)
    assert fastest == "low-latency"
    assert min(one.num_gpus for one in found.values()) == found["memory-constrained"].num_gpus
    balanced = found["balanced"]
    assert balanced.step.seconds_per_token <= balanced.goal.seconds_per_token
    assert balanced.tokens_per_second > found["low-latency"].tokens_per_second


@pytest.mark.parametrize(("model", "machine", "num_gpus", "weights"), CASES)
def test_what_is_chosen_fits_and_keeps_its_limits(
    model: ModelConfig, machine: Machine, num_gpus: int, weights: str
) -> None:
    for plan in plans(model, machine, num_gpus, weights).values():
        served = plan.deployment
        room = served.cache_room - plan.context * served.cache_bytes_per_token
        assert room >= 0
        assert plan.max_sequences * 4_096 * served.cache_bytes_per_token <= served.cache_room
        assert plan.num_gpus <= num_gpus
        assert model.num_attention_heads % served.num_gpus == 0
        assert plan.chunk >= plan.max_sequences  # vLLM refuses fewer tokens than sequences in a step
        if plan.chunk > max(512, 2 * plan.max_sequences):
            assert prefill_seconds(served, plan.chunk) <= plan.goal.chunk_seconds


def test_no_other_division_is_faster() -> None:
    """Against all divisions of 8 GPUs, by hand."""
    plan = plan_serving(find_goal("low-latency"), AIR, H100, 8, find_format("bf16"), context=8_192, length=2_048)
    others = [
        generation_step(deployment, FEW_USERS, 2_048).seconds_per_token
        for size, share in itertools.product((1, 2, 4, 8), (None, 0.7))
        if (deployment := Deployment(AIR, H100, size, find_format("bf16"), "bf16", share)).fits(8_192)
    ]
    assert plan.step.seconds_per_token == min(others)


def test_layers_that_work_one_after_another_are_slower_by_their_number() -> None:
    goal, weights = find_goal("low-latency"), find_format("q8_0")
    whole = plan_serving(goal, AIR, H100, 4, weights, context=8_192, length=2_048, by_layers=True)
    step = generation_step(Deployment(AIR, H100, 4, weights), FEW_USERS, 2_048)
    assert whole.step.seconds == pytest.approx(4 * max(step.read, step.multiply))
    assert not whole.deployment.is_drafting


@pytest.mark.parametrize(
    ("model", "machine", "num_gpus", "context", "words"),
    [
        (FULL, H100, 8, 131_072, "714 GB of weights (bf16)"),
        (FULL, H100, 8, 131_072, "what fits: 16 GPUs, or weights in fp8"),
        (AIR, H100, 3, 131_072, "what fits: 4 GPUs, or weights in fp8"),
        (AIR, H100, 4, 131_072 * 8, "a context of "),
    ],
)
def test_what_cannot_fit_is_refused_with_the_nearest_that_does(
    model: ModelConfig, machine: Machine, num_gpus: int, context: int, words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        plan_serving(GOALS[0], model, machine, num_gpus, find_format("bf16"), context=context, length=4_096)
    message = str(refused.value)
    assert words in message
    assert "\n" not in message


def test_the_nearest_that_fits_does_fit() -> None:
    with pytest.raises(ConfigError) as refused:
        plan_serving(GOALS[1], AIR, H100, 4, find_format("bf16"), context=1_048_576, length=4_096)
    context = int(str(refused.value).split("a context of ")[1].split(", or")[0].replace(",", ""))
    plan = plan_serving(GOALS[1], AIR, H100, 4, find_format("bf16"), context=context, length=4_096)
    assert plan.context == context


def test_an_unknown_scenario_is_named() -> None:
    with pytest.raises(ConfigError, match="choose one of high-throughput, balanced, low-latency, memory-constrained"):
        find_goal("fast")
