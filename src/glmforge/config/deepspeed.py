"""`deepspeed`: a user's DeepSpeed JSON beside a run's own keys.

    backend: deepspeed
    deepspeed:
      file: zero3.json                            # as it is; relative to the working directory of the run
      settings: {zero_optimization: {stage: 2}}   # keys laid over the file's, or all of them without a file

`glmforge.config.load` replaces `file` by its contents, so that a stored configuration is whole. What the JSON says of a
run's own keys fills in those that the run leaves out; a contradiction is an error that names both. The learning rate,
clipping and accumulation are the trainer's, so the engine gets no scheduler and no batch sizes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from glmforge.config.deepspeed_keys import AS_OURS, COMPUTED, INSTEAD, NO_MUON, OURS, REFUSED, DeepSpeedConfig
from glmforge.config.model import Strict, refuse

_ZERO, _READS = "not supported with ZeRO", "reads whole weights, which stage 3 cuts"
NATIVE_ONLY: dict[str, tuple[Any, str]] = {
    **{
        f"parallel.{axis}": (1, "ZeRO shards over data ranks alone")
        for axis in ("pp", "dp_replicate", "cp", "tp", "ep")
    },
    "parallel.cpu_offload": (False, "see zero_optimization.offload_optimizer and offload_param"),
    "parallel.activation_offload": (False, _ZERO),
    "parallel.reduce_gradients": ("every_micro_batch", "is for FSDP"),
    "parallel.reshard_after_forward": (None, "is for FSDP"),
    "parallel.prefetch_layers": (1, "see zero_optimization.stage3_prefetch_bucket_size"),
    "parallel.compile": (False, "compiled layers would miss ZeRO's hooks"),
    "precision.low_precision": ("none", _ZERO),
    "precision.frozen": ("fp32", _ZERO),
    "optim.state_dtype": ("fp32", "ZeRO keeps moments in fp32"),
    "optim.matrix_optimizer": ("adamw", NO_MUON),
    "regularization.ewc": (None, "gradients lie in ZeRO's partitions"),
    "lora": (None, _ZERO),
}
"""A run's key -> the only value that it has with DeepSpeed, and why."""

_IN_STAGE_3 = {f"observe.{key}": (None, _READS) for key in ("samples", "benchmarks", "needles.answers")}


class DeepSpeedSection(Strict):
    """`deepspeed`."""

    settings: DeepSpeedConfig


@dataclass(frozen=True)
class Resolved:
    """`engine`: what `deepspeed.initialize(config=...)` is given. `notes`: a line for each key that is not handed on
    as it was written."""

    engine: dict[str, Any]
    notes: list[str]


