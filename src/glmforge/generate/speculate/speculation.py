"""Who drafts, how many tokens for whom, and on what pages.

Checking a draft is cheap while a step reads weights for few tokens, and costs as much as any other token where it
computes many. So the drafts of a step are bounded over all sequences: the more of them decode, the fewer each has.
Drafts take room and pages that nothing else needs in the next step: they neither hold up a prompt that runs nor take a
page that another sequence would have to give back for it.
"""

from collections.abc import Sequence as Items

from glmforge.generate.config import DrafterName
from glmforge.generate.runner import Runner
from glmforge.generate.scheduler import Scheduler
from glmforge.generate.sequence import Sequence
from glmforge.generate.speculate.drafter import Computed, Drafter
from glmforge.generate.speculate.mtp import MtpDrafter, check_mtp
from glmforge.generate.speculate.ngram import NgramDrafter


class Speculation:
    """Drafts by `drafter` for the sequences of `scheduler`: at most `num_drafts` tokens for each, and at most
    `max_draft_tokens` in a step."""

    def __init__(self, drafter: Drafter, scheduler: Scheduler, num_drafts: int, max_draft_tokens: int) -> None:
        self.drafter, self.scheduler = drafter, scheduler
        self.num_drafts, self.max_draft_tokens = num_drafts, max_draft_tokens

    def draft(self, computed: Items[Computed]) -> None:
        """Draft for the next step, after one that has `computed` this."""
        alive = [one for one in computed if one.sequence.pages]
        lengths = self._give_room([one.sequence for one in alive if one.sequence.num_pending == 1])
        if alive:
            self.drafter.draft(alive, lengths)

    def _give_room(self, decoding: Items[Sequence]) -> dict[Sequence, int]:
        """How many tokens may be drafted for whom, at least one; they get pages for them."""
        memory, running = self.scheduler.memory, self.scheduler.running
        for sequence in running:
            memory.trim(sequence)
        room = self.scheduler.max_step_tokens - sum(sequence.num_pending for sequence in running)
        each = min(self.num_drafts, min(room, self.max_draft_tokens) // max(1, len(decoding)))
        needed = sum(max(0, memory.num_needed(len(one.tokens)) - len(one.pages)) for one in running)
        spare = memory.num_available - needed
        lengths: dict[Sequence, int] = {}
        for sequence in decoding if spare >= 0 else ():
            num_tokens = len(sequence.tokens)
            num_pages = memory.num_needed(num_tokens)
            longest = (num_pages + spare) * memory.page_size
            number = min(each, sequence.num_left - 1, longest - num_tokens)
            if number > 0:
                spare -= memory.num_needed(num_tokens + number) - num_pages
                enough = memory.grow(sequence, num_tokens + number)
                assert enough, "these pages were to spare"
                lengths[sequence] = number
        return lengths


def make_drafter(name: DrafterName, runner: Runner, page_size: int) -> Drafter:
    """The drafter of this name. Raises `GlmforgeError` if `runner` cannot serve it."""
    return NgramDrafter() if name == "ngram" else MtpDrafter(check_mtp(runner), page_size)
