"""A problem whose answer can be checked, the forms in which it is written, and when two questions are the same."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import xxhash

from glmforge.data.chat_template.template import render
from glmforge_corpus.synthesise.draw import Draw

_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")


def normalised_question(question: str) -> str:
    """Without case and layout."""
    return " ".join(question.casefold().split())


def question_hash(question: str) -> bytes:
    """16 bytes, equal for equal questions."""
    return xxhash.xxh3_128_digest(normalised_question(question).encode())


def pattern_hash(question: str) -> int:
    """64 bits of the question with all numbers alike: what is left of it is its template, names included."""
    return xxhash.xxh3_64_intdigest(_NUMBER.sub("0", normalised_question(question)).encode())


LEVELS = (1, 2, 3, 4, 5)


@dataclass(slots=True)
class Draft:
    """What a template makes of its draws.

    Attributes:
        question: mathematics in it stands between dollar signs.
        steps: the way to the answer, one line each. Every formula between dollar signs is a true statement.
        answer: in the one form that `kind` defines.
        kind: how answers are compared, as in `verify.answers.same_answer`.
        turns: what follows the question where that is more than one reply (tool calls), else empty.
        tools: schemas of the tools offered.
        calls: the right tool calls, for the verifier.
        system: what the system message says, empty for none.
    """

    question: str
    steps: list[str]
    answer: str
    kind: str = "number"
    turns: list[dict[str, Any]] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    system: str = ""


Template = Callable[[Draw, int, bool], Draft]
"""(draw, level 1-5, Chinese?) -> a draft. A template may raise `Unlucky` to be called again with further draws."""


class Unlucky(Exception):
    """These draws make no good problem."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem with its solution.

    Attributes:
        id: `family-level-seed-index`: from it the problem can be made again.
        messages: the conversation; the assistant's turns have `reasoning_content`.
    """

    id: str
    family: str
    template: str
    level: int
    language: str
    draft: Draft
    messages: list[dict[str, Any]]

    def record(self) -> dict[str, Any]:
        """As JSON's types: one line of a chat file, and a document's metadata."""
        draft = self.draft
        verifier: dict[str, Any] = {
            "family": self.family,
            "template": self.template,
            "level": self.level,
            "kind": draft.kind,
            "answer": draft.answer,
        }
        record: dict[str, Any] = {
            "id": self.id,
            "family": self.family,
            "template": self.template,
            "level": self.level,
            "language": self.language,
            "question": draft.question,
            "answer": draft.answer,
            "messages": self.messages,
            "verifier": verifier,
        }
        if draft.tools:
            verifier["calls"] = draft.calls
            record["tools"] = draft.tools
        return record

    def text(self) -> str:
        """The conversation as GLM reads it."""
        if self.draft.turns or self.draft.system:
            return render(self.messages, self.draft.tools)
        before, between, behind = _frame()
        user, assistant = self.messages
        return f"{before}{user['content']}{between}{assistant['reasoning_content']}{behind}{assistant['content']}"


@cache
def _frame() -> tuple[str, str, str]:
    """What the chat template puts around a question, its reasoning and its answer; asked of the template once."""
    text = render(
        [{"role": "user", "content": "\0"}, {"role": "assistant", "reasoning_content": "\0", "content": "\0"}]
    )
    before, between, behind, rest = text.split("\0")
    assert not rest
    return before, between, behind


def dialogue(draft: Draft, reply: str) -> list[dict[str, Any]]:
    """The messages of a draft; `reply` is the last word where the draft has no turns of its own."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": draft.system}] if draft.system else []
    messages.append({"role": "user", "content": draft.question})
    if draft.turns:
        return messages + draft.turns
    return [*messages, {"role": "assistant", "reasoning_content": "\n".join(draft.steps), "content": reply}]


def say(draw: Draw, chinese: bool, english: Sequence[str], zh: Sequence[str], **values: object) -> str:
    """One of the phrasings in the wanted language, filled in."""
    return draw.pick(zh if chinese else english).format_map(values)


Record = Mapping[str, Any]