def resolve(given: DeepSpeedConfig, config: Any, world_size: int) -> Resolved:
    """What the engine of the checked `RunConfig` on so many ranks gets, without any "auto"."""
    engine, optim, width = given.model_dump(mode="json"), config.optim, config.model.hidden_size
    size, micro = config.phases[0].batch_size, config.parallel.micro_batch_size  # of later phases it may be another
    computed = (size, size // world_size // micro if micro else 1, f"{optim.min_lr / optim.lr:g}", config.num_steps)
    values = {key: _at(config, ours) for key, ours in OURS.items()} | dict(zip(COMPUTED, computed, strict=True))
    values["train_micro_batch_size_per_gpu"] = micro or size // world_size
    known = {theirs: ours for theirs, ours in (OURS | COMPUTED).items() if _at(given, theirs) is not None}
    notes = [f"{theirs}: {values[theirs]} by {ours}" for theirs, ours in known.items()]
    notes += [f"{key}: no effect; see {ours}" for key, ours in INSTEAD.items() if _at(given, key) is not None]
    if given.scheduler is not None and "warmup_type" not in given.scheduler.params.model_fields_set:
        notes.append("scheduler.params.warmup_type: linear; DeepSpeed's default would be log")
    for key in {*OURS, *COMPUTED, *INSTEAD, "scheduler"} & engine.keys():
        del engine[key]
    zero = engine["zero_optimization"]
    auto = {"reduce_bucket_size": width**2, "stage3_prefetch_bucket_size": int(0.9 * width**2)}
    auto |= {"stage3_param_persistence_threshold": 10 * width, "allgather_bucket_size": 5 * 10**8}
    for key in [key for key, value in zero.items() if value == "auto"]:
        zero[key] = auto[key]
        notes.append(f"zero_optimization.{key}: auto is {zero[key]}")
    engine["bf16"] = {**engine.get("bf16", {}), "enabled": config.precision.compute == "bf16"}
    params = {"lr": optim.lr, "betas": list(optim.betas), "eps": optim.eps, "weight_decay": optim.weight_decay}
    params |= {"torch_adam": True} if _at(given, "optimizer.params.torch_adam") else {}
    engine["optimizer"] = {"type": "AdamW", "params": params}
    engine = {"gradient_clipping": 0.0, "communication_data_type": "fp32"} | engine  # 0: none; their default is 1
    if zero["stage"] > 1:  # in stage 1 it would select another optimizer than ZeRO's
        engine.setdefault("data_types", {"grad_accum_dtype": "fp32"})
    elif engine.pop("data_types", None):
        notes.append("data_types: no effect in stage 1")
    return Resolved(engine, notes)


def with_deepspeed_defaults(given: Any) -> Any:
    """What a run is given, with what its DeepSpeed settings say of keys that it leaves out."""
    section = given.get("deepspeed") if isinstance(given, dict) else None
    if not isinstance(section, dict) or given.get("backend") != "deepspeed":
        return given
    try:
        settings = DeepSpeedConfig.model_validate(section.get("settings"))
    except ValidationError:
        return given  # reported of the section itself
    optim, filled = given.get("optim"), dict(given)
    lr = optim.get("lr") if isinstance(optim, dict) else None
    theirs = [value for _, ours, value in _of_ours(settings, 0.0) if ours == "optim.lr"]
    for _, ours, value in _of_ours(settings, lr if isinstance(lr, int | float) else (theirs or [2.5e-4])[0]):
        name, field = ours.split(".")
        if isinstance(filled.setdefault(name, {}), dict):
            filled[name] = {field: value, **filled[name]}
    return filled


def check_deepspeed(run: Any) -> None:
    """Refuse what a `RunConfig` cannot have with DeepSpeed, and what contradicts its settings."""
    if run.backend == "native" and run.deepspeed is not None:
        refuse("deepspeed", "needs backend: deepspeed; set that, or remove this section")
    if run.backend == "native":
        return
    if run.deepspeed is None:
        refuse("deepspeed", "missing; give file (DeepSpeed's JSON) or settings with zero_optimization.stage")
    _check_native_only(run, run.deepspeed.settings.zero_optimization.stage)
    for theirs, ours, value in _of_ours(run.deepspeed.settings, run.optim.lr):
        found = _at(run, ours)
        if found != value and not (isinstance(found, float) and math.isclose(found, value or 0, rel_tol=1e-9)):
            refuse(ours, f'{found}, but deepspeed.settings.{theirs} is {value}; make them equal, or write "auto" there')
    total = _at(run.deepspeed.settings, "scheduler.params.total_num_steps")
    if isinstance(total, int) and all(phase.epochs is None for phase in run.phases) and total != run.num_steps:
        refuse("phases", f"{run.num_steps} steps, but deepspeed's scheduler has total_num_steps = {total}")


def _check_native_only(run: Any, stage: int) -> None:
    rules = [f"optim.rules.{index}.optimizer" for index, rule in enumerate(run.optim.rules) if rule.optimizer]
    table = NATIVE_ONLY | dict.fromkeys(rules, ("adamw", NO_MUON)) | (_IN_STAGE_3 if stage == 3 else {})
    for key, (allowed, why) in table.items():
        if (value := _at(run, key)) not in (allowed, "scored"):
            shown, wanted = "" if isinstance(value, Strict) else f"{value!r} ", "null" if allowed is None else allowed
            refuse(key, f"{shown}needs backend: native; {why}; with deepspeed set it to {wanted}")
    if run.stage == "rl":
        refuse("stage", "'rl' needs backend: native, since rollouts read its weights")
    if len({bool(phase.mtp_loss_weight) for phase in run.phases}) > 1:
        refuse("phases", "ZeRO trains MTP layers in all phases or none; set mtp_loss_weight to 0 in all, or use native")


def _of_ours(settings: DeepSpeedConfig, lr: float) -> Iterator[tuple[str, str, Any]]:
    """(their key, our key, value) of each key of ours that gets a value; `lr`: the run's."""
    for theirs, ours in OURS.items():
        value = _at(settings, theirs)
        if value is not None and value != "auto":
            yield theirs, ours, AS_OURS[theirs](value) if theirs in AS_OURS else value
    if settings.scheduler is not None:
        yield "scheduler.type", "optim.schedule_unit", "steps"
        kind, ratio = settings.scheduler.type, settings.scheduler.params.cos_min_ratio
        if kind != "WarmupLR":
            smallest = float(f"{ratio * lr:.12g}") if kind == "WarmupCosineLR" else 0.0
            yield "scheduler.params.cos_min_ratio", "optim.min_lr", smallest


def _at(section: Any, path: str) -> Any:
    """What lies at a dotted path; None below what is missing."""
    for part in path.split("."):
        section = section[int(part)] if part.isdecimal() else getattr(section, part, None)
    return section


def flags_markdown() -> str:
    """What becomes of each key that is not handed to the engine as it is."""
    rows = [f"| `{theirs}` | `{ours}` |" for theirs, ours in (OURS | COMPUTED).items()]
    rows += [f"| `{theirs}` | no effect; see `{ours}` |" for theirs, ours in INSTEAD.items()]
    rows += [f"| `{theirs}` | refused: {why} |" for theirs, why in REFUSED.items()]
    return "\n".join(["| their key | ours |", "| --- | --- |", *rows]) + "\n"
