"""What models say of sampled answers without training on them: log-probabilities, values. On any layout.

Shapes: B rows, S tokens per row, o the rank's own tokens.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from glmforge.backend.global_batch import run_section
from glmforge.backend.objective import Objective
from glmforge.data.stream.batch import Batch
from glmforge.kernels.experts import as_in_training
from glmforge.model.transformer import Activations, ForwardOutput, GlmMoe, Head
from glmforge.observe.alive import Alive, quiet
from glmforge.parallel.inputs import TokenShare
from glmforge.parallel.model import ParallelModel


class LinearHeadOnly(Objective):
    """What a linear head of a model says of each token, and nothing to minimise."""

    terms, weights = (), ()
    replays_experts = False

    def __init__(self, name: str) -> None:
        self.name = name

    def head(self, batch: Batch, share: TokenShare) -> Head[Tensor]:
        return lambda h_tD, heads, depth: heads.linear[self.name](h_tD).squeeze(-1)

    def denominators(self, batch: Batch) -> Tensor:
        return torch.zeros(0, dtype=torch.float64, device=batch.ids_BS.device)

    def numerators(self, output: ForwardOutput[Tensor], batch: Batch, share: TokenShare) -> Tensor:
        return output.router.aux_loss.new_zeros(0)

    def add_metrics(
        self, sums: Mapping[str, Tensor], output: ForwardOutput[Tensor], batch: Batch, share: TokenShare
    ) -> None:
        return None


@torch.no_grad()
def score_tokens(
    model: ParallelModel,
    objective: Objective,
    read: Callable[[object], Tensor],
    batch: Batch,
    micro_batch_size: int,
    *,
    adapters: bool = True,
    alive: Alive = quiet,
) -> Tensor:
    """float32 [B, S] on the host, on all ranks that share the rows: what `read` makes of the head's answer.

    Collective. The model computes exactly what it computes in a training step with `objective`.

    Args:
        model: in evaluation mode.
        read: gives [o] of what the objective's head gives at depth 0.
        adapters: False takes the base model (`GlmMoe.has_base`).
    """
    micro_batches = batch.to(model.world.device).micro_batches(micro_batch_size)
    num_rows, seq_len = micro_batches[0].ids_BS.shape
    share = TokenShare(num_rows, seq_len, model.world, model.parallel, in_halves=model.parallel.ep_overlap)
    found: list[Tensor] = [torch.zeros(num_rows * seq_len, device=model.world.device) for _ in micro_batches]

    def run(part: GlmMoe, index: int, received: Activations | None) -> tuple[Tensor, Activations | None]:
        alive(f"scoring answers, micro-batch {index + 1} of {len(micro_batches)}")
        with as_in_training():
            output = run_section(part, received, objective, micro_batches[index], share, adapters=adapters)
        if output.is_last:
            values_o = read(output.main).float()
            found[index][share.own(torch.arange(num_rows * seq_len, device=values_o.device))] = values_o
        return output.router.aux_loss, output.activations

    model.run(run, len(micro_batches), (num_rows, seq_len), num_mtp=0, backward=False)
    values_TM = model.world.sum(torch.stack(found), "pp", "cp", "tp")
    return values_TM.view(-1, seq_len).cpu()
