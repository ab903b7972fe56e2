"""A DeepSpeed training goes on here, a training here goes on in DeepSpeed, or its model is taken to Hugging Face.

Names are those of the module that DeepSpeed trained: of transformers' `Glm4Moe` they are our table's. A universal
checkpoint (written here for 0.19.8) serves ZeRO stages 1, 2 and 3 on any number of ranks. Of the hyperparameters it
holds the learning rate of the next step, which a scheduler of the engine replaces from then on; others are the
engine's. DeepSpeed does not load buffers from it, so the router
biases are also in the client state, for `engine.module.load_state_dict(client["buffers"], strict=False)`.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glmforge.checkpoint.convert.deepspeed_read import MODEL_FILES, STATES, DeepSpeedCheckpoint
from glmforge.checkpoint.convert.hf_directory import copy_tokenizer
from glmforge.checkpoint.convert.hf_export import export_hf
from glmforge.checkpoint.convert.hf_names import mtp_prefixes
from glmforge.checkpoint.find import find_checkpoint
from glmforge.checkpoint.format.meta import CheckpointMeta, read_meta, stored_config
from glmforge.checkpoint.format.read import StoredTensors
from glmforge.checkpoint.format.safetensors_stream import write_safetensors
from glmforge.checkpoint.format.store import checkpoint_path, new_directory
from glmforge.checkpoint.reset import Advance, LazyPlanner, free_root, state_specs, weight_specs, write_checkpoint
from glmforge.config.load import load_model_config
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import parameter_table
from glmforge.config.schema import RunConfig
from glmforge.data.stream.curriculum import Curriculum
from glmforge.data.stream.epochs import with_counted_epochs
from glmforge.data.tokens.shards import TokenShard
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import CheckpointError
from glmforge.files import read_json
from glmforge.optim.schedule import learning_rate_schedule
from glmforge.runtime.durable import fsync_file, write_durably
from glmforge.runtime.lease import Lease

_VERSION = "0.19.8"
_ADAM = (*STATES[1:], "step")
_MAX_GROUPS = 64  # DeepSpeed loads as many groups of the optimizer as the file has


class _Weights(Mapping[str, Tensor]):
    """fp32 weights and buffers, read one by one."""

    def __init__(self, source: DeepSpeedCheckpoint, model: ModelConfig) -> None:
        self._source, self._shapes = source, parameter_table(model).shapes()
        found = source.shapes | {name: tensor.part.shape for name, tensor in source.buffers.items()}
        for name in sorted(found.keys() | self._shapes):
            there, wanted = found.get(name, "absent"), self._shapes.get(name, "absent")
            if there != wanted:
                raise CheckpointError(f"{source.path}: {name} is {there}, and {wanted} in the model's configuration")

    def __getitem__(self, name: str) -> Tensor:
        buffer = self._source.buffers.get(name)
        return self._source.read("fp32", name) if buffer is None else buffer.read().float()

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def import_deepspeed(source: Path, config: RunConfig, out: Path, advance: Advance) -> Path:
    """Write weights, moments and position as a checkpoint of the run `out` with the file `config`, and return it.

    Of the position steps and samples are known, not which rows they were: the run goes on at that sample of its own
    order. Raises `CheckpointError`, also if model or optimizer are not those of `config`.
    """
    found = DeepSpeedCheckpoint(source)
    weights, states = _Weights(found, config.model), state_specs(config)
    _check_adam(states, config)

    def read(full_name: str) -> Tensor:
        kind, _, name = full_name.partition(".")
        if kind == "model":
            return weights[name].to(specs[full_name].dtype)
        state, _, name = name.partition(".")
        value = torch.tensor(float(found.steps)) if state == "step" else found.read(state, name)
        return value.to(specs[full_name].dtype)

    specs = weight_specs(config) | states
    meta, root = _meta(found, config), free_root(out, found.steps)
    with Lease(root.parent, "glmforge checkpoint from-deepspeed"):
        write_checkpoint(checkpoint_path(root, found.steps), LazyPlanner(specs, read, advance), meta, {})
    return checkpoint_path(root, found.steps)


def deepspeed_to_hf(source: Path, model: Path, out: Path, dtype: torch.dtype) -> None:
    """Write the weights as a Hugging Face directory. `model` has the `config.json` of what was trained, and perhaps a
    tokenizer; weights other than a GLM's keep the names that they have in its module. Raises `CheckpointError`."""
    found = DeepSpeedCheckpoint(source)
    config = read_json(model / "config.json", dict, error=CheckpointError)
    if config.get("model_type") == "glm4_moe":
        glm = load_model_config(model)
        if not any(name.startswith(mtp_prefixes(glm)) for name in found.shapes):  # transformers' class has no MTP
            glm = glm.model_copy(update={"num_nextn_predict_layers": 0})
        tokenizer = model if (model / "tokenizer.json").exists() else None
        export_hf(_Weights(found, glm), glm, out, dtype=dtype, tokenizer_dir=tokenizer)
        return
    with new_directory(out) as directory:
        specs = {name: (dtype, shape) for name, shape in found.shapes.items()}
        write_safetensors(directory / "model.safetensors", specs, lambda name: found.read("fp32", name).to(dtype))
        write_durably(directory / "config.json", json.dumps(config | {"torch_dtype": str(dtype)[6:]}, indent=2))
        copy_tokenizer(model, directory)


