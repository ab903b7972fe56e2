"""Preference pairs as ids: both answers rendered with their prompt by the chat template, as in supervised fine-tuning.

The ids before the answer are the same on both sides, or the pair is refused: a template that renders the prompt in
another way because of the answer (its reasoning, say) would have the model compare prompts. So reasoning is on for both
answers if one of them has some. What is trained on is what the assistant writes after the prompt, with the token that
ends its turn; the document's last token, which a reward model scores, is that token on both sides.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from glmforge.config.chat import ChatConfig
from glmforge.data.chat.conversation import Conversation
from glmforge.data.chat.encode import encode
from glmforge.data.preferences.records import Preference
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import DataError


class EncodedAnswer(NamedTuple):
    """Ids of prompt and answer [T], int32, and whether the model is to produce each (bool): its answer's tokens."""

    ids: NDArray[np.int32]
    is_trained: NDArray[np.bool_]


class EncodedPair(NamedTuple):
    """Two answers to one prompt of `num_prompt` tokens."""

    chosen: EncodedAnswer
    rejected: EncodedAnswer
    num_prompt: int
    margin: float
    category: str

    @property
    def length(self) -> int:
        """Of the longer side, in tokens."""
        return max(len(self.chosen.ids), len(self.rejected.ids))


def encode_pair(pair: Preference, tokenizer: Tokenizer, config: ChatConfig) -> EncodedPair:
    """Raises `DataError` for a pair whose prompt is not the same on both sides, or that makes several documents."""
    both = (pair.chosen, pair.rejected)
    if config.thinking == "auto":
        thinking = any(conversation.has_reasoning for conversation in both)
        config = config.model_copy(update={"thinking": "on" if thinking else "off"})
    chosen, rejected = (_answer(conversation, pair.num_prompt, tokenizer, config) for conversation in both)
    num_prompt = int(chosen.is_trained.argmax())
    if int(rejected.is_trained.argmax()) != num_prompt or not np.array_equal(
        chosen.ids[:num_prompt], rejected.ids[:num_prompt]
    ):
        raise DataError("the chat template renders the prompt differently before the two answers")
    return EncodedPair(chosen, rejected, num_prompt, pair.margin, pair.category)


def _answer(conversation: Conversation, num_prompt: int, tokenizer: Tokenizer, config: ChatConfig) -> EncodedAnswer:
    messages = conversation.messages
    weights = tuple(float(n >= num_prompt and m["role"] == "assistant") for n, m in enumerate(messages))
    documents = encode(Conversation(messages, conversation.tools, weights), tokenizer, config)
    if len(documents) > 1:
        raise DataError("an answer of several turns with reasoning; end it at its first turn, or set thinking: off")
    return EncodedAnswer(documents[0].ids, documents[0].weights > 0)
