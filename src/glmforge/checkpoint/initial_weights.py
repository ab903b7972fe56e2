"""The weights that a new run starts from: of a Hugging Face directory, or of a checkpoint of an earlier run.

Only weights and router biases are taken; optimizer, position and schedule begin anew. Every rank reads its own part, on
any layout. What the run's model has and the source lacks keeps its initial values: MTP layers (transformers saves
none) and linear heads, which a base model does not have. What the source has besides of these is not read, nor its
language-model head where the run's model has none. In
everything else that decides what a model computes, both must agree; the RoPE base and the longest context may grow.
"""

import logging
from collections.abc import Mapping, Set
from pathlib import Path

from torch import Tensor

from glmforge.checkpoint.collective import rank, run_each, run_together
from glmforge.checkpoint.convert import hf_model_config, load_hf_into
from glmforge.checkpoint.convert.hf_names import mtp_prefixes
from glmforge.checkpoint.convert.hf_node_copy import copy_to_node
from glmforge.checkpoint.convert.same_files import check_same_files
from glmforge.checkpoint.find import find_checkpoint
from glmforge.checkpoint.format.meta import CheckpointMeta, read_meta, stored_config
from glmforge.checkpoint.format.wording import list_some
from glmforge.checkpoint.load import load_checkpoint
from glmforge.checkpoint.pretrained import MODEL_PREFIX
from glmforge.checkpoint.quantised import QuantisedWeight, with_weights
from glmforge.checkpoint.values import check_values
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import parameter_table
from glmforge.errors import CheckpointError, ConfigError
from glmforge.files import kind_of

logger = logging.getLogger(__name__)

_MAY_DIFFER = frozenset(
    {
        "rope_theta",
        "max_position_embeddings",
        "initializer_range",
        "eos_token_id",
        "pad_token_id",
        "num_nextn_predict_layers",
        "heads",
        "lm_head",
    }
)


def load_initial_weights(
    source: Path,
    tensors: Mapping[str, Tensor],
    config: ModelConfig,
    tokenizer_fingerprint: str,
    *,
    cache_dir: Path | None = None,
) -> Path:
    """Fill `tensors`, this rank's part of the model of `config`, from `source`. All ranks call this together.

    Args:
        source: a directory in Hugging Face format, or what `find_checkpoint` understands: a run, a step of a run, a
            checkpoint.
        tensors: by the names of the table of parameters, plain or DTensors with its global shapes.
        tokenizer_fingerprint: of the run's tokenizer; a checkpoint that was trained with another one is warned of.
        cache_dir: on each node's own disk; a directory in Hugging Face format is copied there first, and read there.

    Returns the directory that was read. Raises `CheckpointError` or `ConfigError`, on all ranks, if it cannot be
    read, is incomplete, or holds another model; the tensors are then as they were. Also if weights are not finite.
    """
    source = _as_nodes_read_it(source, cache_dir)
    path, meta, found = run_each(lambda: _read(source))
    _check_same_model(path, found, config)
    if meta is None:
        own_heads = {f"{name}.weight" for name in config.heads if name not in found.heads}
        body = {name: tensor for name, tensor in tensors.items() if name not in own_heads}
        read_heads = {name: size for name, size in config.heads.items() if name in found.heads}
        load_hf_into(source, body, config.model_copy(update={"heads": read_heads}), keep_absent_mtp=True)
        check_values(source, body)
        _tell_kept(source, own_heads, config)
        return source
    if any(isinstance(weight, QuantisedWeight) for weight in with_weights(tensors).values()):
        raise ConfigError(
            f"precision.frozen: 'nf4' loads from a Hugging Face directory, but {path} is a checkpoint; export it "
            "with 'glmforge export', or set this to bf16"
        )
    shared = parameter_table(found).keys() & parameter_table(config).keys()
    wanted = {MODEL_PREFIX + name: tensor for name, tensor in tensors.items() if name in shared}
    load_checkpoint(path, wanted, only={MODEL_PREFIX + name for name in shared}, convert=True)
    check_values(path, wanted)
    _tell_kept(path, parameter_table(config).keys() - shared, config)
    if rank() == 0 and meta.tokenizer_fingerprint != tokenizer_fingerprint:
        logger.warning("%s: was trained with another tokenizer than data.tokenizer", path)
    return path


def _as_nodes_read_it(source: Path, cache_dir: Path | None) -> Path:
    """`source`, or its copy on each node's disk. A Hugging Face directory must be the same on all nodes."""
    if not any(run_together(lambda: kind_of(source / "config.json", error=CheckpointError) is not None)):
        if cache_dir is not None:
            raise ConfigError(
                f"init_cache_dir: applies to Hugging Face directories, but {source} is not one; remove it"
            )
        return source
    check_same_files(source)
    if cache_dir is None:
        return source
    copy = copy_to_node(source, cache_dir)
    check_same_files(copy)
    return copy


def initial_weights_directory(source: Path) -> Path:
    """What `init_from` means: itself in Hugging Face format, else a checkpoint. Raises `CheckpointError`."""
    return _read(source)[0]


def check_initial_weights(source: Path, config: ModelConfig) -> None:
    """Refuse what `load_initial_weights` would refuse by what the source says of itself; reads no weights.

    Raises `CheckpointError` if there is nothing to read, `ConfigError` if it is another model.
    """
    path, _, found = _read(source)
    _check_same_model(path, found, config)


def _read(source: Path) -> tuple[Path, CheckpointMeta | None, ModelConfig]:
    """The directory that `source` means, its description unless it is in Hugging Face format, and its model."""
    try:
        if kind_of(source / "config.json", error=CheckpointError) is not None:
            return source, None, hf_model_config(source)
        path = find_checkpoint(source)
    except CheckpointError as error:
        raise CheckpointError(f"init_from: {error}") from None
    meta = read_meta(path)
    run = stored_config(path, meta)
    if run.lora is not None:
        raise CheckpointError(
            f"init_from: {path} has adapters; export the merged weights with 'glmforge export' and start from there"
        )
    return path, meta, run.model


def _check_same_model(source: Path, found: ModelConfig, config: ModelConfig) -> None:
    fields = [name for name in ModelConfig.model_fields if name not in _MAY_DIFFER]
    differing = [name for name in fields if getattr(found, name) != getattr(config, name)]
    differing += [
        f"heads.{name}" for name in found.heads if config.heads.get(name, found.heads[name]) != found.heads[name]
    ]
    if config.lm_head and not found.lm_head:
        differing.append("lm_head")
    if differing:
        there, here = ([_value(model, name) for name in differing] for model in (found, config))
        raise ConfigError(
            f"init_from: {source} has {list_some([f'{n} = {v}' for n, v in zip(differing, there, strict=True)])}, "
            f"but the run's model has {list_some(here)}; use its model section"
        )


def _value(model: ModelConfig, name: str) -> str:
    field, _, head = name.partition(".")
    return str(model.heads[head] if head else getattr(model, field))


def _tell_kept(source: Path, names: Set[str], config: ModelConfig) -> None:
    """Say what is drawn from the seed; an MTP layer as a whole."""
    layers = mtp_prefixes(config)
    kept = {next((f"{layer}*" for layer in layers if name.startswith(layer)), name) for name in names}
    if kept and rank() == 0:
        logger.warning("%s: has no %s: initialised from the seed", source, list_some(sorted(kept)))
