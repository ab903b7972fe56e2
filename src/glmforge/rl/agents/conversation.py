"""The tokens of a conversation: what the model sampled stays as it was, and the next turn is put behind it.

GLM's template drops the reasoning of earlier turns when a user speaks again, and text that is encoded again may be
other tokens. So only the messages of a new turn are rendered, behind an empty conversation whose tokens are cut off
again; the tag that ends a reply (`<|observation|>`, `<|user|>`) begins the next turn, and is not written twice. A reply
that ended in another tag keeps it. One that was cut gets none, as the template would have it.

Shapes: P tokens of the opening, N behind it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glmforge.data.chat.conversation import Conversation
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import DataError
from glmforge.generate.answer import Sample
from glmforge.rl.samples import Answer

Message = Mapping[str, Any]
"""As OpenAI has it; see `Conversation`."""

_CALL = {"function": {"name": "f", "arguments": {}}}
_EMPTY = [{"role": "user", "content": "-"}, {"role": "assistant", "content": "-", "tool_calls": [_CALL]}]


def opening(tokenizer: Tokenizer, messages: Sequence[Message], tools: Sequence[Any], *, thinking: bool) -> list[int]:
    """Ids of the messages before the first reply. Raises `DataError` for messages that cannot be."""
    given = Conversation.from_messages(list(messages), list(tools), is_prompt=True)
    return tokenizer.apply_chat_template(given.messages, given.tools, add_generation_prompt=True, thinking=thinking)


def next_turn(tokenizer: Tokenizer, messages: Sequence[Message], *, thinking: bool) -> list[int]:
    """Ids of the messages behind a reply (a user's, tools'), up to where the next one begins; the first id is the tag
    of the first message. Raises `DataError`: messages that cannot be, or a template that cannot be continued."""
    if any(one.get("role") == "assistant" for one in messages):
        raise DataError("messages: a turn between two replies has none of the assistant's; remove it")
    whole = Conversation.from_messages([*_EMPTY, *messages], is_prompt=True).messages
    before = tokenizer.apply_chat_template(whole[:2], thinking=thinking)
    ids = tokenizer.apply_chat_template(whole, add_generation_prompt=True, thinking=thinking)
    if ids[: len(before)] != before or len(ids) == len(before):
        raise DataError("chat_template: later messages change what is written of earlier ones; use GLM's template")
    return ids[len(before) :]


def bridged(ids: Sequence[int], turn: Sequence[int]) -> list[int]:
    """What of `turn`, as `next_turn` gives it, is to be put behind ids that end with a reply."""
    return list(turn[1:] if ids and ids[-1] == turn[0] else turn)


class Transcript:
    """A conversation as it was sampled.

    Attributes:
        ids: all tokens so far.
        is_cut: whether it was to go on.
        tools, said: of a program's conversation its functions and messages; `said` is None while it is answered.
    """

    tools: Sequence[Mapping[str, Any]] = ()
    said: Sequence[Message] | None = None

    def __init__(self, opening: Sequence[int]) -> None:
        self.ids, self._num_opening = list(opening), len(opening)
        self._is_own: list[bool] = []
        self._logprobs: list[float] = []
        self._experts: NDArray[Any] | None = None
        self.is_cut = False

    @property
    def num_new(self) -> int:
        """Tokens behind the opening."""
        return len(self._is_own)

    def observe(self, ids: Sequence[int]) -> None:
        """Tokens that the model has not written."""
        self.ids += ids
        self._is_own += [False] * len(ids)
        self._logprobs += [0.0] * len(ids)

    def reply(self, sample: Sample) -> None:
        """What the model has written behind `ids`. Experts of tokens that were sampled before stay as they were."""
        self.is_cut = sample.finished != "stop"
        self.ids += sample.tokens
        self._is_own += [True] * len(sample.tokens)
        self._logprobs += [one.logprob for one in sample.logprobs]
        if sample.details is not None and sample.details.experts_TMK is not None:
            experts = sample.details.experts_TMK.numpy()
            known = self._experts
            self._experts = experts if known is None else np.concatenate((known, experts[len(known) :]))

    def answer(self, number: int, sample: int, version: int) -> Answer:
        """As a sample of the prompt with a number."""
        own_N = np.array(self._is_own, dtype=bool)
        return Answer(
            prompt=number,
            sample=sample,
            prompt_P=np.array(self.ids[: self._num_opening], dtype=np.int32),
            tokens_N=np.array(self.ids[self._num_opening :], dtype=np.int32),
            logprobs_N=np.array(self._logprobs, dtype=np.float32),
            versions_N=np.full(len(own_N), version, dtype=np.int32),
            trained_N=None if own_N.all() else own_N,
            begun=version,
            finished="length" if self.is_cut else "stop",
            experts=self._experts,
        )
