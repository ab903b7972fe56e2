"""Pre-training (and every further stage with the same objective): token shards in, checkpoints out."""

import logging
import statistics
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from glmforge.backend.native import NativeBackend
from glmforge.backend.objective import ObjectiveFactory
from glmforge.checkpoint.convert import load_hf_into
from glmforge.checkpoint.format.store import list_checkpoints
from glmforge.cluster.cores import busy_cores, usable_cores, warn_if_crowded
from glmforge.cluster.launch import LaunchEnvironment
from glmforge.config.load import dump_config
from glmforge.config.schema import RunConfig
from glmforge.data.tokens.model_ids import describe_changes, with_ids_of
from glmforge.data.tokens.tokenizer import copy_tokenizer
from glmforge.errors import CheckpointError, ConfigError
from glmforge.kernels.allocator import keep_large_blocks
from glmforge.kernels.choice import choose
from glmforge.objectives.next_token import NextTokenObjective
from glmforge.observe.bus import MetricsBus
from glmforge.observe.run import RunDirectory, record_start, write_text
from glmforge.observe.run_sinks import run_sinks
from glmforge.parallel.build import DTYPES
from glmforge.parallel.model import ParallelModel
from glmforge.parallel.world import World, default_device, join_world
from glmforge.recipes.curriculum_source import CurriculumSource
from glmforge.recipes.fit import check_fit, layout_at_hand
from glmforge.recipes.run_data import RunData, open_data
from glmforge.recipes.run_hooks import run_hooks
from glmforge.recipes.run_lock import run_lock
from glmforge.training.hooks import CheckpointHook, prepare_environment
from glmforge.training.nodes import check_nodes
from glmforge.training.out_of_memory import explaining_out_of_memory
from glmforge.training.skipped import recall_skipped
from glmforge.training.state import TrainState
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer

logger = logging.getLogger(__name__)

_MUST_AGREE = (
    "num_attention_heads",
    "partial_rotary_factor",
    "num_experts_per_tok",
    "n_group",
    "topk_group",
    "norm_topk_prob",
    "routed_scaling_factor",
    "rms_norm_eps",
)
"""What the shapes of weights do not tell, but outputs depend on. (The RoPE base may grow from phase to phase.)"""


def train(config: RunConfig, hooks: Sequence[Hook] = (), *, force: bool = False) -> TrainState:
    """Run `config` to its end, from the newest whole checkpoint if there is one.

    `hooks` are called besides the run's own, before those that save and that end it. `force` begins a run that by plan
    does not fit the memory at hand.
    Under torchrun all ranks call this together. Everything that can be refused is refused before the first step:
    layout, memory, another run in the directory, tokenizer, shards, checkpoint. Raises `GlmforgeError` for what the
    user can mend, `OutOfMemory` among them, and `Preempted` when a signal told the run to give way.
    """
    check_nodes(config)
    launch = LaunchEnvironment.read()
    layout = layout_at_hand(config, launch, default_device())
    check_fit(config, layout, launch, default_device(), force=force)
    prepare_environment(config.output_dir)
    keep_large_blocks()
    lease_s = config.fault_tolerance.lock_lease_s
    with (
        join_world(layout, config.parallel.process_group_timeout_s) as world,
        run_lock(config.output_dir, world, lease_s),
        explaining_out_of_memory(config, world) as watch,
    ):
        if world.is_main and world.device.type == "cpu":
            warn_if_crowded(torch.get_num_threads() * launch.local_world_size, usable_cores(), busy_cores())
        data = open_data(config, world)
        config = _with_tokens(config, data, say_so=world.is_main)
        config = _with_kernels(config, world)
        trainer, checkpoints = build_trainer(config, world, data, hooks)
        watch.trainer = trainer
        _take_up(trainer, checkpoints)
        return trainer.fit()


def _with_tokens(config: RunConfig, data: RunData, *, say_so: bool) -> RunConfig:
    """The run's configuration with the end tokens of its tokenizer."""
    for line in describe_changes(config.model, data.tokenizer) if say_so else ():
        logger.info(line)
    return config.model_copy(update={"model": with_ids_of(config.model, data.tokenizer)})


