"""LoRA in the model (Hu et al., 2021, arXiv 2106.09685): what the rows of `glmforge.config.adapters` compute.

An adapter takes the place of its map's `Matmul` and calls the one that it finds there (an 8-bit
product, say). Its parameters belong to the map's own module, under the names of PEFT's files. Beside a map that is cut
it works on this device's part: a factor on the cut side is cut with the map, the other one is whole, and what comes out
is a part of the outputs or of their sum, as the map's own is. So nothing here knows of an axis.

Routed experts' adapters multiply rows that are sorted by expert, grouped by the same counts as the experts' own
products, first by A, then by B: [N, rank] is all that lies between, and no product B A is ever formed. Gate and up
projection each have their own pair, or share one (`config.adapters.PACKED`). On the CPU one operator computes base and
adapter (`glmforge.kernels.adapted_experts`).

The head answers from hidden states and weight without logits (`model.head`), so its adapter gives it more columns of
both: [h, scaling h A^T] and [W, B]. That copies the weight in the compute dtype for each micro-batch.

`ModelInputs(adapters=False)` leaves all adapters out of a forward pass: the base model answers, to the last bit, with
the same weights (the reference of DPO and GRPO). Layers get it with their tokens, so one that is computed again in the
backward pass gets the same.

DoRA (Liu et al., 2024, arXiv 2402.09353): y = m / |W + scaling B A| * (W x + scaling B A x), the norm being of each row
and, as in the paper's section 4.3, without a gradient. |W + scaling B A|^2 is assembled from |W|^2, (W A^T) * B and
(B (A A^T)) * B, so that the sum of W and B A is not formed either. Dropout acts on what the adapter reads, not, as in
PEFT's DoRA, on a second product with W.

Shapes: N rows of tokens, J inputs and O outputs of a map, r rank, E experts, I inner width of an expert, V vocabulary.
"""

import zlib
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glmforge.config.adapters import LinearMap, adapted_maps, adapter_parts
from glmforge.config.lora import LoraConfig
from glmforge.config.schema import RunConfig
from glmforge.kernels.adapted_experts import adapted_expert_linear, low_rank
from glmforge.model.block import DecoderLayer
from glmforge.model.head import LMHead
from glmforge.model.layers import Embedding, Linear, Matmul, matmul
from glmforge.model.moe import Experts
from glmforge.model.placement import first_column, local, sum_over_inputs
from glmforge.model.router import Router
from glmforge.model.transformer import GlmMoe
from glmforge.parallel.build import Extend

MAGNITUDE = "lora_magnitude_vector"

Place = DecoderLayer | GlmMoe
"""The layer that an adapter is in, or, of embedding and head, the section: its `adapters_on` says whether it counts."""

Operands = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""As `LMHead.operands`."""


def adapters_of(config: RunConfig) -> Extend | None:
    """What puts the adapters of a run into each section of its model (`build_model(extend=...)`); None without any."""
    return None if config.lora is None else partial(put_adapters, lora=config.lora)


def put_adapters(section: GlmMoe, lora: LoraConfig) -> None:
    """Add the adapters of the section's maps, uninitialised, in place."""
    section.has_base = not lora.modules_to_save
    modules = dict(section.named_modules())
    for one in adapted_maps(section.config, lora):
        if one.owner in modules:
            place = modules.get(f"model.layers.{one.row.layer}", section)
            assert isinstance(place, Place)
            dropout = None
            if lora.dropout:
                assert isinstance(place, DecoderLayer), "only linear layers have dropout"
                dropout = Dropout(place, zlib.crc32(one.name.partition(f".{one.row.layer}.")[2].encode()))
            _adapt(modules[one.owner], one, lora, place, dropout)


def _adapt(owner: nn.Module, one: LinearMap, lora: LoraConfig, place: Place, dropout: "Dropout | None") -> None:
    for part, row in adapter_parts(one, lora):
        holder = owner.get_submodule(part) if part in dict(owner.named_children()) else nn.Module()
        owner.add_module(part, holder)
        holder.register_parameter(one.key, nn.Parameter(torch.empty(row.shape)))
    if isinstance(owner, Linear):
        kind = Dora if lora.dora else LowRank
        owner.matmul = kind(owner, one.key, lora.scaling, owner.matmul, place, dropout=dropout)
    elif isinstance(owner, Router):
        owner.matmul = LowRank(owner, one.key, lora.scaling, owner.matmul, place)
    elif isinstance(owner, Experts):
        _adapt_experts(owner, one, lora, place)
    elif isinstance(owner, Embedding):
        owner.lookup = EmbeddingRows(owner, lora.scaling, owner.lookup, place)
    else:
        assert isinstance(owner, LMHead), f"{one.name}: has no place for an adapter"
        owner.operands = HeadColumns(owner, lora.scaling, owner.operands, place)


