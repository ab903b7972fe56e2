"""A small run of reinforcement learning without files: prompts of a formula, and a reward that a policy can raise."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from glmforge.backend.native import NativeBackend
from glmforge.config.rl import RlConfig
from glmforge.config.schema import RunConfig
from glmforge.parallel.world import World
from glmforge.rl.rollout import Asked
from glmforge.rl.samples import Answer
from glmforge.rl.source import RolloutSource
from helpers.models import run_config

VOCAB_SIZE = 512


class Prompts:
    """Five tokens to each."""

    def __getitem__(self, number: int) -> Asked:
        return Asked(number, [(number * 7 + place * 3) % 256 for place in range(5)])


def score(answers: Sequence[Answer], scores: Sequence[float] | None = None) -> list[Answer]:
    """The share of small token ids."""
    return [one.changed(reward=float(np.mean(one.tokens_N < 256)), terms={"small": 1.0}) for one in answers]


def config_of(parallel: dict[str, Any], *, steps: int = 2, optimizer: str = "sgd", **other: Any) -> RunConfig:
    """With the optimizer of `helpers.sgd`, to be declared first, unless another one is named: the first steps of Adam
    and Muon are of one size however small a gradient is, so rounding would decide their sign."""
    phase = {"name": "rl", "steps": steps, "seq_len": 48, "batch_size": 16}
    phase |= {"router_bias_rate": 0.0, "aux_loss_weight": 0.0, "mtp_loss_weight": 0.0}
    optim = {
        "lr": 3.0 if optimizer == "sgd" else 1e-3,
        "schedule": "constant",
        "schedule_unit": "steps",
        "matrix_optimizer": optimizer,
        "weight_decay": 0.0,
    }
    return run_config(phases=[phase], parallel={"micro_batch_size": 1} | parallel, optim=optim, **other)


def settings_of(**changes: Any) -> RlConfig:
    rollout = {"group_size": 4, "max_new_tokens": 10, "cache_bytes": 1 << 22} | changes.pop("rollout", {})
    return RlConfig.model_validate({"rollout": rollout, **changes})


def source_of(config: RunConfig, settings: RlConfig, world: World, **other: Any) -> RolloutSource:
    backend = NativeBackend.build(config, world)
    return RolloutSource(
        config, settings, backend, Prompts(), other.pop("score", score), vocab_size=VOCAB_SIZE, **other
    )
