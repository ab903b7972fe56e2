"""Read a megatron-core distributed checkpoint (`torch_dist`) without Megatron, and without running anything in it.

Its tensors lie as DCP stores them, so our own reader reads them, a layer at a time. `common.pt` is a pickle of settings,
read as data, and its `args` are compared with the model. Optimizer and random states stay behind.
"""

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from glmforge.checkpoint.convert.megatron_arguments import check_arguments
from glmforge.checkpoint.convert.megatron_names import WEIGHTS, Link, fused_shape, links, split
from glmforge.checkpoint.format.inert_pickle import AnyName, InertPickleError, Made, Pairs, parse
from glmforge.checkpoint.format.read import CachingReader, stored_tensors
from glmforge.checkpoint.format.wording import list_some
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import parameter_table
from glmforge.errors import CheckpointError
from glmforge.files import open_regular, read_json, read_text, shown

TRACKER, COMMON, SETTINGS = "latest_checkpointed_iteration.txt", "common.pt", "metadata.json"

_LAYERS = "decoder.layers."
_MAX_COMMON_BYTES = 1 << 26


class MegatronTensors(Mapping[str, Tensor]):
    """The parameters and router biases of a checkpoint by the names of our table, each read when it is requested.

    `path` is a checkpoint (`iter_0000100`), or what Megatron saved to, whose newest one is taken. `config` is the model;
    a checkpoint without MTP layers is one without them. Raises `CheckpointError` if files are missing or damaged, or the
    arguments and tensors are not those of the model.
    """

    def __init__(self, path: Path, config: ModelConfig) -> None:
        self.path = _newest(path)
        self._reader = CachingReader(self.path, lambda name: name.startswith(WEIGHTS) and "._extra_state" not in name)
        self._stored = stored_tensors(self._reader.read_metadata())
        if not any(name.startswith("mtp.") for name in self._stored):
            config = config.model_copy(update={"num_nextn_predict_layers": 0})
        check_arguments(_arguments(self.path / COMMON), config, shown(self.path / COMMON))
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


def _newest(path: Path) -> Path:
    if (path / TRACKER).is_file():
        newest = read_text(path / TRACKER, error=CheckpointError).strip()[:20]
        path /= f"iter_{int(newest):07d}" if newest.isdecimal() else "release"
    backend = read_json(path / SETTINGS, dict, error=CheckpointError).get("sharded_backend")
    if backend != "torch_dist":
        raise CheckpointError(
            f"{shown(path)}: is of format {shown(str(backend))}; convert it with Megatron's --ckpt-convert-format "
            "torch_dist"
        )
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
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise CheckpointError(f"{shown(file)}: not Megatron's common.pt ({error}); no code from it was run") from error
