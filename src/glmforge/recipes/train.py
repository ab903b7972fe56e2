"""A run of any stage: its recipe opened, trainer and hooks assembled, taken up where it was, trained to its end."""

import json
import logging
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from pkgutil import resolve_name

import torch

from glmforge.adapt.begin import begin_adapters, find_initial_adapters
from glmforge.checkpoint.adapter.base import base_weights_together
from glmforge.checkpoint.collective import broadcast, run_on_rank_zero
from glmforge.checkpoint.format.sharded_adapter import BaseWeights
from glmforge.checkpoint.format.store import list_checkpoints
from glmforge.checkpoint.initial_weights import check_initial_weights, initial_weights_directory, load_initial_weights
from glmforge.config.adapters import is_adapter, table_with
from glmforge.config.deepspeed import resolve
from glmforge.config.load import dump_config
from glmforge.config.lora import LoraConfig
from glmforge.config.model import ModelConfig
from glmforge.config.schema import RunConfig
from glmforge.config.stage import STAGES
from glmforge.data.tokens.model_ids import describe_changes
from glmforge.data.tokens.tokenizer import copy_tokenizer
from glmforge.errors import CheckpointError
from glmforge.kernels.allocator import keep_large_blocks
from glmforge.kernels.choice import choose
from glmforge.observe.bus import MetricsBus
from glmforge.observe.job import job_of_this_process, note_time
from glmforge.observe.prometheus import RANK_METRICS
from glmforge.observe.run import RunDirectory, record_start, write_text
from glmforge.observe.run_sinks import run_sinks
from glmforge.parallel.build import DTYPES
from glmforge.parallel.world import World, default_device, join_world
from glmforge.plan.counts.adapter_summary import adapter_lines, summarise_adapters
from glmforge.recipes.fit import check_fit, layout_at_hand
from glmforge.recipes.recipe import Recipe
from glmforge.recipes.run_hooks import run_hooks
from glmforge.recipes.run_places import run_places
from glmforge.recipes.same_run import what_must_agree
from glmforge.runtime.cores import busy_cores, usable_cores, warn_if_crowded
from glmforge.runtime.launch import LaunchEnvironment
from glmforge.training.hooks import CheckpointHook, ElasticHook, prepare_environment
from glmforge.training.nodes import check_nodes
from glmforge.training.out_of_memory import explaining_out_of_memory
from glmforge.training.skipped import recall_skipped
from glmforge.training.state import TrainState
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer

logger = logging.getLogger(__name__)


def train(config: RunConfig, hooks: Sequence[Hook] = (), *, force: bool = False) -> TrainState:
    """Run `config` to its end, from the newest complete checkpoint if there is one.

    `hooks` are called besides the run's own, before those that save and that end it. `force` begins a run that by plan
    does not fit the memory at hand.
    Under torchrun all ranks call this together. Everything that can be refused is refused before the first step:
    layout, memory, another run in the directory, tokenizer, shards, checkpoint. Raises `GlmforgeError` for what the
    user can fix, `OutOfMemory` among them, and `Preempted` when a signal asked the run to stop.
    """
    check_nodes(config)
    launch = LaunchEnvironment.read()
    layout = layout_at_hand(config, launch, default_device())
    check_fit(config, layout, launch, default_device(), force=force)
    prepare_environment(config.output_dir)
    keep_large_blocks()
    facts = partial(what_must_agree, config)
    with join_world(
        layout, config.parallel.process_group_timeout_s, wait_s=config.parallel.join_timeout_s, facts=facts
    ) as world:
        begins = broadcast(not RunDirectory(config.output_dir).config.exists(), 0)  # another node may not see it
        if begins and config.init_from is not None:
            check_initial_weights(config.init_from, config.model)
        if begins:
            _check_initial_adapters(config, None)
        with run_places(config, world), explaining_out_of_memory(config, world) as watch:
            if world.is_main:
                note_time(job_of_this_process(), config.output_dir, event="joined")
            if world.is_main and world.device.type == "cpu":
                warn_if_crowded(torch.get_num_threads() * launch.local_world_size, usable_cores(), busy_cores())
            recipe = open_recipe(config, world)
            for line in describe_changes(config.model, recipe.tokenizer) if world.is_main else ():
                logger.info(line)
            trainer, checkpoints = _build_trainer(with_kernels(recipe.config, world), world, recipe, hooks)
            watch.trainer = trainer
            if begins:
                _check_initial_adapters(config, checkpoints.base)
            _take_up(trainer, checkpoints)
            return trainer.fit()


