"""Write a Hugging Face checkpoint of a model that is spread over ranks, all ranks writing at once.

The files are those of `export_hf`, byte for byte. They are written in rounds: in each, every rank puts together one
shard out of the parts that it and the others hold, and writes it. Parts are sent in batches, one all-to-all for a batch
of every writer, already in the type of the file; of a part that several ranks hold, one sends it. All that is under
way at a time is about 1 GiB over all ranks, or one tensor for each writer where that is more. So a rank holds one
shard and some of that; no tensor is assembled anywhere but in the shard that it goes to.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from glmforge.checkpoint.collective import rank, run_each, run_on_rank_zero, world_size
from glmforge.checkpoint.convert.hf_directory import (
    ExportPlan,
    check_files,
    check_names,
    num_bytes,
    plan_export,
    write_shard,
)
from glmforge.checkpoint.convert.hf_files import open_hf
from glmforge.checkpoint.convert.hf_names import Piece
from glmforge.checkpoint.convert.parts import Parts
from glmforge.checkpoint.fit import TensorSpec, specs_of_all_ranks
from glmforge.checkpoint.format.boxes import Box
from glmforge.checkpoint.format.store import make_partial, publish
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import parameter_table
from glmforge.errors import CheckpointError

_EXCHANGE_BYTES = 1 << 30  # of all writers together


def export_hf_sharded(
    tensors: Mapping[str, Tensor],
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
    """Write the model of which `tensors` are this rank's part into `out_dir`. All ranks call this together.

    Names are those of `parameter_table(config)`, router biases among them; tensors are plain, then equal on all ranks
    that have them, or DTensors of those global shapes. Every rank must see `out_dir` under this path. The other
    arguments are those of `export_hf`. Raises `CheckpointError`, on all ranks the same, if the ranks together do not
    hold the model of `config`, the tokenizer does not fit, `out_dir` is taken, or the disk refuses any rank.
    """
    _check_specs(specs_of_all_ranks(tensors), config)
    exported = run_on_rank_zero(lambda: check_files(out_dir, config, overwrite=overwrite, tokenizer_dir=tokenizer_dir))
    plan = plan_export(
        exported,
        dtype=dtype,
        with_mtp=with_mtp,
        duplicate_mtp_head=duplicate_mtp_head,
        max_shard_bytes=max_shard_bytes,
    )
    parts = Parts.gather(tensors, parameter_table(config).shapes())
    partial: Path | None = None
    try:
        partial = run_on_rank_zero(lambda: make_partial(out_dir))
        _write_shards(partial, plan, parts)
        run_on_rank_zero(lambda: _finish(partial, out_dir, plan, tokenizer_dir))
    except CheckpointError as error:
        if partial is not None:
            run_on_rank_zero(lambda: shutil.rmtree(partial, ignore_errors=True))
        raise CheckpointError(f"{out_dir} was not written: {error}") from error


def _check_specs(specs: Mapping[str, TensorSpec], config: ModelConfig) -> None:
    check_names(specs, config)
    for name, shape in parameter_table(config).shapes().items():
        if specs[name].shape != shape:
            raise CheckpointError(
                f"the model to export does not match its configuration: {name} is {list(specs[name].shape)}, "
                f"expected {list(shape)}"
            )


def _write_shards(directory: Path, plan: ExportPlan, parts: Parts) -> None:
    for first in range(0, len(plan.shards), world_size()):
        _write_round(directory, plan, parts, first)


def _write_round(directory: Path, plan: ExportPlan, parts: Parts, first: int) -> None:
    """Rank r writes shard `first` + r, where there is one."""
    tensors = _collect(plan.shards[first : first + world_size()], plan.dtype, parts)

    def write() -> None:
        if tensors:
            write_shard(directory / plan.file(first + rank()), tensors)

    run_each(write)


def _finish(partial: Path, out_dir: Path, plan: ExportPlan, tokenizer_dir: Path | None) -> None:
    for number in range(len(plan.shards)):
        if not (partial / plan.file(number)).exists():
            raise CheckpointError(
                f"{partial / plan.file(number)} is not visible from rank 0; choose a directory on storage that all "
                "nodes share"
            )
    plan.write_rest(partial, tokenizer_dir)
    open_hf(partial)
    publish(partial, out_dir)


def _collect(shards: Sequence[Sequence[Piece]], dtype: torch.dtype, parts: Parts) -> dict[str, Tensor]:
    """The tensors of this rank's shard of the round `shards`; shard i is that of rank i."""
    of_writers = [list(batches(shard, dtype, _EXCHANGE_BYTES // len(shards))) for shard in shards]
    collected: dict[str, Tensor] = {}
    for number in range(max(map(len, of_writers))):
        wanted = [of_writer[number] if number < len(of_writer) else [] for of_writer in of_writers]
        collected |= exchange(wanted, dtype, parts)
    return collected


def batches(pieces: Sequence[Piece], dtype: torch.dtype, max_bytes: int) -> Iterator[list[Piece]]:
    """The same in order, in lists of at most so many bytes, or one tensor."""
    batch: list[Piece] = []
    filled = 0
    for piece in pieces:
        if batch and filled + num_bytes(piece, dtype) > max_bytes:
            yield batch
            batch, filled = [], 0
        batch.append(piece)
        filled += num_bytes(piece, dtype)
    yield batch


def exchange(wanted: Sequence[Sequence[Piece]], dtype: torch.dtype, parts: Parts) -> dict[str, Tensor]:
    """The tensors `wanted[rank()]`, assembled from all ranks' parts; this rank's go to the ranks that need them.

    Collective. `wanted` is the same on all ranks, and may have fewer lists than there are ranks.
    """
    outgoing: list[list[Tensor]] = [[] for _ in range(world_size())]
    incoming = [0] * world_size()
    for writer, pieces in enumerate(wanted):
        for piece, common, source in _transfers(pieces, writer, parts):
            if source == rank():
                outgoing[writer].append(_bytes_of(parts.read(piece.name, common), piece.dtype(dtype)))
            if writer == rank():
                incoming[source] += common.num_elements * piece.dtype(dtype).itemsize
    received = _all_to_all(outgoing, incoming)
    return _put_together(wanted[rank()], received, dtype, parts) if rank() < len(wanted) else {}


def _put_together(
    pieces: Sequence[Piece], received: Sequence[Tensor], dtype: torch.dtype, parts: Parts
) -> dict[str, Tensor]:
    """The tensors `pieces` out of the bytes that this rank has received from each rank."""
    tensors = {piece.disk_name: torch.empty(piece.shape, dtype=piece.dtype(dtype)) for piece in pieces}
    taken = [0] * world_size()
    for piece, common, source in _transfers(pieces, rank(), parts):
        target = tensors[piece.disk_name][piece.part(common)]
        size = target.numel() * target.element_size()
        part = received[source][taken[source] : taken[source] + size]
        # A copy, because in the bytes an fp32 bias may lie between bf16 matrices, at no multiple of its size.
        target.copy_(part.clone().view(target.dtype).view(target.shape))
        taken[source] += size
    return tensors


def _transfers(pieces: Sequence[Piece], writer: int, parts: Parts) -> Iterator[tuple[Piece, Box, int]]:
    """What has to come from where, as (tensor on disk, part of the one in memory, rank), in an order all agree on."""
    for piece in pieces:
        for box, holders in parts.holders(piece.name).items():
            common = box.overlap(piece.box)
            if common is not None:
                yield piece, common, writer if writer in holders else holders[writer % len(holders)]


def _bytes_of(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype).reshape(-1).view(torch.uint8)


def _all_to_all(outgoing: Sequence[Sequence[Tensor]], incoming: Sequence[int]) -> list[Tensor]:
    """Send the bytes `outgoing[r]` to rank r; what came from each rank, `incoming[r]` bytes, on the CPU."""
    device = torch.device("cuda" if dist.is_initialized() and dist.get_backend() == "nccl" else "cpu")
    chunks = [torch.empty(0, dtype=torch.uint8), *(chunk for to_rank in outgoing for chunk in to_rank)]
    sent = torch.cat([chunk.to(device) for chunk in chunks])
    if world_size() == 1:
        return [sent.cpu()]
    received = torch.empty(sum(incoming), dtype=torch.uint8, device=device)
    sizes = [sum(chunk.numel() for chunk in to_rank) for to_rank in outgoing]
    dist.all_to_all_single(received, sent, list(incoming), sizes)
    return list(torch.split(received.cpu(), list(incoming)))
