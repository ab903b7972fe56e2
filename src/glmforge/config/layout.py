"""How the processes of a job share the model and the batch, checked before anything is started.

Data parallelism has two axes: `dp_replicate` groups hold full copies of the model, and the `dp_shard` ranks
of a group share one copy (FSDP); together they are all ranks. Every data rank takes an equal share of each
batch and works through it in micro-batches. What does not divide is refused with the nearest values that do,
because a rounded batch would silently be another experiment.
"""

from dataclasses import dataclass

from glmforge.config.schema import PhaseConfig, RunConfig
from glmforge.errors import ConfigError


@dataclass(frozen=True)
class Layout:
    """The mesh of a job and the size of its micro-batches."""

    dp_replicate: int
    dp_shard: int
    micro_batch_size: int | None

    @property
    def data_ranks(self) -> int:
        """Ranks that read different sequences."""
        return self.dp_replicate * self.dp_shard

    def rank_batch_size(self, phase: PhaseConfig) -> int:
        """Sequences of one optimizer step on one rank."""
        return phase.batch_size // self.data_ranks

    def num_micro_batches(self, phase: PhaseConfig) -> int:
        """Forward and backward passes of one optimizer step on one rank."""
        share = self.rank_batch_size(phase)
        return share // (self.micro_batch_size or share)


def resolve_layout(config: RunConfig, world_size: int) -> Layout:
    """The layout of `config` on `world_size` processes; `ConfigError` says which value to change to what."""
    layout = Layout(
        dp_replicate=config.parallel.dp_replicate,
        dp_shard=_resolve_shard(config, world_size),
        micro_batch_size=config.parallel.micro_batch_size,
    )
    for index, phase in enumerate(config.phases):
        _check_batch(f"phases.{index}.batch_size", phase, layout)
    return layout


def _resolve_shard(config: RunConfig, world_size: int) -> int:
    replicate, shard = config.parallel.dp_replicate, config.parallel.dp_shard
    if world_size % replicate:
        raise ConfigError(
            f"parallel.dp_replicate: {replicate} does not divide the {world_size} processes: "
            f"set it to {_nearest_divisor(world_size, replicate)} "
            f"or start {_neighbours(world_size, replicate)} processes"
        )
    if shard == "auto":
        return world_size // replicate
    if replicate * shard != world_size:
        raise ConfigError(
            f"parallel.dp_shard: dp_replicate x dp_shard = {replicate} x {shard} = {replicate * shard}, but "
            f"there are {world_size} processes: set dp_shard to {world_size // replicate} (or 'auto') "
            f"or start {replicate * shard} processes"
        )
    return shard


def _check_batch(key: str, phase: PhaseConfig, layout: Layout) -> None:
    ranks, micro = layout.data_ranks, layout.micro_batch_size
    if phase.batch_size % ranks:
        raise ConfigError(
            f"{key}: {phase.batch_size} sequences do not divide over {ranks} data ranks: "
            f"set it to {_neighbours(phase.batch_size, ranks)}"
        )
    share = phase.batch_size // ranks
    if micro is not None and share % micro:
        raise ConfigError(
            f"parallel.micro_batch_size: {micro} does not divide the {share} sequences that a rank has of "
            f"{key} = {phase.batch_size}: set it to {_nearest_divisor(share, micro)}, "
            f"or {key} to {_neighbours(phase.batch_size, ranks * micro)}"
        )


def _neighbours(value: int, unit: int) -> str:
    """The multiples of `unit` around `value`, in words."""
    below = value // unit * unit
    return f"{below} or {below + unit}" if below else f"{unit}"


def _nearest_divisor(total: int, value: int) -> int:
    return min((d for d in range(1, total + 1) if total % d == 0), key=lambda d: abs(d - value))
