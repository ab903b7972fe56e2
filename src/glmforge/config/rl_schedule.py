"""`rl.schedule`: how far servers sample ahead of the trainer."""

import math
from typing import Literal, Self

from pydantic import Field, PositiveInt, model_validator

from glmforge.config.model import Strict, refuse


class ScheduleConfig(Strict):
    """When answers are sampled, and how old they may be.

    The age of an answer is the number of updates of the weights between the moment its group was asked for and the
    step that trains on it.
    """

    kind: Literal["synchronous", "one_step_off", "asynchronous"] = Field(
        default="synchronous",
        description="synchronous: sample, then train; one_step_off: the next step's answers are sampled during this "
        "one, and are one update old; asynchronous: servers always have groups to sample, and get new weights in the "
        "middle of answers",
    )
    steps_ahead: PositiveInt = Field(
        default=2,
        description="of kind asynchronous: the groups of so many steps are sampled or wait, besides those of the "
        "present step",
    )
    window: float = Field(
        default=0.3,
        gt=0,
        le=1,
        description="of kind asynchronous: a step takes the oldest complete groups among this share of all groups in "
        "flight, counted from the oldest one",
    )
    max_age: PositiveInt | None = Field(
        default=None,
        description="of kind asynchronous: greatest age of an answer; a step waits for a group that would exceed it "
        "later. None: the most that steps_ahead and window allow",
    )

    @model_validator(mode="after")
    def _check_age(self) -> Self:
        if self.max_age is not None and self.max_age < self.steps_ahead:
            refuse("max_age", f"{self.max_age} is less than steps_ahead = {self.steps_ahead}; change one of them")
        return self

    @property
    def oldest(self) -> int:
        """The greatest age that an answer can have."""
        if self.kind != "asynchronous":
            return int(self.kind == "one_step_off")
        return self.max_age or self.steps_ahead + math.ceil(self.window * (self.steps_ahead + 1))
