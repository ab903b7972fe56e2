"""The stages that read token shards in phases: pre-training, mid-training, supervised fine-tuning.

They differ in their objective and in defaults of their settings. Files of conversations among the sources are shards
with loss weights by the time that they are read.
"""

from collections.abc import Callable, Iterable
from functools import partial

from glmforge.backend.base import Backend
from glmforge.backend.objective import ObjectiveFactory
from glmforge.config.schema import RunConfig
from glmforge.config.stage import SftConfig
from glmforge.data.tokens.model_ids import with_ids_of
from glmforge.objectives.next_token import NextTokenObjective
from glmforge.objectives.sft import SftObjective
from glmforge.parallel.world import World
from glmforge.recipes.curriculum_source import CurriculumSource
from glmforge.recipes.evaluations import evaluations
from glmforge.recipes.recipe import Recipe
from glmforge.recipes.run_data import open_data
from glmforge.training.trainer import Hook


class TokenShardRecipe(Recipe):
    """Phases of token shards with the next token's objective, or one of its kind."""

    def __init__(self, config: RunConfig, world: World, objective: Callable[..., NextTokenObjective]) -> None:
        self.data = open_data(config, world)
        config, self.tokenizer = self.data.config, self.data.tokenizer
        self.config = config.model_copy(update={"model": with_ids_of(config.model, self.tokenizer)})
        self.fingerprint = self.data.curriculum.fingerprint()
        self._objective = objective

    def source(self, config: RunConfig, backend: Backend) -> CurriculumSource:
        make: ObjectiveFactory = partial(
            self._objective,
            num_mtp_layers=config.model.num_nextn_predict_layers,
            num_sources=len(config.data.sources),
        )
        return CurriculumSource(config, self.data.curriculum, backend.world, make)

    def hooks(self) -> Iterable[Hook]:
        return evaluations(self.config, self.data)


def next_token(config: RunConfig, world: World) -> TokenShardRecipe:
    """Of the stages `pretrain` and `midtrain`."""
    return TokenShardRecipe(config, world, NextTokenObjective)


def sft(config: RunConfig, world: World) -> TokenShardRecipe:
    """Of the stage `sft`."""
    mean = config.stage_settings(SftConfig).mean
    return TokenShardRecipe(config, world, partial(SftObjective, mean=mean))
