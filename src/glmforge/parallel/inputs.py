"""Which tokens of a micro-batch a rank runs, and the model's inputs for them.

All ranks of a pipeline stage that share rows (cp, tp) read the same rows. What is cut here is cut by index, on tokens
that are still integers: the tokens to come of MTP layers and the labels are shifted on whole rows before, so that no
border of a cut is ever seen by them.
"""

from functools import partial
from typing import Literal

import torch
from torch import Tensor

from glmforge.config.parallel import ParallelConfig
from glmforge.kernels.documents import Documents
from glmforge.model.attention import Attend
from glmforge.model.dropout import TokenNoise
from glmforge.model.inputs import DocumentAttention, ModelInputs, Routing, Rows, next_ids
from glmforge.parallel import collectives
from glmforge.parallel.context import GatheredKeyValues, Ulysses, zigzag_index
from glmforge.parallel.world import World


class TokenShare:
    """This rank's tokens of micro-batches of B rows of S tokens.

    `in_halves`: layers take the first and the second half of the rows in turn; B is even.
    """

    def __init__(
        self, num_rows: int, seq_len: int, world: World, parallel: ParallelConfig, *, in_halves: bool = False
    ) -> None:
        self.num_rows, self.seq_len, self.world, self.parallel = num_rows, seq_len, world, parallel
        self.index_t: Tensor | None = None
        if world.axis_size("cp") > 1:
            cp, rank = world.axis_size("cp"), world.axis_rank("cp")
            self.index_t = zigzag_index(num_rows, seq_len, cp, rank, device=world.device)
        self.half = TokenShare(num_rows // 2, seq_len, world, parallel) if in_halves else None
        if in_halves and parallel.sequence_parallel:
            self.index_t = self._both_halves_on_each_rank()
        self.rows = Rows(self._row_of_routed_tokens(), num_rows, seq_len, self._groups_sharing_rows())

    def take(self, x_T: Tensor, dim: Literal[0, -1] = -1) -> Tensor:
        """The rank's part, along `dim`, of something that has a value for each of the B * S tokens."""
        if self.index_t is None:
            return x_T
        return x_T[self.index_t] if dim == 0 else x_T[..., self.index_t]

    def own(self, x_T: Tensor, dim: Literal[0, -1] = -1) -> Tensor:
        """As `take`, but the part is this rank's alone: also tp ranks, which share tokens, have different ones."""
        return self._own_chunk(self.take(x_T, dim), dim)

    def put(self, x_o: Tensor) -> Tensor:
        """The inverse of `own(..., dim=0)`, all ranks' parts together; collective, no gradient flows through it."""
        if not self.rows.groups:
            return x_o
        x_T = x_o.new_zeros(self.num_rows * self.seq_len, *x_o.shape[1:])
        x_T[self.own(torch.arange(len(x_T), device=x_T.device))] = x_o
        return self.world.sum(x_T, "cp", "tp")

    def routed_experts(self, experts_TLK: Tensor) -> Tensor:
        """[B, S, L, K], as a batch brings it (`ROUTED_EXPERTS`): the experts that all ranks' tokens took in a section's
        layers, from what its forward says of this rank's (`RouterStats.experts_TLK`). Collective."""
        parts = [experts_TLK] if self.half is None else experts_TLK.chunk(2)
        whole = torch.cat([(self.half or self).put(part) for part in parts])
        return whole.unflatten(0, (self.num_rows, self.seq_len))

    def document_sums(self, x_o: Tensor, documents: Documents) -> Tensor:
        """[num_documents]: the sum over each document's tokens, on all ranks that share the rows, of what they have for
        their own tokens. Collective.

        The gradient of x_o is that of the sum of all ranks' losses. So what all of them make of the sums alike has to
        count `once`.
        """
        sums_N = x_o.new_zeros(len(documents.lengths)).index_add(0, self.own(documents.ids_T()), x_o)
        for axis in ("cp", "tp"):
            group = self.world.group(axis)
            sums_N = collectives.copy(collectives.all_reduce(sums_N, group), group)
        return sums_N

    def once(self, x: Tensor) -> Tensor:
        """`x`, which all ranks that share the rows have alike, on the first of them; zeros on the others."""
        speaks = self.world.axis_rank("cp") == 0 and self.world.axis_rank("tp") == 0
        return x * float(speaks)

    def inputs(
        self,
        ids_BS: Tensor,
        documents: Documents,
        num_mtp_layers: int,
        noise: TokenNoise | None = None,
        *,
        experts_BSLK: Tensor | None = None,
        adapters: bool = True,
    ) -> ModelInputs:
        """What the model reads of one micro-batch; `noise` is that of its B * S tokens, `experts_BSLK` what they are
        sent to instead of what the routers choose."""
        ids_T = ids_BS.flatten()
        return ModelInputs(
            self.take(ids_T),
            self.take(next_ids(ids_T, documents, num_mtp_layers)),
            self.take(documents.positions_T),
            self.rows,
            self._attend(documents, noise),
            None if noise is None else noise.select(self._residual_stream),
            None if noise is None else noise.select(self.take),
            self._halves(ids_BS, documents, noise, experts_BSLK, adapters),
            None if experts_BSLK is None else Routing(self.own(experts_BSLK.flatten(0, 1), dim=0)),
            adapters,
        )

    def _halves(
        self,
        ids_BS: Tensor,
        documents: Documents,
        noise: TokenNoise | None,
        experts_BSLK: Tensor | None,
        adapters: bool,
    ) -> tuple[ModelInputs, ...]:
        if self.half is None:
            return ()
        noises = [None] * 2 if noise is None else [noise.select(partial(_half, n)) for n in range(2)]
        experts = [None] * 2 if experts_BSLK is None else experts_BSLK.chunk(2)
        return tuple(
            self.half.inputs(ids, of_half, 0, noise_of_half, experts_BSLK=chosen, adapters=adapters)
            for ids, of_half, noise_of_half, chosen in zip(
                ids_BS.chunk(2), documents.halves(), noises, experts, strict=True
            )
        )

    def _both_halves_on_each_rank(self) -> Tensor | None:
        """The order in which each of the tp ranks, which have one chunk each, has a part of both halves."""
        tp = self.world.axis_size("tp")
        if tp == 1:
            return self.index_t
        places_t = self.take(torch.arange(self.num_rows * self.seq_len, device=self.world.device))
        return places_t.view(2, tp, -1).transpose(0, 1).flatten()

    def _residual_stream(self, x_T: Tensor) -> Tensor:
        """Outside attention and MLP tp ranks have the same tokens, or under sequence parallelism each its own."""
        return self._own_chunk(self.take(x_T)) if self.parallel.sequence_parallel else self.take(x_T)

    def _own_chunk(self, x_t: Tensor, dim: int = -1) -> Tensor:
        return x_t.chunk(self.world.axis_size("tp"), dim=dim)[self.world.axis_rank("tp")]

    def _attend(self, documents: Documents, noise: TokenNoise | None) -> Attend:
        if self.world.axis_size("cp") == 1:
            return DocumentAttention(documents, noise, self.world.axis_rank("tp"))
        assert noise is None or not noise.step.attention_dropout, "attention dropout needs whole rows"
        if self.parallel.context_method == "ulysses":
            return Ulysses(documents, self.world, self.num_rows, self.seq_len)
        # Under recomputation the gathered keys and values are dropped with the rest.
        regather = self.parallel.recompute == "none"
        return GatheredKeyValues(documents, self.world, self.num_rows, self.seq_len, regather=regather)

    def _row_of_routed_tokens(self) -> Tensor:
        """Routers see the rank's own part of the tokens that its tp ranks share."""
        places_T = torch.arange(self.num_rows * self.seq_len, device=self.world.device)
        return self._own_chunk(self.take(places_T) // self.seq_len)

    def _groups_sharing_rows(self) -> tuple[str, ...]:
        groups = (self.world.group("cp"), self.world.group("tp"))
        return tuple(group.group_name for group in groups if group is not None)


def _half(number: int, x_T: Tensor) -> Tensor:
    return x_T.chunk(2)[number]
