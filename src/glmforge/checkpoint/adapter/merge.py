"""Full Hugging Face weights with the adapters in them: W + scaling * B A, file by file, in bounded memory.

The directory that comes out has the base's files, with tensors of the same names and types, experts one by one or
packed as they are there. A tensor without an adapter is copied; one with an adapter is read, summed in fp32 and rounded
once. So memory holds one tensor a few times over, and the adapters of one layer, whatever the size of the model.

Shapes: E experts, r rank, D hidden_size, I moe_intermediate_size, V vocab_size.
"""

import math
import re
import shutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from glmforge.checkpoint.adapter.base import check_base
from glmforge.checkpoint.adapter.peft_config import DOWN, HALVES, PACKED, adapter_names
from glmforge.checkpoint.convert.hf_files import Shards
from glmforge.checkpoint.format.read import StoredTensors
from glmforge.checkpoint.format.safetensors_stream import Spec, write_safetensors
from glmforge.checkpoint.format.sharded_adapter import (
    PARAMETER_PREFIX,
    AdapterSettings,
    is_sharded_adapter,
    read_description,
)
from glmforge.checkpoint.format.store import make_partial, publish
from glmforge.checkpoint.format.wording import list_some
from glmforge.cluster.durable import fsync_file
from glmforge.cluster.os_errors import describe_os_error
from glmforge.errors import CheckpointError

_EXPERT = re.compile(r"(?P<owner>.+\.mlp\.experts)\.(?P<expert>\d+)\.(?P<map>\w+)\.weight")
_PACKED = re.compile(r"(?P<owner>.+\.mlp\.experts)\.(?P<map>gate_up_proj|down_proj)")
_Map = tuple[str, str]
"""A module and its map that is adapted: "weight", of packed experts the map's name."""

_KEPT = 6
"""Adapters of the experts that are kept in memory: of published files each is needed by every expert in turn."""

Advance = Callable[[int, int], None]
"""Called with the files that are done and all files."""


def merge(
    checkpoint: Path,
    base: Path,
    out_dir: Path,
    *,
    check: bool = True,
    advance: Advance = lambda done, total: None,
) -> None:
    """Write the model of the Hugging Face directory `base` with the adapters of `checkpoint` to `out_dir`.

    `check=False` takes another base than the one that the adapters were trained on. Raises `CheckpointError` if the
    checkpoint is not whole or not one of adapters, the base is another, a tensor of the base is missing or of another
    shape, or `out_dir` exists.
    """
    if not is_sharded_adapter(checkpoint):
        raise CheckpointError(f"{checkpoint}: is no checkpoint of adapters; 'glmforge export' is for whole models")
    if out_dir.exists():
        raise CheckpointError(f"{out_dir}: exists; choose another directory")
    description = read_description(checkpoint)
    if check:
        check_base(checkpoint, description, base)
    merged = Merged(StoredTensors(checkpoint, PARAMETER_PREFIX), description.settings, Shards(base))
    merged.check_all_used(checkpoint, base)
    try:
        partial = make_partial(out_dir)
        try:
            _write(merged, base, partial, advance)
            publish(partial, out_dir)
        finally:
            shutil.rmtree(partial, ignore_errors=True)  # gone already if it was published
    except OSError as error:
        raise CheckpointError(f"{out_dir} was not written: {describe_os_error(error)}") from error


