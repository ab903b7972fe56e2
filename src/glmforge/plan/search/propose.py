"""What to propose where a layout is refused: one that works, not a single changed key that may break another rule.

Layouts that the rules allow are ordered by how little they change: the sizes that were requested count by the factor
between them. Of the nearest, with a known machine, the fastest that fits its memory is proposed; without one, the
nearest.
"""

import math
from itertools import islice

from glmforge.config.parallel import ParallelConfig
from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError
from glmforge.plan.machine.machine import Machine
from glmforge.plan.search.search import LayoutSearch
from glmforge.plan.search.space import RECOMPUTATIONS, Axes, Space
from glmforge.plan.search.winner import changed_settings, settings_words

_NODE = 8
_NEAREST = 24
"""How many are timed."""


def with_proposal(
    error: ConfigError, config: RunConfig, world_size: int, machine: Machine | None = None, phase: str | None = None
) -> ConfigError:
    """`error`, which a layout was refused with, and after it the settings of one that works, if there is any."""
    settings = propose_settings(config, world_size, machine, phase)
    if settings is None:
        what = f"fits {world_size} x {machine.accelerator.name}" if machine else f"works on {world_size} processes"
        return ConfigError(f"{error}; with this model and these batches no layout {what}")
    return ConfigError(f"{error}; a layout that works on {world_size}: {settings}")


def propose_settings(
    config: RunConfig, world_size: int, machine: Machine | None = None, phase: str | None = None
) -> str | None:
    """The settings of a layout that works, as they are written on the command line, or None."""
    phases = [one for one in config.phases if phase in (None, one.name)]
    config = config.model_copy(update={"phases": phases or config.phases})
    space = Space(config, world_size, machine.ranks_per_node if machine else _NODE)
    own = config.parallel
    schedules = (own.pipeline_schedule, *space.schedules(2))
    nearest = sorted(space.axes(), key=lambda axes: (_distance(axes, own), axes))
    working = (
        found
        for axes in nearest
        for schedule in dict.fromkeys(schedules if axes.pp > 1 else schedules[:1])
        if (found := space.resolve(axes, schedule, RECOMPUTATIONS[-1] if machine else own.recompute))
    )
    if machine is None:
        first = next(working, None)
        return None if first is None else settings_words(changed_settings(*first, own))
    search = LayoutSearch(space, machine)
    fits = (fit for found in working if (fit := search.least_recomputed(*found)) is not None)
    timed = [search.timed(fit) for fit in islice(fits, _NEAREST)]
    if not timed:
        return None
    best = min(timed, key=lambda candidate: candidate.order)
    return settings_words(changed_settings(best.config, best.layout, own))


def _distance(axes: Axes, own: ParallelConfig) -> float:
    """Factors of two between the sizes; those that were left to be chosen do not count."""
    wanted = own.model_dump(include=set(Axes._fields))
    factors = (
        abs(math.log2(size / wanted[name])) for name, size in axes._asdict().items() if isinstance(wanted[name], int)
    )
    return round(sum(factors), 6)