def _adapt_experts(experts: Experts, one: LinearMap, lora: LoraConfig, place: Place) -> None:
    attribute = "down_matmul" if one.key == "down_proj" else "gate_up_matmul"
    if not isinstance(getattr(experts, attribute), ExpertAdapters):
        setattr(experts, attribute, ExpertAdapters(experts, lora.scaling, getattr(experts, attribute), place))
    is_whole = one.name == one.row.name
    number = 0 if is_whole else [part.removesuffix(".weight") for part in one.row.expert_parts].index(one.key)
    getattr(experts, attribute).maps.append((one.key, number * one.num_outputs))


class Dropout:
    """Drops inputs of an adapter with the layer's noise for its tokens: a function of step, layer, token, input and
    `site`, which tells the layer's adapters apart; see `glmforge.model.dropout`."""

    def __init__(self, layer: DecoderLayer, site: int) -> None:
        self.layer, self.site = layer, site

    def __call__(self, x_TJ: Tensor, first: int) -> Tensor:
        """`first` is the number of the first input that lies on this device."""
        dropout = self.layer.adapter_dropout
        return x_TJ if dropout is None else dropout.drop(x_TJ, self.site, first)


class LowRank:
    """A `Matmul` that adds `scaling B A x` to what `base` gives.

    Args:
        owner: the module with the factors `lora_A.<key>` [r, J] and `lora_B.<key>` [O, r].
        place: says whether the adapter counts.
        dropout: of what the adapter reads; None drops nothing.
    """

    def __init__(
        self,
        owner: nn.Module,
        key: str,
        scaling: float,
        base: Matmul,
        place: Place,
        *,
        dropout: "Dropout | None" = None,
    ) -> None:
        self.owner, self.key, self.scaling, self.base = owner, key, scaling, base
        self.place, self.dropout = place, dropout

    def __call__(
        self, x: Tensor, weight: Tensor, *, bias: Tensor | None = None, counts_E: Tensor | None = None
    ) -> Tensor:
        y = self.base(x, weight, bias=bias)
        return self.adapted(y, x) if self.place.adapters_on else y

    def adapted(self, y: Tensor, x: Tensor) -> Tensor:
        """`y` with what the adapter adds: by the product itself, not by a further pass over the outputs."""
        if self.dropout is not None:
            x = self.dropout(x, first_column(getattr(self.owner.lora_A, self.key)))
        low_Tr = matmul(x, self.factor("lora_A"))
        return torch.addmm(y, low_Tr, self.factor("lora_B").to(y.dtype).T, alpha=self.scaling)

    def factor(self, part: str) -> Tensor:
        """This device's part of one of the adapter's parameters."""
        return factor(self.owner, part, self.key)


class ExpertAdapters:
    """A `Matmul` of packed experts that adds what the adapters of `maps` do: their keys, and each one's first output.

    The factors, `lora_A.<key>` [E, r, J] and `lora_B.<key>` [E, O, r], belong to `owner`. Where gate and up projection
    have one each, both are one adapter of twice the rank, B in blocks: the rows are read once, and nothing as wide as
    the outputs is padded.
    """

    def __init__(self, owner: Experts, scaling: float, base: Matmul, place: Place) -> None:
        self.owner, self.scaling, self.base, self.place = owner, scaling, base, place
        self.is_plain = base == owner.matmul  # asked here: torch.compile's trace says no
        self.maps: list[tuple[str, int]] = []

    def __call__(
        self, x: Tensor, weight: Tensor, *, bias: Tensor | None = None, counts_E: Tensor | None = None
    ) -> Tensor:
        assert counts_E is not None, "every row belongs to an expert"
        if not self.place.adapters_on:
            return self.base(x, weight, bias=bias, counts_E=counts_E)
        implementation = self.owner.kernels.experts
        factors = self.factors(weight.shape[1])
        if self.is_plain:
            return adapted_expert_linear(
                x, weight, *factors, counts_E, scaling=self.scaling, implementation=implementation
            )
        y = self.base(x, weight, bias=bias, counts_E=counts_E)
        return y + low_rank(x, *factors, counts_E, scaling=self.scaling, implementation=implementation)

    def factors(self, num_outputs: int) -> tuple[Tensor, Tensor]:
        """A [E, R, J] and B [E, O, R] of all maps, R being the sum of their ranks."""
        a_ErJ = [factor(self.owner, "lora_A", key) for key, _ in self.maps]
        b_EOr = [factor(self.owner, "lora_B", key) for key, _ in self.maps]
        if len(self.maps) == 1 and b_EOr[0].shape[1] == num_outputs:
            return a_ErJ[0], b_EOr[0]
        blocks = [
            F.pad(b, (0, 0, first, num_outputs - first - b.shape[1]))
            for b, (_, first) in zip(b_EOr, self.maps, strict=True)
        ]
        return torch.cat(a_ErJ, dim=1), torch.cat(blocks, dim=2)


