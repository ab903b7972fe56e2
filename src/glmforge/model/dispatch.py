"""How routed tokens get to the experts and their results back.

The MoE layer hands tokens to a dispatcher and takes rows in expert order from it; where the experts are is the
dispatcher's matter. `LocalDispatcher` serves experts that are all on this device. Expert parallelism sends the rows to
the ranks that hold the experts (`glmforge.parallel.expert`), or gives tokens to the library DeepEP
(`glmforge.parallel.deepep`).

Shapes: T tokens, D hidden_size, E experts, K experts per token, N routed rows, e experts on this rank.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from glmforge.kernels.dispatch import combine, permute, row_weights, sort_by_expert


class Choices(NamedTuple):
    """The experts that tokens chose.

    Attributes:
        experts_TK: int64, 0 to `num_experts` - 1.
        num_experts: on all ranks together.
        may_drop: whether a choice may be `num_experts`; it goes nowhere.
        weights_TK: may be sent along, for the experts to apply: `ExpertRows.weighted` says so.
    """

    experts_TK: Tensor
    num_experts: int
    may_drop: bool
    weights_TK: Tensor | None


class ExpertRows(NamedTuple):
    """Rows on their way to the experts of this rank.

    Attributes:
        on_the_way: not to be read before `arrive` has had them. They stand here for FSDP, which looks among a module's
            inputs for those whose gradients tell that its own are complete.
        arrive: `arrive(*on_the_way)` waits until all rows are there; gives `x_ND`, the rows sorted by expert,
            `counts_e`, int64, rows per expert of this rank, and `weights_N`, what the experts are to multiply their
            rows by, if `weighted`.
        handle: what the dispatcher needs to bring the results back.
        weighted: whether the experts apply the weights; otherwise `send_back` does.
    """

    on_the_way: tuple[Tensor, ...]
    arrive: Callable[..., tuple[Tensor, Tensor, Tensor | None]]
    handle: Any
    weighted: bool


class Dispatcher(Protocol):
    """Brings tokens to experts and back; both directions are differentiable.

    Attributes:
        needs_weights: `send_back` only adds, so the choices have to bring their weights.
    """

    needs_weights: bool

    def dispatch(self, x_TD: Tensor, choices: Choices, *, implementation: str = "plain") -> ExpertRows:
        """Send each token to its experts; `implementation` is `kernels.permute`."""
        ...

    def send_back(self, y_ND: Tensor, weights_TK: Tensor | None, rows: ExpertRows) -> Callable[[], Tensor]:
        """Send the experts' outputs back to where their tokens are.

        What it gives waits for them, and gives y_TD: each token's weighted sum (None: weighted already); a dropped
        choice adds nothing.
        """
        ...


class LocalDispatcher:
    """All experts are here: sort the rows, and sum them back."""

    needs_weights = False

    def dispatch(self, x_TD: Tensor, choices: Choices, *, implementation: str = "plain") -> ExpertRows:
        routing = sort_by_expert(choices.experts_TK, choices.num_experts, implementation=implementation)
        x_ND = permute(x_TD, routing)
        weights_N = None if choices.weights_TK is None else row_weights(choices.weights_TK, routing)
        if choices.may_drop:
            num_kept = int(routing.counts_E.sum())
            x_ND, weights_N = x_ND[:num_kept], None if weights_N is None else weights_N[:num_kept]

        def arrive(x_ND: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
            return x_ND, routing.counts_E, weights_N

        return ExpertRows((x_ND,), arrive, routing, weighted=weights_N is not None)

    def send_back(self, y_ND: Tensor, weights_TK: Tensor | None, rows: ExpertRows) -> Callable[[], Tensor]:
        return lambda: combine(y_ND, weights_TK, rows.handle)


def expert_counts(experts_TK: Tensor, num_experts: int) -> Tensor:
    """int64 [E]: how many tokens chose each expert, without the dropped choices (`num_experts`)."""
    experts_N = experts_TK.reshape(-1)
    counts = torch.zeros(num_experts + 1, dtype=torch.int64, device=experts_N.device)
    return counts.scatter_add_(0, experts_N, torch.ones_like(experts_N))[:num_experts]
