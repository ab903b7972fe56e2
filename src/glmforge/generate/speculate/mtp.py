"""Drafts by the model's own multi-token-prediction layer.

The layer reads, for each position t, the trunk's state h_t and the token at t + 1, attends to what it read before, and
predicts the token at t + 2. It has keys and values of its own in the pages of the cache, beside those of the trunk, so
after every step it reads all positions that the step has computed: prompts as well as answers, and those of confirmed
drafts. What it says after the last position is the first draft. For another one it reads its own state in place of the
trunk's, which does not exist yet, and the draft in place of the token; the keys of such positions are written over when
the trunk has been there. Of a model with several depths the first is used, over and over.

What the layer reads at the last position of a page is the token at the beginning of the next one. Sequences that share
the page may differ there; then they read what one of them wrote. As with any poor draft, no token changes.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from typing import Protocol, runtime_checkable

from torch import Tensor

from glmforge.errors import GlmforgeError
from glmforge.generate.place import Place
from glmforge.generate.runner import Runner
from glmforge.generate.sampler import choose_tokens
from glmforge.generate.sequence import Sequence
from glmforge.generate.speculate.drafter import Computed
from glmforge.generate.step import Span, StepTokens, span_tokens


@runtime_checkable
class MtpRunner(Runner, Protocol):
    """A runner that can run the first MTP layer; `has_mtp` says whether its pages have room for that layer."""

    has_mtp: bool

    def draft(self, tokens: StepTokens, rows: Items[int]) -> Tensor:
        """logits_LV after the wanted tokens, fp32 or better.

        `tokens` has the positions whose states the layer reads, and the ids of the tokens behind them. `rows` says
        where the states are: among those of all tokens of the last `run`, or, after a `draft`, of its wanted ones.
        """
        ...


def check_mtp(runner: Runner) -> MtpRunner:
    """`runner`, if it can run an MTP layer; else raises `GlmforgeError`."""
    if not isinstance(runner, MtpRunner) or not runner.has_mtp:
        raise GlmforgeError(
            "drafter: 'mtp' needs a runner that keeps the MTP layer's keys and values, such as "
            "WholeModel(model, with_mtp=True); 'ngram' needs none"
        )
    return runner


class MtpDrafter:
    """Drafts with the first MTP layer of the model that `runner` runs."""

    def __init__(self, runner: MtpRunner, page_size: int) -> None:
        self.runner, self.page_size = runner, page_size

    def draft(self, computed: Items[Computed], lengths: Mapping[Sequence, int]) -> None:
        spans: list[Span] = []
        rows: list[int] = []
        for sequence, start, row in computed:
            num_tokens = sequence.num_cached - start
            behind = sequence.tokens[start + 1 : sequence.num_cached + 1]
            spans.append(Span(sequence.pages, start, behind, int(sequence in lengths)))
            rows += range(row, row + num_tokens)
        drafting = [one.sequence for one in computed if one.sequence in lengths]
        self._extend(drafting, spans, rows)
        while going_on := [sequence for sequence in drafting if len(sequence.drafts) < lengths[sequence]]:
            rows = [row for row, sequence in enumerate(drafting) if len(sequence.drafts) < lengths[sequence]]
            spans = [Span(one.pages, len(one.tokens) + len(one.drafts) - 2, one.drafts[-1:], 1) for one in going_on]
            drafting = going_on
            self._extend(drafting, spans, rows)

    def _extend(self, drafting: list[Sequence], spans: list[Span], rows: list[int]) -> None:
        """One more draft for each sequence.

        It is drawn with the random numbers that the token itself will be drawn with: where both distributions are
        alike, so are the tokens.
        """
        logits_LV = self.runner.draft(span_tokens(spans, self.page_size, self.runner.device), rows)
        if not drafting:
            return
        places = [Place(sequence, tuple(sequence.drafts)) for sequence in drafting]
        for sequence, chosen in zip(drafting, choose_tokens(logits_LV, places), strict=True):
            sequence.drafts.append(chosen.token)
