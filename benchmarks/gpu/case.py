"""A kernel as the benchmark sees it: one function, its implementations by name, inputs, and the work it must do.

A kernel is a file in `gpu/cases/` with a function `cases(setup)` that yields `Case`s; nothing else has to know of it.
Implementations are functions of the same inputs; the first one is the plain reference.

    def cases(setup: Setup) -> Iterator[Case]:
        for model in setup.models:
            yield Case(
                name="rms_norm",
                size=f"{model.name} {setup.tokens} x {model.hidden_size}",
                make=lambda g: (g.normal(setup.tokens, model.hidden_size), g.normal(model.hidden_size)),
                implementations={"plain": plain, "compiled": torch.compile(plain), "triton": triton_rms_norm},
                bytes=...,
            )

A file may set `ORDER` (default 50): lower ones are measured first, and kept when time is short. An import that fails
(triton is missing, or pydantic) is reported in one line and costs that file only.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

import glmforge

Outputs = Tensor | tuple[Tensor, ...]


@dataclass(frozen=True)
class Widths:
    """A published model's widths, read from its preset without the packages that check it, experts of `ep` ranks'
    first. `num_experts` of them lie on this device."""

    name: str
    hidden_size: int
    moe_intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    n_routed_experts: int
    num_experts_per_tok: int
    vocab_size: int
    num_experts: int


def widths(name: str, preset: str, ep: int) -> Widths:
    path = Path(glmforge.__file__).parent / "config" / "presets" / f"{preset}.yaml"
    fields = yaml.safe_load(path.read_text("utf-8"))
    own = {key: fields[key] for key in Widths.__dataclass_fields__ if key in fields}
    return Widths(name=name, num_experts=fields["n_routed_experts"] // ep, **own)


@dataclass(frozen=True)
class Inputs:
    """Makes random inputs on the device, in the compute dtype; gradients are asked of floating-point ones."""

    generator: torch.Generator
    dtype: torch.dtype

    def normal(self, *shape: int, std: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
        made = torch.randn(shape, generator=self.generator, device=self.generator.device, dtype=torch.float32)
        return (made * std).to(dtype or self.dtype)

    def integers(self, high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape, generator=self.generator, device=self.generator.device)

    def choices(self, num_tokens: int, num_experts: int, num_chosen: int, *, skew: float = 0.5) -> Tensor:
        """int64 [T, K]: different experts for each token, some more often than others (`skew` 0: all alike)."""
        popularity = skew * self.normal(num_experts, dtype=torch.float32)
        scores = self.normal(num_tokens, num_experts, dtype=torch.float32) + popularity
        return scores.topk(num_chosen, dim=-1).indices


@dataclass(frozen=True)
class Setup:
    """What cases are sized by: `tokens` of a micro-batch, the `models` whose widths count, the compute `dtype`."""

    device: torch.device
    dry: bool
    tokens: int
    models: tuple[Widths, ...]
    dtype: torch.dtype = torch.bfloat16

    @classmethod
    def of(cls, device: torch.device, *, dry: bool) -> "Setup":
        if dry:
            tiny = Widths("tiny", 64, 32, 4, 2, 16, 8, 2, 512, 4)
            return cls(device, dry, 40, (tiny,))
        return cls(device, dry, 16384, (widths("Air", "glm45_air_106b", 8), widths("355B", "glm45_355b", 16)))

    def compile(self, function: Callable[..., Outputs]) -> Callable[..., Outputs]:
        """`torch.compile`; in a dry run without making code, which takes minutes."""
        return torch.compile(function, dynamic=False, backend="eager" if self.dry else "inductor")

    def counts(self, inputs: Inputs, model: Widths) -> Tensor:
        """int64: rows of each expert on this device, `tokens * num_experts_per_tok` in all, unevenly."""
        choices = inputs.choices(self.tokens, model.num_experts, min(model.num_experts, model.num_experts_per_tok))
        return torch.bincount(choices.flatten(), minlength=model.num_experts)


@dataclass(frozen=True)
class Case:
    """One kernel at one size.

    Attributes:
        make: a set of inputs; called several times. Floating-point inputs get gradients, but for those in `constant`.
        implementations: by name, the plain reference first.
        flops, bytes: of the forward pass: what it must compute and, each input read once and each output written once,
            must move. `backward_flops` and `backward_bytes` default to twice that.
        tolerance: of ||out - reference|| / ||reference||, for outputs and gradients, against the reference in fp32.
        check: inputs to compare implementations on; None: as `make`, of which the reference in fp32 must fit as well.
        has_backward: whether gradients are measured and compared.
        constant: positions of floating-point inputs without a gradient.
        times_reference: whether the reference is timed or only compared with.
        inexact: implementations that round more (fp8 and the like), with a tolerance of their own.
    """

    name: str
    size: str
    make: Callable[[Inputs], tuple[Any, ...]]
    implementations: Mapping[str, Callable[..., Outputs]]
    flops: float = 0.0
    bytes: float = 0.0
    backward_flops: float | None = None
    backward_bytes: float | None = None
    tolerance: float = 2e-2
    check: Callable[[Inputs], tuple[Any, ...]] | None = None
    has_backward: bool = True
    constant: tuple[int, ...] = ()
    times_reference: bool = True
    inexact: Mapping[str, float] = field(default_factory=dict)

    @property
    def reference(self) -> str:
        return next(iter(self.implementations))

    @property
    def timed(self) -> tuple[str, ...]:
        """The implementations that are timed."""
        return tuple(self.implementations)[0 if self.times_reference else 1 :]

    def differentiable(self, inputs: tuple[Any, ...]) -> list[Tensor]:
        """The inputs that gradients are asked of, which then require one."""
        if not self.has_backward:
            return []
        chosen = [x for i, x in enumerate(inputs) if isinstance(x, Tensor) and i not in self.constant]
        return [x.requires_grad_() for x in chosen if x.is_floating_point()]


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """||actual - expected|| / ||expected||; not a number never passes."""
    actual, expected = actual.detach().double(), expected.detach().double()
    scale = expected.norm().item()
    error = (actual - expected).norm().item()
    return error / scale if scale else (0.0 if error == 0 else math.inf)
