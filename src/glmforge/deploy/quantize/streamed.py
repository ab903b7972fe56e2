"""Quantise without calibration, one matrix in memory at a time, at any size.

The directory is a published layout (see `rounding`), with a `quantization_config` in config.json. Linear maps of
attention, dense layers, experts and shared experts are rounded. Embedding, head, router, norms and MTP layers keep
their precision: they are small, and engines ask for the router and the head in full.

Everything is read again and compared with the source before the directory gets its name: what is kept bit by bit, what
is rounded within the error of its code.
"""

import json
import math
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from glmforge.checkpoint.convert import PieceSource
from glmforge.checkpoint.convert.hf_directory import ExportPlan, check_files, check_names, plan_export
from glmforge.checkpoint.convert.hf_names import INDEX_FILE, Piece, mtp_prefixes
from glmforge.checkpoint.format.safetensors_header import QUANTISED_TYPES, read_header
from glmforge.checkpoint.format.safetensors_read import TensorFile
from glmforge.checkpoint.format.safetensors_stream import Spec, write_safetensors
from glmforge.checkpoint.format.store import new_directory
from glmforge.config.model import ModelConfig
from glmforge.deploy.export import Source
from glmforge.deploy.quantize.rounding import Rounding
from glmforge.errors import CheckpointError
from glmforge.runtime.durable import write_durably

_SHARD_BYTES = 5_000_000_000


class Quantised(NamedTuple):
    """What was written: matrices in 8 bits, and the linear modules that kept their precision: those of MTP layers, and
    those whose shape does not fit."""

    num_quantised: int
    kept: list[str]
    num_bytes: int


def quantize_streamed(
    source: Source, out_dir: Path, rounding: Rounding, *, tokenizer_dir: Path | None = None
) -> Quantised:
    """Write the model `source` to `out_dir` with its linear maps rounded to 8 bits, all else in bf16 (biases of the
    router fp32).

    Raises `CheckpointError` if `out_dir` exists, no matrix has a shape that can be rounded, the disk refuses, or what
    is read back is not what was to be written.
    """
    check_names(source.weights, source.model)
    tokenizer_dir = tokenizer_dir or source.tokenizer
    config = check_files(out_dir, source.model, overwrite=False, tokenizer_dir=tokenizer_dir)
    plan = whole_plan(config, _SHARD_BYTES)
    writer = _Writer(plan, rounding, PieceSource(source.weights))
    if not writer.num_quantised:
        raise CheckpointError(f"{source.path}: {rounding.fix}")
    with new_directory(out_dir) as directory:
        plan.write_rest(directory, tokenizer_dir)
        for number in range(len(plan.shards)):
            writer.write(directory, number)
        _, num_bytes = write_index(directory)
        file = directory / "config.json"
        content = json.loads(file.read_text()) | {"quantization_config": rounding.settings(writer.kept)}
        write_durably(file, json.dumps(content, indent=2, ensure_ascii=False))
    return Quantised(writer.num_quantised, writer.kept, num_bytes)


class _Writer:
    """Writes the shards of a plan, tensor by tensor, and compares each with its source."""

    def __init__(self, plan: ExportPlan, rounding: Rounding, source: PieceSource) -> None:
        self._plan, self._rounding, self._source = plan, rounding, source
        self._mtp = mtp_prefixes(plan.config)
        linear = [piece for shard in plan.shards for piece in shard if is_linear(piece.disk_name)]
        self.kept = [piece.disk_name.removesuffix(".weight") for piece in linear if not self._is_rounded(piece)]
        self.num_quantised = len(linear) - len(self.kept)

    def _is_rounded(self, piece: Piece) -> bool:
        of_mtp = bool(self._mtp) and piece.disk_name.startswith(self._mtp)
        return is_linear(piece.disk_name) and not of_mtp and self._rounding.fits(piece.shape)

    def _specs(self, piece: Piece) -> dict[str, Spec]:
        if not self._is_rounded(piece):
            return {piece.disk_name: (piece.dtype(self._plan.dtype), piece.shape)}
        stem = piece.disk_name.removesuffix("weight")
        return {stem + end: spec for end, spec in self._rounding.specs(piece.shape).items()}

    def _tensors(self, piece: Piece) -> dict[str, Tensor]:
        weight = self._source.take(piece).detach()
        if not self._is_rounded(piece):
            return {piece.disk_name: weight.to(piece.dtype(self._plan.dtype)).contiguous()}
        stem = piece.disk_name.removesuffix("weight")
        return {stem + end: tensor for end, tensor in self._rounding.encode(weight.float()).items()}

    def write(self, directory: Path, number: int) -> None:
        """The shard of this number; then each of its tensors is read again and compared."""
        specs: dict[str, Spec] = {}
        piece_of: dict[str, Piece] = {}
        for piece in self._plan.shards[number]:
            specs |= (own := self._specs(piece))
            piece_of[next(iter(own))] = piece
        made: dict[str, Tensor] = {}  # the tensors of the piece that is being written

        def make(name: str) -> Tensor:
            if name in piece_of:
                made.update(self._tensors(piece_of[name]))
            return made.pop(name)

        file = directory / self._plan.file(number)
        write_safetensors(file, specs, make)
        header = read_header(file, QUANTISED_TYPES)
        with closing(TensorFile(file)) as stored:
            for piece in self._plan.shards[number]:
                entries = {name: header[name] for name in self._specs(piece)}
                whole = {name: tuple(slice(0, size) for size in entry.shape) for name, entry in entries.items()}
                if not self._agrees(piece, {name: stored.read(entries[name], whole[name]) for name in entries}):
                    raise CheckpointError(f"{file}: {piece.disk_name} was read back different; check the disk")

    def _agrees(self, piece: Piece, found: dict[str, Tensor]) -> bool:
        if not self._is_rounded(piece):
            (expected,) = self._tensors(piece).values()
            return torch.equal(found[piece.disk_name].view(torch.uint8), expected.view(torch.uint8))
        weight = self._source.take(piece).detach().float()
        stored = {name.rpartition(".")[2]: tensor for name, tensor in found.items()}
        off = (self._rounding.decode(stored, piece.shape) - weight).abs()
        return bool((off <= self._rounding.error_bound(weight, stored)).all())


def whole_plan(config: ModelConfig, max_shard_bytes: int = 1 << 62) -> ExportPlan:
    """The tensors of a model on disk, MTP layers with it."""
    return plan_export(
        config, dtype=torch.bfloat16, with_mtp=True, duplicate_mtp_head=False, max_shard_bytes=max_shard_bytes
    )


def write_index(directory: Path) -> tuple[set[str], int]:
    """The index over all shards: the names in it, and bytes of all tensors."""
    headers = {file.name: read_header(file, QUANTISED_TYPES) for file in directory.glob("*.safetensors")}
    places = {name: file for file, header in headers.items() for name in header}
    tensors = [tensor for header in headers.values() for tensor in header.values()]
    total = sum(tensor.dtype.itemsize * math.prod(tensor.shape) for tensor in tensors)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    write_durably(directory / INDEX_FILE, json.dumps(index, indent=2))
    return set(places), total


def is_linear(disk_name: str) -> bool:
    """Whether a tensor is a linear map that is quantised: not embedding, head, router, norm or bias."""
    return disk_name.endswith("_proj.weight")