def factor(owner: nn.Module, part: str, key: str) -> Tensor:
    """This device's part of one of the parameters that an adapter has in `owner`."""
    parameter: Tensor = getattr(getattr(owner, part), key)
    return local(parameter)


class Dora(LowRank):
    """`m / |W + scaling B A| * (W x + scaling B A x)`, with `lora_magnitude_vector.<key>` m [O], plus the bias."""

    def __call__(
        self, x: Tensor, weight: Tensor, *, bias: Tensor | None = None, counts_E: Tensor | None = None
    ) -> Tensor:
        if not self.place.adapters_on:
            return self.base(x, weight, bias=bias)
        y = self.adapted(self.base(x, weight), x)
        scale_O = self.factor("lora_magnitude_vector").float() / self.norms(weight)
        y = y * scale_O.to(y.dtype)
        return y if bias is None else y + bias.to(y.dtype)

    @torch.no_grad()
    def norms(self, weight_OJ: Tensor) -> Tensor:
        """[O], fp32: of the rows of W + scaling B A, all inputs of them."""
        a_rJ, b_Or = self.factor("lora_A").float(), self.factor("lora_B").float() * self.scaling
        w_Or, a_rr = (weight_OJ @ a_rJ.to(weight_OJ.dtype).T).float(), a_rJ @ a_rJ.T
        squares_O = torch.linalg.vector_norm(weight_OJ, dim=-1, dtype=torch.float32).square()
        squares_O = squares_O + (2 * w_Or * b_Or).sum(-1) + ((b_Or @ a_rr) * b_Or).sum(-1)
        weight = self.owner.weight
        assert isinstance(weight, Tensor)
        return sum_over_inputs(squares_O, weight).clamp(min=0).sqrt()


class EmbeddingRows:
    """A lookup that adds `scaling B A[:, token]`: A [r, V], zero at first, and B [D, r]."""

    def __init__(
        self, owner: Embedding, scaling: float, base: Callable[[Tensor, Tensor], Tensor], place: Place
    ) -> None:
        self.owner, self.scaling, self.base, self.place = owner, scaling, base, place

    def __call__(self, rows_T: Tensor, weight_VD: Tensor) -> Tensor:
        if not self.place.adapters_on:
            return self.base(rows_T, weight_VD)
        a_rV, b_Dr = (local(getattr(self.owner, part).weight) for part in ("lora_embedding_A", "lora_embedding_B"))
        low_Tr = F.embedding(rows_T, a_rV.T) * self.scaling
        return self.base(rows_T, weight_VD) + low_Tr @ b_Dr.T


class HeadColumns:
    """Hidden states [T, D + r] and weight [V, D + r] whose product is `h W^T + scaling h A^T B^T`."""

    def __init__(self, owner: LMHead, scaling: float, base: Operands, place: Place) -> None:
        self.owner, self.scaling, self.base, self.place = owner, scaling, base, place

    def __call__(self, h_TD: Tensor, weight_VD: Tensor) -> tuple[Tensor, Tensor]:
        if not self.place.adapters_on:
            return self.base(h_TD, weight_VD)
        a_rD, b_Vr = (local(getattr(self.owner, part).weight) for part in ("lora_A", "lora_B"))
        low_Tr = matmul(h_TD, a_rD) * self.scaling
        columns = torch.cat((weight_VD.to(h_TD.dtype), b_Vr.to(h_TD.dtype)), dim=1)
        return torch.cat((h_TD, low_Tr), dim=1), columns