def open_recipe(config: RunConfig, world: World) -> Recipe:
    """What the run's stage brings. Collective; raises `GlmforgeError` for what the user can fix."""
    recipe: Recipe = resolve_name(STAGES[config.stage].recipe)(config, world)
    return recipe


def with_kernels(config: RunConfig, world: World) -> RunConfig:
    """The run's configuration with a name in the place of every "auto" of `kernels`."""
    kernels = choose(config.kernels, world.device, DTYPES[config.precision.compute])
    if world.is_main:
        logger.debug("kernels: %s", ", ".join(f"{operation} {name}" for operation, name in kernels))
    return config.model_copy(update={"kernels": kernels})


def _build_trainer(
    config: RunConfig, world: World, recipe: Recipe, extra_hooks: Sequence[Hook]
) -> tuple[Trainer, CheckpointHook]:
    """A trainer at step 0 with its hooks; the checkpoint hook is also given by itself, to resume with."""
    backend = recipe.backend(config, world)
    source = recipe.source(config, backend)
    checkpoints = CheckpointHook(config, recipe.fingerprint, recipe.tokenizer.fingerprint, _base_of(config))
    hooks = [*run_hooks(config), *recipe.hooks(), *extra_hooks, checkpoints]
    sinks = run_sinks(config, source.total, world.layout, LaunchEnvironment.read())
    bus = MetricsBus(sinks, recipe.metric_rows, only=None if world.is_main else RANK_METRICS)
    return Trainer(config, backend, source, hooks, bus, recipe.extra_models(config, world)), checkpoints


def _take_up(trainer: Trainer, checkpoints: CheckpointHook) -> None:
    """Resume as the configuration says, and leave the run's first files behind."""
    config = trainer.config
    if config.lora is not None:
        _load_initial_weights(trainer, checkpoints)  # at every start: checkpoints of adapters do not hold them
    checkpoint = None
    if config.fault_tolerance.resume != "never":
        checkpoint = checkpoints.take_up(trainer, config.fault_tolerance.resume_step)
        if checkpoint is not None and trainer.world.is_main:
            logger.info("resuming from %s", checkpoint)
        trainer.leave_out(*recall_skipped(config.output_dir))
    elif list_checkpoints(checkpoints.root):
        raise CheckpointError(
            f"{checkpoints.root}: contains checkpoints, but fault_tolerance.resume is 'never'; choose another "
            "output_dir, or set it to 'auto'"
        )
    if checkpoint is None and config.lora is not None:
        begin_adapters(trainer.backend, config.model, config.lora, checkpoints.base)
    elif checkpoint is None:
        _load_initial_weights(trainer, checkpoints)
    if trainer.world.is_main:
        directory = RunDirectory(config.output_dir)
        job = job_of_this_process()
        facts = job.facts if job is not None else None
        record_start(directory.root, name=config.name, step=trainer.state.step, facts=facts)
        write_text(directory.config, dump_config(config))
        if config.lora is not None:
            _tell_adapters(config.model, config.lora, directory.adapters)
        if config.deepspeed is not None:
            resolved = resolve(config.deepspeed.settings, config, trainer.world.size)
            logger.info("deepspeed: %s", "\n  ".join(["settings of the engine, as in deepspeed.json", *resolved.notes]))
            write_text(directory.deepspeed, json.dumps(asdict(resolved), indent=1))
        copy_tokenizer(config.data.tokenizer, directory.tokenizer)


