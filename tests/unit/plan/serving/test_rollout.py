import pytest

from glmforge.config import load_model_config
from glmforge.errors import ConfigError
from glmforge.plan.machine.machine import find_machine
from glmforge.plan.serving.deployment import Deployment, generation_step
from glmforge.plan.serving.formats import find_format
from glmforge.plan.serving.rollout import fastest_rollout
from glmforge.plan.stages.rollout_batch import RolloutBatch

AIR = Deployment(load_model_config("glm45_air_106b"), find_machine("H100 SXM"), 8, find_format("bf16"))
BATCH = RolloutBatch(prompts=64, samples=8, prompt_tokens=512, response_tokens=4096, longest=4096)


def test_tokens() -> None:
    assert (BATCH.sequences, BATCH.tokens) == (512, 512 * 4608)


def test_rollouts_take_the_steps_of_their_longest_share() -> None:
    """On 8 GPUs all 512 sequences are generated at once, each half a response long on average: 4,096 steps."""
    found = fastest_rollout(AIR, 8, BATCH)
    assert (found.replicas, found.deployment.num_gpus, found.batch) == (1, 8, 512)
    assert found.generate == pytest.approx(4096 * generation_step(AIR, 512, 512 + 2048).seconds)
    assert found.tail == 0
    assert found.tokens_per_second == 512 * 4096 / found.seconds


def test_the_longest_response_is_waited_for_alone() -> None:
    longer = RolloutBatch(64, 8, 512, 4096, longest=16384)
    found = fastest_rollout(AIR, 8, longer)
    assert found.tail == pytest.approx((16384 - 4096) * generation_step(AIR, 1, 512 + (4096 + 16384) // 2).seconds)
    assert found.generate == fastest_rollout(AIR, 8, BATCH).generate


def test_more_gpus_are_never_slower() -> None:
    seconds = [fastest_rollout(AIR, number, BATCH).seconds for number in (4, 8, 16, 64, 256)]
    assert seconds == sorted(seconds, reverse=True)


def test_what_does_not_fit() -> None:
    with pytest.raises(ConfigError, match="cannot hold the weights"):
        fastest_rollout(AIR, 2, BATCH)
