"""Which base weights adapters belong to: a fingerprint of all of their bytes.

Names, types, shapes and contents of all tensors go into it, and not how the tensors are divided over files. The
contents are read once (`digests`).

Earlier versions took three samples of 64 bytes of each tensor instead. Adapters that have such a fingerprint are
compared with the same samples, and a message says that no more was checked.
"""

import hashlib
import logging
import math
from collections.abc import Mapping
from pathlib import Path

from glmforge.checkpoint.adapter.digests import tensor_digests
from glmforge.checkpoint.collective import all_gather, rank, run_each_unhurried, run_on_rank_zero, world_size
from glmforge.checkpoint.convert.hf_files import Shards
from glmforge.checkpoint.format.manifest import MANIFEST_FILE, read_manifest
from glmforge.checkpoint.format.sharded_adapter import BaseWeights
from glmforge.errors import CheckpointError
from glmforge.runtime.waiting import map_in_threads

logger = logging.getLogger(__name__)

_SAMPLE_BYTES = 64
_MAX_THREADS = 16


def base_weights(directory: Path) -> BaseWeights:
    """What identifies the weights in a Hugging Face directory or a checkpoint of this program.

    Raises `CheckpointError` if none is found, or a file is missing or damaged.
    """
    if (directory / MANIFEST_FILE).exists():
        return _of_checkpoint(directory)
    shards = Shards(directory)
    return _described(directory, shards, tensor_digests(shards))


def base_weights_together(directory: Path) -> BaseWeights:
    """As `base_weights`; all ranks call this together, and divide the reading among them."""
    if run_on_rank_zero(lambda: (directory / MANIFEST_FILE).exists()):
        return run_on_rank_zero(lambda: _of_checkpoint(directory))

    def read_share() -> tuple[Shards, dict[str, str]]:
        shards = Shards(directory)
        files = sorted({shards.file(name) for name in shards.names()})
        return shards, tensor_digests(shards, files[rank() :: world_size()])

    shards, share = run_each_unhurried(read_share)
    digests = {name: digest for found in all_gather(share) for name, digest in found.items()}
    return _described(directory, shards, digests)


def check_base(adapter: Path, trained_on: BaseWeights, found: BaseWeights) -> None:
    """Raise `CheckpointError` if the adapter `adapter` was trained on other weights than those that were found."""
    if found.fingerprint == trained_on.fingerprint:
        return
    seen = found.fingerprint
    if trained_on.covers == "samples" and found.covers == "all":
        seen = _sampled(Path(found.source))
        if seen == trained_on.fingerprint:
            logger.warning(
                "%s: was saved by an earlier version, which recorded only %d bytes at three offsets of each base "
                "tensor; those match %s",
                adapter,
                _SAMPLE_BYTES,
                found.source,
            )
            return
    raise CheckpointError(
        f"{adapter}: was trained on the weights of {trained_on.source} ({trained_on.num_tensors:,} tensors, "
        f"fingerprint {trained_on.fingerprint[:12]}), but {found.source} holds other or changed weights "
        f"({found.num_tensors:,}, {seen[:12]}); pass the base it was trained on"
    )


def _of_checkpoint(directory: Path) -> BaseWeights:
    """By the checksums in its manifest, with which loading compares the files."""
    digest, files = hashlib.sha256(), read_manifest(directory).files
    for name, record in files.items():
        digest.update(f"{name} {record.size} {record.sha256}\n".encode())
    return _base(directory, digest.hexdigest(), len(files))


def _described(directory: Path, shards: Shards, digests: Mapping[str, str]) -> BaseWeights:
    digest = hashlib.sha256()
    for name in sorted(shards.names()):
        digest.update(f"{_line(shards, name)} {digests[name]}\n".encode())
    return _base(directory, digest.hexdigest(), len(digests))


def _base(directory: Path, fingerprint: str, num_tensors: int) -> BaseWeights:
    return BaseWeights(source=str(directory.absolute()), fingerprint=fingerprint, num_tensors=num_tensors, covers="all")


def _line(shards: Shards, name: str) -> str:
    return f"{name} {shards.dtype(name)} {list(shards.shape(name))}"


def _sampled(directory: Path) -> str:
    """The fingerprint that earlier versions took of a Hugging Face directory."""
    if (directory / MANIFEST_FILE).exists():
        return _of_checkpoint(directory).fingerprint
    digest, shards = hashlib.sha256(), Shards(directory)
    names = sorted(shards.names())
    samples = map_in_threads(lambda name: _sample(shards, name), names, _MAX_THREADS)
    for name, sample in zip(names, samples, strict=True):
        digest.update(f"{_line(shards, name)}\n".encode())
        digest.update(sample)
    return digest.hexdigest()


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
