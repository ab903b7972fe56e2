"""Prompts to learn from: read, checked, encoded, and in an order that needs no state.

A record has `messages` (the last one is the user's or a tool's) or `prompt` (a text or messages), and optionally
`system`, `tools`, `verifier` (see `verify.reward`), `harmful`, `source`, `difficulty`, `id` and `thinking`. What
`glmforge data problems` writes is such a record, too: it ends with a demonstration, which is left out, and of the calls
of its verifier only those stay that the first reply is to make.

The prompt at position i of a run is a pure function of (seed, i): epoch e is permutation e of all prompts. So a resumed
run needs nothing but the position to go on with the same prompts.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glmforge.data.chat.conversation import Conversation, refuse_misspelt
from glmforge.data.chat.read import read_records
from glmforge.data.chat.records import tools_of
from glmforge.data.stream.order import permute, stream_key
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import DataError
from glmforge.files import shown
from glmforge.verify import reasoning_gym
from glmforge.verify.reward import check_verifier

_STORED = ("id", "messages", "tools", "verifier", "source", "difficulty", "thinking", "harmful")
_FIELDS = (*_STORED, "prompt", "system", "functions")
_MAX_NAME = 200
Placed = tuple[str, Mapping[str, Any]]
"""A record, and its place for errors."""


@dataclass(frozen=True)
class Prompt:
    """A prompt as the model reads it.

    Attributes:
        messages: in the template's form; see `Conversation`.
        verifier: how its replies are judged; None if only a reward model can.
        source, difficulty: for reports and curricula; "" and None where the record does not say.
        thinking: whether a reasoning is asked for.
        ids: of the rendered prompt, up to where the reply begins.
        harmful: whether it should be refused; None where the record does not say.
    """

    id: str
    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] | None
    verifier: Mapping[str, Any] | None
    source: str
    difficulty: str | float | None
    thinking: bool
    ids: tuple[int, ...]
    harmful: bool | None = None

    @property
    def text(self) -> str:
        """What all messages say."""
        return "\n".join(str(message["content"]) for message in self.messages)

    def record(self) -> dict[str, Any]:
        """As JSON, without ids; `make_prompts` reads it."""
        return {name: value for name in _STORED if (value := getattr(self, name)) is not None}


@dataclass(frozen=True)
class Prompts:
    """All prompts of a run, and how many records became none."""

    prompts: tuple[Prompt, ...]
    num_too_long: int = 0
    num_duplicates: int = 0

    def __len__(self) -> int:
        return len(self.prompts)

    def at(self, position: int, seed: int) -> Prompt:
        """The prompt at a position of a run, from 0 on without end."""
        epoch, place = divmod(position, len(self.prompts))
        return self.prompts[_order(len(self.prompts), seed, epoch)[place]]

    def without(self, held_out: "Prompts") -> "Prompts":
        """Those that do not ask what held-out ones ask; the others are counted as duplicates."""
        asked = {_digest(one) for one in held_out.prompts}
        kept = tuple(one for one in self.prompts if _digest(one) not in asked)
        if not kept:
            raise DataError("all prompts of data.sources are in data.held_out as well; hold out others")
        return replace(self, prompts=kept, num_duplicates=self.num_duplicates + len(self.prompts) - len(kept))

    @property
    def verifier_kinds(self) -> frozenset[str]:
        """For `verify.reward.check_runnable`; "" is a prompt without a verifier."""
        return frozenset(one.verifier["kind"] if one.verifier else "" for one in self.prompts)


@lru_cache(maxsize=4)
def _order(number: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return permute(np.arange(number), number, stream_key("rl prompts", seed, epoch))


def read_prompts(paths: Sequence[Path]) -> Iterator[Placed]:
    """The records of JSONL files (also .gz, .zst, arrays) and of directories of them.

    Raises:
        DataError: what is wrong, in one line with file and line number.
    """
    for raw in read_records(paths):
        if isinstance(raw.content, Mapping):
            raise DataError(f"{raw.where}: prompts are read from JSONL; convert the Parquet file")
        yield raw.where, raw.parse()


def reasoning_gym_prompts(
    family: str, size: int, seed: int, options: Mapping[str, Any] | None = None
) -> Iterator[Placed]:
    """`size` problems of a family of reasoning-gym. Raises as `verify.reasoning_gym.records`."""
    for number, record in enumerate(reasoning_gym.records(family, size, seed, options)):
        yield f"reasoning-gym {family}:{number}", record


def make_prompts(
    records: Iterable[Placed], tokenizer: Tokenizer, *, thinking: bool = True, max_tokens: int | None = None
) -> Prompts:
    """Check and encode prompts.

    A record that is there twice is taken once, and counted.

    Args:
        thinking: of records that do not say.
        max_tokens: longer prompts are left out, and counted.

    Raises:
        DataError: what is wrong, in one line with its place: a record, two records with one id, or nothing is left.
    """
    kept: list[Prompt] = []
    places: dict[str, tuple[str, str]] = {}
    num_too_long = num_duplicates = 0
    for where, record in records:
        try:
            prompt = _prompt(record, tokenizer, where, thinking)
        except DataError as error:
            raise DataError(f"{where}: {error}") from None
        content = _digest(prompt, with_verifier=True)
        if prompt.id in places:
            place, first = places[prompt.id]
            if content != first:
                raise DataError(f"{where}: id '{shown(prompt.id)}' is that of another prompt ({place}); rename one")
            num_duplicates += 1
            continue
        places[prompt.id] = where, content
        if max_tokens is not None and len(prompt.ids) > max_tokens:
            num_too_long += 1
        else:
            kept.append(prompt)
    if not kept:
        rest = f": {num_too_long:,} are longer than {max_tokens:,} tokens" if num_too_long else ""
        raise DataError(f"there are no prompts{rest}")
    return Prompts(tuple(kept), num_too_long, num_duplicates)


def _prompt(record: Mapping[str, Any], tokenizer: Tokenizer, where: str, thinking: bool) -> Prompt:
    present = {field: value for field, value in record.items() if value is not None}
    refuse_misspelt(present, _FIELDS, "record")
    given, demonstration = _question(present)
    conversation = Conversation.from_messages(given, tools_of(present), is_prompt=True)
    verifier = _verifier(present.get("verifier"), demonstration)
    thinks = present.get("thinking", thinking)
    if not isinstance(thinks, bool):
        raise DataError(f"thinking must be true or false, not {shown(repr(thinks)[:100])}")
    harmful = present.get("harmful")
    if not isinstance(harmful, bool | None):
        raise DataError(f"harmful must be true or false, not {shown(repr(harmful)[:100])}")
    difficulty = present.get("difficulty", present.get("level"))
    if isinstance(difficulty, bool) or not isinstance(difficulty, str | int | float | None):
        raise DataError(f"difficulty must be a number or a name, not {shown(repr(difficulty)[:100])}")
    messages, tools = conversation.messages, conversation.tools
    ids = tokenizer.apply_chat_template(messages, tools, add_generation_prompt=True, thinking=thinks)
    file = Path(where.rpartition(":")[0]).name.partition(".")[0]
    source = _name(present, "source", _name(present, "family", file))
    prompt = Prompt("", messages, tools, verifier, source, difficulty, thinks, tuple(ids), harmful)
    return replace(prompt, id=_name(present, "id", _digest(prompt, with_verifier=True)))


def _question(record: Mapping[str, Any]) -> tuple[object, list[Any]]:
    """Messages up to the reply, and the demonstration behind them."""
    if ("messages" in record) == ("prompt" in record):
        raise DataError("needs either messages or prompt")
    given = record.get("messages", record.get("prompt"))
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(messages, list) or not all(isinstance(message, Mapping) for message in messages):
        return messages, []
    if record.get("system"):
        messages = [{"role": "system", "content": record["system"]}, *messages]
    asked = [number for number, message in enumerate(messages) if message.get("role") in ("user", "human")]
    if not asked:
        raise DataError("no message is the user's")
    end = asked[-1] + 1 if messages[-1].get("role") == "assistant" else len(messages)
    return messages[:end], messages[end:]


def _verifier(verifier: Any, demonstration: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    if verifier is None:
        return None
    check_verifier(verifier)
    if verifier["kind"] == "calls" and demonstration:
        first = demonstration[0].get("tool_calls") or ()
        return {**verifier, "calls": verifier["calls"][: len(first)]}
    return dict(verifier)


def _name(record: Mapping[str, Any], field: str, default: str) -> str:
    name = record.get(field, default)
    if isinstance(name, bool) or not isinstance(name, str | int) or not 0 < len(str(name)) <= _MAX_NAME:
        raise DataError(f"{field} must be a name of at most {_MAX_NAME} characters, not {shown(repr(name)[:100])}")
    return str(name)


def _digest(prompt: Prompt, *, with_verifier: bool = False) -> str:
    """Of what it asks."""
    judged = (prompt.harmful,) if with_verifier and prompt.harmful is not None else ()
    asked = [prompt.messages, prompt.tools, prompt.verifier if with_verifier else None, *judged]
    return hashlib.blake2b(json.dumps(asked, sort_keys=True).encode(), digest_size=12).hexdigest()
