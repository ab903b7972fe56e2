"""Reasoning: whether a model is to think, and for how long.

A thought with a budget is generated first, the answer behind it, so stop strings and schemas, too, are the answer's
alone. GLM is trained on thoughts of every length and has no words for a limit: `</think>` alone ends a thought.
"""

from dataclasses import dataclass
from typing import Literal

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
SHARES: dict[Effort, float | None] = {
    "none": 0.0, "minimal": 0.0, "low": 0.2, "medium": 0.5, "high": None, "xhigh": None, "max": None
}  # fmt: skip
"""Of the tokens of the reply, how many an effort lets the thought have; None leaves it to the model."""


@dataclass(frozen=True)
class Thinking:
    """What a body says of it.

    Attributes:
        budget: tokens, or None; goes before `effort`.
        clear: drop the thoughts of turns before the last question, as GLM's template does.
    """

    enabled: bool = True
    effort: Effort | None = None
    budget: int | None = None
    clear: bool = True

    def budget_of(self, max_new_tokens: int) -> int | None:
        """Tokens of a thought in a reply of so many; None for no limit but theirs, 0 for no thought."""
        if not self.enabled:
            return 0
        share = None if self.effort is None else SHARES[self.effort]
        if self.budget is None and share is None:
            return None
        return min(max_new_tokens, int(max_new_tokens * (share or 0.0)) if self.budget is None else self.budget)
