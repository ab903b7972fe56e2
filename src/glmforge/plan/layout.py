"""A layout in words: its axes, the stages of its pipeline with their layers, and its micro-batches."""

from dataclasses import dataclass

from glmforge.config.layout import Layout, resolve_layout
from glmforge.config.model import ModelConfig
from glmforge.config.phase import PhaseConfig
from glmforge.config.pipeline import stages_of_rank, stages_per_rank
from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError
from glmforge.plan.stages.rollout_batch import RolloutBatch, packed

_MEANINGS = {
    "pp": "pipeline ranks, each with a share of the layers",
    "dp_replicate": "full copies",
    "dp_shard": "data ranks that share each parameter of a copy",
    "cp": "ranks that share each sequence",
    "tp": "ranks that share each matrix",
    "ep": "ranks that share a layer's experts, laid over dp_shard x cp x tp",
}


STEPS_FOR_EPOCHS = 1000
"""How long a phase is planned to be whose length is said in epochs."""


@dataclass(frozen=True)
class StageContent:
    """Trunk layers [start, stop) of the model and everything before and after them."""

    start: int
    stop: int
    num_dense: int
    num_moe: int
    has_embedding: bool
    has_head: bool
    num_mtp: int

    @property
    def words(self) -> str:
        """For example "embedding + layers 0-6"."""
        layers = {0: "", 1: f"layer {self.start}"}.get(self.stop - self.start, f"layers {self.start}-{self.stop - 1}")
        mtp = "MTP" if self.num_mtp == 1 else f"{self.num_mtp} x MTP" if self.num_mtp else ""
        parts = ["embedding" if self.has_embedding else "", layers, mtp, "head" if self.has_head else ""]
        return " + ".join(part for part in parts if part)

    @property
    def content(self) -> tuple[int, int, bool, bool]:
        """Equal for stages that hold the same."""
        return self.num_dense, self.num_moe, self.has_embedding, self.has_head


def stages_of(model: ModelConfig, layout: Layout) -> list[StageContent]:
    """The stages of the pipeline, first to last; a single one without pp."""
    stages = []
    start, last = 0, len(layout.stage_layers) - 1
    for index, num_layers in enumerate(layout.stage_layers):
        stop = start + num_layers
        num_dense = max(0, min(stop, model.first_k_dense_replace) - start)
        num_mtp = model.num_nextn_predict_layers if index == last else 0
        moe = num_layers - num_dense
        stages.append(StageContent(start, stop, num_dense, moe, index == 0, index == last, num_mtp))
        start = stop
    return stages


def stages_of_pp_rank(config: RunConfig, layout: Layout, pp_rank: int) -> list[StageContent]:
    """The stages that a pipeline rank runs."""
    parallel, stages = config.parallel, stages_of(config.model, layout)
    if layout.pp == 1:
        return stages
    held = stages_of_rank(parallel.pipeline_schedule, pp_rank, layout.pp, stages_per_rank(parallel))
    return [stages[index] for index in held]


def axis_rows(layout: Layout) -> list[tuple[str, int, str]]:
    """Axis, size, meaning; pp, data and what lies over them."""
    return [(axis, layout.size(axis), meaning) for axis, meaning in _MEANINGS.items()]


def group_rows(layout: Layout) -> list[tuple[str, int]]:
    """How many ranks share what."""
    return [
        ("share each dense parameter (fsdp x tp)", layout.fsdp * layout.tp),
        ("share each layer's experts (efsdp x ep)", layout.efsdp * layout.ep),
        ("copies of each expert's shards (dp_replicate)", layout.dp_replicate),
        ("hold the same layers", layout.stage_ranks),
        ("read different sequences", layout.data_ranks),
    ]


def batch_words(layout: Layout, phase: PhaseConfig) -> str:
    """What a rank does with a batch of a phase."""
    number = layout.num_micro_batches(phase)
    size = layout.rank_batch_size(phase) // number
    sequences = f"{size} sequence{'s' if size > 1 else ''} of {phase.seq_len:,} tokens"
    return (
        f"phase {phase.name}: {phase.batch_size:,} sequences, {phase.tokens_per_step:,} tokens per step; "
        f"on each data rank {number} micro-batch{'es' if number > 1 else ''} of {sequences}"
    )


def select_phase(config: RunConfig, name: str | None) -> RunConfig:
    """The run with one phase only, the first one if `name` is None. Raises `ConfigError` if there is no such phase."""
    phases = {phase.name: phase for phase in config.phases}
    if name is not None and name not in phases:
        raise ConfigError(f"--phase: no phase '{name}'; the configuration has {', '.join(phases)}")
    return config.model_copy(update={"phases": [phases[name] if name is not None else config.phases[0]]})


def with_assumed_steps(
    config: RunConfig, rollout: RolloutBatch | None, world_size: int, *, any_layout: bool = False
) -> tuple[RunConfig, list[str]]:
    """The run with `STEPS_FOR_EPOCHS` steps in place of epochs, and rows in place of the answers of `rollout`; a line
    for each phase that has them.

    How many those are only data and policy tell. `any_layout`: rows are to lie on every layout of the ranks.
    """
    lines = [
        f"phase {phase.name}: the number of steps in {phase.epochs:g} epochs depends on the data; planned as "
        f"{STEPS_FOR_EPOCHS:,} steps"
        for phase in config.phases
        if phase.epochs is not None
    ]
    assumed = {"epochs": None, "steps": STEPS_FOR_EPOCHS}
    phases = [phase if phase.epochs is None else phase.model_copy(update=assumed) for phase in config.phases]
    config = config.model_copy(update={"phases": phases})
    if rollout is None:
        return config, lines
    ranks = world_size if any_layout else resolve_layout(config, world_size).data_ranks
    config, line = packed(config, rollout, ranks * (config.parallel.micro_batch_size or 1))
    return config, [*lines, line]


def phases_not_served(config: RunConfig, world_size: int, phase: str) -> list[str]:
    """Why the layout does not serve phases other than `phase`, one line for each of them that it does not."""
    reasons = []
    for other in config.phases:
        if other.name == phase:
            continue
        try:
            resolve_layout(config, world_size, phase=other.name)
        except ConfigError as error:
            reasons.append(f"phase {other.name} needs another layout: {error}")
    return reasons


def layout_as_json(config: RunConfig, layout: Layout) -> dict[str, object]:
    """Everything above, ready for JSON."""
    return {
        "world_size": layout.world_size,
        "axes": {axis: size for axis, size, _ in axis_rows(layout)},
        "groups": dict(group_rows(layout)),
        "pipeline": [
            [stage.words for stage in stages_of_pp_rank(config, layout, pp_rank)] for pp_rank in range(layout.pp)
        ],
        "micro_batches": layout.num_micro_batches(config.phases[0]),
    }
