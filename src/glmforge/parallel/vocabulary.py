"""The vocabulary of embedding and head, spread over the ranks of the tp axis.

Each rank has V / tp rows of either matrix. A token's embedding is looked up where its row lies and summed over ranks,
zeros coming from all others. The cross-entropy needs three numbers per token from all ranks (largest logit, sum of
exponentials, the label's logit), so training never gathers logits: at 151,552 entries those of one 4,096-token sequence
would take 2.3 GiB in fp32. Generation gathers those of the few tokens whose successors it chooses.

Shapes: T tokens, V rows on this rank.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from glmforge.kernels.cross_entropy import VocabularyShard
from glmforge.model.placement import Vocabulary
from glmforge.parallel import collectives


@dataclass(frozen=True)
class ShardedVocabulary(Vocabulary):
    """Rows [rank * V, (rank + 1) * V) lie on this rank of `group`."""

    group: dist.ProcessGroup

    def rows(self, ids_T: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
        rows_T = ids_T - self._start(num_rows)
        here_T = (rows_T >= 0) & (rows_T < num_rows) & (ids_T >= 0)
        return rows_T.where(here_T, 0), ~here_T

    def shard(self, num_rows: int) -> VocabularyShard:
        def reduce(tensor: Tensor, op: dist.ReduceOp.RedOpType) -> Tensor:
            dist.all_reduce(tensor, op, group=self.group)
            return tensor

        return VocabularyShard(
            start=self._start(num_rows),
            max=lambda tensor: reduce(tensor, dist.ReduceOp.MAX),
            sum=lambda tensor: reduce(tensor, dist.ReduceOp.SUM),
        )

    def own(self, values_T: Tensor) -> Tensor:
        return collectives.split(values_T, self.group)

    def whole(self, logits_LV: Tensor) -> Tensor:
        # By rows of the vocabulary, which is the dim that a gather puts together.
        return collectives.all_gather(logits_LV.T, self.group).T.contiguous()

    def likeliest(self, logits_T: Tensor, rows_T: Tensor, num_rows: int) -> Tensor:
        logits_T = logits_T.float()
        top_T = logits_T.clone()
        dist.all_reduce(top_T, dist.ReduceOp.MAX, group=self.group)
        # Of equal logits the smallest id, as argmax on one rank would choose.
        ids_T = (rows_T + self._start(num_rows)).where(logits_T == top_T, torch.iinfo(torch.int64).max)
        dist.all_reduce(ids_T, dist.ReduceOp.MIN, group=self.group)
        return ids_T

    def _start(self, num_rows: int) -> int:
        return self.group.rank() * num_rows
