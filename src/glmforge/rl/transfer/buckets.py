"""The trainer's weights to servers that take tensors, from shards, a few buckets at a time.

A bucket has tensors under their published names, up to a number of bytes. Each of the first ranks puts one together out
of the parts that all ranks hold, sends it to every server, and compares the checksum of each tensor with what the
server holds then. So a rank never has more than its shards and a few times the bytes of a bucket, and an update that
did not arrive ends the run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from safetensors.torch import save
from torch import Tensor

from glmforge.checkpoint.collective import broadcast, rank, world_size
from glmforge.checkpoint.convert.hf_directory import num_bytes
from glmforge.checkpoint.convert.hf_export_sharded import batches, exchange
from glmforge.checkpoint.convert.hf_names import Piece, mtp_prefixes, published_pieces
from glmforge.checkpoint.convert.parts import Parts
from glmforge.checkpoint.values import crc32_of
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import parameter_table
from glmforge.observe.alive import Alive, quiet
from glmforge.rl.engines.base import EngineError, together
from glmforge.rl.engines.served import GlmforgeEngine, Held

MAX_SENDERS = 4
"""Ranks that send at the same time: a server has a bucket of each of them in memory."""


def send_weights(
    tensors: Mapping[str, Tensor],
    config: ModelConfig,
    engines: Sequence[GlmforgeEngine],
    version: int,
    bucket_bytes: int,
    alive: Alive = quiet,
) -> int:
    """Give all engines the model of which `tensors` are this rank's part; the bytes that each was sent. Collective.

    They are sent in the types that an engine holds them in, which is the same for all engines.

    Raises:
        EngineLostError: a server does not answer. It waits for an update to be made again, from its beginning.
        EngineError: it has another model, or holds something else than it was sent.
    """
    held = together(lambda: [one.begin_update() for one in engines] if rank() == 0 else [], alive)
    pieces = _wanted(broadcast(held, 0), config, engines)
    parts = Parts.gather(tensors, parameter_table(config).shapes())
    buckets = list(batches(pieces, torch.bfloat16, bucket_bytes))
    at_once = min(MAX_SENDERS, world_size())
    for first in range(0, len(buckets), at_once):
        mine = exchange(buckets[first : first + at_once], torch.bfloat16, parts)
        together(lambda mine=mine: _deliver(mine, engines), alive, f"weights, bucket {first + 1} of {len(buckets)}")  # type: ignore[misc]

    def finish() -> None:
        for engine in engines if rank() == 0 else ():
            engine.commit(version)

    together(finish, alive)
    return sum(num_bytes(piece, torch.bfloat16) for piece in pieces)


def _wanted(held: Sequence[Held], config: ModelConfig, engines: Sequence[GlmforgeEngine]) -> list[Piece]:
    """What engines hold, of this model. MTP layers that an engine has not loaded are left out."""
    own = {piece.disk_name: piece for row in parameter_table(config).values() for piece in published_pieces(row)}
    trunk = {name for name in own if not name.startswith(mtp_prefixes(config))}
    for one, engine in zip(held, engines, strict=True):
        for name in sorted(trunk | one.keys()):
            kind, shape = one.get(name, ("", ()))
            if name not in own or own[name].shape != shape or kind not in ("BF16", "F32"):
                raise EngineError(f"{engine.url}: has another model than the one that is trained: {name[:100]}")
        if one != held[0]:
            raise EngineError(f"{engine.url}: has other tensors than {engines[0].url}; start both alike")
    return [replace(piece, fp32=held[0][name][0] == "F32") for name, piece in own.items() if name in held[0]]


def _deliver(bucket: Mapping[str, Tensor], engines: Sequence[GlmforgeEngine]) -> None:
    if not bucket:
        return
    expected, content = {name: crc32_of(tensor) for name, tensor in bucket.items()}, save(dict(bucket))
    for engine in engines:
        found = engine.put(content)
        for name, checksum in expected.items():
            if found.get(name) != checksum:
                raise EngineError(f"{engine.url}: {name} is not what was sent (checksums differ)")