def _load_initial_weights(trainer: Trainer, checkpoints: CheckpointHook) -> None:
    """Those of each model's `init_from`, but for adapters; a model without it keeps those drawn from the seed."""
    extra = [(model.config, model.backend) for model in trainer.extra_models.values()]
    for config, backend in ((trainer.config, trainer.backend), *extra):
        if config.init_from is None:
            continue
        weights = {name: tensor for name, tensor in backend.weights().items() if not is_adapter(backend.table[name])}
        source = load_initial_weights(
            config.init_from,
            weights,
            config.model,
            checkpoints.tokenizer_fingerprint,
            cache_dir=config.init_cache_dir,
        )
        backend.restore({f"model.{name}": tensor for name, tensor in weights.items()})
        if trainer.world.is_main:
            logger.info("starting from the weights of %s", source)


def _check_initial_adapters(config: RunConfig, base: BaseWeights | None) -> None:
    """Refuse a wrong `lora.init_from` before weights are loaded, and before they are hashed if `base` is not known.
    Collective."""
    lora = config.lora
    if lora is not None and lora.init_from is not None:
        run_on_rank_zero(lambda: find_initial_adapters(config.model, lora, base))


def _base_of(config: RunConfig) -> BaseWeights | None:
    """What the run's adapters belong to; None if it has none. Collective."""
    if config.lora is None or config.init_from is None:
        return None
    source = config.init_from
    return base_weights_together(run_on_rank_zero(lambda: initial_weights_directory(source)))


def _tell_adapters(model: ModelConfig, lora: LoraConfig, file: Path) -> None:
    """Print what is trained, map by map, and write it down, parameter by parameter."""
    for line in adapter_lines(summarise_adapters(model, lora)):
        logger.info("lora: %s", line)
    trained = [row for row in table_with(model, lora).trained().values() if row.lr_scale]
    rows = [
        {"name": row.name, "shape": row.shape, "rank": lora.rank if is_adapter(row) else None, "count": row.size}
        for row in trained
    ]
    write_text(file, json.dumps({"scaling": lora.scaling, "trained": rows}, indent=1))


def replay_trainer(config: RunConfig, world: World, step: int | None) -> Trainer:
    """A trainer where the run stood after `step`, or at its beginning: for diagnosis, that steps it once more.

    It has none of the run's hooks, but for what changes gradients, and no sinks. Checkpoints are looked for below
    `config.output_dir`, as a run's are. Collective.
    """
    recipe = open_recipe(config, world)
    config = with_kernels(recipe.config, world)
    backend = recipe.backend(config, world)
    checkpoints = CheckpointHook(config, recipe.fingerprint, recipe.tokenizer.fingerprint, _base_of(config))
    ewc = config.regularization.ewc
    hooks = [ElasticHook(ewc)] if ewc is not None else []
    trainer = Trainer(config, backend, recipe.source(config, backend), hooks)
    if config.lora is not None or step is None:
        _load_initial_weights(trainer, checkpoints)
    if step is not None:
        checkpoints.resume(trainer, step=step)
    elif config.lora is not None:
        begin_adapters(trainer.backend, config.model, config.lora, checkpoints.base)
    return trainer


def measure_step_seconds(config: RunConfig, num_steps: int = 6, *, max_seconds: float | None = None) -> float:
    """Median seconds of a training step of the first phase in this process, after one step to warm up.

    With `max_seconds` it ends early, after the first measured step that ends later than that. Nothing is written and no
    weight is kept. The data must exist.
    """
    keep_large_blocks()
    stopwatch = _Stopwatch(max_seconds)
    short = config.phases[0].model_copy(update={"steps": num_steps + 1, "tokens": None, "epochs": None})
    optim = config.optim.model_copy(update={"warmup_steps": None, "warmup_tokens": None})
    config = config.model_copy(update={"phases": [short], "optim": optim})
    world = World.single()
    recipe = open_recipe(config, world)
    backend = recipe.backend(recipe.config, world)
    Trainer(recipe.config, backend, recipe.source(recipe.config, backend), [stopwatch]).fit()
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
