"""Write a Hugging Face checkpoint: safetensors shards, their index, the configurations, the tokenizer.

The shards are written one by one, so no more than one shard and one tensor of the model are in memory; `state` may
be a mapping that reads its tensors when asked (`StoredTensors`). What is written is read again, every tensor bit by bit
and the directory by its own configuration; then it appears under its name. For a model that is spread over ranks there
is `export_hf_sharded`.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from glmforge.checkpoint.convert.hf_directory import ExportPlan, check_files, check_names, plan_export, write_shard
from glmforge.checkpoint.convert.hf_files import open_hf
from glmforge.checkpoint.convert.hf_import import HfTensors
from glmforge.checkpoint.convert.hf_names import Piece
from glmforge.checkpoint.format.store import make_partial, publish
from glmforge.config.model import ModelConfig
from glmforge.errors import CheckpointError
from glmforge.runtime.os_errors import describe_os_error


def export_hf(
    state: Mapping[str, Tensor],
    config: ModelConfig,
    out_dir: Path,
    *,
    dtype: torch.dtype = torch.bfloat16,
    with_mtp: bool = True,
    duplicate_mtp_head: bool = False,
    tokenizer_dir: Path | None = None,
    max_shard_bytes: int = 5_000_000_000,
    overwrite: bool = False,
) -> None:
    """Write `state`, plain tensors with names and shapes of `parameter_table(config)`, into `out_dir`.

    `with_mtp=False` leaves the MTP layers out and says so in the configuration. `duplicate_mtp_head=True`
    repeats embedding and head in each MTP layer, as GLM-4.5 does and GLM-4.6 does not. `overwrite` replaces
    an earlier export, and nothing else. With a tokenizer, generation stops on its end tokens, regardless of `config`.
    Raises `CheckpointError` if the tensors do not fit `config`, the
    tokenizer does not fit the vocabulary, `out_dir` is taken, or the disk refuses.
    """
    check_names(state, config)
    config = check_files(out_dir, config, overwrite=overwrite, tokenizer_dir=tokenizer_dir)
    plan = plan_export(
        config,
        dtype=dtype,
        with_mtp=with_mtp,
        duplicate_mtp_head=duplicate_mtp_head,
        max_shard_bytes=max_shard_bytes,
    )
    try:
        partial = make_partial(out_dir)
        try:
            _write_shards(partial, state, plan)
            plan.write_rest(partial, tokenizer_dir)
            open_hf(partial)
            publish(partial, out_dir)
        finally:
            shutil.rmtree(partial, ignore_errors=True)  # gone already if it was published
    except OSError as error:
        raise CheckpointError(f"{out_dir} was not written: {describe_os_error(error)}") from error


def _write_shards(directory: Path, state: Mapping[str, Tensor], plan: ExportPlan) -> None:
    source = PieceSource(state)
    for number, shard in enumerate(plan.shards):
        # Copies, because safetensors refuses tensors that share memory, and so that the packed one is freed.
        tensors = {
            piece.disk_name: source.take(piece).to(piece.dtype(plan.dtype), copy=True).contiguous() for piece in shard
        }
        write_shard(directory / plan.file(number), tensors)


class PieceSource:
    """Takes pieces out of tensors, holding on to the last tensor: a layer's experts come from one. Of a Hugging Face
    directory each piece is read by itself."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self._state = state
        self._name = ""
        self._tensor = torch.empty(0)

    def take(self, piece: Piece) -> Tensor:
        """The tensor, in the type that it has. Raises `CheckpointError` if its shape is not that of the piece."""
        if isinstance(self._state, HfTensors):
            return self._state.read_piece(piece)
        if piece.name != self._name:
            self._tensor = self._state[piece.name].detach()
            self._name = piece.name
        part = self._tensor[piece.index]
        if part.shape != piece.shape:
            raise CheckpointError(
                f"the model to export does not match its configuration: {piece.disk_name} is {list(part.shape)}, "
                f"expected {list(piece.shape)}"
            )
        return part
