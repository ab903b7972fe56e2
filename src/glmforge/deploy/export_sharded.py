"""A training checkpoint as a Hugging Face directory by several processes, none of which ever holds all of it.

    torchrun --nproc-per-node 8 -m glmforge export runs/glm out --sharded

Each rank reads its part of every tensor from the checkpoint, cut along the first dim: of packed experts whole ones. The
checkpoint's own layout does not matter. Then the ranks write the shards together (`export_hf_sharded`). A rank holds
its part of the model, in the stored type, and one shard of the export.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from glmforge.checkpoint.collective import rank, run_each, run_on_rank_zero
from glmforge.checkpoint.convert import export_hf_sharded
from glmforge.checkpoint.find import find_checkpoint
from glmforge.checkpoint.format.meta import read_meta, stored_config
from glmforge.checkpoint.format.read import CachingReader, read_into, stored_tensors
from glmforge.checkpoint.pretrained import MODEL_PREFIX, open_checkpoint, tokenizer_directory
from glmforge.config.layout import Layout
from glmforge.deploy.export import DTYPES, Exported
from glmforge.errors import CheckpointError, GlmforgeError
from glmforge.parallel.world import join_world
from glmforge.runtime.launch import LaunchEnvironment

_TIMEOUT_S = 1800


def export_run_sharded(
    source: Path,
    out_dir: Path,
    *,
    dtype: str = "bf16",
    with_mtp: bool = True,
    duplicate_mtp_head: bool = False,
    tokenizer_dir: Path | None = None,
    overwrite: bool = False,
) -> Exported | None:
    """As `export_run`, by all processes that torchrun started; what was exported, on rank 0 alone.

    Raises `GlmforgeError` outside torchrun, and `CheckpointError`, on all ranks, for a Hugging Face directory or a run
    with adapters, and as `export_hf_sharded` does.
    """
    size = LaunchEnvironment.read().world_size
    if size == 1:
        raise GlmforgeError("--sharded: runs under torchrun with two processes at least; leave it out for one")
    with join_world(Layout(dp_shard=size), _TIMEOUT_S):
        path, tokenizer = run_on_rank_zero(lambda: _find(source))
        meta = read_meta(path)
        tensors = _read(path, init_device_mesh("cpu", (size,)))
        export_hf_sharded(
            tensors,
            stored_config(path, meta).model,
            out_dir,
            dtype=DTYPES[dtype],
            with_mtp=with_mtp,
            duplicate_mtp_head=duplicate_mtp_head,
            tokenizer_dir=tokenizer_dir or tokenizer,
            overwrite=overwrite,
        )
        return Exported(path, meta.step, out_dir) if rank() == 0 else None


def _find(source: Path) -> tuple[Path, Path]:
    """The checkpoint, whose files and checksums are right, and its tokenizer."""
    if (source / "config.json").is_file():
        raise CheckpointError(
            f"{source}: is a Hugging Face directory, which one process exports in bounded memory; leave out --sharded"
        )
    path = find_checkpoint(source)
    if stored_config(path, read_meta(path)).lora is not None:
        raise CheckpointError(
            f"{path}: contains adapters; merge them file by file with 'glmforge adapter merge --full', or export "
            "without --sharded"
        )
    return path, tokenizer_directory(open_checkpoint(path))


def _read(path: Path, mesh: DeviceMesh) -> Mapping[str, Tensor]:
    """This rank's part of every tensor of the model."""
    reader = CachingReader(path)
    stored = stored_tensors(reader.read_metadata(), MODEL_PREFIX)
    tensors = {name: _empty(tensor.size, tensor.properties.dtype, mesh) for name, tensor in stored.items()}
    run_each(lambda: read_into(tensors, reader))
    return {name.removeprefix(MODEL_PREFIX): tensor for name, tensor in tensors.items()}


def _empty(shape: torch.Size, dtype: torch.dtype, mesh: DeviceMesh) -> Tensor:
    size, first = -(-shape[0] // mesh.size()), mesh.get_local_rank()
    rows = max(0, min(size, shape[0] - first * size))
    local = torch.empty((rows, *shape[1:]), dtype=dtype)
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)
