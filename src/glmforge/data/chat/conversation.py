"""A conversation as ids and a loss mask.

The loss covers what the assistant has to produce and nothing else. That includes the role token that ends its
turn: GLM has no end-of-turn token, the model stops by predicting `<|user|>` (or `<|observation|>` after a
tool call), so a model trained without that token would never stop. It excludes `<|assistant|>`, which the
prompt gives, and in a conversation without thinking also the empty `<think></think>` that the prompt then
ends with.

A message's text is rendered into the control tokens' own stream, so it must not spell role tokens itself: a
user who could write `<|assistant|>` could put words into the model's mouth, and into its loss.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from glmforge.data.chat_template.template import Message, render
from glmforge.data.tokens.special import ASSISTANT, END_OF_TEXT, OBSERVATION, ROLE_TOKENS, USER
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import DataError

Turns = Literal["all", "last"]


@dataclass(frozen=True)
class EncodedConversation:
    """Token ids and, for each, whether the model is to learn to produce it.

    Attributes:
        ids: token ids.
        loss_mask: as long as `ids`; True where the token is a target. Labels are `ids` shifted by one, masked
            where the mask of the NEXT token is False.
    """

    ids: list[int]
    loss_mask: list[bool]


def encode_conversation(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None = None,
    thinking: bool = True,
    turns: Turns = "all",
) -> EncodedConversation:
    """Ids and loss mask of a conversation whose last message is the assistant's.

    Args:
        tokenizer: encodes the rendered text, control tokens included.
        messages: as in `render`.
        tools: as in `render`.
        thinking: as in `render`.
        turns: "all" assistant turns are targets, or only the "last" (everything after the last user message).
            Earlier turns are rendered without their reasoning, so where the model is to keep thinking, train
            on "last" and give each user turn its own sample.

    Raises:
        DataError: no assistant message at the end, or a message that spells a control token.
    """
    _check(messages)
    text = render(messages, tools, thinking=thinking, template=tokenizer.chat_template)
    ids = tokenizer.encode_with_special_tokens(text + _closing_token(messages[-1]))
    given_prefix = [] if thinking else tokenizer.encode_with_special_tokens("\n<think></think>")
    mask = _assistant_mask(ids, tokenizer, given_prefix)
    if turns == "last":
        user = tokenizer.special_id(USER)
        last_user = max((position for position, token in enumerate(ids[:-1]) if token == user), default=-1)
        mask = [target and position > last_user for position, target in enumerate(mask)]
    return EncodedConversation(ids, mask)


def _assistant_mask(ids: list[int], tokenizer: Tokenizer, given_prefix: list[int]) -> list[bool]:
    """True from after each `<|assistant|>` (and the prefix that the prompt gives) to the end of its turn."""
    assistant = tokenizer.special_id(ASSISTANT)
    roles = {tokenizer.special_id(token) for token in ROLE_TOKENS}
    mask = [False] * len(ids)
    for start in (position + 1 for position, token in enumerate(ids) if token == assistant):
        first = start + len(given_prefix) if ids[start : start + len(given_prefix)] == given_prefix else start
        end = next(position for position in range(first, len(ids)) if ids[position] in roles)
        mask[first:end] = [True] * (end - first)
        mask[end] = ids[end] in tokenizer.stop_ids
    return mask


def _closing_token(message: Message) -> str:
    return OBSERVATION if message.get("tool_calls") else USER


def _check(messages: Sequence[Message]) -> None:
    if not messages or messages[-1].get("role") != "assistant":
        raise DataError("conversation: the last message must be the assistant's, else nothing is to be learnt")
    for index, message in enumerate(messages):
        for token in (END_OF_TEXT, *ROLE_TOKENS):
            if token in str(dict(message)):
                raise DataError(f"message {index}: its text spells the control token {token}: remove it")
