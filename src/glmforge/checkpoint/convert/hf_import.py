"""Read a Hugging Face checkpoint whole: published ones, this project's exports and what transformers saves.

Tensors are read one by one, experts packed as they come, so no more than one packed tensor is in memory beyond what
the caller keeps. What the files must hold, and the freedoms they have, is described in `hf_files`; one more is seen
only while reading: MTP layers may repeat the embedding and the head (GLM-4.5), which must then equal the main ones.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import torch
from torch import Tensor

from glmforge.checkpoint.convert.hf_files import HfFiles, Shards, check_types, different_duplicate, open_hf
from glmforge.checkpoint.convert.hf_names import Piece, duplicates
from glmforge.checkpoint.format.boxes import Box
from glmforge.config import ModelConfig
from glmforge.config.parameters import Shape, parameter_table


def import_hf(
    directory: Path, *, dtype: torch.dtype | None = None, with_mtp: bool = True
) -> tuple[ModelConfig, Iterator[tuple[str, Tensor]]]:
    """The configuration, and lazily the `(name, tensor)` of all its `parameter_table`, in that order.

    Tensors are CPU tensors of the stored type, or of `dtype`; correction biases always fp32. `with_mtp=False`
    leaves the MTP layers out of both. Raises `CheckpointError` (`ConfigError` for `config.json`) if a file is
    missing or damaged or the tensors are not those the configuration promises, and, while tensors are read,
    if a repeated embedding or head differs from the main one.
    """
    files = open_hf(directory)
    config = files.config
    if not with_mtp:
        config = config.model_copy(update={"num_nextn_predict_layers": 0})
    return config, _read(config, files, dtype)


class HfTensors(Mapping[str, Tensor]):
    """The parameters and router biases of a Hugging Face directory by the names of the table, each read when it is
    requested, of the stored type. Repeated embeddings and heads are not compared. `config` stands in for `config.json`.

    Raises `CheckpointError` as `import_hf` does; `ConfigError` for `config.json`.
    """

    def __init__(self, directory: Path, config: ModelConfig | None = None) -> None:
        self._files = open_hf(directory, config=config)
        self._table = parameter_table(self._files.config)

    def __getitem__(self, name: str) -> Tensor:
        return _assemble(self._files.shards, self._files.plan[name], self._table[name].shape)

    def read_piece(self, piece: Piece) -> Tensor:
        """One tensor as published, of the stored type: of packed experts only the bytes of its expert are read."""
        stored = self._files.plan[piece.name]
        if stored[0].index:
            return self._files.shards.read(piece.disk_name)
        if not piece.index:
            return self._files.shards.read(piece.name)
        index = piece.box.within(Box.whole(self._table[piece.name].shape))
        return self._files.shards.read_part(piece.name, index).reshape(piece.shape)

    @property
    def config(self) -> ModelConfig:
        """The model that the files hold."""
        return self._files.config

    def dtype(self, name: str) -> torch.dtype:
        """Type of a parameter, without reading it."""
        return self._files.shards.dtype(self._files.plan[name][0].disk_name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


def hf_model_config(directory: Path) -> ModelConfig:
    """The model that the files of `directory` hold: `config.json`, without MTP layers if the files have none."""
    return open_hf(directory, thorough=False).config


def _read(config: ModelConfig, files: HfFiles, dtype: torch.dtype | None) -> Iterator[tuple[str, Tensor]]:
    copies_of = duplicates(config)
    with closing(files.shards) as shards:
        for name, row in parameter_table(config).items():
            pieces = files.plan[name]
            tensor = _assemble(shards, pieces, row.shape)
            for copy in (copy for copy, original in copies_of.items() if original == name):
                _check_duplicate(shards, copy, name, tensor)
            yield name, tensor.to(pieces[0].dtype(dtype or tensor.dtype))


def _assemble(shards: Shards, pieces: Sequence[Piece], shape: Shape) -> Tensor:
    if not pieces[0].index:
        return shards.read(pieces[0].disk_name)
    check_types(shards, pieces)
    packed = torch.empty(shape, dtype=shards.dtype(pieces[0].disk_name))
    for piece in pieces:
        packed[piece.index] = shards.read(piece.disk_name)
    return packed


def _check_duplicate(shards: Shards, copy: str, name: str, tensor: Tensor) -> None:
    if copy in shards.names() and not torch.equal(shards.read(copy), tensor):
        raise different_duplicate(shards, copy, name)
