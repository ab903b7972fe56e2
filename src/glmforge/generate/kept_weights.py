"""Weights that are gathered once and kept while text is generated, instead of anew for every step.

In training a rank has a shard of the weights. FSDP gathers those of a unit (a layer, its router, its experts; embedding
and head) in the compute dtype when the unit runs and frees them behind it; matrices that FSDP leaves alone are fp32
masters and cast where they are used. A step of generation computes a few tokens, and would do little else. So units
stay gathered, and matrices stay cast, as many as a budget allows; the rest is gathered or cast in each step as in
training, a unit at a time. The masters are only read.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from glmforge.model.head import LinearHead
from glmforge.model.router import Router
from glmforge.model.transformer import GlmMoe
from glmforge.parallel.model import ParallelModel
from glmforge.parallel.placement import local_chunk

_FSDP_AXES = {"fsdp", "efsdp"}
_MATRIX_DIMS = 2


class WeightBytes(NamedTuple):
    """Memory that weights take on this rank besides its shards: `kept` until they change; `passing` is made in every
    step and freed again, a unit at a time."""

    kept: int
    passing: int


class _Unit(NamedTuple):
    """An FSDP unit; `num_bytes` are those of the weights that it gathers, on this rank."""

    module: FSDPModule
    is_root: bool
    num_bytes: int
    weights: tuple["_Sharded", ...]


class _Sharded(NamedTuple):
    """A weight that FSDP gathers: `module` has the gathered one under `name` while it is kept."""

    module: nn.Module
    name: str
    master: nn.Parameter


class _Cast(NamedTuple):
    """A matrix in whose place there is a copy in the compute dtype."""

    module: nn.Module
    name: str
    master: nn.Parameter
    copy: nn.Parameter


class KeptWeights:
    """At most `max_bytes` of the weights of `model` on each rank, from `begin` to `end`; None: all that it runs.

    What a rank keeps follows from the order and the sizes of its units, which ranks that gather a unit together have
    in common: they keep the same ones.
    """

    def __init__(self, model: ParallelModel, max_bytes: int | None) -> None:
        self.model, self.max_bytes = model, max_bytes
        self._units: list[_Unit] = []
        self._casts: list[_Cast] = []

    def begin(self) -> WeightBytes:
        """Have the next forward pass keep what it gathers; cast what it does not gather."""
        self._kept = self._passing = 0
        self._units = list(_units(self.model))
        for unit in self._units:
            unit.module.set_reshard_after_forward(not self._count(unit.num_bytes), recurse=False)
        for part in self.model.parts:
            for module, name, master in list(_matrices_to_cast(part)):
                if self._count(local_chunk(master)[0].numel() * part.compute_dtype.itemsize):
                    copy = nn.Parameter(master.detach().to(part.compute_dtype), requires_grad=False)
                    setattr(module, name, copy)
                    self._casts.append(_Cast(module, name, master, copy))
        return WeightBytes(self._kept, self._passing)

    @torch.no_grad()
    def refresh(self) -> None:
        """Keep what the masters are now."""
        for unit in self._units:
            unit.module.reshard()
        for cast in self._casts:
            cast.copy.copy_(cast.master)

    def gather(self) -> None:
        """Gather now what is gathered once, rather than when it runs. Collective; everything is to be kept."""
        for unit in self._units:
            unit.module.unshard()

    def end(self) -> None:
        """Free what was kept; the model is as it was before `begin`."""
        for unit in self._units:
            unit.module.reshard()
            reshards = self.model.parallel.reshards_after_forward and not unit.is_root
            unit.module.set_reshard_after_forward(reshards, recurse=False)
        for cast in self._casts:
            setattr(cast.module, cast.name, cast.master)
        self._units, self._casts = [], []

    @torch.no_grad()
    def differing(self) -> list[str]:
        """Kept weights that are not what the masters are now; call it before `end`. Collective.

        The proof that text was generated with the weights that are trained. It compares sums
        of bits: of a master those of its parts on all ranks, in the type that is computed in.
        """
        found = [
            f"{type(cast.module).__name__}.{cast.name}"
            for cast in self._casts
            if _sum_of_bits(cast.copy) != _sum_of_bits(cast.master.to(cast.copy.dtype))
        ]
        for unit in self._units:
            kept = [(one, getattr(one.module, one.name)) for one in unit.weights]
            kept = [(one, gathered) for one, gathered in kept if not _is_sharded(gathered)]
            sums = torch.tensor([_sum_of_bits(one.master.to(gathered.dtype)) for one, gathered in kept])
            for group in _fsdp_groups(kept[0][0].master) if kept else ():
                on_device = sums.to(self.model.world.device)
                dist.all_reduce(on_device, group=group)
                sums = on_device.cpu()
            for (one, gathered), expected in zip(kept, sums.tolist(), strict=True):
                if _sum_of_bits(gathered) != expected:
                    found.append(f"{type(one.module).__name__}.{one.name}")
        return found

    def _count(self, num_bytes: int) -> bool:
        """Whether this much more may be kept."""
        fits = self.max_bytes is None or self._kept + num_bytes <= self.max_bytes
        if fits:
            self._kept += num_bytes
        else:
            self._passing += num_bytes
        return fits


def _units(model: ParallelModel) -> Iterator[_Unit]:
    """The FSDP units of this rank's parts but the MTP layers', which are not run; none of them gathered."""
    roots = model.parts if model.pipeline is None else model.pipeline.stages
    for root, part in zip(roots, model.parts, strict=True):
        not_run = {module for layer in part.mtp_layers for module in layer.modules()}
        for module in root.modules():
            if isinstance(module, FSDPModule) and module not in not_run:
                module.reshard()  # an evaluation may have left the root's weights gathered
                dtype = torch.float32 if isinstance(module, Router) else part.compute_dtype
                weights = tuple(_weights_of_unit(module))
                # Codes of quantised weights are gathered as they are.
                num_bytes = sum(
                    _gathered_numel(one) * (dtype if one.is_floating_point() else one.dtype).itemsize
                    for one in (weight.master for weight in weights)
                )
                yield _Unit(module, module is root, num_bytes, weights)


def _weights_of_unit(module: nn.Module) -> Iterator[_Sharded]:
    """The sharded parameters below `module` that do not belong to a unit inside it."""
    for name, parameter in module.named_parameters(recurse=False):
        if _is_sharded(parameter):
            yield _Sharded(module, name, parameter)
    for child in module.children():
        if not isinstance(child, FSDPModule):
            yield from _weights_of_unit(child)


def _fsdp_groups(master: nn.Parameter) -> Iterator[dist.ProcessGroup]:
    """Of the ranks that have different parts of a parameter which FSDP gathers."""
    assert isinstance(master, DTensor)
    mesh = master.device_mesh
    for dim, (axis, placement) in enumerate(zip(mesh.mesh_dim_names or (), master.placements, strict=True)):
        if axis in _FSDP_AXES and not placement.is_replicate():
            yield mesh.get_group(dim)


def _sum_of_bits(tensor: Tensor) -> int:
    """Of this rank's part, as an integer of 64 bits."""
    part = tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return int(part.contiguous().view(kinds[part.element_size()]).sum(dtype=torch.int64))


