"""The curriculum as a source of batches: token shards, phase after phase, up to the planned end.

The position is the samples consumed of each phase; everything else follows from it and the configuration. So the
source goes on at any sample, on any number of ranks, with other batch sizes, and past samples that are omitted.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Protocol

from glmforge.backend.objective import Objective
from glmforge.config.layout import resolve_layout
from glmforge.config.phase import PhaseConfig
from glmforge.config.schema import RunConfig
from glmforge.data.stream.batch import Batch
from glmforge.data.stream.loader import Batches, Loader
from glmforge.data.stream.plan import BatchRange, planned_batches
from glmforge.optim.schedule import learning_rate_schedule
from glmforge.parallel.world import World
from glmforge.training.source import BatchSource, Phase, Position, Range, StepInput, Total


class PhaseSamples(Protocol):
    """What `CurriculumSource` reads; see `glmforge.data.stream.curriculum.Curriculum`."""

    def stream(self, phase_index: int, samples_consumed: Mapping[str, int]) -> Batches: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any], samples_consumed: Mapping[str, int]) -> list[str]: ...

    def describe(self, phase_index: int, sample: int) -> dict[str, Any]: ...

    def epochs(self, samples_consumed: Mapping[str, int]) -> dict[str, float]: ...


class CurriculumSource(BatchSource):
    """This rank's share of the batches that the phases of `config` plan.

    Args:
        curriculum: the samples of all phases.
        make_objective: gives the objective of a phase.
    """

    def __init__(
        self,
        config: RunConfig,
        curriculum: PhaseSamples,
        world: World,
        make_objective: Callable[[PhaseConfig], Objective],
    ) -> None:
        self._config, self._curriculum, self._world = config, curriculum, world
        self._data_ranks = resolve_layout(config, world.size).data_ranks
        self._learning_rate = learning_rate_schedule(config)
        self._phases = [_phase(config, phase, make_objective(phase)) for phase in config.phases]
        self._position = Position()
        self._batches: Generator[Batch, None, None] | None = None
        self._ranges: Iterator[BatchRange] = iter(())

    @property
    def position(self) -> Position:
        return self._position

    @property
    def total(self) -> Total:
        return Total(self._config.num_steps, self._config.num_tokens)

    def next(self) -> StepInput | None:
        """The next batch. Raises `DataError` if it cannot be read."""
        index = self._phase_index()
        if index is None:
            self.close()
            return None
        if self._batches is None:
            self._open(index)
            assert self._batches is not None
        # A phase that is not at its end has a batch left: `_position_after` and `leave_out` see to it.
        samples, batch = next(self._ranges), next(self._batches)
        phase = self._config.phases[index]
        self._position = self._advanced(phase, self._position_after(phase, samples))
        if self._consumed(phase) >= phase.num_samples:
            self.close()
        return StepInput(
            batch,
            self._phases[index],
            lr=self._learning_rate(self._progress()),
            first_sample=samples.first,
            position=self._position,
            is_last=self._phase_index() is None,
        )

    def leave_out(self, skipped: Mapping[str, Sequence[Range]]) -> None:
        """Leave out samples; a phase of which no others are left is at its end."""
        self.close()
        known = {phase.name: skipped[phase.name] for phase in self._config.phases if phase.name in skipped}
        self._position = self._position.leaving_out(known)
        for phase in self._config.phases:
            if next(self._planned(phase, self._consumed(phase)), None) is None:
                self._position = self._advanced(phase, max(self._consumed(phase), phase.num_samples))

    def state_dict(self) -> dict[str, Any]:
        """The record of mixtures; see `Curriculum.state_dict`."""
        return self._curriculum.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], position: Position) -> list[str]:
        """Go on at `position`; see `Curriculum.load_state_dict`."""
        self.close()
        changes = self._curriculum.load_state_dict(state, position.samples)
        self._position = position
        self.leave_out({})
        return changes

    def describe(self, phase: str, sample: int) -> dict[str, Any]:
        """See `Curriculum.describe`."""
        names = [known.name for known in self._config.phases]
        return self._curriculum.describe(names.index(phase), sample)

    def metrics(self) -> dict[str, Any]:
        return {"source_epochs": self._curriculum.epochs(self._position.samples)}

    def close(self) -> None:
        """End the reading processes."""
        if self._batches is not None:
            self._batches.close()
            self._batches = None

    def _open(self, index: int) -> None:
        """Read what is left of a phase."""
        phase, data, world = self._config.phases[index], self._config.data, self._world
        self.alive(f"reading phase '{phase.name}'")
        loader = Loader(
            self._curriculum.stream(index, self._position.samples),
            self._planned(phase, self._consumed(phase)),
            rank=world.data_rank,
            world=self._data_ranks,
            num_workers=data.num_workers,
            prefetch=data.prefetch,
            pin_memory=data.pin_memory and world.device.type == "cuda",
        )
        self._ranges, self._batches = self._planned(phase, self._consumed(phase)), iter(loader)

    def _progress(self) -> int:
        """What the learning rate follows: tokens, or the planned steps that are behind, both with what is omitted."""
        by_steps = self._config.optim.schedule_unit == "steps"
        return self._config.steps_before(self._position.samples) if by_steps else self._position.tokens

    def _phase_index(self) -> int | None:
        """Of the phase that the next batch belongs to; None when all are done."""
        left = (i for i, phase in enumerate(self._config.phases) if self._consumed(phase) < phase.num_samples)
        return next(left, None)

    def _consumed(self, phase: PhaseConfig) -> int:
        return self._position.samples.get(phase.name, 0)

    def _planned(self, phase: PhaseConfig, consumed: int) -> Iterator[BatchRange]:
        return planned_batches(phase, consumed, self._position.skipped.get(phase.name, ()))

    def _position_after(self, phase: PhaseConfig, batch: BatchRange) -> int:
        """Where the next batch begins, beyond what is omitted; the phase's end after the last one."""
        following = next(self._planned(phase, batch.stop), None)
        return following.first if following is not None else max(batch.stop, phase.num_samples)

    def _advanced(self, phase: PhaseConfig, sample: int) -> Position:
        """The position once the samples of `phase` before `sample` are behind."""
        consumed = self._consumed(phase)
        if sample == consumed:
            return self._position
        return self._position.after(phase.name, sample, (sample - consumed) * phase.seq_len)


def _phase(config: RunConfig, phase: PhaseConfig, objective: Objective) -> Phase:
    return Phase(
        name=phase.name,
        objective=objective,
        micro_batch_size=config.parallel.micro_batch_size,
        rope_theta=phase.rope_theta,
        capacity_factor=phase.capacity_factor,
        balance=phase.balance,
        router_bias_rate=phase.router_bias_rate,
    )
