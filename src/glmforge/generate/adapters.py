"""Several adapters on one base: each request names the one that it is answered with, or none.

The base's weights are in memory once. A step computes the requests without an adapter by the native kernels, those of
all plain adapters together (`grouped`), and those of each other adapter on their own, in a model around the base's
weights: what `adapt.lora` computes, with DoRA, embedding, head, and parameters that were trained whole. All have the
same pages, which the prefix tree keeps apart. `docs/lab-notes/serving.md` has what a step costs.

Shapes: T tokens, L wanted tokens, V vocab_size.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from glmforge.adapt.lora import put_adapters
from glmforge.checkpoint.adapter.open import Adapter
from glmforge.generate.grouped import GroupedAdapters, is_plain
from glmforge.generate.runner import WholeModel
from glmforge.generate.step import StepTokens, of_sequences
from glmforge.model.transformer import GlmMoe


class AdaptedModels:
    """A runner of `model` with `adapters` by name, and without. It drafts nothing by an MTP layer."""

    is_collective, shares_requests = False, False

    def __init__(self, model: GlmMoe, adapters: Mapping[str, Adapter]) -> None:
        self.base = WholeModel(model)
        self.config, self.device = self.base.config, self.base.device
        self.adapters = tuple(adapters)
        self.experts_TMK: Tensor | None = None
        plain = {name: adapter for name, adapter in adapters.items() if is_plain(adapter, model.config)}
        self._runners: dict[str | None, WholeModel] = {None: self.base}
        if plain:
            self._runners |= dict.fromkeys(plain, GroupedAdapters(around(model), plain))
        for name in adapters.keys() - plain.keys():
            self._runners[name] = WholeModel(around(model, adapters[name]))

    def anyone(self, busy: bool) -> bool:
        return busy

    def weights_changed(self) -> None:
        for runner in set(self._runners.values()):
            runner.weights_changed()

    def weights_differ(self, *, closely: bool) -> bool:
        return self.base.weights_differ(closely=closely)

    def page_bytes(self, page_size: int) -> int:
        return self.base.page_bytes(page_size)

    def allocate(self, num_pages: int, page_size: int) -> None:
        self.base.allocate(num_pages, page_size)
        for runner in set(self._runners.values()) - {self.base}:
            runner.use_cache(self.base.cache)

    def copy_page(self, source: int, target: int) -> None:
        self.base.copy_page(source, target)

    def run(self, tokens: StepTokens) -> Tensor:
        if not any(tokens.adapters):
            logits_LV = self.base.run(tokens)
            self.experts_TMK = self.base.experts_TMK
            return logits_LV
        places: dict[WholeModel, list[int]] = {}
        for place, name in enumerate(tokens.adapters):
            places.setdefault(self._runners[name], []).append(place)
        parts = [self._run_part(tokens, runner, some) for runner, some in places.items()]
        if tokens.wants_experts:
            self.experts_TMK = _joined([(part.rows, part.experts) for part in parts])
        return _joined([(part.wanted, part.logits) for part in parts])

    def _run_part(self, tokens: StepTokens, runner: WholeModel, places: list[int]) -> "_Part":
        if isinstance(runner, GroupedAdapters):
            places = runner.order(tokens, places)
        part, rows_t, wanted_l = of_sequences(tokens, places)
        logits_lV = runner.run(part)
        return _Part(rows_t, wanted_l, logits_lV, runner.experts_TMK)


class _Part(NamedTuple):
    """What one runner says of its tokens: where they stand in the step, and those of them that are wanted."""

    rows: Tensor
    wanted: Tensor
    logits: Tensor
    experts: Tensor | None


def around(base: GlmMoe, adapter: Adapter | None = None) -> GlmMoe:
    """A model of the weights of `base`, with an adapter in it."""
    with torch.device("meta"):
        model = GlmMoe(base.config)
        if adapter is not None:
            put_adapters(model, adapter.lora)
    weights = base.state_dict()
    if adapter is not None:
        device = next(iter(weights.values())).device
        # Vectors are norms and the magnitudes of DoRA, which are computed with in fp32.
        tensors = adapter.tensors.items()
        weights |= {n: t.to(device, torch.float32 if t.dim() < 2 else base.compute_dtype) for n, t in tensors}
    model.load_state_dict(weights, assign=True)
    model.compute_dtype = base.compute_dtype
    return model.eval()


def _joined(parts: list[tuple[Tensor, Tensor | None]]) -> Tensor:
    """Rows of all parts where they belong."""
    places, rows = zip(*parts, strict=True)
    return torch.cat(rows)[torch.cat(places).argsort()]
