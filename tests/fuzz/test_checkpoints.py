"""A training checkpoint from outside: manifest, meta, DCP's metadata and shards, with checksums that fit the damage.

Somebody who sends a checkpoint sends its manifest, too. So where something else was damaged the manifest is written
anew over it, and what is tried is the reading behind the checksums. What `verify` calls whole must then load.
"""

from pathlib import Path

import torch

from fuzz.format import Format
from fuzz.mutate import byte_mutator
from fuzz.suite import check
from fuzz.trees import json_mutator
from glmforge.checkpoint import StoredTensors, load_checkpoint, save_checkpoint, verify_checkpoint
from glmforge.checkpoint.compatible import check_compatible
from glmforge.checkpoint.diff import compare_checkpoints
from glmforge.checkpoint.format.manifest import MANIFEST_FILE, read_manifest, record_file, write_manifest
from glmforge.checkpoint.format.meta import read_meta
from glmforge.checkpoint.format.store import checkpoint_path
from glmforge.checkpoint.pretrained import open_checkpoint
from glmforge.cli.checkpoint_contents import show_checkpoint
from glmforge.config.schema import RunConfig
from glmforge.errors import CheckpointError
from helpers.checkpoints import blank_tensors, make_meta, make_tensors
from helpers.models import TINY
from helpers.planted import PLANTS, metadata_of, write_metadata

_CONFIG = RunConfig.model_validate(
    {
        "name": "fuzz",
        "output_dir": "run",
        "model": TINY,
        "data": {"tokenizer": "tokenizer", "sources": [{"name": "text", "path": "text"}]},
        "phases": [{"name": "main", "steps": 10, "seq_len": 32, "batch_size": 8}],
        "optim": {"lr": 3e-3, "min_lr": 3e-4, "warmup_steps": 2},
    }
).model_dump(mode="json")
_STEP = 2


def write(directory: Path) -> None:
    save_checkpoint(directory, _STEP, make_tensors(_STEP), make_meta(_STEP, config=_CONFIG))


def read(directory: Path) -> None:
    path = checkpoint_path(directory, _STEP)
    if (path / MANIFEST_FILE).is_file():
        _renew_checksums(path)
    show_checkpoint(path)
    if problems := verify_checkpoint(path):
        raise CheckpointError(problems[0])
    stored = StoredTensors(path, verify=False)
    for name in stored:
        assert stored[name].shape == stored.shape(name)
    try:
        load_checkpoint(path, blank_tensors(), config=_CONFIG)
    except CheckpointError:
        check_compatible(read_meta(path).config, _CONFIG, read_meta(path).samples_consumed)
        assert _holds_others(stored)
    assert compare_checkpoints(path, path).num_equal == len(stored)
    open_checkpoint(path)


def _holds_others(stored: StoredTensors) -> bool:
    """Whether it is damaged into a checkpoint of other tensors, which does not fit and has to be refused."""
    expected = make_tensors(_STEP)
    same_names = set(stored) == set(expected)
    return not same_names or any(
        (stored[name].shape, stored[name].dtype) != (tensor.shape, tensor.dtype) for name, tensor in expected.items()
    )


def _renew_checksums(path: Path) -> None:
    """Unless it is the manifest that is damaged."""
    files = read_manifest(path).files
    all_there = files.keys() == {".metadata", "meta.json", "__0_0.distcp"} and all(_is_small(path / n) for n in files)
    if all_there:
        write_manifest(path, {name: record_file(path / name) for name in files})


def _is_small(file: Path) -> bool:
    return file.is_file() and not file.is_symlink() and file.stat().st_size < 1 << 20


def _larger_than_its_bytes(directory: Path) -> None:
    path = checkpoint_path(directory, _STEP)
    metadata = metadata_of(path)
    tensor = metadata.state_dict_metadata["model.weight"]
    tensor.size = tensor.chunks[0].sizes = torch.Size((1 << 20, 1 << 20))  # type: ignore[union-attr]
    write_metadata(path, metadata)


def _overlapping(directory: Path) -> None:
    path = checkpoint_path(directory, _STEP)
    metadata = metadata_of(path)
    tensor = metadata.state_dict_metadata["model.weight"]
    tensor.chunks.append(tensor.chunks[0])  # type: ignore[union-attr]
    write_metadata(path, metadata)


FORMAT = Format(
    name="checkpoints",
    write=write,
    read=read,
    mutators={"*.json": json_mutator(), "*": byte_mutator()},
    bombs={
        "larger_than_its_bytes": _larger_than_its_bytes,
        "overlapping": _overlapping,
        **{
            plant.__name__: lambda directory, plant=plant: plant(
                checkpoint_path(directory, _STEP), directory / "marker"
            )  # type: ignore[misc]
            for plant in PLANTS
        },
    },
)


def test_mutations_and_bombs() -> None:
    check(__name__)
