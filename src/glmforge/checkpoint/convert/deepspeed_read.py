"""DeepSpeed's checkpoints as named tensors: ZeRO's shards of any stage and number of ranks, and universal ones.

    latest                                              names the directory, `global_step120`
    global_step120/
      [zero_pp_rank_0_]mp_rank_00_model_states.pt       names, shapes, buffers, position (the prefix: stage 3)
      [bf16_]zero_pp_rank_<r>_mp_rank_00_optim_states.pt
                                                        rank r's part: fp32 weights and Adam's moments, flat by group
    global_step120_universal/                           what `ds_to_universal` makes of it
      zero/<parameter>/fp32.pt, exp_avg.pt, exp_avg_sq.pt

Stages 1 and 2 lay a group's parameters end to end and cut the whole into as many parts as there are ranks; each shard
says which elements of which parameter it has. Stage 3 cuts each parameter, padded to equal parts, and lays a rank's
parts of a group end to end. As DeepSpeed 0.19.8 writes them; its own converters unpickle.

Not read: pipeline parallelism, experts of DeepSpeed's own layers, frozen parameters, optimizers offloaded to NVMe
(`offloaded_tensors`). Tensor parallelism is, once `ds_to_universal` has made a universal checkpoint of it.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glmforge.checkpoint.format.inert_pickle import InertPickleError, Made, Pairs
from glmforge.checkpoint.format.shard_metadata import numbers_of
from glmforge.checkpoint.format.torch_file import StoredTensor, TorchFile, count_of, field, fields_of, reading
from glmforge.checkpoint.format.wording import list_some
from glmforge.config.parameters import Shape
from glmforge.errors import CheckpointError
from glmforge.files import read_text, shown

STATES = ("fp32", "exp_avg", "exp_avg_sq")
MODEL_FILES = ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt")

_SHARD = re.compile(r"(bf16_|fp16_)?zero_pp_rank_(?P<rank>\d{1,6})_mp_rank_00_optim_states\.pt")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,250}", re.ASCII)

Group = dict[str, Shape]
"""A group of the optimizer: its parameters in the order in which they lie there."""


class DeepSpeedCheckpoint:
    """A checkpoint that was opened: of all files only the headers. Raises `CheckpointError`, which names the file.

    Attributes:
        path: the directory of the step.
        steps, samples: optimizer steps and sequences so far.
        shapes: of the trained parameters, by the names of the module that was trained.
        buffers: of that module.
    """

    def __init__(self, source: Path) -> None:
        self.path = _directory(source)
        self._parts: dict[tuple[str, str], list[tuple[StoredTensor, int | None, int]]] = defaultdict(list)
        file = next((self.path / name for name in MODEL_FILES if (self.path / name).exists()), None)
        if file is None:
            raise CheckpointError(f"{shown(self.path)}: has no {MODEL_FILES[0]}; is it a DeepSpeed checkpoint?")
        is_universal = (self.path / "zero").is_dir()
        with reading(file) as stream:
            model = TorchFile(file, stream)
            self.steps, self.samples = (count_of(field(model.root, f"global_{what}")) for what in ("steps", "samples"))
            module, names = fields_of(field(model.root, "module")), field(model.root, "buffer_names")
            self.buffers = {_name(name): model.tensor(module[name]) for name in names if name in module}
            groups = _groups(model.root, is_universal)
        self.shapes = {name: shape for group in groups for name, shape in group.items()}
        if is_universal:
            self._find_universal()
        else:
            for rank, path in enumerate(shards := _shards(self.path)):
                self._find_shard(path, rank, len(shards), groups)

    def read(self, state: str, name: str) -> Tensor:
        """All of a parameter's fp32 weights ("fp32") or of a moment of it."""
        parts, shape = self._parts.get((state, name), []), self.shapes[name]
        if math.prod(shape) != (have := sum(number for _, _, number in parts)):
            raise CheckpointError(
                f"{self.path}: has {have:,} of {math.prod(shape):,} elements of {state} of {name}; its files are not "
                "of one save, or it had not stepped"
            )
        return torch.cat([tensor.read(start, number).flatten() for tensor, start, number in parts]).reshape(shape)

    def _find_universal(self) -> None:
        for directory in sorted((self.path / "zero").iterdir()):
            # Where the shapes are known, others are copies: tied weights, in the model's own dtype.
            if directory.name in self.buffers or (self.shapes and directory.name not in self.shapes):
                continue
            for path in (path for state in STATES if (path := directory / f"{state}.pt").exists()):
                with reading(path) as stream:
                    file = TorchFile(path, stream)
                    # From stages 1 and 2 a dict with the tensor in its shape, from stage 3 all elements in a row.
                    tensor = file.tensor(field(file.root, "param") if type(file.root) is Pairs else file.root)
                self.shapes.setdefault(directory.name, tensor.part.shape)
                self._parts[path.stem, directory.name].append((tensor, None, math.prod(tensor.part.shape)))

    def _find_shard(self, path: Path, rank: int, num_ranks: int, groups: list[Group]) -> None:
        with reading(path) as stream:
            file = TorchFile(path, stream)
            optim = field(file.root, "optimizer_state_dict")
            counts, is_stage_3 = field(optim, "partition_count"), "fp32_flat_groups" in fields_of(optim)
            if num_ranks not in (counts if type(counts) is list else [counts]):
                raise InertPickleError(f"it is of {shown(str(counts))} ranks, but there are files of {num_ranks}")
            base = field(optim, "optimizer_state_dict" if is_stage_3 else "base_optimizer_state")
            states = base if type(base) is list else field(base, "state")
            flat = field(optim, "fp32_flat_groups" if is_stage_3 else "single_partition_of_fp32_groups")
            for index, group in enumerate(groups):
                tensors = {"fp32": file.tensor(field(flat, index))}
                if states:
                    tensors |= {state: file.tensor(field(states, index, state)) for state in STATES[1:]}
                mapping = () if is_stage_3 else field(optim, "param_slice_mappings", index)
                for name, start, number in _cut(group, rank, num_ranks) if is_stage_3 else _said(mapping):
                    for state, tensor in tensors.items():
                        self._parts[state, name].append((tensor, start, number))


