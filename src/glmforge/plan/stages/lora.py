"""LoRA adapters (Hu et al., 2021, arXiv 2106.09685): which linear maps get them, and the parameters that they bring.

A map W [out, in] gets A [rank, in] and B [out, rank] beside it, and computes W x + B A x. Gate and up projection are
two maps with adapters of their own, and every expert has its own; the experts' are stacked as their weights are. Only
layers of the trunk are adapted, and no router: a layer for multi-token prediction stays as it was trained.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from glmforge.config.model import ModelConfig
from glmforge.config.parameters import OWN_SHARE, Axis, Parameter, When, parameter_table
from glmforge.errors import ConfigError

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


@dataclass(frozen=True)
class Lora:
    """Adapters of one rank. A target is the end of a map's name or any part of it: "q_proj", "experts",
    "experts.down_proj", "self_attn"."""

    rank: int
    targets: tuple[str, ...] = ATTENTION

    def adapts(self, name: str) -> bool:
        """Whether the map of this name within its layer ("mlp.experts.up_proj") gets an adapter."""
        return any(f".{target}." in f".{name}." for target in self.targets)


@dataclass(frozen=True)
class LinearMap:
    """A linear map of a layer: its name there, and the parameter that holds it (gate and up of experts share one)."""

    name: str
    row: Parameter

    @property
    def num_outputs(self) -> int:
        return self.row.shape[-2] // self.row.num_fused


def parse_lora(text: str) -> Lora:
    """From "rank=16,target=q_proj+k_proj+v_proj+o_proj". Raises `ConfigError`."""
    settings = dict(part.partition("=")[::2] for part in text.split(","))
    if unknown := sorted(settings.keys() - {"rank", "target"}):
        raise ConfigError(f"--lora: '{unknown[0]}' is no setting; write rank=16,target={'+'.join(ATTENTION)}")
    rank = settings.get("rank", "")
    if not (rank.isascii() and rank.isdigit() and 0 < int(rank) <= 2**16):
        raise ConfigError(f"--lora: rank='{rank}' is no rank; give a whole number from 1 to 65,536, such as rank=16")
    if "target" not in settings:
        return Lora(int(rank))
    return Lora(int(rank), tuple(dict.fromkeys(settings["target"].split("+"))))


def is_adapter(row: Parameter) -> bool:
    """Whether the parameter is part of an adapter."""
    return ".lora_" in row.name


def linear_maps(model: ModelConfig) -> Iterator[LinearMap]:
    """Of all layers of the trunk, in order; without the routers."""
    for row in parameter_table(model).values():
        if row.family != "matrix" or row.mtp or row.layer is None or row.name.endswith("mlp.gate.weight"):
            continue
        within = row.name.removeprefix(f"model.layers.{row.layer}.").removesuffix(".weight")
        room = within.rpartition(".")[0]
        names = [f"{room}.{part.removesuffix('.weight')}" for part in row.expert_parts] or [within]
        for name in names:
            yield LinearMap(name, row)


def adapter_parameters(model: ModelConfig, lora: Lora) -> list[Parameter]:
    """A and B of every adapted map. Raises `ConfigError` for a target that is no map of the model."""
    maps = list(linear_maps(model))
    for target in lora.targets:
        if not any(Lora(lora.rank, (target,)).adapts(linear.name) for linear in maps):
            known = dict.fromkeys(part for linear in maps for part in linear.name.split("."))
            raise ConfigError(f"--lora: target '{target}' is no map of the model; known are {', '.join(known)}")
    return [row for linear in maps if lora.adapts(linear.name) for row in _adapter(linear, lora.rank)]


def _adapter(linear: LinearMap, rank: int) -> Iterator[Parameter]:
    """Tensor parallelism cuts of an adapter what it cuts of the map: B's outputs, or A's inputs."""
    row = linear.row
    stack, num_inputs = row.shape[:-2], row.shape[-1]
    name = f"model.layers.{row.layer}.{linear.name}"
    shapes = {"lora_A": (*stack, rank, num_inputs), "lora_B": (*stack, linear.num_outputs, rank)}
    cut = {0: "lora_B", 1: "lora_A"}.get(row.tp_dim) if row.tp_dim is not None else None
    for part, shape in shapes.items():
        partial: dict[Axis, When] = dict(OWN_SHARE) if row.tp_dim is not None and part != cut else {}
        yield Parameter(
            name=f"{name}.{part}.weight",
            shape=shape,
            family="matrix",
            initial="zeros" if part == "lora_B" else "normal",
            tp_dim=row.tp_dim if part == cut else None,
            partial=partial,
            expert=row.expert,
        )