def export_deepspeed(source: Path, out: Path, advance: Advance) -> Path:
    """Write a checkpoint as a universal one, `<out>/global_step<n>_universal`, which `out/latest_universal` names.

    Raises `CheckpointError`, also if its optimizer was not AdamW for all parameters.
    """
    source = find_checkpoint(source)
    meta, stored = read_meta(source), StoredTensors(source)
    config = stored_config(source, meta)
    table = parameter_table(config.model)
    _check_adam(state_specs(config), config)
    final = out / f"global_step{meta.step}_universal"
    with new_directory(final) as directory:
        for done, name in enumerate(table.trained()):
            for state, key in zip((*STATES, "step"), ("model", *(f"optim.{s}" for s in _ADAM)), strict=True):
                if f"{key}.{name}" in stored:  # what was frozen has no moments
                    tensor = stored[f"{key}.{name}"].float()
                    _save(tensor if state == "step" else {"param": tensor}, directory / "zero" / name / f"{state}.pt")
            advance(done + 1, len(table.trained()))
        _save(_optimizer_state(meta, _next_lr(meta, config)), directory / "zero" / "optimizer_state.pt")
        biases = {name: stored[f"model.{name}"] for name, row in table.items() if not row.trained}
        shapes = {name: torch.Size(row.shape) for name, row in table.trained().items()}
        for name in MODEL_FILES:
            _save(_model_state(meta, biases, shapes), directory / name)
    write_durably(out / "latest_universal", final.name)
    return final


def _save(content: object, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, file)
    fsync_file(file)


def _optimizer_state(meta: CheckpointMeta, lr: float) -> dict[str, Any]:
    """What stages 1 and 2 read, and below `optimizer_state_dict` what stage 3 reads. What a group does not name
    stays as the engine was made with."""
    of_stage_3 = {"state": {0: {"step": meta.step}}, "param_groups": [{"lr": lr}]}
    return {"ds_version": _VERSION, "param_groups": [{"lr": lr}] * _MAX_GROUPS, "optimizer_state_dict": of_stage_3}


def _model_state(meta: CheckpointMeta, buffers: dict[str, Tensor], shapes: dict[str, torch.Size]) -> dict[str, Any]:
    samples = sum(meta.samples_consumed.values())
    return {
        **{"module": buffers, "buffers": buffers, "buffer_names": list(buffers), "param_shapes": [shapes]},
        **{"global_steps": meta.step, "global_samples": samples, "skipped_steps": 0, "ds_version": _VERSION},
        **{"dp_world_size": meta.world_size, "mp_world_size": 1, "data_sampler": None, "random_ltd": None},
        "lr_scheduler": {"last_batch_iteration": meta.step - 1},  # of DeepSpeed's own schedules
        "universal_checkpoint_info": {"universal_checkpoint_version": 0.4},
    }


def _check_adam(states: Mapping[str, object], config: RunConfig) -> None:
    if foreign := {name.split(".")[1] for name in states} - set(_ADAM):
        raise CheckpointError(
            f"run '{config.name}': its optimizer keeps {', '.join(sorted(foreign))}, and DeepSpeed's checkpoints have "
            "AdamW's moments: set optim.matrix_optimizer: adamw ('glmforge checkpoint reset-optimizer' changes to it)"
        )


def _meta(found: DeepSpeedCheckpoint, config: RunConfig) -> CheckpointMeta:
    if config.stage not in ("pretrain", "midtrain"):
        raise CheckpointError(
            f"stage {config.stage}: its data cannot be continued at a sample of DeepSpeed's; start a new run from the "
            "weights (--hf, then init_from)"
        )
    shards = {source.name: TokenShard(source.path) for source in config.data.sources}
    config = with_counted_epochs(config, shards)
    curriculum, samples, left = Curriculum(config, shards), dict[str, int](), found.samples
    for index, phase in enumerate(config.phases):
        if left or not index:
            curriculum.stream(index, samples)  # records its mixture
            samples[phase.name] = min(left, phase.num_samples)
            left -= samples[phase.name]
    if left:
        raise CheckpointError(f"{found.path}: had {found.samples:,} samples, {left:,} more than the run's phases have")
    return CheckpointMeta(
        step=found.steps,
        phase=list(samples)[-1],
        tokens_consumed=sum(samples.get(phase.name, 0) * phase.seq_len for phase in config.phases),
        samples_consumed=samples,
        config=config.model_dump(mode="json"),
        data_fingerprint=curriculum.fingerprint(),
        tokenizer_fingerprint=Tokenizer.load(config.data.tokenizer).fingerprint,
        mixtures=curriculum.state_dict(),
    )


def _next_lr(meta: CheckpointMeta, config: RunConfig) -> float:
    if config.optim.schedule_unit == "steps":
        return learning_rate_schedule(config)(meta.step + 1)
    phase = next((phase for phase in config.phases if phase.name == meta.phase), config.phases[-1])
    batch = phase.batch_size_at(meta.samples_consumed.get(phase.name, 0))
    return learning_rate_schedule(config)(meta.tokens_consumed + batch * phase.seq_len)
