"""What a stage is trained by: its objective, from its settings. To the trainer all stages are alike.

Data, batches, hooks and checkpoints are those of every run. A further stage has a name and defaults in
`glmforge.config.stage`, a section of settings there, an objective in `glmforge.objectives`, and a line here.
"""

from collections.abc import Callable, Mapping
from functools import partial

from glmforge.backend.objective import ObjectiveFactory
from glmforge.config.schema import RunConfig
from glmforge.config.stage import Stage
from glmforge.objectives.next_token import NextTokenObjective
from glmforge.objectives.sft import SftObjective


def objective_factory(config: RunConfig) -> ObjectiveFactory:
    """Makes the objective of each phase of the run's stage."""
    make = _OBJECTIVES[config.stage](config)
    return partial(make, num_mtp_layers=config.model.num_nextn_predict_layers, num_sources=len(config.data.sources))


def _next_token(config: RunConfig) -> Callable[..., NextTokenObjective]:
    return NextTokenObjective


def _sft(config: RunConfig) -> Callable[..., NextTokenObjective]:
    assert config.sft is not None, "stage sft has its settings by default"
    return partial(SftObjective, mean=config.sft.mean)


_OBJECTIVES: Mapping[Stage, Callable[[RunConfig], Callable[..., NextTokenObjective]]] = {
    "pretrain": _next_token,
    "midtrain": _next_token,
    "sft": _sft,
}
