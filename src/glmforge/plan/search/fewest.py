"""The fewest devices on which a run fits in some layout, however slow."""

from collections.abc import Iterator

from glmforge.config.schema import RunConfig
from glmforge.plan.layout import select_phase
from glmforge.plan.machine.machine import Machine
from glmforge.plan.search.search import Fit, LayoutSearch
from glmforge.plan.search.space import Space
from glmforge.plan.stages.stage import PRETRAINING, TrainingStage


def fewest_devices(
    config: RunConfig, machine: Machine, *, most: int, phase: str | None = None, stage: TrainingStage = PRETRAINING
) -> Fit | None:
    """The first layout that fits on as few devices as possible, at most `most`; None if none does.

    `phase` as for `search_layouts`.
    Up to a node any number of devices is tried, beyond it whole nodes: powers of two of them, and three times those.
    """
    config = select_phase(config, phase) if phase else config
    for world_size in _world_sizes(machine.ranks_per_node, most):
        search = LayoutSearch(Space(config, world_size, machine.ranks_per_node), machine, stage)
        found = next(search.smallest(), None)
        if found is not None:
            return found
    return None


def _world_sizes(ranks_per_node: int, most: int) -> Iterator[int]:
    yield from range(1, min(ranks_per_node, most) + 1)
    nodes = sorted({factor << power for factor in (1, 3) for power in range(20)} - {1})
    for number in nodes:
        if number * ranks_per_node > most:
            return
        yield number * ranks_per_node
