"""Who runs the model on the tokens of a step, and holds the cache that they fill.

Shapes: T tokens, L tokens whose logits are wanted, V vocab_size, D hidden_size, N pages, G key/value heads, C tokens
of a page, P head_dim, M MoE layers, K experts of a token.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from glmforge.config.model import ModelConfig
from glmforge.errors import GlmforgeError
from glmforge.generate.native import NativeModel, fits
from glmforge.generate.record import recorded_experts
from glmforge.generate.step import StepTokens
from glmforge.kernels.paged_attention import PagedTokens, paged_attention, write_pages
from glmforge.model.attention import Attention
from glmforge.model.block import LayerTokens
from glmforge.model.head import Heads, NoLMHeadError
from glmforge.model.inputs import ModelInputs, Rows
from glmforge.model.transformer import GlmMoe


class Runner(Protocol):
    """Runs steps; between them keys and values stay in their pages.

    Attributes:
        is_collective: other ranks take part in every step, so that this one has to run steps of no tokens for theirs.
        adapters: names of those that requests may be answered with.
        shares_requests: whether some of these ranks have the same requests and have to choose the same tokens.
        experts_TMK: those of the last step's tokens in the M MoE layers of the trunk, if the step wanted them.
    """

    config: ModelConfig
    device: torch.device
    experts_TMK: Tensor | None

    @property
    def adapters(self) -> Sequence[str]: ...

    @property
    def is_collective(self) -> bool: ...

    @property
    def shares_requests(self) -> bool: ...

    def anyone(self, busy: bool) -> bool:
        """Whether any of the ranks that run steps together is busy."""
        ...

    def weights_changed(self) -> None:
        """The model's weights are others than in the last step."""
        ...

    def weights_differ(self, *, closely: bool) -> bool:
        """Whether weights have been changed since without notice; `closely` may take a millisecond."""
        ...

    def page_bytes(self, page_size: int) -> int:
        """Memory of one page on this rank, in bytes."""
        ...

    def allocate(self, num_pages: int, page_size: int) -> None:
        """Make room for this many pages."""
        ...

    def run(self, tokens: StepTokens) -> Tensor:
        """logits_LV of the wanted tokens, fp32 or better."""
        ...

    def copy_page(self, source: int, target: int) -> None:
        """Copy what lies in a page to another one."""
        ...


class PagedCache:
    """Keys and values of some layers in pages."""

    def __init__(
        self, layers: list[int], shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device
    ) -> None:
        self.keys = {layer: torch.zeros(shape, dtype=dtype, device=device) for layer in layers}
        self.values = {layer: torch.zeros(shape, dtype=dtype, device=device) for layer in layers}

    def copy_page(self, source: int, target: int) -> None:
        for tensor in (*self.keys.values(), *self.values.values()):
            tensor[target] = tensor[source]


class PagedAttend:
    """An `Attend` of the tokens of a step: writes their keys and values, and attends to the pages."""

    def __init__(self, cache: PagedCache, tokens: PagedTokens) -> None:
        self.cache, self.tokens = cache, tokens

    def __call__(self, module: Attention, q_THP: Tensor, k_TGP: Tensor, v_TGP: Tensor) -> Tensor:
        keys_NGCP, values_NGCP = self.cache.keys[module.layer], self.cache.values[module.layer]
        write_pages(k_TGP, v_TGP, keys_NGCP, values_NGCP, self.tokens)
        return paged_attention(q_THP, keys_NGCP, values_NGCP, self.tokens)


