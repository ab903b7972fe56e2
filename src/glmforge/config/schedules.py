"""The learning-rate schedules: what each makes of the way from `optim.lr` to `optim.min_lr`.

`SCHEDULES` is the one list of them: configurations are checked against it. `glmforge.optim.schedule` adds the warm-up
and counts tokens. A new schedule is a row here.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from glmforge.config.fields import one_of


@dataclass(frozen=True)
class Schedule:
    """The curve after the warm-up.

    Attributes:
        remaining: the share of `lr - min_lr` that is left (1 to 0), by the share of the decay that is done (0 to 1).
            None: the learning rate never decays.
        decays_late: the decay is the last `optim.decay_share` of the run, and `lr` is kept until then. Otherwise it
            begins where the warm-up ends.
    """

    remaining: Callable[[float], float] | None
    decays_late: bool = False


def _linear(done: float) -> float:
    return 1 - done


SCHEDULES = {
    "cosine": Schedule(lambda done: 0.5 * (1 + math.cos(math.pi * done))),
    "linear": Schedule(_linear),
    "constant": Schedule(None),
    "wsd": Schedule(_linear, decays_late=True),
}

ScheduleName = Annotated[str, one_of(SCHEDULES)]
"""A name in `SCHEDULES`."""
