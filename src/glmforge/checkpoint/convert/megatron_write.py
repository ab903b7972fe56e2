"""Write a megatron-core distributed checkpoint (`torch_dist`) without Megatron.

Each tensor is whole, so Megatron cuts it for any tensor, pipeline and expert parallelism. Layers lie one by one, which
the checkpoint says itself (`content_metadata`); Transformer Engine's own state, empty but for fp8, is not written.
"""

import json
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from glmforge.checkpoint.convert.hf_directory import check_names
from glmforge.checkpoint.convert.megatron_arguments import arguments_of
from glmforge.checkpoint.convert.megatron_names import fuse, fused_shape, links
from glmforge.checkpoint.convert.megatron_read import COMMON, SETTINGS, TRACKER, MegatronTensors
from glmforge.checkpoint.fit import TensorSpec
from glmforge.checkpoint.format.shards import write_shards
from glmforge.checkpoint.format.store import new_directory
from glmforge.checkpoint.reset import LazyPlanner
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import parameter_table
from glmforge.runtime.durable import fsync_directory, fsync_file, write_durably

_FILE_BYTES = 1 << 30


def export_megatron(
    weights: Mapping[str, Tensor],
    config: ModelConfig,
    out_dir: Path,
    *,
    dtype: torch.dtype = torch.bfloat16,
    vocab_multiple: int = 128,
) -> None:
    """Write `weights`, of the names and shapes of `parameter_table(config)`, as Megatron's `release` under `out_dir`.

    They are read tensor by tensor; router biases stay fp32. The vocabulary is padded with zeros to a multiple, which
    is Megatron's `make_vocab_size_divisible_by` times its tensor parallelism. Raises `CheckpointError`: `out_dir` exists, the weights do not fit, or the disk refuses.
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
        torch.save(_common(arguments_of(config, rows)), directory / COMMON)
        fsync_file(directory / COMMON)
        backends = {"sharded_backend": "torch_dist", "common_backend": "torch"}
        write_durably(directory / SETTINGS, json.dumps(backends | {f"{name}_version": 1 for name in backends}))
        fsync_directory(directory)
        write_durably(partial / TRACKER, "release")
        MegatronTensors(directory, config)


def _common(arguments: Mapping[str, object]) -> dict[str, object]:
    layout = {"non_homogeneous_layers": True, "singleton_local_shards": False}
    return {"args": Namespace(**arguments), "checkpoint_version": 3.0, "iteration": 0, "content_metadata": layout}
