"""The bytes of a checkpoint by what they are for: what its configuration says they should be, and what is there.

Expected follows from the table of parameters and the optimizers' declared states; actual from the shapes and types that
are stored. What containers, indexes and lists take beside the tensors is a row of its own. Of a checkpoint of
megatron-core the kinds follow from its names; nothing is expected of it.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from glmforge.checkpoint.format.manifest import read_manifest
from glmforge.checkpoint.format.meta import CheckpointMeta, read_meta, stored_config
from glmforge.checkpoint.format.read import CachingReader, stored_tensors
from glmforge.checkpoint.format.shard_metadata import read_shard_metadata
from glmforge.checkpoint.format.sharded_adapter import is_lite, is_sharded_adapter
from glmforge.checkpoint.save import RNG_PREFIX
from glmforge.checkpoint.source_files import is_source_file
from glmforge.config.parameter_groups import held_in_bf16, optimizer_states
from glmforge.config.parameters import parameter_table
from glmforge.config.schema import RunConfig

_BYTES = {"bf16": 2, "fp32": 4}
_BIAS = "e_score_correction_bias"


class KindSize(NamedTuple):
    """`expected` is None where the configuration does not say."""

    kind: str
    expected: int | None
    actual: int

    @property
    def differs(self) -> bool:
        return self.expected is not None and self.expected != self.actual


def sizes_by_kind(path: Path) -> list[KindSize]:
    """Of the checkpoint directory `path`. Raises `CheckpointError` if its lists cannot be read."""
    meta, manifest = read_meta(path), read_manifest(path).files
    stored = stored_tensors(CachingReader(path).read_metadata())
    actual: dict[str, int] = defaultdict(int)
    for name, tensor in stored.items():
        kind = _kind_of(name, f"{tensor.properties.dtype}".removeprefix("torch."), meta)
        actual[kind] += math.prod(tensor.size) * tensor.properties.dtype.itemsize
    of_source = sum(record.size for name, record in manifest.items() if is_source_file(name))
    beside = sum(record.size for record in manifest.values()) - sum(actual.values()) - of_source
    expected = None if is_sharded_adapter(path) else _expected(path, meta, lite=is_lite(path))
    kinds = sorted({**actual, **(expected or {})}, key=lambda kind: -max(actual[kind], (expected or {}).get(kind, 0)))
    rows = [
        KindSize(kind, None if expected is None or kind == "RNG" else expected.get(kind, 0), actual[kind])
        for kind in kinds
    ]
    rows += [KindSize("state of the data source", None, of_source)] if of_source else []
    return [*rows, KindSize("containers, indexes, meta.json", None, beside)]


def megatron_sizes(path: Path) -> list[KindSize]:
    """Of a megatron-core checkpoint (`iter_0000100`, torch_dist): weights, and what its optimizer keeps of each.

    Gradients and activations are never in it. Raises `CheckpointError` if its metadata cannot be read.
    """
    actual, num_parameters = defaultdict[str, int](int), 0
    stored = stored_tensors(read_shard_metadata(path, only=lambda name: not re.search(r"/shard_[\d._]+$", name)))
    for name, tensor in stored.items():
        # optimizer.distributed...bucket_idx_0.exp_avg (as it lies in memory), or optimizer.state.exp_avg.decoder...
        state = re.match(r"optimizer\.(?:.*\.)?(exp_avg_sq|exp_avg|fp32_param|param)(?:\.|$)", name)
        dtype, size = f"{tensor.properties.dtype}".removeprefix("torch."), math.prod(tensor.size)
        num_parameters += 0 if name.startswith("optimizer.") else size
        other = "optimizer, other" if name.startswith("optimizer.") else f"weights, {dtype}"
        master = "optimizer master weights" if state and "param" in state[1] else f"optimizer {state and state[1]}"
        actual[f"{master}, {dtype}" if state else other] += size * tensor.properties.dtype.itemsize
    beside = sum(file.stat().st_size for file in path.iterdir() if file.is_file()) - sum(actual.values())
    each = {kind: f"{kind}: {size / max(1, num_parameters):.1f} B per parameter" for kind, size in actual.items()}
    rows = [KindSize(each[kind], None, size) for kind, size in sorted(actual.items(), key=lambda row: -row[1])]
    return [*rows, KindSize("containers, indexes, common.pt, RNG", None, beside)]


def _kind_of(name: str, dtype: str, meta: CheckpointMeta) -> str:
    if name.startswith(RNG_PREFIX):
        return "RNG"
    extra = next((f"{model}: " for model in meta.extra_models if name.startswith(f"{model}.")), "")
    name = name.removeprefix(extra.replace(": ", "."))
    if name.endswith(_BIAS):
        return f"{extra}router biases"
    dtype = {"float32": "fp32", "bfloat16": "bf16"}.get(dtype, dtype)
    if name.startswith("optim."):
        return f"{extra}optimizer {name.split('.')[1]}, {dtype}"
    return f"{extra}weights, {'fp32 master' if dtype == 'fp32' else dtype}"


def _expected(path: Path, meta: CheckpointMeta, *, lite: bool) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    configs = {"": stored_config(path, meta)}
    configs |= {f"{name}.": RunConfig.model_validate(config) for name, config in meta.extra_models.items()}
    for prefix, config in configs.items():
        for name, size, dtype in _tensors(config, lite=lite):
            found[_kind_of(prefix + name, {"fp32": "float32", "bf16": "bfloat16"}[dtype], meta)] += size * _BYTES[dtype]
    return found


def _tensors(config: RunConfig, *, lite: bool) -> Iterator[tuple[str, int, str]]:
    table = parameter_table(config.model)
    halved = held_in_bf16(table, config.optim, config.precision)
    for name, row in table.items():
        yield f"model.{name}", row.size, "bf16" if name in halved else "fp32"
    for name, (shape, dtype) in ({} if lite else optimizer_states(table, config.optim)).items():
        yield f"optim.{name}", math.prod(shape), dtype
