"""A step of training a policy, as GRPO and PPO take it: generate responses, send weights, train on what was generated.

On the same GPUs the three follow one another. On two groups of GPUs they run at the same time, with rollouts one step
behind the weights, and the groups are chosen so that neither waits for the other.
"""

from dataclasses import asdict, dataclass

from glmforge.plan.serving.deployment import Deployment
from glmforge.plan.serving.formats import find_format, weight_bytes
from glmforge.plan.serving.rollout import Rollout, RolloutBatch, Split, balanced_split, fastest_rollout
from glmforge.plan.stages.stage import TrainingStage


@dataclass(frozen=True)
class PolicyStep:
    """Seconds of a step on all GPUs: rollouts, training, and bringing the new weights to every node.

    `split` is the best division of the GPUs into those that generate and those that train, or None.
    """

    batch: RolloutBatch
    rollout: Rollout
    train: float
    send: float
    split: Split | None

    @property
    def seconds(self) -> float:
        """On the same GPUs, one after the other."""
        return self.rollout.seconds + self.train + self.send

    @property
    def generating_share(self) -> float:
        """Of a step's time on the same GPUs."""
        return self.rollout.seconds / self.seconds


def plan_policy_step(
    deployment: Deployment, num_gpus: int, batch: RolloutBatch, stage: TrainingStage, train_seconds_per_token: float
) -> PolicyStep:
    """`deployment` says how responses are generated, with copies of any size; training is timed on all the GPUs."""
    train = train_seconds_per_token * batch.tokens
    return PolicyStep(
        batch,
        fastest_rollout(deployment, num_gpus, batch),
        train,
        send_seconds(deployment, num_gpus, stage),
        balanced_split(deployment, num_gpus, batch, train),
    )


def send_seconds(deployment: Deployment, num_gpus: int, stage: TrainingStage) -> float:
    """Of what a step changed, in bf16, into every node over the network; within one node it is not counted."""
    machine, actor = deployment.machine, stage.roles[0]
    if num_gpus <= machine.ranks_per_node:
        return 0.0
    if actor.trains_all:
        size = weight_bytes(deployment.model, find_format("bf16")).total
    else:
        size = 2 * sum(row.size for row in actor.parameters(deployment.model).values() if actor.trains(row))
    return size / (machine.link_bandwidth * machine.ranks_per_node)


def policy_step_as_json(step: PolicyStep) -> dict[str, object]:
    """Everything above, ready for JSON."""
    return {
        "batch": asdict(step.batch),
        "rollout": rollout_as_json(step.rollout),
        "train_seconds": step.train,
        "send_seconds": step.send,
        "seconds": step.seconds,
        "generating_share": step.generating_share,
        "split": asdict(step.split) | {"seconds": step.split.seconds} if step.split else None,
    }


def rollout_as_json(rollout: Rollout) -> dict[str, object]:
    """The rollouts alone."""
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
