"""Where a run stands: everything that must survive it besides tensors."""

from dataclasses import dataclass, field

from glmforge.config.schema import RunConfig

Range = tuple[int, int]
"""Samples [start, stop) of a phase."""


@dataclass
class TrainState:
    """Position in the training.

    Attributes:
        step: optimizer steps taken, also those skipped for a non-finite gradient.
        tokens: of the plan, up to where the run stands; left-out batches count as if they had been trained on.
        samples: per phase, the position in its order of samples: the loader's whole state.
        nonfinite_steps: consecutive steps that were skipped for a non-finite loss or gradient.
        total_nonfinite_steps: all of them.
        skipped: per phase, samples that are left out since a loss spike.
        rollbacks: how often the run went back to before a spike.
        stopped: why the run has ended before its last phase, None if it has not.
    """

    step: int = 0
    tokens: int = 0
    samples: dict[str, int] = field(default_factory=dict)
    nonfinite_steps: int = 0
    total_nonfinite_steps: int = 0
    skipped: dict[str, list[Range]] = field(default_factory=dict)
    rollbacks: int = 0
    stopped: str | None = None

    def phase_index(self, config: RunConfig) -> int:
        """Index of the phase that the next step belongs to; `len(config.phases)` when all are done."""
        for index, phase in enumerate(config.phases):
            if self.samples.get(phase.name, 0) < phase.num_samples:
                return index
        return len(config.phases)

    def is_done(self, config: RunConfig) -> bool:
        return self.stopped is not None or self.phase_index(config) == len(config.phases)

    def skip(self, phase: str, samples: Range) -> None:
        """Leave out these samples of a phase from now on; overlapping ranges are merged."""
        merged: list[Range] = []
        for start, stop in sorted([*self.skipped.get(phase, []), samples]):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
            else:
                merged.append((start, stop))
        self.skipped[phase] = merged
