"""How long a policy's rollouts take in an engine of their own, with copies of the model.

A step of GRPO or PPO samples several responses to each of its prompts and trains on all of them. Copies of the model
generate with as many sequences at once as their memory holds; a sequence that ends makes room for the next. The longest
response is waited for at the end, alone. Samples of a prompt share its prefill.

Steps of generation are the best that a service can do (`glmforge.plan.serving.deployment`), so that real rollouts take
longer.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from glmforge.errors import ConfigError
from glmforge.plan.serving.deployment import Deployment, generation_step, prefill_seconds
from glmforge.plan.stages.rollout_batch import RolloutBatch


@dataclass(frozen=True)
class Rollout:
    """The rollouts of a step on `replicas` copies of a model.

    Attributes:
        batch: sequences that a copy generates at once.
        prefill, generate, tail: seconds for prompts, for responses, and for the longest one after the others.
    """

    deployment: Deployment
    replicas: int
    batch: int
    prefill: float
    generate: float
    tail: float
    tokens: int

    @property
    def seconds(self) -> float:
        return self.prefill + self.generate + self.tail

    @property
    def num_gpus(self) -> int:
        return self.replicas * self.deployment.num_gpus

    @property
    def tokens_per_second(self) -> float:
        """Generated, of all copies."""
        return self.tokens / self.seconds


def fastest_rollout(deployment: Deployment, num_gpus: int, batch: RolloutBatch) -> Rollout:
    """With copies of the size that is fastest; the deployment's own number of GPUs does not matter.

    Raises `ConfigError` if no copy fits.
    """
    found = list(_rollouts(deployment, num_gpus, batch))
    if not found:
        needed = deployment.weight_bytes / 1e9
        raise ConfigError(
            f"--gpus: {num_gpus} of {deployment.machine.accelerator.name} cannot hold the weights ({needed:,.0f} GB in "
            f"{deployment.weights.name}) and a sequence of {batch.prompt_tokens + batch.longest:,} tokens; take more"
        )
    return min(found, key=lambda rollout: rollout.seconds)


def _rollouts(deployment: Deployment, num_gpus: int, batch: RolloutBatch) -> Iterator[Rollout]:
    """With copies of all sizes that fit a node, or of the smallest that fit at all."""
    in_node = deployment.machine.ranks_per_node
    found = None
    size = 1
    while size <= num_gpus and (size <= in_node or found is None):
        found = _rollout(replace(deployment, num_gpus=size), num_gpus // size, batch)
        if found is not None:
            yield found
        size *= 2


def _rollout(deployment: Deployment, replicas: int, batch: RolloutBatch) -> Rollout | None:
    if not deployment.fits(batch.prompt_tokens + batch.longest):
        return None
    share = -(-batch.sequences // replicas)
    # Sequences at once are at all stages of their growth, hence half a response long on average.
    length = batch.prompt_tokens + batch.response_tokens // 2
    at_once = min(share, deployment.max_sequences(length))
    step = generation_step(deployment, at_once, length)
    alone = generation_step(deployment, 1, batch.prompt_tokens + (batch.response_tokens + batch.longest) // 2)
    return Rollout(
        deployment,
        replicas,
        at_once,
        prefill=-(-batch.prompts // replicas) * prefill_seconds(deployment, batch.prompt_tokens),
        generate=share * batch.response_tokens / step.tokens_per_second,
        tail=(batch.longest - batch.response_tokens) * alone.seconds_per_token,
        tokens=batch.sequences * batch.response_tokens,
    )


def rollout_as_json(rollout: Rollout) -> dict[str, object]:
    """Ready for JSON."""
    return {
        "copies": rollout.replicas,
        "gpus_of_a_copy": rollout.deployment.num_gpus,
        "weights": rollout.deployment.weights.name,
        "sequences_at_once": rollout.batch,
        "prefill_seconds": rollout.prefill,
        "generate_seconds": rollout.generate,
        "tail_seconds": rollout.tail,
        "seconds": rollout.seconds,
        "tokens_per_second": rollout.tokens_per_second,
    }
