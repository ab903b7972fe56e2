"""A model on the disk, ready to answer: in one process, or sharded over the ranks that a launcher has started.

Sharded weights are held in the type that they are computed in, as in one process. Data ranks answer different
requests; ranks of one tp or pp group the same ones (`generate.sharded`).
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from glmforge.checkpoint.collective import all_gather
from glmforge.checkpoint.convert import HfTensors, hf_model_config
from glmforge.checkpoint.initial_weights import load_initial_weights
from glmforge.checkpoint.pretrained import check_vocabulary, load_tokenizer, open_checkpoint
from glmforge.config.layout import resolve_layout
from glmforge.config.load import dump_config, load_config
from glmforge.config.parameters import EMBEDDING
from glmforge.config.schema import RunConfig
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import CheckpointError, ConfigError, GlmforgeError
from glmforge.files import kind_of
from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine
from glmforge.generate.runner import WholeModel
from glmforge.generate.sharded import ShardedModel
from glmforge.kernels.allocator import keep_large_blocks
from glmforge.parallel.build import DTYPES, build_model
from glmforge.parallel.placement import local_chunk
from glmforge.parallel.world import join_world
from glmforge.runtime.launch import LaunchEnvironment


class OpenModel(NamedTuple):
    """A model that answers, and what identifies it."""

    engine: Engine
    identity: dict[str, Any]


@contextmanager
def open_model(
    source: str,
    config: EngineConfig,
    *,
    dtype: torch.dtype | None = None,
    device: str = "cpu",
    tokenizer: Path | None = None,
    parallel: Sequence[str] = (),
) -> Iterator[OpenModel]:
    """The model in `source`; with several ranks all of them call this together, and leave it together.

    Args:
        config: limits of each rank's engine.
        dtype: to compute in; None is the stored type.
        device: of a model in one process. A rank takes its own GPU where there is one.
        parallel: how ranks share the model: settings of `parallel`, such as "tp=2".

    Raises:
        GlmforgeError: nothing loadable there, no tokenizer, or a layout that the ranks or the model do not allow.
    """
    keep_large_blocks()
    launch = LaunchEnvironment.read()
    if launch.world_size == 1 and not parallel:
        engine = Engine.load(source, config, dtype=dtype, device=device, tokenizer=tokenizer)
        assert isinstance(engine.runner, WholeModel), "it was loaded whole"
        if engine.tokenizer is None:
            raise GlmforgeError(f"{source}: a preset has no tokenizer; give a run or an export, or --tokenizer")
        yield OpenModel(engine, _identity(engine.runner.model.state_dict(), engine.tokenizer))
        return
    with sharded_model(source, dtype=dtype, tokenizer=tokenizer, parallel=parallel) as (runner, words):
        yield OpenModel(Engine(runner, config, tokenizer=words), _identity(runner.model.state_dict(), words))


@contextmanager
def sharded_model(
    source: str, *, dtype: torch.dtype | None, tokenizer: Path | None, parallel: Sequence[str]
) -> Iterator[tuple[ShardedModel, Tokenizer]]:
    """The model in `source` on all ranks, in a session, and its tokenizer; arguments and errors as of `open_model`."""
    num_ranks = LaunchEnvironment.read().world_size
    words = load_tokenizer(source) if tokenizer is None else Tokenizer.load(tokenizer)
    run = _run_config(Path(source), dtype, num_ranks, parallel)
    check_vocabulary(words, run.model, tokenizer or source)
    layout, limits = resolve_layout(run, num_ranks), run.parallel
    with join_world(layout, limits.process_group_timeout_s, wait_s=limits.join_timeout_s) as world:
        model = build_model(run, world)
        try:
            load_initial_weights(Path(source), model.state_dict(), run.model, words.fingerprint)
        except (CheckpointError, ConfigError) as error:
            raise type(error)(str(error).removeprefix("init_from: ")) from None
        runner = ShardedModel(model)
        with runner.session():
            yield runner, words


def _identity(weights: Mapping[str, Tensor], tokenizer: Tokenizer) -> dict[str, Any]:
    return {"weights": weights_digest(weights), "tokenizer": tokenizer.fingerprint}


def _run_config(source: Path, dtype: torch.dtype | None, num_ranks: int, parallel: Sequence[str]) -> RunConfig:
    """The model laid out for forward passes: all of it frozen, in the type that it is computed in."""
    if kind_of(source / "config.json", error=CheckpointError) is not None:
        model, stored = hf_model_config(source), HfTensors(source)[EMBEDDING].dtype
    else:
        model, stored = open_checkpoint(source).run.model, torch.float32
    names = {dtype: name for name, dtype in DTYPES.items()}
    if (compute := names.get(dtype or stored)) is None:
        raise ConfigError(
            f"the weights are {str(stored).removeprefix('torch.')}; ranks compute in bf16 or fp32: --dtype"
        )
    run = RunConfig.model_validate(
        {
            "name": "evaluation",
            "model": model.model_dump(),
            "data": {"tokenizer": "none", "sources": [{"name": "none", "path": "none"}]},
            # Of no training: one row for each rank, of a length that tp and cp divide.
            "phases": [{"name": "evaluation", "steps": 1, "seq_len": 2 * num_ranks, "batch_size": num_ranks}],
            "optim": {"rules": [{"match": "*", "lr_scale": 0}]},
            "precision": {"compute": compute, "frozen": compute},
            "parallel": {"pipeline_schedule": "gpipe", "micro_batch_size": 1},
        }
    )
    settings = [part for text in parallel for part in text.split(",") if part]
    return load_config(dump_config(run), [f"parallel.{one}" for one in settings])


@torch.no_grad()
def weights_digest(tensors: Mapping[str, Tensor], per_tensor: int = 64) -> str:
    """A digest of names, shapes and some values of every tensor.

    Ranks call this together with their parts; the digest is that of the whole model in one process.
    """
    mine: dict[tuple[str, str, str], dict[int, float]] = {}
    for name, tensor in tensors.items():
        local, offsets = local_chunk(tensor)
        places = torch.arange(0, tensor.numel(), max(1, tensor.numel() // per_tensor))
        indices = torch.stack(torch.unravel_index(places, tensor.shape)) - torch.tensor(offsets)[:, None]
        inside = ((indices >= 0) & (indices < torch.tensor(local.shape)[:, None])).all(0)
        values = local[tuple(indices[:, inside].to(local.device))].double().tolist()
        mine[name, str(tensor.shape), str(tensor.dtype)] = dict(zip(places[inside].tolist(), values, strict=True))
    whole: dict[tuple[str, str, str], dict[int, float]] = {}
    for part in all_gather(mine):
        for key, picked in part.items():
            whole.setdefault(key, {}).update(picked)
    content = [[*key, sorted(picked.items())] for key, picked in sorted(whole.items())]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
