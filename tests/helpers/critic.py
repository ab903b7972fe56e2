"""A run with a critic: its own model, optimizer and objective on the batches of the actor, which learns the next token.

with_critic()              # this process's stage `pretrain` trains one from now on
train(config, [DiesAfter(3)])
"""

import os
import signal
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from glmforge.backend.native import NativeBackend
from glmforge.backend.objective import Objective
from glmforge.config.schema import RunConfig
from glmforge.config.stage import STAGES
from glmforge.data.stream.batch import Batch
from glmforge.model.head import Heads
from glmforge.model.transformer import ForwardOutput, Head
from glmforge.objectives.next_token import NextTokenObjective
from glmforge.parallel.inputs import TokenShare
from glmforge.parallel.world import World
from glmforge.recipes.token_shards import TokenShardRecipe
from glmforge.training.step import StepResult
from glmforge.training.trainer import ExtraModel, Hook, Trainer


class ValueObjective(Objective):
    """The value head is to say how large the next token's id is: the mean squared error over label tokens."""

    terms = ("value",)
    weights = (1.0,)

    def denominators(self, batch: Batch) -> Tensor:
        return (batch.labels_BS >= 0).sum().double().reshape(1)

    def head(self, batch: Batch, share: TokenShare) -> Head[Tensor]:
        def value(h_TD: Tensor, heads: Heads, depth: int) -> Tensor:
            return heads.linear["value"](h_TD).squeeze(-1)

        return value

    def numerators(self, output: ForwardOutput[Tensor], batch: Batch, share: TokenShare) -> Tensor:
        if not output.is_last:
            return torch.zeros(1, device=batch.ids_BS.device)
        labels_o = share.own(batch.labels_BS.flatten())
        errors_o = (output.main - labels_o / 512) * (labels_o >= 0)
        return errors_o.square().sum(0, keepdim=True)


class CriticRecipe(TokenShardRecipe):
    """Next tokens, and a critic of the same size with weights of its own and no language-model head."""

    def extra_models(self, config: RunConfig, world: World) -> Mapping[str, ExtraModel]:
        config = critic_config(config)
        return {
            "critic": ExtraModel(
                config=config, backend=NativeBackend.build(config, world), objective=ValueObjective(), lr_scale=2.0
            )
        }


def critic_config(config: RunConfig) -> RunConfig:
    model = config.model.model_copy(update={"heads": {"value": 1}, "lm_head": False, "num_nextn_predict_layers": 0})
    return config.model_copy(update={"model": model, "seed": 7})


def recipe(config: RunConfig, world: World) -> CriticRecipe:
    return CriticRecipe(config, world, NextTokenObjective)


def with_critic() -> None:
    """Have the stage `pretrain` of this process train a critic, too."""
    STAGES["pretrain"] = replace(STAGES["pretrain"], recipe=f"{__name__}:recipe")


class DiesAfter(Hook):
    """Kills its process at the end of a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        if trainer.state.step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)
