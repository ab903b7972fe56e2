"""What a run reads, opened and checked before the first step: tokenizer, sources, held-out text.

Also what has to be made once before it can be read: copies on a node's own disk, best-fit packings.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from glmforge.cluster.launch import LaunchEnvironment
from glmforge.config.data import DataConfig
from glmforge.config.schema import RunConfig
from glmforge.data.stream.cache import copy_shards, local_prefix
from glmforge.data.stream.curriculum import Curriculum
from glmforge.data.stream.epochs import with_counted_epochs
from glmforge.data.stream.packing import ensure_packing
from glmforge.data.tokens.shards import TokenShard, shard_paths
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.data.tokens.tokenizer_file import TOKENIZER_FILE
from glmforge.errors import ConfigError, DataError
from glmforge.evaluate.bits_per_byte import HeldOut
from glmforge.parallel.world import World


@dataclass(frozen=True)
class RunData:
    """What a run reads, opened and checked against each other and the model; `config` is the run with phases of known
    length."""

    config: RunConfig
    tokenizer: Tokenizer
    curriculum: Curriculum
    held_out: list[HeldOut]


def open_data(config: RunConfig, world: World) -> RunData:
    """Tokenizer, sources and held-out shards; makes copies and packings that are not there yet. Collective."""
    _check_paths(config.data)
    tokenizer = Tokenizer.load(config.data.tokenizer)
    if tokenizer.vocab_size > config.model.vocab_size:
        raise ConfigError(
            f"model.vocab_size: {config.model.vocab_size:,} is less than the {tokenizer.vocab_size:,} tokens of "
            f"{config.data.tokenizer}; raise it to {-(-tokenizer.vocab_size // 128) * 128:,} or take another tokenizer"
        )
    copy_shards(config.data)
    shards = {source.name: _open_shard(local_prefix(source, config.data), tokenizer) for source in config.data.sources}
    _pack_once(config, shards, world)
    config = with_counted_epochs(config, shards)
    held_out = [HeldOut(source.name, _open_shard(source.path, tokenizer)) for source in config.data.held_out]
    return RunData(config, tokenizer, Curriculum(config, shards), held_out)


def _check_paths(data: DataConfig) -> None:
    """Name the setting whose file is not there, and from where a relative path was looked for."""
    wanted = {"data.tokenizer": data.tokenizer / TOKENIZER_FILE}
    for key, sources in (("sources", data.sources), ("held_out", data.held_out)):
        wanted |= {f"data.{key}.{i}.path": shard_paths(source.path)[0] for i, source in enumerate(sources)}
    for key, path in wanted.items():
        if not path.exists():
            place = "" if path.is_absolute() else f" in {Path.cwd()}, from where relative paths are looked for"
            make = "tokenizer" if key == "data.tokenizer" else "tokenize"
            raise DataError(
                f"{key}: there is no {path}{place}; make it with 'glmforge data {make}' or correct the path"
            )


def _pack_once(config: RunConfig, shards: Mapping[str, TokenShard], world: World) -> None:
    """One process makes the best-fit packings that some phase needs: of the run, or of each node beside its copies."""
    data = config.data
    beside_copies = data.cache_dir is not None and data.packing_dir is None
    failure: DataError | None = None
    if LaunchEnvironment.read().is_first_of_node if beside_copies else world.is_main:
        try:
            for phase in config.phases:
                for name in config.source_weights(phase) if phase.packing == "best_fit" else ():
                    ensure_packing(shards[name], phase.seq_len, data.packing_dir)
        except DataError as error:
            failure = error
    failed = world.sum(torch.tensor(float(failure is not None), device=world.device))
    if failure is not None:
        raise failure
    if failed:
        raise DataError("data: another process failed to pack the sources and reported why; nothing was trained")


def _open_shard(prefix: Path, tokenizer: Tokenizer) -> TokenShard:
    shard = TokenShard(prefix)
    shard.check_tokenizer(tokenizer)
    return shard
