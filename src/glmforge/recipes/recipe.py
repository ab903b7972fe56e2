"""What a stage of training brings: its data, opened and checked, where batches come from, and what is evaluated.

All else is the same for every stage (`glmforge.recipes.train`): layout, memory, model, optimizer, hooks, checkpoints,
resuming. A recipe is made by the function that the stage's row in `glmforge.config.stage.STAGES` names, called on all
ranks together, with the configuration as it was given; it raises `GlmforgeError` for what the user can fix, before
anything is built.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from glmforge.adapt.lora import adapters_of
from glmforge.backend.base import Backend
from glmforge.backend.native import NativeBackend
from glmforge.config.deepspeed import resolve
from glmforge.config.schema import RunConfig
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.extras import needed_for
from glmforge.observe.metric_table import Metric
from glmforge.parallel.world import World
from glmforge.training.source import BatchSource
from glmforge.training.trainer import ExtraModel, Hook


class Recipe(Protocol):
    """One stage on one configuration. Subclass it, and what has a body here need not be written.

    Attributes:
        config: the run, with what only the data could say: lengths of phases, ids of end tokens.
        tokenizer: of the data.
        fingerprint: of the data, as JSON's types: it is kept in checkpoints, and compared when a run goes on.
        metric_rows: of what its source tells in records, besides the metrics of every run.
    """

    config: RunConfig
    tokenizer: Tokenizer
    fingerprint: Mapping[str, Any]
    metric_rows: Sequence[Metric] = ()

    def backend(self, config: RunConfig, world: World) -> Backend:
        """The model and its optimizer, on this rank's device. `config` has names in the place of every "auto"."""
        if config.backend == "deepspeed":
            return _deepspeed_backend(config, world)
        return NativeBackend.build(config, world, extend=adapters_of(config))

    def extra_models(self, config: RunConfig, world: World) -> Mapping[str, ExtraModel]:
        """Models that are trained besides, by name: a critic."""
        return {}

    def source(self, config: RunConfig, backend: Backend) -> BatchSource:
        """This rank's batches, with the objectives that train on them. A source may keep `backend`: rollouts are made
        by the model that is trained."""
        ...

    def hooks(self) -> Iterable[Hook]:
        """Besides those of every run: evaluations."""
        return ()


def _deepspeed_backend(config: RunConfig, world: World) -> Backend:
    with needed_for("backend: deepspeed"):
        from glmforge.backend.deepspeed.backend import DeepSpeedBackend
    assert config.deepspeed is not None, "checked with the configuration"
    settings = resolve(config.deepspeed.settings, config, world.size).engine
    return DeepSpeedBackend.build_under(settings, config, world)
