"""Read a megatron-core distributed checkpoint (`torch_dist`) without Megatron, and without running anything in it.

Its tensors lie as DCP stores them, so our own reader reads them, a layer at a time. `common.pt` is a pickle of settings,
read as data: `args` give the model. The weights are taken; optimizer state and random states stay behind.
"""

import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from glmforge.checkpoint.convert.megatron_arguments import model_from_arguments
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


@dataclass(frozen=True)
class MegatronCheckpoint:
    """A checkpoint directory, the arguments that it holds (empty if none), its model, and the weights by our names."""

    path: Path
    arguments: Mapping[str, Any]
    model: ModelConfig
    weights: Mapping[str, Tensor]


def open_megatron(
    path: Path, *, model: ModelConfig | None = None, vocab_size: int | None = None
) -> MegatronCheckpoint:
    """Open a checkpoint (`iter_0000100`), or the newest of the directory that Megatron saved to; no tensor is read.

    `model` None takes that of the stored arguments, with `vocab_size` where they know the padded size only. Raises
    `CheckpointError` if files are missing or damaged, or the tensors are not those of the model.
    """
    if (path / TRACKER).is_file():
        newest = read_text(path / TRACKER, error=CheckpointError).strip()[:20]
        path /= f"iter_{int(newest):07d}" if newest.isdecimal() else "release"
    backend = read_json(path / SETTINGS, dict, error=CheckpointError).get("sharded_backend")
    if backend != "torch_dist":
        raise CheckpointError(
            f"{shown(path)}: is of format {shown(str(backend))}; convert it with Megatron's "
            "--ckpt-convert-format torch_dist"
        )
    arguments = _arguments(path / COMMON)
    model = model or model_from_arguments(arguments, shown(path / COMMON), vocab_size)
    return MegatronCheckpoint(path, arguments, model, MegatronTensors(path, model))


class MegatronTensors(Mapping[str, Tensor]):
    """The parameters and router biases of a checkpoint by the names of our table, read when requested.

    What was last read is kept, because several of ours lie in one of Megatron's. Raises `CheckpointError`.
    """

    def __init__(self, path: Path, config: ModelConfig) -> None:
        self._reader = CachingReader(path, lambda name: name.startswith(WEIGHTS) and "._extra_state" not in name)
        self._stored = stored_tensors(self._reader.read_metadata())
        self._config, self._shapes = config, parameter_table(config).shapes()
        self._links = {name: link for link in links(config) for name in link.names}
        self._last: tuple[Link | None, list[Tensor]] = (None, [])
        places = {link: self._place(link) for link in dict.fromkeys(self._links.values())}
        used = {key for link, (key, _) in places.items()} | {link.other_key for link in places}
        if unknown := sorted(self._stored.keys() - used):
            raise CheckpointError(f"{path}: has {list_some([shown(n) for n in unknown])}, which the model has not")
        for link, (key, row) in places.items():
            shape, expected = tuple(self._stored[key].size), fused_shape([self._shapes[n] for n in link.names])
            shape = shape if row is None else shape[1:]
            padded = link.form == "vocabulary" and shape[1:] == expected[1:] and shape[0] > expected[0]
            if shape != expected and not padded:
                raise CheckpointError(f"{path}: {key} is {list(shape)}, but the model implies {list(expected)}")

    def __getitem__(self, name: str) -> Tensor:
        link = self._links[name]
        if self._last[0] != link:
            whole = self._reader.read(*self._place(link))
            self._last = link, split(link, whole, [self._shapes[n] for n in link.names], self._config)
        return self._last[1][link.names.index(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def _place(self, link: Link) -> tuple[str, int | None]:
        """The name in the checkpoint; where it stacks the layers of its decoder, with the row of this one."""
        for key in (link.key, link.other_key or link.key):
            if key in self._stored:
                return key, None
            layer, _, rest = key.removeprefix(_LAYERS).partition(".")
            stacked = self._stored.get(_LAYERS + rest)
            if stacked is not None and stacked.size[:1] == (self._config.num_hidden_layers,):
                return _LAYERS + rest, int(layer)
        raise CheckpointError(f"{self._reader.path}: lacks {link.key}, which the model needs")


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
