"""Full Hugging Face weights with the adapters in them: W + scaling * B A, file by file, in bounded memory.

The directory that comes out has the base's files, with tensors of the same names and types, experts one by one or
packed as they are there, and embedding and head repeated where the base repeats them. A tensor without an adapter is
copied; one with an adapter is read, summed in fp32 and rounded once. So memory holds one tensor a few times over, and
the adapters of one layer, regardless of the size of the model. What was written is read again, as a model and tensor by
tensor, before the directory gets its name.
"""

import hashlib
import shutil
from collections.abc import Callable
from contextlib import closing
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from glmforge.checkpoint.adapter.base import base_weights, check_base
from glmforge.checkpoint.convert.hf_files import HfFiles, Shards, open_hf
from glmforge.checkpoint.convert.hf_names import Piece, duplicates, whole_piece
from glmforge.checkpoint.format.read import StoredTensors
from glmforge.checkpoint.format.safetensors_stream import Spec, write_safetensors
from glmforge.checkpoint.format.sharded_adapter import PARAMETER_PREFIX, ShardedAdapter, read_adapter
from glmforge.checkpoint.format.store import new_directory
from glmforge.checkpoint.format.wording import list_some
from glmforge.checkpoint.merged import add_adapter, maps_by_row
from glmforge.config.adapters import adapter_parts
from glmforge.config.parameters import parameter_table
from glmforge.errors import CheckpointError
from glmforge.runtime.durable import fsync_file

_KEPT = 6
"""Adapters of the experts that are kept in memory: of published files each is needed by every expert in turn."""

Advance = Callable[[int, int], None]
"""Called with the files that are done and all files."""


def merge(
    checkpoint: Path,
    out_dir: Path,
    base: Path | None = None,
    *,
    check: bool = True,
    advance: Advance = lambda done, total: None,
) -> Path:
    """Write the base model with the adapters of `checkpoint` to `out_dir`; the base's directory.

    Args:
        base: the Hugging Face directory; None: where it lay in training.
        check: refuse another base than the one that the adapters were trained on.

    Raises `CheckpointError` if the checkpoint is incomplete or not one of adapters, the base is another or no Hugging
    Face directory, has no such tensors, or `out_dir` exists.
    """
    description = read_adapter(checkpoint)
    if heads := description.model.heads:
        raise CheckpointError(
            f"{checkpoint}: has the head {list_some(list(heads))} (model.heads), which transformers' Glm4Moe does "
            "not support and would be lost; load the run itself with glmforge"
        )
    base = base or Path(description.base.source)
    if not (base / "config.json").is_file():
        raise CheckpointError(f"{base}: is not a Hugging Face directory; pass the base model with --base")
    if check:
        check_base(checkpoint, description.base, base_weights(base))
    files = open_hf(base)
    with closing(files.shards):
        merged = Merged(files, StoredTensors(checkpoint, PARAMETER_PREFIX), description)
        if lacking := merged.unused():
            raise CheckpointError(
                f"{checkpoint}: has adapters of {list_some(lacking)}, which {base} lacks; is it another model?"
            )
        with new_directory(out_dir) as directory:
            _check(directory, _write(merged, files.shards, base, directory, advance))
    return base


class Merged:
    """The tensors of a base with adapters in them, by the names of the base's files, each made when it is requested."""

    def __init__(self, files: HfFiles, stored: StoredTensors, description: ShardedAdapter) -> None:
        self._shards, self._stored, self._lora = files.shards, stored, description.lora
        self._maps = maps_by_row(description.model, description.lora)
        self._take = lru_cache(_KEPT)(lambda parameter: stored[parameter].float())
        table = parameter_table(files.config)
        self._table = table
        self._pieces: dict[str, Piece] = {copy: whole_piece(table[of]) for copy, of in duplicates(files.config).items()}
        self._pieces |= {piece.disk_name: piece for pieces in files.plan.values() for piece in pieces}

    def __getitem__(self, disk_name: str) -> Tensor:
        piece, weight = self._pieces[disk_name], self._shards.read(disk_name)
        if piece.name in self._stored:
            return self._take(piece.name)[piece.index].to(weight.dtype)
        if piece.name not in self._maps:
            return weight
        merged = weight.float()
        for one in self._maps[piece.name]:
            factors = [self._take(part.row.name) for part in adapter_parts(one, self._lora)]
            add_adapter(merged, one, factors, self._lora.scaling, piece.index)
        return merged.to(weight.dtype)

    def unused(self) -> list[str]:
        """What the base does not have, or has of another shape."""
        rows = {name: maps[0].row for name, maps in self._maps.items()}
        fitting = {name for name, row in rows.items() if name in self._table and self._table[name].shape == row.shape}
        return sorted(rows.keys() - fitting)


def _write(merged: Merged, shards: Shards, base: Path, out_dir: Path, advance: Advance) -> dict[str, bytes]:
    """Name -> digest of what was to be written."""
    files: dict[Path, list[str]] = {}
    digests: dict[str, bytes] = {}

    def make(name: str) -> Tensor:
        tensor = merged[name]
        digests[name] = _digest(tensor)
        return tensor

    for name in shards.names():
        files.setdefault(shards.file(name), []).append(name)
    for done, (file, names) in enumerate(sorted(files.items())):
        advance(done, len(files))
        specs: dict[str, Spec] = {
            name: (shards.dtype(name), shards.shape(name)) for name in sorted(names, key=shards.start)
        }
        target = out_dir / file.relative_to(base)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_safetensors(target, specs, make)
    for file in base.iterdir():
        if file.is_file() and file.suffix in (".json", ".jinja", ".txt", ".model"):
            shutil.copyfile(file, out_dir / file.name)
            fsync_file(out_dir / file.name)
    advance(len(files), len(files))
    return digests


def _check(directory: Path, digests: dict[str, bytes]) -> None:
    """Raise `CheckpointError` unless the directory is a whole model, of just these tensors."""
    with closing(open_hf(directory).shards) as shards:
        for name, digest in digests.items():
            if _digest(shards.read(name)) != digest:
                raise CheckpointError(f"{shards.file(name)}: {name} reads back otherwise than it was written")


def _digest(tensor: Tensor) -> bytes:
    return hashlib.sha256(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().data).digest()