def _directory(source: Path) -> Path:
    """The step's directory: `source`, or the one that its `latest` names."""
    latest = next((source / name for name in ("latest", "latest_universal") if (source / name).exists()), None)
    if latest is None:
        return source
    tag = read_text(latest, error=CheckpointError, max_bytes=1 << 10).strip()
    if not _NAME.fullmatch(tag) or not (source / tag).is_dir():
        raise CheckpointError(f"{shown(latest)}: names {shown(tag)}, which is not a directory beside it")
    return source / tag


def _groups(model: Any, is_universal: bool) -> list[Group]:
    fields = fields_of(model)
    if (layout := fields.get("checkpoint_parallel_dimensions")) and field(layout, "pp_degree") != 1:
        raise InertPickleError("pipeline parallelism")
    if fields.get("frozen_param_shapes") and fields_of(fields["frozen_param_shapes"]):
        raise InertPickleError("frozen parameters")
    if fields.get("mp_world_size", 1) != 1:
        if is_universal:  # the shapes are those of parts, and what is stored is whole
            return []
        raise InertPickleError("tensor-parallel shards, for DeepSpeed's ds_to_universal to convert first")
    if type(fields.get("param_shapes")) is not list:
        raise InertPickleError("not of ZeRO stage 1, 2 or 3")
    return [{_name(name): _shape(size) for name, size in fields_of(group).items()} for group in fields["param_shapes"]]


def _name(name: Any) -> str:
    if type(name) is not str or not _NAME.fullmatch(name):
        raise InertPickleError(f"{shown(str(name))} is not a parameter's name")
    return name


def _shape(size: Any) -> Shape:
    return numbers_of(size.args[0] if type(size) is Made and size.args else size)


def _shards(directory: Path) -> list[Path]:
    """The ranks' files, in their order."""
    found = {int(match["rank"]): path for path in directory.iterdir() if (match := _SHARD.fullmatch(path.name))}
    if missing := [str(rank) for rank in range(max(found, default=0) + 1) if rank not in found]:
        raise CheckpointError(
            f"{shown(directory)}: *_optim_states.pt of rank {list_some(missing)} is missing; restore it"
        )
    return [found[rank] for rank in sorted(found)]


def _cut(group: Group, rank: int, num_ranks: int) -> Iterator[tuple[str, int, int]]:
    """Stage 3: name, first element in the rank's flat tensor and number of elements without padding."""
    start = 0
    for name, shape in group.items():
        part = -(-math.prod(shape) // num_ranks)
        yield name, start, max(0, min(part, math.prod(shape) - rank * part))
        start += part


def _said(mapping: Any) -> Iterator[tuple[str, int, int]]:
    """Stages 1 and 2: the same, as the shard says it."""
    for name, address in fields_of(mapping).items():
        yield _name(name), count_of(field(address, "start")), count_of(field(address, "numel"))
