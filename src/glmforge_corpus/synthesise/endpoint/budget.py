"""A cap on what requests may cost, kept whatever the replies turn out to be.

Before an attempt goes out, the most that it can cost is set aside: a token per byte of the prompt (a byte-level
tokenizer never makes more), some for the chat template, and all tokens that the reply may have. What it really cost
takes its place when the reply is there. So replies in flight can never take the sum over the cap.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from glmforge.config.model import Strict

TEMPLATE_TOKENS = 256
"""Set aside for what a chat template may add to the prompt of a request."""

_PER = 1e6


class Prices(Strict):
    """Money per million tokens."""

    prompt: float = Field(default=0.0, ge=0, description="per million prompt tokens")
    completion: float = Field(default=0.0, ge=0, description="per million completion tokens, reasoning included")

    def most(self, prompt_bytes: int, max_tokens: int) -> float:
        """The most that a request can cost."""
        return ((prompt_bytes + TEMPLATE_TOKENS) * self.prompt + max_tokens * self.completion) / _PER

    def cost(self, usage: Mapping[str, Any] | None, most: float) -> float:
        """Of a reply with this `usage`; without one it counts as the most it could have been."""
        counts = [(usage or {}).get(name) for name in ("prompt_tokens", "completion_tokens")]
        if not all(isinstance(count, int) and count >= 0 for count in counts):
            return most
        prompt, completion = counts
        assert isinstance(prompt, int)
        assert isinstance(completion, int)
        return (prompt * self.prompt + completion * self.completion) / _PER


class Budget:
    """Money that is spent, and money set aside for what is in flight.

    Args:
        cap: infinite for none.
        spent: by earlier runs.
    """

    def __init__(self, cap: float, spent: float = 0.0) -> None:
        self.cap, self.spent, self.reserved = cap, spent, 0.0
        self._in_flight = 0
        self._changed = asyncio.Condition()

    async def reserve(self, most: float) -> bool:
        """Set money aside, waiting for replies in flight if need be. False: the cap does not allow it."""
        async with self._changed:
            while self.spent + self.reserved + most > self.cap:
                if self._in_flight == 0:
                    return False
                await self._changed.wait()
            self.reserved += most
            self._in_flight += 1
            return True

    async def settle(self, most: float, cost: float) -> None:
        """Put what an attempt has cost in the place of what was set aside for it."""
        async with self._changed:
            self._in_flight -= 1
            self.reserved = self.reserved - most if self._in_flight else 0.0
            self.spent += cost
            self._changed.notify_all()
