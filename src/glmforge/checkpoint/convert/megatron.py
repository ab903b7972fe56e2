"""megatron-core distributed checkpoints (`torch_dist`), read and written without Megatron; nothing in them is run.

Their tensors lie as DCP stores them, so our own reader reads them, a layer at a time. `common.pt` is a pickle of
settings, read as data; its `args` are compared with the model. Optimizer and random states stay behind. What is written
has whole tensors, layer by layer, which Megatron cuts for any layout; Transformer Engine's own state is not written.
"""

import json
import struct
import zipfile
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glmforge.checkpoint.convert.hf_directory import check_names
from glmforge.checkpoint.convert.megatron_arguments import arguments_of, check_arguments
from glmforge.checkpoint.convert.megatron_names import WEIGHTS, Link, fuse, fused_shape, links, split
from glmforge.checkpoint.fit import TensorSpec
from glmforge.checkpoint.format.inert_pickle import AnyName, InertPickleError, Made, Pairs, parse
from glmforge.checkpoint.format.read import CachingReader, stored_tensors
from glmforge.checkpoint.format.shards import write_shards
from glmforge.checkpoint.format.store import new_directory
from glmforge.checkpoint.format.wording import list_some
from glmforge.checkpoint.reset import LazyPlanner
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import parameter_table
from glmforge.errors import CheckpointError
from glmforge.files import open_regular, read_json, read_text, shown
from glmforge.runtime.durable import fsync_directory, fsync_file, write_durably

_TRACKER, _COMMON, _SETTINGS = "latest_checkpointed_iteration.txt", "common.pt", "metadata.json"
_BACKENDS = {"sharded_backend": "torch_dist", "common_backend": "torch"}
_CONTENT = {"non_homogeneous_layers": True, "singleton_local_shards": False}  # each layer has names of its own
_LAYERS = "decoder.layers."
_MAX_COMMON_BYTES = 1 << 26
_FILE_BYTES = 1 << 30


