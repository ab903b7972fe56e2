"""Where batches come from: what the trainer asks for its next step, and nothing more.

A `BatchSource` decides what is trained on next and how: the rows, the objective, the learning rate, the settings of the
phase. It keeps its own position and knows whether there is an end. A curriculum of token shards is one source
(`glmforge.recipes.curriculum_source`); recorded rollouts, preference pairs or a list in a notebook are others, and the
trainer cannot tell them apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from glmforge.backend.objective import Objective
from glmforge.data.stream.batch import Batch
from glmforge.errors import CheckpointError
from glmforge.model.router import Balance
from glmforge.observe.alive import Alive, quiet

Range = tuple[int, int]
"""Samples [start, stop) of a phase."""


@dataclass(frozen=True)
class Phase:
    """How the batches of a stretch of training are trained on; what a run changes between two stretches.

    Attributes:
        name: keys the samples of the phase in positions and checkpoints.
        objective: what is minimised.
        micro_batch_size: rows of one forward and backward pass; None takes all rows of the rank at once.
        rope_theta: RoPE base; None is the model's own.
        capacity_factor: an expert takes at most this times the mean load; None drops nothing.
        balance: what levels the experts.
        router_bias_rate: step of the routers' correction bias; 0 freezes it.
    """

    name: str
    objective: Objective
    micro_batch_size: int | None = None
    rope_theta: float | None = None
    capacity_factor: float | None = None
    balance: Balance = "bias"
    router_bias_rate: float = 0.0


@dataclass(frozen=True)
class Position:
    """How far a source is, in the numbers that checkpoints, records and reports share.

    Attributes:
        tokens: consumed so far; what is omitted counts as if it had been trained on.
        samples: per phase, samples that are behind: the next batch of the phase begins there.
        skipped: per phase, samples that are omitted, in ascending order and apart from each other.
    """

    tokens: int = 0
    samples: Mapping[str, int] = field(default_factory=dict)
    skipped: Mapping[str, Sequence[Range]] = field(default_factory=dict)

    def after(self, phase: str, stop: int, tokens: int) -> "Position":
        """Once the samples of a phase before `stop`, of this many tokens more, are behind."""
        return replace(self, tokens=self.tokens + tokens, samples={**self.samples, phase: stop})

    def leaving_out(self, skipped: Mapping[str, Sequence[Range]]) -> "Position":
        """The same with these samples omitted too; overlapping ranges are merged."""
        both = {name: [*self.skipped.get(name, ()), *skipped.get(name, ())] for name in {**self.skipped, **skipped}}
        return replace(self, skipped={name: _merged(ranges) for name, ranges in both.items() if ranges})


@dataclass(frozen=True)
class StepInput:
    """What one optimizer step is given.

    Attributes:
        batch: this rank's share of the global batch; all data ranks have as many rows.
        phase: how it is trained on.
        lr: the learning rate of the step.
        first_sample: number of the global batch's first sample in the phase. None continues where the run is.
        position: where the source stands after this batch. None counts the batch's own samples and tokens.
        is_last: no batch follows, so that hooks finish their work in this step. A source that cannot know leaves it
            False, and `next` gives None in the end.
    """

    batch: Batch
    phase: Phase
    lr: float
    first_sample: int | None = None
    position: Position | None = None
    is_last: bool = False


class Total(NamedTuple):
    """The length of a whole run as planned; `tokens` is None where batches have no fixed number of them."""

    steps: int
    tokens: int | None = None


class BatchSource(Protocol):
    """Gives global batches one after another, each rank its share. What has a body here need not be written.

    All ranks call all methods together and get equal answers but for the rows of `StepInput.batch`.

    Attributes:
        alive: to be called again and again by what is slow (rollouts); the trainer puts `Trainer.alive` there.
    """

    alive: Alive = staticmethod(quiet)

    @property
    def position(self) -> Position:
        """After the batch that was given last, or as loaded. A plain attribute will do."""
        ...

    def next(self) -> StepInput | None:
        """The next batch; waits until it is there. None at the end, and again from then on."""
        ...

    def leave_out(self, skipped: Mapping[str, Sequence[Range]]) -> None:
        """Give no batch that touches these samples of each phase from now on, besides those already omitted."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What a resumed source needs besides its position, as JSON's types."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any], position: Position) -> Sequence[str]:
        """Go on at `position`, which may be an earlier one. `state` is what `state_dict` gave there.

        Returns what has changed since, a line each, for the run's events. Raises `GlmforgeError` if the batches cannot
        go on from there.
        """
        ...

    def state_files(self) -> Mapping[str, bytes]:
        """What is too large for `state_dict`, as files of this rank: name -> contents, as they are now.

        They lie in the checkpoint, checked like its other files, and are held in memory until the save has ended. Ranks
        with the same rows (tensor, context and pipeline parallelism) have equal files; one of them writes.
        """
        return {}

    def load_state_files(self, files: Sequence[Mapping[str, bytes]]) -> None:
        """Restore what `state_files` gave. Called before `load_state_dict`, also if there are no files.

        With as many data ranks as saved it is one mapping, this rank's own. Else each saved rank's files are given to
        exactly one of the new ones, in order: a rank gets those of several, or none. See
        `glmforge.checkpoint.source_files`.
        """
        if any(files):
            raise CheckpointError(
                "the checkpoint has state files of its batch source, but this run's source loads none; resume with "
                "the stage that saved it, or start a new run from its weights (init_from)"
            )

    @property
    def total(self) -> Total | None:
        """How long the run is to be; None if that is not known."""
        return None

    def describe(self, phase: str, sample: int) -> dict[str, Any]:
        """Where a sample comes from, as JSON's types, for a person who looks for the cause of a loss."""
        return {"phase": phase, "sample": sample}

    def metrics(self) -> dict[str, Any]:
        """What the run's records tell of the source, by name. Rows of names of its own are the recipe's."""
        return {}

    def close(self) -> None:
        """Stop reading ahead and release what that holds; the next call of `next` begins again."""
        return


def _merged(ranges: Sequence[Range]) -> list[Range]:
    merged: list[Range] = []
    for start, stop in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged
