"""A file of prompts answered into a file of answers: `glmforge generate`. Both hold a JSON object per line.

A prompt's line has `prompt` (text, or token ids) or `messages` (a conversation, for the chat template; with `tools`,
and `thinking` if the model is to reason first) and, if wanted, an `id` and settings of its own by the names of
`SamplingParams`. What a prompt or a message spells is text; a prompt with `control_tokens` is a rendered one, in which
`<|user|>` and its kind are control tokens. Its answer has the number of its `line`, its `id`, and `samples`, or an
`error` where it cannot be served; the others go on. Stopped, it is resumed (`answer_file.py`).
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from glmforge.config.explain import suggest
from glmforge.data.chat.conversation import Conversation
from glmforge.data.chat.records import tools_of
from glmforge.data.files import refuse_unwritable
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import DataError
from glmforge.files import kind_of, parse_json, shown
from glmforge.generate.answer_file import Answered, Asked, answer_requests, open_answers
from glmforge.generate.engine import Engine
from glmforge.generate.params import RequestError, SamplingParams

_SETTINGS = [field.name for field in fields(SamplingParams)]
_OF_MESSAGES = ["tools", "functions", "thinking"]
_KEYS = ["id", "prompt", "control_tokens", "messages", *_OF_MESSAGES, *_SETTINGS]


def answer_file(
    engine: Engine,
    prompts: Path,
    out: Path,
    params: SamplingParams,
    *,
    source: str,
    overwrite: bool = False,
    on_answer: Callable[[int], None] | None = None,
) -> Answered:
    """Answer every line of `prompts`, with `params` where the line says nothing else.

    Args:
        source: what the engine's model was loaded from; answers of another one are not resumed.
        overwrite: replace what is at `out`, finished or not.
        on_answer: called with the number of lines done.

    Raises:
        GlmforgeError: a file cannot be read or written, or unfinished answers are those of another command.
    """
    if kind_of(prompts, error=DataError) != "file":
        raise DataError(f"{shown(prompts)}: no such file; pass a file with one JSON object per line")
    refuse_unwritable(out, overwrite)
    command: dict[str, object] = {"prompts": _checksum(prompts), "model": source, "params": asdict(params)}
    requests = (
        (number, partial(read_line, content, f"{prompts}:{number}", params, engine.tokenizer))
        for number, content in _lines(prompts)
    )
    with open_answers(out, command, overwrite=overwrite) as answers:
        answer_requests(engine, requests, answers, name=lambda number: f"{prompts}:{number}", on_answer=on_answer)
        return answers.finish()


def read_line(content: bytes, place: str, params: SamplingParams, tokenizer: Tokenizer | None) -> Asked:
    """The request of a line; `place` is its name. Raises `GlmforgeError`."""
    try:
        line = parse_json(content.strip().decode(), dict, source=place, error=RequestError)
    except UnicodeDecodeError as failure:
        raise RequestError(f"{place}: not UTF-8 text (byte {failure.start:,})") from None
    for key in line:
        if key not in _KEYS:
            raise RequestError(f"{shown(key)}: unknown key; {suggest(str(key), _KEYS)}")
    if ("prompt" in line) == ("messages" in line):
        raise RequestError('prompt: set either "prompt" (text or token IDs) or "messages" (a conversation)')
    own: dict[str, Any] = {name: line[name] for name in _SETTINGS if name in line}
    if isinstance(own.get("logit_bias"), dict):  # JSON has no other keys than strings
        own["logit_bias"] = {_token(key): bias for key, bias in own["logit_bias"].items()}
    settings = replace(params, **own)
    kind, others = ("messages", ["control_tokens"]) if "messages" in line else ("prompt", _OF_MESSAGES)
    if stray := next((key for key in others if key in line), None):
        raise RequestError(f'{stray}: cannot be combined with "{kind}"')
    label = {} if line.get("id") is None else {"id": line["id"]}
    if kind == "prompt" and not _flag(line, "control_tokens"):
        return Asked(line["prompt"], settings, label)
    if tokenizer is None:
        raise RequestError(f'{kind}: the model has no tokenizer; pass token IDs as "prompt"')
    return Asked((_messages if kind == "messages" else _rendered)(line, tokenizer), settings, label)


def _rendered(line: dict[str, Any], tokenizer: Tokenizer) -> list[int]:
    if not isinstance(line["prompt"], str):
        raise RequestError("control_tokens: only applies to text prompts, not to token IDs")
    return tokenizer.encode_with_special_tokens(line["prompt"])


def _messages(line: dict[str, Any], tokenizer: Tokenizer) -> list[int]:
    thinking = _flag(line, "thinking")
    asked = Conversation.from_messages(line["messages"], tools_of(line), is_prompt=True)
    return tokenizer.apply_chat_template(asked.messages, asked.tools, add_generation_prompt=True, thinking=thinking)


def _flag(line: dict[str, Any], key: str) -> bool:
    value = line.get(key, False)
    if not isinstance(value, bool):
        raise RequestError(f"{key}: must be true or false, not {shown(repr(value)[:100])}")
    return value


def _token(key: str) -> int:
    try:
        return int(key)
    except ValueError:
        raise RequestError(f"logit_bias: {shown(key)} is not a token id") from None


def _lines(prompts: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not empty, with their numbers from 1."""
    with prompts.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield number, line


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