class MegatronTensors(Mapping[str, Tensor]):
    """The parameters and router biases of a checkpoint by the names of our table, each read when it is requested.

    `path` is a checkpoint (`iter_0000100`), or what Megatron saved to, whose newest one is taken. `config` is the
    model; a checkpoint without MTP layers is one without them. Raises `CheckpointError` if files are missing or
    damaged, or the arguments and tensors are not those of the model.
    """

    def __init__(self, path: Path, config: ModelConfig) -> None:
        self.path = _newest(path)
        self._reader = CachingReader(self.path, lambda name: name.startswith(WEIGHTS) and "._extra_state" not in name)
        self._stored = stored_tensors(self._reader.read_metadata())
        if not any(name.startswith("mtp.") for name in self._stored):
            config = config.model_copy(update={"num_nextn_predict_layers": 0})
        check_arguments(_arguments(self.path / _COMMON), config, shown(self.path / _COMMON))
        self.config, self._shapes = config, parameter_table(config).shapes()
        self._links = {name: link for link in links(config) for name in link.names}
        self._last: tuple[Link | None, list[Tensor]] = (None, [])  # several of ours lie in one of Megatron's
        self._check_tensors()

    def __getitem__(self, name: str) -> Tensor:
        link = self._links[name]
        if self._last[0] != link:
            whole = self._reader.read(*self._place(link))
            self._last = link, split(link, whole, [self._shapes[n] for n in link.names], self.config)
        return self._last[1][link.names.index(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def _check_tensors(self) -> None:
        used: set[str | None] = set()
        for link in self._links.values():
            key, row = self._place(link)
            used |= {key, link.other_key}
            shape, expected = tuple(self._stored[key].size), fused_shape([self._shapes[n] for n in link.names])
            shape = shape if row is None else shape[1:]
            padded = link.form == "vocabulary" and shape[1:] == expected[1:] and shape[0] > expected[0]
            if shape != expected and not padded:
                raise CheckpointError(f"{self.path}: {key} is {list(shape)}, but the model implies {list(expected)}")
        if unknown := sorted(self._stored.keys() - used):
            raise CheckpointError(f"{self.path}: has {list_some([shown(n) for n in unknown])}, which the model lacks")

    def _place(self, link: Link) -> tuple[str, int | None]:
        """The name in the checkpoint; where it stacks the layers of its decoder, with the row of this one."""
        for key in (link.key, link.other_key or link.key):
            if key in self._stored:
                return key, None
            layer, _, rest = key.removeprefix(_LAYERS).partition(".")
            stacked = self._stored.get(_LAYERS + rest)
            if stacked is not None and stacked.size[:1] == (self.config.num_hidden_layers,):
                return _LAYERS + rest, int(layer)
        raise CheckpointError(f"{self.path}: lacks {link.key}, which the model needs")


def export_megatron(
    weights: Mapping[str, Tensor], config: ModelConfig, out_dir: Path, *, dtype: torch.dtype, vocab_multiple: int = 128
) -> None:
    """Write `weights`, of the names and shapes of `parameter_table(config)`, as Megatron's `release` under `out_dir`.

    They are read tensor by tensor; router biases stay fp32. The vocabulary is padded with zeros to a multiple, which
    is Megatron's `make_vocab_size_divisible_by` times its tensor parallelism. Raises `CheckpointError`: `out_dir`
    exists, the weights do not fit, or the disk refuses.
    """
    check_names(weights, config)
    shapes = parameter_table(config).shapes()
    rows = -(-config.vocab_size // vocab_multiple) * vocab_multiple
    by_key = {key: link for link in links(config) for key in (link.key, link.other_key) if key is not None}
    specs: dict[str, TensorSpec] = {}
    for key, link in by_key.items():
        shape = fused_shape([shapes[name] for name in link.names])
        shape = (rows, *shape[1:]) if link.form == "vocabulary" else shape
        specs[key] = TensorSpec(shape, torch.float32 if key.endswith("expert_bias") else dtype)

    def make(key: str) -> Tensor:
        fused = fuse(by_key[key], [weights[name].detach() for name in by_key[key].names], config)
        padding = fused.new_zeros(specs[key].shape[0] - len(fused), *fused.shape[1:])
        return torch.cat([fused, padding]).to(specs[key].dtype)

    with new_directory(out_dir) as partial:
        directory = partial / "release"
        directory.mkdir()
        plan = {name: torch.empty(spec.shape, dtype=spec.dtype, device="meta") for name, spec in specs.items()}
        write_shards(directory, plan, LazyPlanner(specs, make, lambda done, total: None), file_bytes=_FILE_BYTES)
        arguments = Namespace(**arguments_of(config, rows))
        common = {"args": arguments, "checkpoint_version": 3.0, "iteration": 0, "content_metadata": _CONTENT}
        torch.save(common, directory / _COMMON)
        fsync_file(directory / _COMMON)
        write_durably(directory / _SETTINGS, json.dumps(_BACKENDS | {f"{name}_version": 1 for name in _BACKENDS}))
        fsync_directory(directory)
        write_durably(partial / _TRACKER, "release")
        MegatronTensors(directory, config)


def _newest(path: Path) -> Path:
    if (path / _TRACKER).is_file():
        newest = read_text(path / _TRACKER, error=CheckpointError).strip()[:20]
        path /= f"iter_{int(newest):07d}" if newest.isdecimal() else "release"
    backend = read_json(path / _SETTINGS, dict, error=CheckpointError).get("sharded_backend")
    if backend != "torch_dist":
        raise CheckpointError(f"{shown(path)}: {shown(str(backend))}: convert it with --ckpt-convert-format torch_dist")
    return path


def _arguments(file: Path) -> dict[str, Any]:
    try:
        with open_regular(file) as stream, zipfile.ZipFile(stream) as archive:
            (member,) = (info for info in archive.infolist() if info.filename.endswith("/data.pkl"))
            if member.compress_type != zipfile.ZIP_STORED or member.file_size > _MAX_COMMON_BYTES:
                raise InertPickleError("its settings are packed or too large")
            root = parse(archive.read(member), AnyName())
        args = root.fields().get("args") if isinstance(root, Pairs) else None
        return args.state.fields() if isinstance(args, Made) and isinstance(args.state, Pairs) else {}
    except (OSError, ValueError, zipfile.BadZipFile, RuntimeError, struct.error, EOFError, OverflowError) as error:
        raise CheckpointError(f"{shown(file)}: not Megatron's common.pt ({error}); no code from it was run") from error
