"""How the processes of a job share the model and the batch, checked before anything is started.

The ranks form a grid pp x dp_replicate x dp_shard x cp x tp, the last axis next to each other. Two more views of the
same grid exist: parameters are sharded over `fsdp` = dp_shard x cp, because ranks that share a sequence share the
gradient as well as ranks that read different ones; and experts see a stage's dp_shard x cp x tp ranks as
efsdp x ep, with the `ep` ranks that share a layer's experts next to each other.

What does not divide is refused with the nearest values that do, because a rounded batch or a shorter layer would
silently be another experiment.
"""

import math
from dataclasses import dataclass

from glmforge.config.model import ModelConfig
from glmforge.config.parallel import SPLIT_SCHEDULES, ParallelConfig
from glmforge.config.phase import PhaseConfig
from glmforge.config.pipeline import balanced_split, stages_per_rank
from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
"""The axes of the grid of ranks, outermost first."""


@dataclass(frozen=True)
class Layout:
    """The grid of a job's ranks, the stages of its pipeline and the size of its micro-batches.

    `stage_layers` has the number of trunk layers of each pipeline stage, first to last; a single one without pp.
    """

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    micro_batch_size: int | None = None
    stage_layers: tuple[int, ...] = ()

    @property
    def world_size(self) -> int:
        return self.pp * self.stage_ranks

    @property
    def stage_ranks(self) -> int:
        """Ranks that hold the same layers between them."""
        return self.dp_replicate * self.dp_shard * self.cp * self.tp

    @property
    def fsdp(self) -> int:
        """Ranks that share each dense parameter."""
        return self.dp_shard * self.cp

    @property
    def efsdp(self) -> int:
        """Ranks that share each expert."""
        return self.dp_shard * self.cp * self.tp // self.ep

    @property
    def data_ranks(self) -> int:
        """Ranks that read different sequences."""
        return self.dp_replicate * self.dp_shard

    def size(self, axis: str) -> int:
        """Number of ranks along an axis of any view."""
        return int(getattr(self, axis))

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank lies on the axes of all views."""
        found: dict[str, int] = {}
        rest = rank
        for axis in reversed(AXES):
            rest, found[axis] = divmod(rest, self.size(axis))
        within = rank % (self.dp_shard * self.cp * self.tp)
        found["efsdp"], found["ep"] = divmod(within, self.ep)
        found["fsdp"] = found["dp_shard"] * self.cp + found["cp"]
        return found

    def data_rank(self, rank: int) -> int:
        """Which of the `data_ranks` shares of each batch a rank reads."""
        where = self.coordinates(rank)
        return where["dp_replicate"] * self.dp_shard + where["dp_shard"]

    def rank_batch_size(self, phase: PhaseConfig) -> int:
        """Sequences of one optimizer step on one rank."""
        return phase.batch_size // self.data_ranks

    def num_micro_batches(self, phase: PhaseConfig) -> int:
        """Forward and backward passes of one optimizer step on one rank."""
        share = self.rank_batch_size(phase)
        return share // (self.micro_batch_size or share)


def resolve_layout(config: RunConfig, world_size: int, *, phase: str | None = None) -> Layout:
    """The layout of `config` on `world_size` processes; `ConfigError` says which value to change to what.

    It must serve all phases, or only the one named `phase`.
    """
    parallel = config.parallel
    layout = Layout(
        pp=parallel.pp,
        dp_replicate=parallel.dp_replicate,
        dp_shard=_resolve_shard(parallel, world_size),
        cp=parallel.cp,
        tp=parallel.tp,
        ep=parallel.ep,
        micro_batch_size=parallel.micro_batch_size,
        stage_layers=_resolve_stages(config.model, parallel),
    )
    _check_model(config.model, layout, parallel)
    if parallel.cpu_offload and world_size == 1:
        raise ConfigError("parallel.cpu_offload: needs FSDP and at least two processes; start more, or set it to false")
    for index, checked in enumerate(config.phases):
        if phase in (None, checked.name):
            _check_phase(f"phases.{index}", checked, layout, config)
    return layout


def _resolve_shard(parallel: ParallelConfig, world_size: int) -> int:
    shard = parallel.dp_shard
    others: dict[str, int] = {axis: getattr(parallel, axis) for axis in AXES if axis != "dp_shard"}
    product = math.prod(others.values())
    named = {axis: size for axis, size in others.items() if size > 1} or {"dp_replicate": 1}
    names, sizes = " x ".join(named), " x ".join(map(str, named.values()))
    if world_size % product:
        if len(named) == 1:
            (axis, size), *_ = named.items()
            raise ConfigError(
                f"parallel.{axis}: {size} does not divide the {world_size} processes: "
                f"set it to {nearest_divisor(world_size, size)} or start {neighbours(world_size, size)} processes"
            )
        raise ConfigError(
            f"parallel: {names} = {sizes} = {product} does not divide the {world_size} processes: "
            f"change one of them, or start {neighbours(world_size, product)} processes"
        )
    if shard == "auto":
        return world_size // product
    if product * shard != world_size:
        raise ConfigError(
            f"parallel.dp_shard: {names} x dp_shard = {sizes} x {shard} = {product * shard}, but "
            f"there are {world_size} processes: set dp_shard to {world_size // product} (or 'auto') "
            f"or start {product * shard} processes"
        )
    return shard


def _resolve_stages(model: ModelConfig, parallel: ParallelConfig) -> tuple[int, ...]:
    if model.tie_word_embeddings and parallel.pp > 1:
        raise ConfigError(
            f"parallel.pp: {parallel.pp} stages would separate embedding and head, which are one matrix under "
            "model.tie_word_embeddings; set pp to 1, or tie_word_embeddings to false"
        )
    per_rank = stages_per_rank(parallel)
    num_stages = parallel.pp * per_rank
    if parallel.pp == 1:
        if parallel.pipeline_layers is not None or parallel.pipeline_stages_per_rank is not None:
            raise ConfigError("parallel.pipeline_layers, pipeline_stages_per_rank: need pp > 1; leave them out")
        return (model.num_hidden_layers,)
    if parallel.pipeline_layers is None:
        if num_stages > model.num_hidden_layers:
            raise ConfigError(
                f"parallel.pp: {parallel.pp} x {per_rank} stages are more than the model's {model.num_hidden_layers} "
                "layers; lower pp or pipeline_stages_per_rank"
            )
        return balanced_split(model, num_stages)
    layers = tuple(parallel.pipeline_layers)
    if len(layers) != num_stages or sum(layers) != model.num_hidden_layers:
        raise ConfigError(
            f"parallel.pipeline_layers: {list(layers)} are {len(layers)} stages with {sum(layers)} layers; give "
            f"pp x stages per rank = {num_stages} numbers that add up to num_hidden_layers = {model.num_hidden_layers}"
        )
    if min(layers[1:-1], default=1) == 0:
        raise ConfigError("parallel.pipeline_layers: only the first and the last stage may have 0 layers")
    return layers


def _check_model(model: ModelConfig, layout: Layout, parallel: ParallelConfig) -> None:
    heads = {"num_attention_heads": model.num_attention_heads, "num_key_value_heads": model.num_key_value_heads}
    widths = {
        "intermediate_size": model.intermediate_size,
        "n_shared_experts x moe_intermediate_size": model.n_shared_experts * model.moe_intermediate_size,
        "vocab_size": model.vocab_size,
    }
    for name, size in (heads | widths).items():
        if size % layout.tp:
            raise ConfigError(
                f"parallel.tp: {layout.tp} does not divide model.{name} = {size}: "
                f"set it to {nearest_divisor(size, layout.tp)}"
            )
    if parallel.context_method == "ulysses":
        local_heads = model.num_key_value_heads // layout.tp
        if local_heads % layout.cp:
            raise ConfigError(
                f"parallel.cp: {layout.cp} does not divide the {local_heads} key/value heads of a tp rank, as ulysses "
                "needs; set cp to a divisor, or context_method to 'gather'"
            )
    if model.n_routed_experts % layout.ep:
        raise ConfigError(
            f"parallel.ep: {layout.ep} does not divide model.n_routed_experts = {model.n_routed_experts}: "
            f"set it to {nearest_divisor(model.n_routed_experts, layout.ep)}"
        )
    within = layout.dp_shard * layout.cp * layout.tp
    if within % layout.ep:
        raise ConfigError(
            f"parallel.ep: {layout.ep} does not divide the dp_shard x cp x tp = {within} ranks it spans: set it "
            f"to {nearest_divisor(within, layout.ep)}"
        )


def _check_phase(key: str, phase: PhaseConfig, layout: Layout, config: RunConfig) -> None:
    _check_sequence(f"{key}.seq_len", phase, layout)
    for size in sorted(phase.batch_sizes, reverse=True):
        at_size = phase.model_copy(update={"batch_size": size, "batch_ramp": None})
        _check_batch(f"{key}.{'batch_size' if size == phase.batch_size else 'batch_ramp'}", at_size, layout)
        share = layout.rank_batch_size(at_size)
        if config.parallel.ep_overlap and layout.micro_batch_size is None and share % 2:
            raise ConfigError(
                f"parallel.ep_overlap: cuts a rank's {share} sequences of phase '{phase.name}' in halves: "
                "set parallel.micro_batch_size to an even number, or ep_overlap to false"
            )
        _check_micro_batches(at_size, layout, config.parallel)
        _check_deepspeed(f"{key}.batch_size", at_size, layout, config)
        _check_split_backward(at_size, layout, config)


def _check_batch(key: str, phase: PhaseConfig, layout: Layout) -> None:
    ranks, micro = layout.data_ranks, layout.micro_batch_size
    if phase.batch_size % ranks:
        raise ConfigError(
            f"{key}: {phase.batch_size} sequences do not divide over {ranks} data ranks: "
            f"set it to {neighbours(phase.batch_size, ranks)}"
        )
    share = phase.batch_size // ranks
    if micro is not None and share % micro:
        raise ConfigError(
            f"parallel.micro_batch_size: {micro} does not divide the {share} sequences that a rank has of "
            f"{key} = {phase.batch_size}: set it to {nearest_divisor(share, micro)}, "
            f"or {key} to {neighbours(phase.batch_size, ranks * micro)}"
        )


def _check_sequence(key: str, phase: PhaseConfig, layout: Layout) -> None:
    """Every cp rank takes two chunks of a sequence, every tp rank an equal part of them."""
    unit = (2 * layout.cp if layout.cp > 1 else 1) * layout.tp
    if phase.seq_len % unit:
        parts = "2 x cp x tp" if layout.cp > 1 else "tp"
        raise ConfigError(
            f"{key}: {phase.seq_len} tokens do not divide into {parts} = {unit} equal parts: "
            f"set it to {neighbours(phase.seq_len, unit)}"
        )


def _check_micro_batches(phase: PhaseConfig, layout: Layout, parallel: ParallelConfig) -> None:
    num = layout.num_micro_batches(phase)
    schedule = parallel.pipeline_schedule
    if layout.pp == 1:
        return
    if schedule.startswith("interleaved"):
        # torch's interleaved schedules run micro-batches in rounds of one size.
        rounds = max(1, num // layout.pp)
        if num % rounds:
            raise ConfigError(
                f"parallel.micro_batch_size: makes {num} micro-batches in phase '{phase.name}'; {schedule} needs a "
                f"multiple of {rounds}: {neighbours(num, rounds)}"
            )
    if schedule == "1f1b" and num < layout.pp:
        raise ConfigError(
            f"parallel.micro_batch_size: makes {num} micro-batches in phase '{phase.name}'; 1f1b needs at least pp = "
            f"{layout.pp}: make micro-batches smaller"
        )
    if schedule == "dualpipev" and num < 2 * layout.pp:
        raise ConfigError(
            f"parallel.micro_batch_size: makes {num} micro-batches in phase '{phase.name}'; dualpipev needs at least "
            f"2 x pp = {2 * layout.pp}: make micro-batches smaller, or choose 'zbv'"
        )


def _check_deepspeed(key: str, phase: PhaseConfig, layout: Layout, config: RunConfig) -> None:
    """What DeepSpeed's settings say of the batch, unless they leave it to the run ("auto")."""
    made = {"train_batch_size": phase.batch_size, "gradient_accumulation_steps": layout.num_micro_batches(phase)}
    for name, number in made.items():
        asked = getattr(config.deepspeed.settings, name) if config.deepspeed is not None else None
        if isinstance(asked, int) and asked != number:
            given = f"{key} = {phase.batch_size} on {layout.data_ranks} ranks makes {number}"
            raise ConfigError(f'deepspeed.settings.{name}: {asked}, but {given}; make them equal, or write "auto"')


def _check_split_backward(phase: PhaseConfig, layout: Layout, config: RunConfig) -> None:
    """A single micro-batch leaves bf16 and fp32 gradients in one unit of FSDP, which torch refuses to reduce."""
    schedule = config.parallel.pipeline_schedule
    is_single = layout.num_micro_batches(phase) == 1 and config.precision.compute == "bf16"
    if layout.pp > 1 and layout.stage_ranks > 1 and schedule in SPLIT_SCHEDULES and is_single:
        raise ConfigError(
            f"parallel.micro_batch_size: makes a single micro-batch in phase '{phase.name}', which {schedule} cannot "
            "train in bf16 on several ranks per stage: make micro-batches smaller, or choose 'interleaved_1f1b'"
        )


def neighbours(value: int, unit: int) -> str:
    """The multiples of `unit` around `value`, in words."""
    below = value // unit * unit
    return f"{below} or {below + unit}" if below else f"{unit}"


def nearest_divisor(total: int, value: int) -> int:
    """The divisor of `total` that is nearest to `value`."""
    return min((d for d in range(1, total + 1) if total % d == 0), key=lambda d: abs(d - value))