class WholeModel:
    """A model on one device, by native kernels where they compute what it is, else module by module.

    With `native` False it is always run module by module. `with_mtp` makes room for the first MTP layer, to draft with.
    """

    is_collective, shares_requests = False, False
    adapters: Sequence[str] = ()

    def __init__(self, model: GlmMoe, *, native: bool = True, with_mtp: bool = False) -> None:
        if with_mtp and not model.mtp_layers:
            raise GlmforgeError(
                "drafter: 'mtp' needs an MTP layer, which the model lacks (num_nextn_predict_layers is 0); 'ngram' "
                "needs none"
            )
        if not model.config.lm_head:
            raise NoLMHeadError(model.config.heads)
        self.model, self.config, self.has_mtp = model, model.config, with_mtp
        self.experts_TMK: Tensor | None = None
        self.device = next(model.parameters()).device
        self.layers = list(range(self.config.num_hidden_layers + with_mtp))
        self._native_wanted = native
        self._check_weights()

    def anyone(self, busy: bool) -> bool:
        return busy

    def weights_changed(self) -> None:
        """Nothing is kept of them, but the model may have been given adapters, say, or lost them."""
        self._check_weights()
        self._choose_way()

    def weights_differ(self, *, closely: bool) -> bool:
        return self._watch.differ(closely=closely)

    def _check_weights(self) -> None:
        self.is_native = self._native_wanted and fits(self.model)
        self._watch = _WeightsWatch(self.model)

    def page_bytes(self, page_size: int) -> int:
        width = self.config.num_key_value_heads * self.config.head_dim
        return 2 * len(self.layers) * page_size * width * self.model.compute_dtype.itemsize

    def allocate(self, num_pages: int, page_size: int) -> None:
        shape = (num_pages, self.config.num_key_value_heads, page_size, self.config.head_dim)
        self.cache = PagedCache(self.layers, shape, self.model.compute_dtype, self.device)
        self._choose_way()

    def use_cache(self, cache: PagedCache) -> None:
        """Use the pages of another runner, of a model of the same sizes, in place of `allocate`."""
        self.cache = cache
        self._choose_way()

    def _choose_way(self) -> None:
        self._native = NativeModel(self.model, self.cache.keys, self.cache.values) if self.is_native else None

    @torch.no_grad()
    def run(self, tokens: StepTokens) -> Tensor:
        if self._native is not None:
            logits_LV, experts_STK = self._native.run(tokens)
            self.experts_TMK = experts_STK[self.config.first_k_dense_replace :].transpose(0, 1)
            return logits_LV
        if not tokens.wants_experts:
            return self._run_modules(tokens)
        with recorded_experts([self.model]) as experts:
            logits_LV = self._run_modules(tokens)
        self.experts_TMK = torch.stack(experts, dim=1)
        return logits_LV

    def _run_modules(self, tokens: StepTokens) -> Tensor:
        model, ids_T = self.model, tokens.ids_T
        rows = Rows(torch.zeros_like(ids_T), 1, len(ids_T))
        attend = PagedAttend(self.cache, tokens.paged)
        inputs = ModelInputs(ids_T, ids_T.new_empty(0, len(ids_T)), tokens.positions_T, rows, attend)

        def head(h_TD: Tensor, heads: Heads, depth: int) -> Tensor:
            self._states_TD = h_TD
            return heads.lm(h_TD[tokens.wanted_L])

        with _evaluating(model):
            return _fp32_or_better(model(inputs, head=head, with_mtp=False).main)

    @torch.no_grad()
    def draft(self, tokens: StepTokens, rows: Sequence[int]) -> Tensor:
        """See `speculate.mtp.MtpRunner`."""
        if self._native is not None:
            return self._native.draft(tokens, rows)
        model = self.model
        assert model.lm_head is not None, "a whole model"
        layer_tokens = LayerTokens(model.rope(tokens.positions_T), PagedAttend(self.cache, tokens.paged))
        states_TD = self._states_TD[torch.tensor(rows, device=self.device)]
        with _evaluating(model):
            (output,) = model.mtp_layers[0](states_TD, model.embed(tokens.ids_T), tokens=[layer_tokens])
        self._states_TD = output.x_TD[tokens.wanted_L]
        return _fp32_or_better(model.lm_head(self._states_TD))

    def copy_page(self, source: int, target: int) -> None:
        self.cache.copy_page(source, target)


class _WeightsWatch:
    """Notices parameters and buffers of `model` that were changed without `weights_changed`: keys that were computed
    under the old ones are of no use then.

    PyTorch counts the changes of each tensor in place, which costs microseconds to look at. Fused optimizers, `.data`
    and libraries that write to memory count nothing, so once in a while an element of each is compared as well.
    """

    def __init__(self, model: nn.Module) -> None:
        self._weights = [weight for weight in (*model.parameters(), *model.buffers()) if weight.numel()]
        self._counted = [weight for weight in self._weights if not weight.is_inference()]
        self._count, self._sample = self._num_changes(), self._middles()

    def differ(self, *, closely: bool) -> bool:
        """Whether they have been changed; a change that nothing has counted is only seen `closely`."""
        if self._num_changes() != self._count:
            return True
        return closely and not torch.equal(self._middles(), self._sample)

    def _num_changes(self) -> int:
        return sum(weight._version for weight in self._counted)

    @torch.no_grad()
    def _middles(self) -> Tensor:
        """An element of each, float64."""
        return torch.stack([weight[tuple(size // 2 for size in weight.shape)].double() for weight in self._weights])


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Without what a model does in training alone, such as Sinkhorn's choice of experts, and then as it was."""
    if not model.training:
        yield
        return
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _fp32_or_better(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
