"""Checkpoints that somebody has planted a command in, with checksums that fit: what a download may be."""

import io
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, MetadataIndex

from glmforge.checkpoint.format.manifest import read_manifest, record_file, write_manifest


class Planted:
    """Unpickled, it makes the file `marker`."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self.marker,)


def in_place_of_the_metadata(checkpoint: Path, marker: Path) -> None:
    write_metadata(checkpoint, Planted(marker))


def beside_the_plan(checkpoint: Path, marker: Path) -> None:
    """All tensors can be loaded, and the command runs first."""
    metadata = metadata_of(checkpoint)
    metadata.planner_data = Planted(marker)
    write_metadata(checkpoint, metadata)


def in_an_attribute_that_nobody_reads(checkpoint: Path, marker: Path) -> None:
    metadata = metadata_of(checkpoint)
    assert metadata.storage_meta is not None
    metadata.storage_meta.save_id = Planted(marker)  # type: ignore[assignment]
    write_metadata(checkpoint, metadata)


def in_place_of_a_tensor(checkpoint: Path, marker: Path) -> None:
    """DCP stores objects that are no tensors as pickles, which it runs when they are loaded."""
    metadata = metadata_of(checkpoint)
    name = next(iter(metadata.state_dict_metadata))
    payload = io.BytesIO()
    torch.save(Planted(marker), payload)
    index = next(index for index in metadata.storage_data if index.fqn == name)
    place = metadata.storage_data.pop(index)
    file = checkpoint / place.relative_path
    start = file.stat().st_size
    file.write_bytes(file.read_bytes() + payload.getvalue())
    metadata.storage_data[MetadataIndex(name)] = replace(place, offset=start, length=len(payload.getvalue()))
    metadata.state_dict_metadata[name] = BytesStorageMetadata()
    write_metadata(checkpoint, metadata)


def in_the_header_of_a_part(checkpoint: Path, marker: Path) -> None:
    """Every tensor of the first file is replaced by a pickle in the archive that `torch.save` writes."""
    metadata = metadata_of(checkpoint)
    payload = io.BytesIO()
    torch.save(Planted(marker), payload)
    for index, place in metadata.storage_data.items():
        file = checkpoint / place.relative_path
        start = file.stat().st_size
        file.write_bytes(file.read_bytes() + payload.getvalue())
        metadata.storage_data[index] = replace(place, offset=start, length=len(payload.getvalue()))
    write_metadata(checkpoint, metadata)


PLANTS: list[Callable[[Path, Path], None]] = [
    in_place_of_the_metadata,
    beside_the_plan,
    in_an_attribute_that_nobody_reads,
    in_place_of_a_tensor,
    in_the_header_of_a_part,
]


def metadata_of(checkpoint: Path) -> Metadata:
    """As DCP itself reads it: only for checkpoints that a test has just written."""
    return FileSystemReader(checkpoint).read_metadata()


def write_metadata(checkpoint: Path, metadata: object) -> None:
    """Replace the metadata, and give the manifest the checksums of what lies there now."""
    (checkpoint / ".metadata").write_bytes(pickle.dumps(metadata))
    renew_manifest(checkpoint)


def renew_manifest(checkpoint: Path) -> None:
    files = read_manifest(checkpoint).files
    write_manifest(checkpoint, {name: record_file(checkpoint / name) for name in files})
