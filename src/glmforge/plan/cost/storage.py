"""How large a checkpoint is, how many lie on the disks at a time, and what the token shards take.

A checkpoint holds every parameter and buffer in fp32 and the states that each parameter's optimizer declares, to the
byte. Left out is what does not grow with the model: generator states, metadata, headers of files. How many are kept
follows `glmforge.checkpoint.policy.retain`.
"""

import math
import shutil
from dataclasses import dataclass
from pathlib import Path

from glmforge.config.checkpoint import CheckpointConfig
from glmforge.config.model import ModelConfig
from glmforge.config.parameter_groups import held_in_bf16, optimizer_states
from glmforge.config.parameters import ParameterTable
from glmforge.config.role import Role
from glmforge.config.schema import RunConfig
from glmforge.plan.stages.stage import PRETRAINING, TrainingStage

_BYTES = {"fp32": 4, "bf16": 2}
_SMALL_VOCABULARY = 2**16
"""Token ids below it are stored in two bytes, others in four."""


@dataclass(frozen=True)
class Storage:
    """Bytes of a run on its disks.

    Attributes:
        weights: of one checkpoint, parameters and buffers.
        optimizer: of one checkpoint.
        lasting_kept: permanent checkpoints that are there when the run ends.
        lasting_saves: that the run writes in all.
        ephemeral_kept: on the nodes' own disks if `is_local`, else on shared storage.
        ephemeral_saves: that the run writes in all.
        is_local: every checkpoint is written to the nodes' own disks first.
        token_shards: the run's tokens as ids on a disk; less where sources are passed through more than once.
    """

    weights: int
    optimizer: int
    lasting_kept: int
    lasting_saves: int
    ephemeral_kept: int
    ephemeral_saves: int
    is_local: bool
    token_shards: int

    @property
    def checkpoint(self) -> int:
        """Bytes of one."""
        return self.weights + self.optimizer

    @property
    def shared_peak(self) -> int:
        """Most bytes of checkpoints on shared storage: what is kept in the end, and one more while it is written."""
        ephemeral = 0 if self.is_local else self.ephemeral_kept
        return (self.lasting_kept + ephemeral + 1) * self.checkpoint

    @property
    def local_peak(self) -> int:
        """Most bytes on the disks of all nodes together."""
        return (self.ephemeral_kept + 1) * self.checkpoint if self.is_local else 0

    @property
    def written_to_shared(self) -> int:
        """Bytes in the whole run."""
        saves = self.lasting_saves + (0 if self.is_local else self.ephemeral_saves)
        return saves * self.checkpoint


def storage_of(config: RunConfig, stage: TrainingStage = PRETRAINING) -> Storage:
    """Of the whole run, regardless of its layout. Of a model that is adapted, checkpoints hold the adapters only."""
    settings, steps = config.checkpoint, config.num_steps
    tables = [_saved(config.model, role) for role in stage.roles if role.is_trained]
    states = [state for table in tables for state in optimizer_states(table, config.optim).values()]
    optimizer = sum(math.prod(shape) * _BYTES[dtype] for shape, dtype in states)
    saves = _permanent_saves(settings, steps)
    ephemeral = _ephemeral_saves(settings, steps)
    rounded = [held_in_bf16(table, config.optim, config.precision) for table in tables]
    per_id = 2 if config.model.vocab_size <= _SMALL_VOCABULARY else 4
    return Storage(
        weights=sum(
            row.size * _BYTES["bf16" if row.name in halved else "fp32"]
            for table, halved in zip(tables, rounded, strict=True)
            for row in table.values()
        ),
        optimizer=optimizer,
        lasting_kept=_lasting_kept(settings, steps, saves),
        lasting_saves=saves,
        ephemeral_kept=min(settings.keep_ephemeral, ephemeral + (saves if settings.local_dir else 0)),
        ephemeral_saves=ephemeral,
        is_local=settings.local_dir is not None,
        token_shards=config.num_tokens * per_id,
    )


def _saved(model: ModelConfig, role: Role) -> ParameterTable:
    """Parameters and buffers of a model that a checkpoint holds."""
    table = role.parameters(model)
    return table if role.trains_all else ParameterTable(row for row in table.values() if role.trains(row))


def restart_interval(settings: CheckpointConfig, num_steps: int) -> int:
    """Steps between the checkpoints that a run goes back to after losing a node, or all steps.

    What lies on nodes' own disks is lost with a node.
    """
    tiers = [settings.every_steps] + ([] if settings.local_dir else [settings.ephemeral_every_steps])
    return min([steps for steps in tiers if steps is not None], default=num_steps)


def room_for(directory: Path, disk_bytes: int | None = None) -> tuple[int, str]:
    """Bytes that checkpoints may take, and where: `disk_bytes` if given, else what is free at `directory`."""
    if disk_bytes is not None:
        return disk_bytes, "are given (disk_bytes)"
    place = next(parent for parent in (directory.absolute(), *directory.absolute().parents) if parent.is_dir())
    return shutil.disk_usage(place).free, f"are free at {place} on this machine"


def _permanent_saves(settings: CheckpointConfig, num_steps: int) -> int:
    every = settings.every_steps
    regular = num_steps // every if every else 0
    return regular + (settings.save_final and not (every and num_steps % every == 0))


def _ephemeral_saves(settings: CheckpointConfig, num_steps: int) -> int:
    """A step that is due for both kinds gets a permanent one."""
    often, rarely = settings.ephemeral_every_steps, settings.every_steps
    if often is None:
        return 0
    return num_steps // often - (num_steps // math.lcm(often, rarely) if rarely else 0)


def _lasting_kept(settings: CheckpointConfig, num_steps: int, saves: int) -> int:
    """The newest `keep_last`, those before them of every `keep_every_steps` steps, and the best one."""
    return min(saves, _lasting_kept_by_age(settings, num_steps, saves) + (settings.keep_best is not None))


def _lasting_kept_by_age(settings: CheckpointConfig, num_steps: int, saves: int) -> int:
    newest = min(settings.keep_last, saves)
    every, permanent = settings.every_steps, settings.keep_every_steps
    if permanent is None or every is None:
        return newest
    both = math.lcm(every, permanent)
    regular = num_steps // every
    # The final one is among the newest; the others of them are the last regular ones.
    of_newest = newest - (saves - regular)
    return newest + (regular - of_newest) * every // both