def _with_kernels(config: RunConfig, world: World) -> RunConfig:
    """The run's configuration with a name in the place of every "auto" of `kernels`."""
    kernels = choose(config.kernels, world.device, DTYPES[config.precision.compute])
    if world.is_main:
        logger.info("kernels: %s", ", ".join(f"{operation} {name}" for operation, name in kernels))
    return config.model_copy(update={"kernels": kernels})


def build_trainer(
    config: RunConfig, world: World, data: RunData, extra_hooks: Sequence[Hook] = ()
) -> tuple[Trainer, CheckpointHook]:
    """A trainer at step 0 with its hooks; the checkpoint hook is also given by itself, to resume with."""
    backend = NativeBackend.build(config, world)
    fingerprints = data.curriculum.fingerprint()
    checkpoints = CheckpointHook(config, fingerprints, data.tokenizer.fingerprint)
    hooks = [*run_hooks(config, data), *extra_hooks, checkpoints]
    source = CurriculumSource(config, data.curriculum, world, _objective_factory(config))
    bus = MetricsBus(run_sinks(config, source.total) if world.is_main else ())
    return Trainer(config, backend, source, hooks, bus), checkpoints


def _objective_factory(config: RunConfig) -> ObjectiveFactory:
    return partial(
        NextTokenObjective,
        num_mtp_layers=config.model.num_nextn_predict_layers,
        num_sources=len(config.data.sources),
    )


def _take_up(trainer: Trainer, checkpoints: CheckpointHook) -> None:
    """Resume as the configuration says, and leave the run's first files behind."""
    config = trainer.config
    checkpoint = None
    if config.fault_tolerance.resume == "auto":
        checkpoint = checkpoints.resume(trainer)
        if checkpoint is not None and trainer.world.is_main:
            logger.info("going on from %s", checkpoint)
        trainer.leave_out(*recall_skipped(config.output_dir))
    elif list_checkpoints(checkpoints.root):
        raise CheckpointError(
            f"{checkpoints.root}: holds checkpoints, but fault_tolerance.resume is 'never'; choose another output_dir, "
            "or 'auto'"
        )
    if checkpoint is None and config.init_from is not None:
        load_initial_weights(trainer.model, config.init_from)
    if trainer.world.is_main:
        directory = RunDirectory(config.output_dir)
        record_start(directory.root, name=config.name, step=trainer.state.step)
        write_text(directory.config, dump_config(config))
        copy_tokenizer(config.data.tokenizer, directory.tokenizer)


def load_initial_weights(model: ParallelModel, directory: Path) -> None:
    """Every rank reads its own part. MTP layers that the directory lacks keep the weights drawn from the seed."""
    found = load_hf_into(directory, model.state_dict(), model.config, keep_absent_mtp=True)
    differing = [name for name in _MUST_AGREE if getattr(found, name) != getattr(model.config, name)]
    if differing:
        raise ConfigError(
            f"init_from: {directory} has {', '.join(f'{n} = {getattr(found, n)}' for n in differing)}, the run's model "
            f"{', '.join(str(getattr(model.config, n)) for n in differing)}; take model from that directory"
        )


def measure_step_seconds(config: RunConfig, num_steps: int = 6, *, max_seconds: float | None = None) -> float:
    """Median seconds of a training step of the first phase in this process, after one step to warm up.

    With `max_seconds` it ends early, after the first measured step that ends later than that. Nothing is written and no
    weight is kept. The data must exist.
    """
    keep_large_blocks()
    stopwatch = _Stopwatch(max_seconds)
    short = config.phases[0].model_copy(update={"steps": num_steps + 1, "tokens": None})
    optim = config.optim.model_copy(update={"warmup_steps": None, "warmup_tokens": None})
    config = config.model_copy(update={"phases": [short], "optim": optim})
    world = World.single()
    data = open_data(config, world)
    source = CurriculumSource(config, data.curriculum, world, _objective_factory(config))
    Trainer(config, NativeBackend.build(config, world), source, [stopwatch]).fit()
    return statistics.median(stopwatch.seconds[1:])


class _Stopwatch(Hook):
    name = "stopwatch"

    def __init__(self, max_seconds: float | None) -> None:
        self.seconds: list[float] = []
        self._max_seconds = max_seconds
        self._started = time.monotonic()

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        self.seconds.append(result.seconds)
        late = self._max_seconds is not None and time.monotonic() - self._started > self._max_seconds
        if late and len(self.seconds) > 1:
            trainer.vote("stop")
