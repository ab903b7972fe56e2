"""Where a run stands: everything that must survive it besides tensors."""

from dataclasses import dataclass, field

from glmforge.config.schema import RunConfig


@dataclass
class TrainState:
    """Position in the training. `samples` counts per phase what has been consumed: the loader's whole state."""

    step: int = 0
    tokens: int = 0
    samples: dict[str, int] = field(default_factory=dict)
    nonfinite_steps: int = 0
    """Consecutive steps that were skipped for a non-finite loss or gradient."""

    def phase_index(self, config: RunConfig) -> int:
        """Index of the phase that the next step belongs to; `len(config.phases)` when all are done."""
        for index, phase in enumerate(config.phases):
            if self.samples.get(phase.name, 0) < phase.num_samples:
                return index
        return len(config.phases)

    def is_done(self, config: RunConfig) -> bool:
        return self.phase_index(config) == len(config.phases)
