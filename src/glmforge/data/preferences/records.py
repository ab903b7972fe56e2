"""Records of preferences as people keep them: a prompt, and two answers of which one was preferred.

    prompt, chosen, rejected                texts, or lists of messages
    messages, chosen, rejected              the prompt as OpenAI's messages
    chosen, rejected                        whole conversations that begin alike: lists of messages (UltraFeedback, with
                                            or without its prompt), or texts of "\\n\\nHuman: ... \\n\\nAssistant: ..."
                                            turns (hh-rlhf)

Also `tools` or `functions`, `system`, `margin` (by how much the chosen answer is better, in units of the score), and
`category` or `source`, by which accuracy is reported. The prompt ends where the answers part, which must be in the
assistant's turn: two conversations in which users say different things are no comparison of answers.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glmforge.data.chat.conversation import Conversation, refuse_misspelt
from glmforge.data.chat.records import MEDIA_FIELDS, tools_of
from glmforge.errors import DataError
from glmforge.files import shown

PREFERENCE_FIELDS = (
    *("prompt", "messages", "chosen", "rejected", "margin", "category", "source"),
    *("system", "tools", "functions", *MEDIA_FIELDS),
)
MAX_MARGIN = 100.0
_MAX_CATEGORY = 100
_TURN = re.compile(r"\n\n(Human|Assistant):")
_ROLES = {"Human": "user", "Assistant": "assistant"}


@dataclass(frozen=True)
class Preference:
    """Two conversations whose first `num_prompt` messages are the same.

    Attributes:
        margin: by how much the chosen one's score should be higher, at least 0.
        category: what kind of pair it is; "" where the record does not say.
    """

    chosen: Conversation
    rejected: Conversation
    num_prompt: int
    margin: float = 0.0
    category: str = ""

    @property
    def is_tie(self) -> bool:
        """Whether both answers are the same."""
        return self.chosen.messages == self.rejected.messages


def preference_of(record: Mapping[str, Any]) -> Preference:
    """The pair that a record holds.

    Raises:
        DataError: what is wrong with it, in one line without the record's place.
    """
    given = {field: value for field, value in record.items() if value is not None}
    refuse_misspelt(given, PREFERENCE_FIELDS, "record")
    for field in MEDIA_FIELDS:
        if given.get(field):
            raise DataError(f"it has {field}, but this model supports text only")
    if not {"chosen", "rejected"} <= given.keys():
        fields = shown(", ".join(given)) or "none"
        raise DataError(f"not a preference pair: it has the fields {fields}, but needs chosen and rejected")
    sides = {side: _messages(given[side], side) for side in ("chosen", "rejected")}
    are_whole = {side: _role(messages[0]) != "assistant" for side, messages in sides.items()}
    if len(set(are_whole.values())) > 1:
        raise DataError("one of chosen and rejected is a whole conversation, the other an answer")
    if are_whole["chosen"] and given.get("messages") in (given["chosen"], given["rejected"]):
        del given["messages"]  # UltraFeedback repeats the chosen conversation
    if {"prompt", "messages"} <= given.keys():
        raise DataError("it has both prompt and messages; keep one of them")
    prompt = _prompt(given.get("messages", given.get("prompt")))
    system = [{"role": "system", "content": given["system"]}] if given.get("system") else []
    before = system if are_whole["chosen"] else [*system, *prompt]
    if not prompt and not are_whole["chosen"]:
        raise DataError("it has no prompt (prompt, messages, or the turns before the answers in chosen and rejected)")
    whole = {side: _conversation([*before, *messages], given, side) for side, messages in sides.items()}
    num_prompt = _num_shared(whole["chosen"], whole["rejected"]) if are_whole["chosen"] else len(before)
    if are_whole["chosen"]:
        _check_prompt(prompt, whole["chosen"], num_prompt)
    category = _category(given.get("category", given.get("source", "")))
    return Preference(whole["chosen"], whole["rejected"], num_prompt, _margin(given.get("margin", 0)), category)


def _conversation(messages: list[Any], record: Mapping[str, Any], side: str) -> Conversation:
    try:
        conversation = Conversation.from_messages(messages, tools_of(record))
    except DataError as error:
        raise DataError(f"{side}: {error}") from None
    if any(weight is not None for weight in conversation.weights):
        raise DataError(f"{side}: has a loss_weight, which does not apply to preference pairs; remove it")
    return conversation


def _messages(given: object, field: str) -> list[Any]:
    """Messages of a list, of one message, of a text with turns; any other text is an answer."""
    if isinstance(given, str):
        return _dialogue(given) if given.startswith("\n\nHuman:") else [{"role": "assistant", "content": given}]
    if isinstance(given, Mapping):
        return [given]
    if not isinstance(given, list | tuple) or not given:
        raise DataError(f"{field} must be text or a list of messages, not {shown(repr(given)[:100])}")
    return list(given)


def _prompt(given: object) -> list[Any]:
    if given is None:
        return []
    if not isinstance(given, str):
        return _messages(given, "prompt")
    if not given.startswith("\n\nHuman:"):
        return [{"role": "user", "content": given}]
    messages = _dialogue(given)
    return messages[:-1] if _role(messages[-1]) == "assistant" and not messages[-1]["content"] else messages


def _dialogue(text: str) -> list[Any]:
    """The turns of hh-rlhf's texts, without the spaces around them."""
    _, *parts = _TURN.split(text)
    return [
        {"role": _ROLES[speaker], "content": said.strip()}
        for speaker, said in zip(parts[::2], parts[1::2], strict=True)
    ]


def _role(message: object) -> object:
    return message.get("role") if isinstance(message, Mapping) else None


def _num_shared(chosen: Conversation, rejected: Conversation) -> int:
    """Messages that both begin with; of equal ones all but the last, which is the answer."""
    most = min(len(chosen.messages), len(rejected.messages)) - 1
    pairs = zip(chosen.messages[:most], rejected.messages[:most], strict=True)
    num = next((number for number, (one, other) in enumerate(pairs) if one != other), most)
    for side, conversation in (("chosen", chosen), ("rejected", rejected)):
        if (role := conversation.messages[num]["role"]) != "assistant":
            raise DataError(f"{side}: message {num}, where the two part, is of role '{role}'; answers must differ")
    if not num:
        raise DataError("chosen and rejected have no turn in common; the prompt must be the same")
    return num


def _check_prompt(prompt: list[Any], whole: Conversation, num_prompt: int) -> None:
    """A prompt that is given besides whole conversations must be theirs."""
    said = [message["content"] for message in whole.messages[:num_prompt]]
    for message in prompt:
        content = message.get("content") if isinstance(message, Mapping) else message
        if isinstance(content, str) and content not in said and content.strip() not in said:
            raise DataError(f"the prompt {shown(repr(content)[:60])} is not in what chosen and rejected share")


def _margin(given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise DataError(f"margin must be a number, not {shown(repr(given)[:100])}")
    if not 0 <= given <= MAX_MARGIN:
        raise DataError(
            f"margin {given:g} must be from 0 to {MAX_MARGIN:g}; swap chosen and rejected if it is negative"
        )
    return float(given)


def _category(given: object) -> str:
    if not isinstance(given, str) or len(given) > _MAX_CATEGORY:
        raise DataError(f"category must be text of at most {_MAX_CATEGORY} characters, not {shown(repr(given)[:60])}")
    return given
