"""What a step tells of tokens beside the next one: log-probabilities of prompts, and the experts that were chosen.

Shapes: T tokens of a step, L tokens whose logits are wanted, V vocab_size, M MoE layers, K experts of a token.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from glmforge.generate.logprobs import TokenLogprob, token_logprobs
from glmforge.generate.scheduler import Work
from glmforge.kernels.router import Routes
from glmforge.model.moe import MoE
from glmforge.model.transformer import GlmMoe

_SCORED_AT_ONCE = 64
"""Tokens whose log-probabilities are made from one copy of their logits."""


def score_prompts(steps: Sequence[Work], logits_LV: Tensor) -> None:
    """Take up the log-probabilities of prompts that these steps run through, before they advance."""
    rows = logits_LV.split([work.num_wanted for work in steps])
    for work, rows_LV in zip(steps, rows, strict=True):
        if work.sequence.scores_prompt:
            _score_prompt(work, rows_LV)


def _score_prompt(work: Work, logits_LV: Tensor) -> None:
    sequence = work.sequence
    params = sequence.request.params
    # The last prompt token's logits are of the answer; behind it, a sequence that starts over has its answer.
    labels = sequence.request.prompt[sequence.num_scored + 1 : sequence.num_cached + work.num_tokens + 1]
    if not labels:
        return
    found: list[TokenLogprob] = []
    for logits_part, part in zip(
        logits_LV[: len(labels)].split(_SCORED_AT_ONCE), torch.tensor(labels).split(_SCORED_AT_ONCE), strict=True
    ):
        number = len(part)
        found += token_logprobs(
            logits_part, [params.temperature] * number, part.tolist(), [params.logprobs or 0] * number
        )
    sequence.prompt_logprobs += found


def record_experts(steps: Sequence[Work], experts_TMK: Tensor) -> None:
    """Take up the experts that the tokens of these steps chose, before they advance.

    What is recorded stays: tokens whose keys are computed again, perhaps under other weights, chose their experts when
    the token behind them was sampled.
    """
    pieces = experts_TMK.to("cpu", torch.int16).split([work.num_tokens for work in steps])
    for (sequence, num_tokens), piece in zip(steps, pieces, strict=True):
        params = sequence.request.params
        if not params.experts:
            continue
        if sequence.experts_TMK is None:
            longest = len(sequence.request.prompt) + params.max_new_tokens
            sequence.experts_TMK = piece.new_zeros(longest, *piece.shape[1:])
        start, stop = sequence.num_cached, sequence.num_cached + num_tokens
        num_known = max(0, sequence.num_recorded - start)
        sequence.experts_TMK[start + num_known : stop] = piece[num_known:]
        # Drafts behind the last token may yet be refused; then others are written in their place.
        sequence.num_recorded = max(sequence.num_recorded, min(stop, len(sequence.tokens)))


@contextmanager
def recorded_experts(sections: Iterable[GlmMoe]) -> Iterator[list[Tensor]]:
    """Experts [T, K] that the tokens choose in each MoE layer of the trunk while these run, layer after layer."""
    chosen: list[Tensor] = []

    def note(module: nn.Module, arguments: object, routes: Routes) -> None:
        chosen.append(routes.experts_TK)

    layers = [layer for section in sections for layer in section.trunk_layers]
    routers = [layer.mlp.gate for layer in layers if isinstance(layer.mlp, MoE)]
    handles = [router.register_forward_hook(note) for router in routers]
    try:
        yield chosen
    finally:
        for handle in handles:
            handle.remove()
