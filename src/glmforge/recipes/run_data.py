"""What a run reads, opened and checked before the first step: tokenizer, sources, held-out text.

Also what must be made once before it can be read: encoded conversations, copies on a node's own disk, best-fit
packings.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from glmforge.checkpoint.collective import broadcast, run_each_unhurried
from glmforge.config.chat import ChatConfig
from glmforge.config.data import DataConfig, SourceConfig
from glmforge.config.schema import RunConfig
from glmforge.data.chat.cache import encoded_identity, encoded_prefix, ensure_encoded
from glmforge.data.stream.cache import copy_shards, local_prefix
from glmforge.data.stream.curriculum import Curriculum
from glmforge.data.stream.epochs import with_counted_epochs
from glmforge.data.stream.packing import ensure_packing
from glmforge.data.tokens.shards import TokenShard, shard_paths
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.data.tokens.tokenizer_file import TOKENIZER_FILE
from glmforge.errors import ConfigError, DataError, GlmforgeError
from glmforge.evaluate.bits_per_byte import HeldOut
from glmforge.parallel.world import World
from glmforge.recipes.same_run import check_same_data
from glmforge.runtime.launch import LaunchEnvironment

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunData:
    """What a run reads, opened and checked against each other and the model; `config` is the run with phases of known
    length."""

    config: RunConfig
    tokenizer: Tokenizer
    curriculum: Curriculum
    held_out: list[HeldOut]


def open_data(config: RunConfig, world: World) -> RunData:
    """Tokenizer, sources and held-out shards; makes what of them is not there yet. Collective."""
    check_paths(config.data)
    tokenizer = Tokenizer.load(config.data.tokenizer)
    if tokenizer.vocab_size > config.model.vocab_size:
        raise ConfigError(
            f"model.vocab_size: {config.model.vocab_size:,} is less than the {tokenizer.vocab_size:,} tokens of "
            f"{config.data.tokenizer}; raise it to {-(-tokenizer.vocab_size // 128) * 128:,} or use another tokenizer"
        )
    config = _with_encoded_conversations(config, tokenizer, world)
    copy_shards(config.data)
    shards = {source.name: _open_shard(local_prefix(source, config.data), tokenizer) for source in config.data.sources}
    _pack_once(config, shards, world)
    config = with_counted_epochs(config, shards)
    held_out = [HeldOut(source.name, _open_shard(source.path, tokenizer)) for source in config.data.held_out]
    check_same_data(
        lambda: {
            "data.tokenizer": tokenizer.fingerprint,
            **{f"data.sources.{name}": shard.identity() for name, shard in shards.items()},
            **{f"data.held_out.{each.name}": each.shard.identity() for each in held_out},
        }
    )
    if world.is_main:
        _tell_of_equal_shards(shards, held_out)
    return RunData(config, tokenizer, Curriculum(config, shards), held_out)


def check_paths(data: DataConfig) -> None:
    """Name the setting whose file is not there, and from where a relative path was looked for."""
    wanted: list[tuple[str, Path, str | None]] = [("data.tokenizer", data.tokenizer / TOKENIZER_FILE, "tokenizer")]
    for key, sources in (("sources", data.sources), ("held_out", data.held_out)):
        for i, source in enumerate(sources):
            path, made_by = (
                (source.path, None) if source.is_conversations else (shard_paths(source.path)[0], "tokenize")
            )
            wanted.append((f"data.{key}.{i}.path", path, made_by))
    for key, path, made_by in wanted:
        if not path.exists():
            if path.with_suffix("").is_dir():
                raise DataError(
                    f"{key}: {path.with_suffix('')} is a directory; use one conversation file, or make a shard of "
                    "all with 'glmforge data chat' or 'glmforge data tokenize'"
                )
            place = "" if path.is_absolute() else f" in {Path.cwd()}, where relative paths start"
            make = "" if made_by is None else f"create it with 'glmforge data {made_by}' or "
            raise DataError(f"{key}: {path} does not exist{place}; {make}correct the path")


def _with_encoded_conversations(config: RunConfig, tokenizer: Tokenizer, world: World) -> RunConfig:
    """The run with a token shard in the place of each file of conversations, which are encoded if that is not kept."""
    data = config.data
    files = [source for source in (*data.sources, *data.held_out) if source.is_conversations]
    if not files:
        return config
    settings = [_chat_settings(config, source) for source in files]
    identities: list[bytes] = []

    def encode() -> None:
        for source, chat in zip(files, settings, strict=True):
            identity = encoded_identity(source.path, tokenizer, chat)
            workers = max(1, data.num_workers)
            ensure_encoded(source.path, data.tokenizer, chat, identity, data.encoded_dir, workers)
            identities.append(identity)

    once_per_node(encode, world, what="encode conversations")
    names = [
        f"data.{key}.{s.name}" for key in ("sources", "held_out") for s in getattr(data, key) if s.is_conversations
    ]
    check_same_data(lambda: dict(zip(names, identities, strict=True)))
    found = broadcast(identities, 0)  # the other processes have not read the files
    prefixes = {id(s): encoded_prefix(s.path, i, data.encoded_dir) for s, i in zip(files, found, strict=True)}
    changed = {
        key: [s.model_copy(update={"path": prefixes[id(s)], "chat": None}) if id(s) in prefixes else s for s in sources]
        for key, sources in (("sources", data.sources), ("held_out", data.held_out))
    }
    return config.model_copy(update={"data": data.model_copy(update=changed)})


def _chat_settings(config: RunConfig, source: SourceConfig) -> ChatConfig:
    """With a limit on lengths: that of the shortest rows that the source's documents are to fit in."""
    chat = source.chat or ChatConfig()
    if chat.max_tokens is not None:
        return chat
    drawing = [phase for phase in config.phases if source.name in config.source_weights(phase)] or config.phases
    return chat.model_copy(update={"max_tokens": min(phase.seq_len for phase in drawing)})


