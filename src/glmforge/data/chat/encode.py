"""Conversations as ids, and how much of each the model is to learn.

Learnt is what the assistant has to produce and nothing else. That includes the role token that ends its turn: GLM has
no end-of-turn token, the model stops by predicting `<|user|>` (or `<|observation|>` after a tool call), so a model
trained without that token would never stop. It excludes `<|assistant|>`, which the prompt gives, and in a conversation
without thinking also the empty `<think></think>` that the prompt then ends with.

History and reasoning. The template takes the reasoning out of turns before the last user message, as it is done when
the model is served. A conversation of several questions that was trained on as one text would therefore teach the model
to answer all but the last with an empty thought although thinking was requested. So where a turn that is to be trained
on would lose its reasoning, the conversation is unfolded: each question becomes a document of its own, with the history
that the model will see when it is asked, and only what answers this question is trained on in it. Every turn is still
trained on once, and the price is that histories are read again. Without reasoning a conversation is one document.

Control tokens are the template's alone. What messages and tools spell is text, so a user who writes `<|assistant|>`
opens no turn and puts no words into the model's mouth, or into its loss. The role tokens are compared with those that
the messages call for: another tokenizer may bring a template that opens turns in another way.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from glmforge.config.chat import ChatConfig
from glmforge.data.chat.conversation import Conversation
from glmforge.data.tokens.special import ASSISTANT, END_OF_TEXT, OBSERVATION, ROLE_TOKENS, SYSTEM, USER
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import DataError

_ROLE_TOKEN = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT, "tool": OBSERVATION}


class EncodedConversation(NamedTuple):
    """Token ids [T], int32, and the loss weight of each, float32: 0 where the model is not to learn to produce it.

    The label of a position is the token after it, and weighs what that token does.
    """

    ids: NDArray[np.int32]
    weights: NDArray[np.float32]

    @property
    def num_trained(self) -> int:
        return int(np.count_nonzero(self.weights))


def encode(conversation: Conversation, tokenizer: Tokenizer, config: ChatConfig) -> list[EncodedConversation]:
    """The documents that a conversation makes: one, or one for each question where reasoning would be lost otherwise.

    Raises:
        DataError: nothing is trainable, or the tokenizer's chat template does not open turns as GLM's does.
    """
    thinking = conversation.has_reasoning if config.thinking == "auto" else config.thinking == "on"
    if not thinking:
        conversation = conversation.without_reasoning()
    weights = _weights(conversation, config.turns)
    documents = [
        _encode(Conversation(messages, conversation.tools), trained, tokenizer, thinking=thinking)
        for messages, trained in _unfolded(conversation, weights)
    ]
    if not any(document.num_trained for document in documents):
        raise DataError("no trainable tokens: no assistant message has a loss weight above 0")
    return documents


def cut(document: EncodedConversation, max_tokens: int, tokenizer: Tokenizer) -> EncodedConversation | None:
    """The turns of a document that fit in `max_tokens`, up to the end of one that is trained on; None if none fits."""
    is_end = np.isin(document.ids, tokenizer.stop_ids) & (document.weights > 0)
    ends = np.flatnonzero(is_end[:max_tokens])
    return EncodedConversation(document.ids[: ends[-1] + 1], document.weights[: ends[-1] + 1]) if len(ends) else None


def _weights(conversation: Conversation, turns: str) -> list[float]:
    """Weight of each message: from its record, else 1 for assistant messages in the selected turns."""
    roles = [message["role"] for message in conversation.messages]
    last_user = max((number for number, role in enumerate(roles) if role == "user"), default=-1)
    stated = conversation.weights or [None] * len(roles)
    return [
        own if own is not None else float(role == "assistant" and (turns == "all" or number > last_user))
        for number, (role, own) in enumerate(zip(roles, stated, strict=True))
    ]


def _unfolded(
    conversation: Conversation, weights: Sequence[float]
) -> Iterator[tuple[tuple[dict[str, object], ...], list[float]]]:
    """Messages and their weights of each document."""
    messages = conversation.messages
    users = [number for number, message in enumerate(messages) if message["role"] == "user"]
    loses_reasoning = any(
        message.get("reasoning_content", "").strip() and weights[number]
        for number, message in enumerate(messages[: users[-1]] if users else ())
    )
    if not loses_reasoning:
        yield messages, list(weights)
        return
    starts = [0, *users[1:]]
    for start, stop in zip(starts, [*users[1:], len(messages)], strict=True):
        trained = [number for number in range(start, stop) if weights[number]]
        if trained:
            end = trained[-1] + 1
            yield messages[:end], [0.0] * start + list(weights[start:end])


def _encode(
    conversation: Conversation, weights: Sequence[float], tokenizer: Tokenizer, *, thinking: bool
) -> EncodedConversation:
    messages, tools = conversation.messages, conversation.tools
    closing = OBSERVATION if messages[-1].get("tool_calls") else USER
    rendered = tokenizer.apply_chat_template(messages, tools, thinking=thinking)
    ids = np.array([*rendered, tokenizer.special_id(closing)], np.int32)
    roles = np.flatnonzero(np.isin(ids, [tokenizer.special_id(token) for token in (*ROLE_TOKENS, END_OF_TEXT)]))
    expected = [*_roles(conversation), closing]
    if ids[roles].tolist() != [tokenizer.special_id(token) for token in expected]:
        raise DataError("the tokenizer's chat template does not start turns as GLM's does; use GLM's own template")
    given = [] if thinking else tokenizer.encode_with_special_tokens("\n<think></think>")
    of_tokens = np.zeros(len(ids), np.float32)
    answers = (weight for message, weight in zip(messages, weights, strict=True) if message["role"] == "assistant")
    for number in (number for number, token in enumerate(expected) if token == ASSISTANT):
        first, end = int(roles[number]) + 1, int(roles[number + 1])
        if given and ids[first : first + len(given)].tolist() == given:
            first += len(given)
        stops = int(ids[end]) in tokenizer.stop_ids
        of_tokens[first : end + stops] = next(answers)
    return EncodedConversation(ids, of_tokens)


def _roles(conversation: Conversation) -> Iterator[str]:
    """The role tokens that rendering the messages must give."""
    if conversation.tools:
        yield SYSTEM
    before = None
    for message in conversation.messages:
        if not message["role"] == before == "tool" or isinstance(message["content"], list):
            yield _ROLE_TOKEN[message["role"]]
        before = message["role"]
