"""Plain adapters of many requests in one pass: grouped low-rank products beside the base's (Punica, arXiv 2310.18547).

The tokens of a step come sorted by adapter. A map adds (x A_n^T) B_n^T to each token's output, n being its adapter:
the product that experts have, with adapters in the place of experts. Routed experts have one for each pair of adapter
and expert, for which their rows are sorted once more. So the base's weights are read once for all adapters.

Factors are stacked over adapters, with zeros up to the highest rank and where an adapter has nothing; the scaling is in
B. That leaves out what is no sum of two products: DoRA, parameters trained whole, and adapters of embedding and head.

Shapes: N rows, n adapters, E experts (1 of a map that is none of theirs), R the highest rank, J inputs and O outputs.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from glmforge.checkpoint.adapter.open import Adapter
from glmforge.checkpoint.merged import first_row, maps_by_row
from glmforge.config.adapters import LinearMap, adapted_maps, adapter_parts
from glmforge.config.model import ModelConfig
from glmforge.generate.runner import WholeModel
from glmforge.generate.step import StepTokens
from glmforge.kernels.experts import expert_linear
from glmforge.model.dispatch import Choices, ExpertRows, LocalDispatcher
from glmforge.model.layers import Matmul
from glmforge.model.moe import Experts
from glmforge.model.router import Router
from glmforge.model.transformer import GlmMoe


def is_plain(adapter: Adapter, model: ModelConfig) -> bool:
    """Whether it can be one of a group."""
    lora, maps = adapter.lora, adapted_maps(model, adapter.lora)
    return not lora.dora and not lora.modules_to_save and all(one.kind not in ("embedding", "head") for one in maps)


class GroupedAdapters(WholeModel):
    """The runner of `model`, into which the adapters are put; every sequence of a step names one of them."""

    def __init__(self, model: GlmMoe, adapters: Mapping[str, Adapter]) -> None:
        self._numbers = {name: number for number, name in enumerate(adapters)}
        self._step = _Step()
        maps = [maps_by_row(model.config, adapter.lora) for adapter in adapters.values()]
        for row in dict.fromkeys(row for one in maps for row in one):
            owner = model.get_submodule(row.rpartition(".")[0])
            each = [(adapter, some.get(row, [])) for adapter, some in zip(adapters.values(), maps, strict=True)]
            dtype = torch.float32 if isinstance(owner, Router) else model.compute_dtype
            a, b = (factor.to(model.get_parameter(row).device, dtype) for factor in _stacked(each))
            if isinstance(owner, Experts):
                if not isinstance(owner.dispatcher, _Sorting):
                    owner.dispatcher = _Sorting(self._step)
                which = "down_matmul" if row.endswith("down_proj") else "gate_up_matmul"
                setattr(owner, which, _OfExperts(getattr(owner, which), a, b, owner.dispatcher))
            else:
                owner.matmul = _OfTokens(owner.matmul, a, b, self._step)  # type: ignore[assignment, arg-type]
        super().__init__(model, native=False)

    def order(self, tokens: StepTokens, places: Sequence[int]) -> list[int]:
        """The sequences at these places, by adapter: what `run` is to be given."""
        return sorted(places, key=lambda place: self._numbers[tokens.adapters[place] or ""])

    def run(self, tokens: StepTokens) -> Tensor:
        numbers = torch.tensor([self._numbers[name or ""] for name in tokens.adapters], device=self.device)
        counts = torch.tensor(tokens.paged.counts, device=self.device)
        self._step.adapters_T = numbers.repeat_interleave(counts)
        self._step.counts_n = torch.bincount(self._step.adapters_T, minlength=len(self._numbers))
        return super().run(tokens)


class _Step:
    """The adapter of each token, and tokens of each adapter, of the step that runs."""

    adapters_T: Tensor
    counts_n: Tensor


class _OfTokens:
    """A `Matmul` with A [n, R, J] and B [n, O, R]."""

    def __init__(self, base: Matmul, a: Tensor, b: Tensor, step: _Step) -> None:
        self._base, self._a, self._b, self._step = base, a, b, step

    def __call__(
        self, x: Tensor, weight: Tensor, *, bias: Tensor | None = None, counts_E: Tensor | None = None
    ) -> Tensor:
        low_NR = expert_linear(x, self._a, self._step.counts_n)
        return self._base(x, weight, bias=bias) + expert_linear(low_NR, self._b, self._step.counts_n)


class _Sorting(LocalDispatcher):
    """Notes how rows that are sorted by expert are sorted by adapter, too."""

    def __init__(self, step: _Step) -> None:
        self._step = step
        self.order_N = self.counts_nE = torch.empty(0)

    def dispatch(self, x_TD: Tensor, choices: Choices, *, implementation: str = "plain") -> ExpertRows:
        rows = super().dispatch(x_TD, choices, implementation=implementation)
        num_experts, routing = choices.num_experts, rows.handle
        experts_N = choices.experts_TK.reshape(-1)[routing.order_N]
        groups_N = self._step.adapters_T[routing.tokens_N] * num_experts + experts_N
        self.order_N = groups_N.argsort(stable=True)
        self.counts_nE = torch.bincount(groups_N, minlength=len(self._step.counts_n) * num_experts)
        return rows


class _OfExperts:
    """A `Matmul` of packed experts with A [n E, R, J] and B [n E, O, R]."""

    def __init__(self, base: Matmul, a: Tensor, b: Tensor, sorting: _Sorting) -> None:
        self._base, self._a, self._b, self._sorting = base, a, b, sorting

    def __call__(
        self, x: Tensor, weight: Tensor, *, bias: Tensor | None = None, counts_E: Tensor | None = None
    ) -> Tensor:
        order_N, counts_nE = self._sorting.order_N, self._sorting.counts_nE
        low_NR = expert_linear(x[order_N], self._a, counts_nE)
        y = self._base(x, weight, counts_E=counts_E)
        return y.index_add_(0, order_N, expert_linear(low_NR, self._b, counts_nE))


def _stacked(each: Sequence[tuple[Adapter, list[LinearMap]]]) -> tuple[Tensor, Tensor]:
    """A and B of one parameter's maps, of all adapters one behind the other."""
    pairs = [_factors(adapter, maps) for adapter, maps in each if maps]
    (like_a, like_b), rank = pairs[0], max(a.shape[1] for a, _ in pairs)
    found = iter(pairs)
    padded: list[tuple[Tensor, Tensor]] = []
    for _, maps in each:
        a, b = next(found) if maps else (like_a[:, :0], like_b[:, :, :0])
        missing = rank - a.shape[1]
        padded.append((F.pad(a, (0, 0, 0, missing)), F.pad(b, (0, missing))))
    return torch.cat([a for a, _ in padded]), torch.cat([b for _, b in padded])


def _factors(adapter: Adapter, maps: Sequence[LinearMap]) -> tuple[Tensor, Tensor]:
    """A [E, r, J] and B [E, O, r] of the maps that a parameter holds: of gate and up projection B in blocks."""
    all_a, all_b = [], []
    for one in maps:
        a, b = (adapter.tensors[part.row.name].float() for part in adapter_parts(one, adapter.lora))
        first = first_row(one)
        behind = one.row.shape[-2] - first - one.num_outputs
        all_a.append(a.view(-1, *a.shape[-2:]))
        all_b.append(F.pad(b.view(-1, *b.shape[-2:]) * adapter.lora.scaling, (0, 0, first, behind)))
    return torch.cat(all_a, dim=1), torch.cat(all_b, dim=2)
