"""Which base weights adapters belong to: a fingerprint, taken without reading 220 GB.

Names, types and shapes of all tensors go into it, and of each some bytes at three places: another model differs in the
first, another training in the last, in every tensor. It does not depend on how the tensors are divided over files. What
it does not see is a few changed bits; finding those is what the checksums of a download are for.
"""

import hashlib
import math
from pathlib import Path

from glmforge.checkpoint.convert.hf_files import Shards
from glmforge.checkpoint.format.manifest import MANIFEST_FILE, read_manifest
from glmforge.checkpoint.format.sharded_adapter import BaseWeights
from glmforge.cluster.threads import map_in_threads
from glmforge.errors import CheckpointError

_SAMPLE_BYTES = 64
_MAX_THREADS = 16


def base_weights(directory: Path) -> BaseWeights:
    """What identifies the weights in a Hugging Face directory or a checkpoint of this program.

    Raises `CheckpointError` if there are none, or a file is missing or damaged.
    """
    digest = hashlib.sha256()
    if (directory / MANIFEST_FILE).exists():
        files = read_manifest(directory).files
        for name, record in files.items():
            digest.update(f"{name} {record.size} {record.sha256}\n".encode())
        return BaseWeights(source=str(directory.absolute()), fingerprint=digest.hexdigest(), num_tensors=len(files))
    shards = Shards(directory)
    names = sorted(shards.names())
    # On network storage each read takes a millisecond.
    samples = map_in_threads(lambda name: _sample(shards, name), names, _MAX_THREADS)
    for name, sample in zip(names, samples, strict=True):
        digest.update(f"{name} {shards.dtype(name)} {list(shards.shape(name))}\n".encode())
        digest.update(sample)
    return BaseWeights(source=str(directory.absolute()), fingerprint=digest.hexdigest(), num_tensors=len(names))


def check_base(adapter: Path, trained_on: BaseWeights, found: BaseWeights) -> None:
    """Raise `CheckpointError` if the adapter `adapter` was trained on other weights than those that were found."""
    if found.fingerprint != trained_on.fingerprint:
        raise CheckpointError(
            f"{adapter}: was trained on the weights of {trained_on.source} ({trained_on.num_tensors:,} tensors, "
            f"fingerprint {trained_on.fingerprint[:12]}), and {found.source} holds others ({found.num_tensors:,}, "
            f"{found.fingerprint[:12]}), or they have changed since: give the base that it was trained on"
        )


def _sample(shards: Shards, name: str) -> bytes:
    start = shards.start(name)
    num_bytes = math.prod(shards.shape(name)) * shards.dtype(name).itemsize
    size = min(_SAMPLE_BYTES, num_bytes)
    with shards.file(name).open("rb") as file:
        samples = []
        for offset in (0, (num_bytes - size) // 2, num_bytes - size):
            file.seek(start + offset)
            samples.append(file.read(size))
    return b"".join(samples)