def _is_sharded(parameter: Tensor) -> bool:
    """Whether FSDP gathers it; what only tp or ep cuts is used as it lies."""
    return isinstance(parameter, DTensor) and not _FSDP_AXES.isdisjoint(parameter.device_mesh.mesh_dim_names or ())


def _gathered_numel(parameter: nn.Parameter) -> int:
    """Elements of a sharded parameter on this rank when it is gathered: it stays cut over tp and ep."""
    assert isinstance(parameter, DTensor)
    mesh = parameter.device_mesh
    numel = parameter.numel()
    for dim, (axis, placement) in enumerate(zip(mesh.mesh_dim_names or (), parameter.placements, strict=True)):
        if axis not in _FSDP_AXES and isinstance(placement, Shard):
            numel //= mesh.size(dim)
    return numel


def _matrices_to_cast(part: GlmMoe) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    """Those that each use would cast: not routers and linear heads, which compute in fp32, codes, and MTP layers."""
    not_run = {module for layer in part.mtp_layers for module in layer.modules()}
    for module in part.modules():
        if isinstance(module, Router | LinearHead) or module in not_run:
            continue
        for name, parameter in module.named_parameters(recurse=False):
            is_cast = parameter.is_floating_point() and parameter.dtype != part.compute_dtype
            if is_cast and parameter.dim() >= _MATRIX_DIMS and not _is_sharded(parameter):
                yield module, name, parameter
