"""What the ranks of a run that was killed again and again noted of each start, and what must be true of it.

Every rank notes what it was given to train on before each step, and the loss after it. `lineage` is the course that
counted in the end: of every step the notes of that launch which the survivor came from. `check_lineage` demands of it
that each sample was trained on once and in order, `check_records` that the run's own records say the same.

A step that counts needed the gradients of all ranks, so all were given their part of it, and all had come to the end of
every earlier step of the same launch. Of the last step that a launch took and the next went on from, only those ranks
have noted the end whose files make up the checkpoint: that is all of them, unless some hold a copy of what others hold
(an `AdapterSaver` on nodes' own disks, one copy of the model on each). Then a rank of one node may have been killed
between the last collective of the step and its note, while those of another took the step, noted and saved it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from glmforge.config import RunConfig
from glmforge.data.stream.plan import planned_batches

Notes = dict[int, dict[int, dict[str, Any]]]
"""Step -> rank -> what it noted."""


@dataclass
class Launch:
    """What became of one start of the run."""

    world_size: int
    kind: str
    codes: list[int]
    first_step: int
    given: Notes
    """Before each step."""
    taken: Notes
    """After each step."""
    struck_at: float | None
    first_step_at: float | None


@dataclass(frozen=True)
class CountedStep:
    """A step as it finally counted: the notes of ranks before and after it."""

    step: int
    world_size: int
    given: dict[int, dict[str, Any]]
    taken: dict[int, dict[str, Any]]
    is_left: bool
    """Whether it is what the next launch went on from."""

    @property
    def loss(self) -> float:
        """The same on all ranks."""
        (loss,) = {record["loss"] for record in self.taken.values()}
        return float(loss)


def restarts(launches: Sequence[Launch]) -> list[int]:
    """The steps after which a launch began anew that the survivor came from."""
    counted: list[int] = []
    for launch in launches:
        if launch.first_step:
            counted = [step for step in counted if step < launch.first_step - 1] + [launch.first_step - 1]
    return counted


def lineage(launches: Sequence[Launch]) -> list[CountedStep]:
    """Each step as it finally counted, first step first."""
    counted: dict[int, Launch] = {}
    for launch in launches:
        if launch.first_step:
            counted = {step: before for step, before in counted.items() if step < launch.first_step}
            counted |= dict.fromkeys(launch.taken, launch)
    left = set(restarts(launches))
    return [
        CountedStep(step, launch.world_size, launch.given.get(step, {}), launch.taken[step], step in left)
        for step, launch in sorted(counted.items())
    ]


def check_lineage(config: RunConfig, steps: Sequence[CountedStep], copies: Collection[set[int]] = ()) -> None:
    """Every planned batch was trained on exactly once, in order, by all ranks, and held the samples it was to hold.

    `copies` are sets of ranks each of which alone writes a whole checkpoint; if there are none it takes all ranks.
    """
    planned = [(phase.name, batch) for phase in config.phases for batch in planned_batches(phase, 0)]
    assert [counted.step for counted in steps] == list(range(1, len(planned) + 1))
    for counted, (phase, batch) in zip(steps, planned, strict=True):
        step, everybody = counted.step, set(range(counted.world_size))
        assert counted.given.keys() == everybody, f"step {step} was begun by ranks {sorted(counted.given)}"
        by_rank = sorted(counted.given.values(), key=lambda record: record["data_rank"])
        samples = [sample for record in by_rank for sample in record["samples"]]
        assert {record["phase"] for record in by_rank} == {phase}, step
        assert samples == list(range(batch.first, batch.first + batch.size)), step
        enough = copies if counted.is_left and copies else [everybody]
        assert any(ranks <= counted.taken.keys() for ranks in enough), (
            f"step {step}{' was gone on from, but' if counted.is_left else ''} was noted by ranks "
            f"{sorted(counted.taken)} of {counted.world_size}"
        )
        assert len({record["loss"] for record in counted.taken.values()}) == 1, step


def check_records(records: Sequence[dict[str, Any]], steps: Sequence[CountedStep]) -> None:
    """The records of a run that writes one for every step: one for each that counts, in order, with its loss.

    Rank 0 writes them before it notes the step. So that of a step which it has not noted may be there or not.
    """
    found = [record["step"] for record in records]
    demanded = [counted.step for counted in steps if 0 in counted.taken or counted.step in found]
    assert found == demanded
    losses = {counted.step: counted.loss for counted in steps}
    assert [record["loss"] for record in records] == [losses[step] for step in found]