class Merged:
    """The tensors of a base with adapters in them, by the names of the base's files, each made when it is asked for."""

    def __init__(self, stored: StoredTensors, settings: AdapterSettings, shards: Shards) -> None:
        self.shards, self.settings = shards, settings
        names = adapter_names({PARAMETER_PREFIX + name: () for name in stored})
        self._parts: dict[_Map, dict[str, str]] = {}  # part of the adapter, such as "lora_A" -> parameter
        for parameter, name in names.items():
            self._parts.setdefault((name.owner, name.key), {})[name.part] = parameter
        self._whole = {parameter for parameter in stored if parameter not in names}
        self._take = lru_cache(_KEPT)(lambda parameter: stored[parameter].float())

    def __getitem__(self, name: str) -> Tensor:
        weight = self._read(name)
        if name in self._whole:
            return self._take(name).to(weight.dtype)
        if match := _EXPERT.fullmatch(name):
            return self._sum(name, weight, self._of_expert(match["owner"], match["map"], int(match["expert"])))
        if match := _PACKED.fullmatch(name):
            maps = HALVES if match["map"] == PACKED else (DOWN,)
            for expert, matrix in enumerate(weight):
                for part, rows in zip(maps, matrix.chunk(len(maps)), strict=True):
                    rows.copy_(self._sum(name, rows, self._of_expert(match["owner"], part, expert)))
            return weight
        module = name.removesuffix(".weight")
        merged = self._sum(name, weight, self._product((module, "weight")), rounded=False)
        magnitude = self._parts.get((module, "weight"), {}).get("lora_magnitude_vector")
        if magnitude is not None:
            merged = merged * (self._take(magnitude) / merged.norm(dim=1))[:, None]
        return merged.to(weight.dtype)

    def check_all_used(self, checkpoint: Path, base: Path) -> None:
        """Refuse adapters of what the base does not have."""
        left = self._parts.keys() - {one for name in self.shards.names() for one in _maps_in(name)}
        lacking = [f"{owner}.{key}" for owner, key in sorted(left)] + sorted(self._whole - self.shards.names())
        if lacking:
            raise CheckpointError(
                f"{checkpoint}: has adapters of {list_some(lacking)}, which {base} does not have; is it another model?"
            )

    def _sum(self, name: str, weight: Tensor, delta: Tensor | None, *, rounded: bool = True) -> Tensor:
        if delta is None:
            return weight
        if delta.shape != weight.shape:
            raise CheckpointError(
                f"{self.shards.file(name)}: {name} has matrices {list(weight.shape)}, its adapter is for "
                f"{list(delta.shape)}; give the base that it was trained on"
            )
        merged = delta.add_(weight)
        return merged.to(weight.dtype) if rounded else merged

    def _of_expert(self, owner: str, part: str, expert: int) -> Tensor | None:
        """Of one expert's gate, up or down projection, be it adapted by itself or in the packed one."""
        if (owner, PACKED) not in self._parts or part not in HALVES:
            return self._product((owner, part), expert)
        product = self._product((owner, PACKED), expert)
        return None if product is None else product.chunk(2)[HALVES.index(part)]

    def _product(self, one: _Map, expert: int | None = None) -> Tensor | None:
        """scaling * B A in fp32, of the shape of the matrix; None where nothing was adapted."""
        parts = self._parts.get(one)
        if parts is None:
            return None
        if "lora_embedding_A" in parts:  # [r, V] and [D, r], for an embedding of [V, D]
            a, b = self._take(parts["lora_embedding_A"]), self._take(parts["lora_embedding_B"])
            return (a.t() @ b.t()).mul_(self.settings.scaling)
        a, b = self._take(parts["lora_A"]), self._take(parts["lora_B"])
        product = b @ a if expert is None else b[expert] @ a[expert]
        return product.mul_(self.settings.scaling)

    def _read(self, name: str) -> Tensor:
        """Read rather than mapped: pages of a mapped file would count as memory of this process."""
        dtype, shape = self.shards.dtype(name), self.shards.shape(name)
        content = bytearray(math.prod(shape) * dtype.itemsize)
        with self.shards.file(name).open("rb") as file:
            file.seek(self.shards.start(name))
            file.readinto(content)
        return torch.frombuffer(content, dtype=dtype).view(shape) if content else torch.empty(shape, dtype=dtype)


def _maps_in(name: str) -> list[_Map]:
    """The maps whose adapters a tensor of the base can take."""
    if match := _EXPERT.fullmatch(name):
        return [(match["owner"], match["map"])] + ([(match["owner"], PACKED)] if match["map"] in HALVES else [])
    if match := _PACKED.fullmatch(name):
        return [(match["owner"], part) for part in ((*HALVES, PACKED) if match["map"] == PACKED else (DOWN,))]
    return [(name.removesuffix(".weight"), "weight")]


def _write(merged: Merged, base: Path, out_dir: Path, advance: Advance) -> None:
    shards = merged.shards
    files: dict[Path, list[str]] = {}
    for name in shards.names():
        files.setdefault(shards.file(name), []).append(name)
    for done, (file, names) in enumerate(sorted(files.items())):
        advance(done, len(files))
        specs: dict[str, Spec] = {
            name: (shards.dtype(name), shards.shape(name)) for name in sorted(names, key=shards.start)
        }
        target = out_dir / file.relative_to(base)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_safetensors(target, specs, merged.__getitem__)
    for file in base.iterdir():
        if file.is_file() and file.suffix in (".json", ".jinja", ".txt", ".model"):
            shutil.copyfile(file, out_dir / file.name)
            fsync_file(out_dir / file.name)
    advance(len(files), len(files))
