"""Where a run stands: everything that must survive it besides tensors."""

from dataclasses import dataclass, field

from glmforge.training.source import Position, Range


@dataclass
class TrainState:
    """Position in the training.

    Attributes:
        step: optimizer steps taken, also those skipped for a non-finite gradient.
        tokens: of the source, up to where the run stands; left-out batches count as if they had been trained on.
        samples: per phase, the position in its order of samples.
        nonfinite_steps: consecutive steps that were skipped for a non-finite loss or gradient.
        total_nonfinite_steps: all of them.
        skipped: per phase, samples that are omitted since a loss spike.
        rollbacks: how often the run went back to before a spike.
        stopped: why the run has ended before its source did, None if it has not.
        finished: whether the source is known to have no further batch; not kept in checkpoints, as a source may be
            longer when the run is started again.
    """

    step: int = 0
    tokens: int = 0
    samples: dict[str, int] = field(default_factory=dict)
    nonfinite_steps: int = 0
    total_nonfinite_steps: int = 0
    skipped: dict[str, list[Range]] = field(default_factory=dict)
    rollbacks: int = 0
    stopped: str | None = None
    finished: bool = False

    @property
    def is_done(self) -> bool:
        return self.stopped is not None or self.finished

    @property
    def position(self) -> Position:
        """The part of it that a source goes on from."""
        return Position(self.tokens, dict(self.samples), {name: list(some) for name, some in self.skipped.items()})

    def move_to(self, position: Position) -> None:
        """Stand where a source does."""
        self.tokens, self.samples = position.tokens, dict(position.samples)
        self.skipped = {name: list(some) for name, some in position.skipped.items()}
