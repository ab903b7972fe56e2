"""In what do two checkpoints differ? Tensors, configuration and position, without a model and tensor by tensor.

Bits are compared, so that two NaNs of the same kind are equal; how far tensors are apart is computed in float64. At
any time two tensors, one of each checkpoint, are in memory.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glmforge.checkpoint.compatible import ABSENT, FREE, Difference, find_differences, rule_of
from glmforge.checkpoint.format.meta import CheckpointMeta, read_meta
from glmforge.checkpoint.format.read import StoredTensors
from glmforge.checkpoint.save import RNG_PREFIX

_CHUNK = 1 << 22  # elements that are compared at once: 32 MiB of float64 for each side
_CIRCUMSTANCES = {"created", "git_revision", "versions", "world_size", "ephemeral", "hooks", "format_version"}
"""What a checkpoint says of how it came about: shown, but two equal checkpoints may differ in it."""

Advance = Callable[[int, int], None]


@dataclass(frozen=True)
class TensorDifference:
    """`max_abs` is the largest |a - b|, `relative` is ||a - b|| / ||a|| (inf if a is 0); NaN where values are NaN."""

    name: str
    max_abs: float
    relative: float
    norm_of_difference: float
    norm: float


@dataclass(frozen=True)
class ModuleDifference:
    """The tensors of a module together; `num_different` of `num_tensors` are not equal bit by bit."""

    name: str
    num_tensors: int
    num_different: int
    max_abs: float
    relative: float


@dataclass(frozen=True)
class CheckpointDifference:
    """What `compare_checkpoints` found. `misfits` are tensors of another shape or type."""

    only_in_a: list[str]
    only_in_b: list[str]
    misfits: list[str]
    tensors: list[TensorDifference]
    modules: list[ModuleDifference]
    config: list[Difference]
    meta: list[Difference]
    num_equal: int

    @property
    def is_equal(self) -> bool:
        """Equal bit by bit, at the same position, in a configuration that means the same.

        Differences that no result depends on (layout, places, reporting; when and where it was saved) do not count.
        """
        counted = [d for d in self.config if rule_of(d.path).before is not FREE]
        counted += [d for d in self.meta if d.path[0] not in _CIRCUMSTANCES]
        return not (self.only_in_a or self.only_in_b or self.misfits or self.tensors or counted)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON; numbers that it does not have (nan, inf) are words."""
        content = asdict(self) | {"equal": self.is_equal}
        for part in ("config", "meta"):
            content[part] = [{"key": d.key, "a": _json(d.was), "b": _json(d.now)} for d in getattr(self, part)]
        for part in ("tensors", "modules"):
            content[part] = [{key: _json(value) for key, value in item.items()} for item in content[part]]
        return content


def compare_checkpoints(
    a: Path, b: Path, *, prefix: str = "", advance: Advance = lambda done, total: None
) -> CheckpointDifference:
    """Compare the tensors whose names begin with `prefix`, and configurations and positions.

    The tensors come most different first. Generator states of other numbers of ranks are omitted: they are not the
    same things. Raises `CheckpointError` if one is incomplete (by size: the contents are what is compared).
    """
    metas = read_meta(a), read_meta(b)
    stored = StoredTensors(a, verify=False), StoredTensors(b, verify=False)
    same_ranks = metas[0].world_size == metas[1].world_size
    names_a, names_b = (
        [name for name in s if name.startswith(prefix) and (same_ranks or not name.startswith(RNG_PREFIX))]
        for s in stored
    )
    both = [name for name in names_a if name in set(names_b)]
    compared: list[TensorDifference] = []
    misfits: list[str] = []
    different: set[str] = set()
    for done, name in enumerate(both):
        advance(done, len(both))
        x, y = stored[0][name], stored[1][name]
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            misfits.append(f"{name} is {_describe(x)} in a and {_describe(y)} in b")
            continue
        compared.append(compare_tensors(name, x, y))
        if not _bits_equal(x, y):
            different.add(name)
    advance(len(both), len(both))
    apart = [difference for difference in compared if difference.name in different]
    return CheckpointDifference(
        only_in_a=sorted(set(names_a) - set(names_b)),
        only_in_b=sorted(set(names_b) - set(names_a)),
        misfits=misfits,
        tensors=sorted(apart, key=_severity, reverse=True),
        modules=list(_by_module(compared, different)),
        config=list(find_differences(metas[0].config, metas[1].config)),
        meta=list(_compare_metas(*metas)),
        num_equal=len(compared) - len(apart),
    )


def compare_tensors(name: str, a: Tensor, b: Tensor) -> TensorDifference:
    """How far apart two tensors of one shape are."""
    max_abs = square_of_difference = square = 0.0
    for x, y in zip(torch.split(a.flatten(), _CHUNK), torch.split(b.flatten(), _CHUNK), strict=True):
        x, difference = x.double(), x.double() - y.double()
        if x.numel():
            largest = difference.abs().max().item()
            max_abs = largest if math.isnan(largest) else max(max_abs, largest)
            square_of_difference += difference.square().sum().item()
            square += x.square().sum().item()
    norms = math.sqrt(square_of_difference), math.sqrt(square)
    return TensorDifference(name, max_abs, _ratio(*norms), *norms)


def module_of(name: str) -> str:
    """The module that a tensor is summed up under: the part of a layer, or what stands by itself, of weights or states.

    "optim.momentum.model.layers.3.mlp.gate.weight" is of "optim.momentum.model.layers.3.mlp".
    """
    parts = name.split(".")
    if "layers" in parts:
        return ".".join(parts[: parts.index("layers") + 3])
    return name.removesuffix(".weight")


def _bits_equal(a: Tensor, b: Tensor) -> bool:
    return torch.equal(*(t.contiguous().flatten().view(torch.uint8) for t in (a, b)))


def _by_module(compared: Iterable[TensorDifference], different: set[str]) -> Iterator[ModuleDifference]:
    members: dict[str, list[TensorDifference]] = defaultdict(list)
    for tensor in compared:
        members[module_of(tensor.name)].append(tensor)
    for name, tensors in members.items():
        num_different = sum(tensor.name in different for tensor in tensors)
        if num_different:
            norms = (math.hypot(*(t.norm_of_difference for t in tensors)), math.hypot(*(t.norm for t in tensors)))
            largest = max((t.max_abs for t in tensors), key=_nan_first)
            yield ModuleDifference(name, len(tensors), num_different, largest, _ratio(*norms))


def _compare_metas(a: CheckpointMeta, b: CheckpointMeta) -> Iterator[Difference]:
    first, second = (meta.model_dump(mode="json", exclude={"config"}) for meta in (a, b))
    yield from find_differences(first, second)


def _ratio(difference: float, norm: float) -> float:
    if norm == 0:
        return math.inf if difference else 0.0
    return difference / norm


def _severity(difference: TensorDifference) -> tuple[float, float]:
    return _nan_first(difference.relative), _nan_first(difference.max_abs)


def _nan_first(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _describe(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _json(value: object) -> object:
    if value is ABSENT:
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return dict(value) if isinstance(value, Mapping) else value
