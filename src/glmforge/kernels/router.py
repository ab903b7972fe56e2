"""From a router's logits to the experts of each token and their weights.

Experts are chosen by score plus correction bias, and weighted by the score alone. With `num_groups > 1` the choice is
first limited to the `num_kept_groups` groups with the best top-2 sum. Everything is fp32.

Implementations: "plain", and "triton", which does in one kernel what plain PyTorch does in nine. They choose the same
experts unless two are equally good, where the plain one takes whichever `torch.topk` finds and the other the lower
number. Neither promises an order of a token's choices, which no sum over them depends on but for rounding.

Shapes: T tokens, E experts, K experts per token, J groups.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class RoutingRule(NamedTuple):
    """How many experts a token gets (`num_choices` of E, out of `num_kept_groups` of `num_groups` equal groups), and
    whether their weights are divided by their sum, before they are multiplied by `scale`."""

    num_choices: int
    num_groups: int
    num_kept_groups: int
    normalise: bool
    scale: float


class Routes(NamedTuple):
    """Where the tokens go. `weights_TK` fp32, `experts_TK` int64, `scores_TE` fp32 unbiased sigmoid scores."""

    weights_TK: Tensor
    experts_TK: Tensor
    scores_TE: Tensor


def route(
    logits_TE: Tensor,
    bias_E: Tensor,
    rule: RoutingRule,
    *,
    choice_TE: Tensor | None = None,
    given_TK: Tensor | None = None,
    implementation: str = "plain",
) -> Routes:
    """Each token's experts and weights; weights and scores are differentiable in the logits, the choice is not.

    Args:
        logits_TE: fp32.
        bias_E: fp32, added to the scores for the choice only.
        choice_TE: what experts are chosen by instead of score plus bias; groups then play no part.
        given_TK: int64, each token's experts, which are taken in this order instead of chosen ones; a token whose first
            one is negative chooses. Weights are those of the experts that are taken, by the scores of these logits.
    """
    scores_TE = logits_TE.sigmoid()
    if implementation == "triton":
        from glmforge.kernels.triton.router import route as fused

        if given_TK is not None:
            if choice_TE is None:
                choice_TE = _limit_to_groups(scores_TE.detach() + bias_E, rule)
            choice_TE = _choosing(given_TK, choice_TE)
        weights_TK, experts_TK, _ = fused(logits_TE, bias_E, choice_TE, *rule)
        return Routes(weights_TK, experts_TK, scores_TE)
    if choice_TE is None:
        choice_TE = _limit_to_groups(scores_TE.detach() + bias_E, rule)
    experts_TK = choice_TE.topk(rule.num_choices, dim=-1, sorted=False).indices
    if given_TK is not None:
        experts_TK = torch.where(given_TK[:, :1] < 0, experts_TK, given_TK)
    weights_TK = scores_TE.gather(1, experts_TK)
    if rule.normalise:
        weights_TK = weights_TK / (weights_TK.sum(dim=-1, keepdim=True) + 1e-20)
    return Routes(weights_TK * rule.scale, experts_TK, scores_TE)


def _choosing(given_TK: Tensor, choice_TE: Tensor) -> Tensor:
    """What the experts of `given_TK` are chosen by, in this order; `choice_TE` for tokens that choose themselves."""
    num_choices = given_TK.shape[1]
    order_TK = torch.arange(num_choices, 0, -1, dtype=choice_TE.dtype, device=choice_TE.device).expand_as(given_TK)
    forced_TE = torch.zeros_like(choice_TE).scatter_(1, given_TK.clamp(min=0), order_TK)
    return torch.where(given_TK[:, :1] < 0, choice_TE, forced_TE)


def _limit_to_groups(choice_TE: Tensor, rule: RoutingRule) -> Tensor:
    if rule.num_groups == rule.num_kept_groups:
        return choice_TE
    choice_TJE = choice_TE.unflatten(-1, (rule.num_groups, -1))
    group_scores_TJ = choice_TJE.topk(2, dim=-1).values.sum(dim=-1)
    kept = group_scores_TJ.topk(rule.num_kept_groups, dim=-1, sorted=False).indices
    dropped_TJ = torch.ones_like(group_scores_TJ, dtype=torch.bool).scatter_(1, kept, False)
    return choice_TJE.masked_fill(dropped_TJ[..., None], float("-inf")).flatten(-2)
