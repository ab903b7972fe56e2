"""Several adapters on one base: each request names the one that it is answered with, or none.

Every adapter has a model of its own around the base's weights, which are in memory once: what `adapt.lora` computes,
with DoRA, experts, router, embedding, head, and parameters that were trained whole. All have the same pages, which the
prefix tree keeps apart.

A step computes the requests of each adapter on their own, those of none by the native kernels: as many passes as there
are adapters among its requests. So a request's numbers do not depend on the adapters of others. One pass for all, with
grouped low-rank products, would read the base's weights once: `docs/lab-notes/serving.md` has what that would gain.

Shapes: T tokens, L wanted tokens, V vocab_size.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from glmforge.adapt.lora import put_adapters
from glmforge.checkpoint.adapter.open import Adapter
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
        self._runners: dict[str | None, WholeModel] = {None: self.base}
        self._runners |= {name: WholeModel(with_adapter(model, adapter)) for name, adapter in adapters.items()}

    def anyone(self, busy: bool) -> bool:
        return busy

    def weights_changed(self) -> None:
        for runner in self._runners.values():
            runner.weights_changed()

    def weights_differ(self, *, closely: bool) -> bool:
        return self.base.weights_differ(closely=closely)

    def page_bytes(self, page_size: int) -> int:
        return self.base.page_bytes(page_size)

    def allocate(self, num_pages: int, page_size: int) -> None:
        self.base.allocate(num_pages, page_size)
        for name in self.adapters:
            self._runners[name].use_cache(self.base.cache)

    def copy_page(self, source: int, target: int) -> None:
        self.base.copy_page(source, target)

    def run(self, tokens: StepTokens) -> Tensor:
        places: dict[str | None, list[int]] = {}
        for place, name in enumerate(tokens.adapters):
            places.setdefault(name, []).append(place)
        if len(places) == 1:
            runner = self._runners[tokens.adapters[0]]
            logits_LV = runner.run(tokens)
            self.experts_TMK = runner.experts_TMK
            return logits_LV
        all_rows, all_wanted, all_logits, all_experts = [], [], [], []
        for name, some in places.items():
            part, rows_t, wanted_l = of_sequences(tokens, some)
            all_logits.append(self._runners[name].run(part))
            all_rows.append(rows_t)
            all_wanted.append(wanted_l)
            all_experts.append(self._runners[name].experts_TMK)
        if tokens.wants_experts:
            self.experts_TMK = _joined(all_experts, all_rows)
        return _joined(all_logits, all_wanted)


def with_adapter(base: GlmMoe, adapter: Adapter) -> GlmMoe:
    """The model with the adapter, around the weights of `base`."""
    with torch.device("meta"):
        model = GlmMoe(base.config)
        put_adapters(model, adapter.lora)
    weights = base.state_dict()
    device = next(iter(weights.values())).device
    # Magnitudes of DoRA are vectors, which are computed with in fp32.
    own = {n: t.to(device, None if t.dim() < 2 else base.compute_dtype) for n, t in adapter.tensors.items()}
    model.load_state_dict(weights | own, assign=True)
    model.compute_dtype = base.compute_dtype
    return model.eval()


def _joined(parts: list[Tensor], places: list[Tensor]) -> Tensor:
    """Rows of all parts where they belong."""
    return torch.cat(parts)[torch.cat(places).argsort()]