def _pack_once(config: RunConfig, shards: Mapping[str, TokenShard], world: World) -> None:
    """Make the best-fit packings that some phase needs."""
    packing_dir = config.data.packing_dir

    def pack() -> None:
        for phase in config.phases:
            for name in config.source_weights(phase) if phase.packing == "best_fit" else ():
                ensure_packing(shards[name], phase.seq_len, packing_dir)

    once_per_node(pack, world, what="pack the sources")


def once_per_node(make: Callable[[], None], world: World, *, what: str) -> None:
    """Call `make`, which makes what is not there, in the first process of each node: in rank 0 before all others, so
    that nodes which share its directory find what it has made."""
    first = LaunchEnvironment.read().is_first_of_node
    _once(make, world, here=world.is_main, what=what)
    _once(make, world, here=first and not world.is_main, what=what)


def _once(make: Callable[[], None], world: World, *, here: bool, what: str) -> None:
    """Call `make` in the processes that are `here` while the others wait, for as long as it takes. All raise if it
    fails anywhere."""

    def attempt() -> GlmforgeError | None:
        try:
            if here:
                make()
        except GlmforgeError as error:
            return error
        return None

    failure = run_each_unhurried(attempt)
    failed = world.sum(torch.tensor(float(failure is not None), device=world.device))
    if failure is not None:
        raise failure
    if failed:
        raise DataError(f"data: another process failed to {what}, see its message; nothing was trained")


def _open_shard(prefix: Path, tokenizer: Tokenizer) -> TokenShard:
    shard = TokenShard(prefix)
    shard.check_tokenizer(tokenizer)
    if shard.loss is not None and not shard.loss.any_trained:
        raise DataError(f"{shard.loss.path}: the shard has no trainable tokens; use another one, or remove it")
    return shard


def _tell_of_equal_shards(shards: Mapping[str, TokenShard], held_out: Sequence[HeldOut]) -> None:
    """Warn of what is hardly meant: a text that is two sources, or held out and trained on."""
    names: dict[str, str] = {}
    for name, shard in shards.items():
        first = names.setdefault(str(shard.identity()), name)
        if first != name:
            logger.warning("data.sources: '%s' and '%s' are the same text, which is counted twice", first, name)
    for each in held_out:
        if trained_on := names.get(str(each.shard.identity())):
            logger.warning("data.held_out: '%s' is also trained on, as source '%s'", each.name, trained_on)
