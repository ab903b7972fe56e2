"""A file of prompts answered into a file of answers: `glmforge generate`. Both hold a JSON object per line.

A prompt's line has `prompt` (text, or token ids) or `messages` (a conversation, for the chat template; with `tools`,
and `thinking` if the model is to reason first) and, if wanted, an `id` and settings of its own by the names of
`SamplingParams`. What a prompt or a message spells is text; a prompt with `control_tokens` is a rendered one, in which
`<|user|>` and its kind are control tokens. Its answer has the number of its `line`, its `id`, and `samples`, or an
`error` where it cannot be served; the others go on.

Answers are kept in `ANSWERS.unfinished` as they come, so that the same command, given again, goes on where it was
stopped. When all are there, they are put in the order of their prompts, and only then is there a file ANSWERS.
"""

import fcntl
import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, BinaryIO

from glmforge.config.explain import suggest
from glmforge.data.chat.conversation import Conversation
from glmforge.data.chat.records import tools_of
from glmforge.data.files import disk_errors, partial_path, publish, refuse_unwritable
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.deploy.unfinished import Unfinished
from glmforge.errors import DataError, GlmforgeError
from glmforge.files import kind_of, parse_json, shown
from glmforge.generate.answer import Sample
from glmforge.generate.engine import Engine
from glmforge.generate.params import RequestError, SamplingParams
from glmforge.generate.prompts import Prompt
from glmforge.observe.units import counted

_log = logging.getLogger(__name__)

_SETTINGS = [field.name for field in fields(SamplingParams)]
_OF_MESSAGES = ["tools", "functions", "thinking"]
_KEYS = ["id", "prompt", "control_tokens", "messages", *_OF_MESSAGES, *_SETTINGS]


@dataclass(frozen=True)
class Answered:
    """What became of the lines: how many have an answer, and the numbers of those with an error."""

    num_answered: int
    failed: list[int]


@dataclass
class _Request:
    """A request in the engine: the line that asked for it, and its samples as they grow."""

    line: int
    label: object
    samples: list[Sample]

    @property
    def is_done(self) -> bool:
        return all(sample.finished for sample in self.samples)


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
        source: what the engine's model was loaded from; answers of another one are not gone on with.
        overwrite: replace what is at `out`, finished or not.
        on_answer: called with the number of lines done.

    Raises:
        GlmforgeError: a file cannot be read or written, or unfinished answers are those of another command.
    """
    if kind_of(prompts, error=DataError) != "file":
        raise DataError(f"{shown(prompts)}: no such file; give a file with a JSON object per line")
    refuse_unwritable(out, overwrite)
    unfinished = out.with_name(out.name + ".unfinished")
    command: dict[str, object] = {"prompts": _checksum(prompts), "model": source, "params": asdict(params)}
    with disk_errors(out), _held(unfinished) as file:
        refuse_unwritable(out, overwrite)  # another process may have come to its end meanwhile
        if overwrite:
            file.truncate(0)
        answers = Unfinished(file, unfinished, command)
        done = answers.begin()
        try:
            for number in _answer(engine, prompts, params, done, answers):
                done.add(number)
                if on_answer is not None:
                    on_answer(len(done))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"{counted(len(done), 'prompt')} answered; the same command goes on with the others"
            ) from None
        answered = _finish(answers, out)
        unfinished.unlink(missing_ok=True)
        return answered


@contextmanager
def _held(path: Path) -> Iterator[BinaryIO]:
    """The file, to read and to append to, of one process at a time on this machine."""
    with path.open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"{path}: another process writes here: wait for it, or choose another --out") from None
        yield file


def _answer(
    engine: Engine, prompts: Path, params: SamplingParams, done: set[int], answers: Unfinished
) -> Iterator[int]:
    """Answer what is not `done`, and give the number of each line when it is written."""
    requests: dict[int, _Request] = {}
    lines = _lines(prompts, done)
    while True:
        # As many as run at once wait beside them, so that none of the engine's places is ever empty.
        while len(requests) < 2 * engine.config.max_sequences and (line := next(lines, None)) is not None:
            number, content = line
            place = f"{prompts}:{number}"
            try:
                label, prompt, own = read_line(content, place, params, engine.tokenizer)
                requests[engine.add(prompt, own)] = _Request(number, label, [Sample() for _ in range(own.num_samples)])
            except GlmforgeError as error:
                _add_error(answers, number, str(error) if str(error).startswith(place) else f"{place}: {error}")
                yield number
        if not requests:
            return
        for update in engine.step():
            request = requests[update.request]
            request.samples[update.sample].add(update)
            if request.is_done:
                del requests[update.request]
                if (reason := next((one.error for one in request.samples if one.error is not None), None)) is not None:
                    _add_error(answers, request.line, f"{prompts}:{request.line}: {reason}")
                    yield request.line
                    continue
                answer = {"line": request.line} | ({} if request.label is None else {"id": request.label})
                answers.add(answer | {"samples": [_plain(sample) for sample in request.samples]})
                yield request.line


def _add_error(answers: Unfinished, line: int, words: str) -> None:
    _log.warning(words)
    answers.add({"line": line, "error": words})


def read_line(
    content: bytes, place: str, params: SamplingParams, tokenizer: Tokenizer | None
) -> tuple[object, Prompt, SamplingParams]:
    """The id, the prompt and the settings of a line; `place` is its name. Raises `GlmforgeError`."""
    try:
        line = parse_json(content.strip().decode(), dict, source=place, error=RequestError)
    except UnicodeDecodeError as failure:
        raise RequestError(f"{place}: not UTF-8 text (byte {failure.start:,})") from None
    for key in line:
        if key not in _KEYS:
            raise RequestError(f"{shown(key)}: unknown key; {suggest(str(key), _KEYS)}")
    if ("prompt" in line) == ("messages" in line):
        raise RequestError('prompt: give either "prompt" (text or token ids) or "messages" (a conversation)')
    own: dict[str, Any] = {name: line[name] for name in _SETTINGS if name in line}
    if isinstance(own.get("logit_bias"), dict):  # JSON has no other keys than strings
        own["logit_bias"] = {_token(key): bias for key, bias in own["logit_bias"].items()}
    settings = replace(params, **own)
    kind, others = ("messages", ["control_tokens"]) if "messages" in line else ("prompt", _OF_MESSAGES)
    if stray := next((key for key in others if key in line), None):
        raise RequestError(f'{stray}: does not go with "{kind}"')
    if kind == "prompt" and not _flag(line, "control_tokens"):
        return line.get("id"), line["prompt"], settings
    if tokenizer is None:
        raise RequestError(f'{kind}: the model has no tokenizer; give token ids as "prompt"')
    return line.get("id"), (_messages if kind == "messages" else _rendered)(line, tokenizer), settings


def _rendered(line: dict[str, Any], tokenizer: Tokenizer) -> list[int]:
    if not isinstance(line["prompt"], str):
        raise RequestError("control_tokens: goes with a prompt that is text; token ids say themselves what they are")
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


def _plain(sample: Sample) -> dict[str, object]:
    content: dict[str, object] = {"tokens": sample.tokens, "text": sample.text, "finished": sample.finished}
    if sample.drafts.num_drafted:
        content["drafts"] = sample.drafts._asdict()
    if sample.logprobs:
        content["logprobs"] = [one._asdict() for one in sample.logprobs]
    if sample.details is not None and sample.details.prompt_logprobs:
        content["prompt_logprobs"] = [one._asdict() for one in sample.details.prompt_logprobs]
    if sample.details is not None and sample.details.experts_TMK is not None:
        content["experts"] = sample.details.experts_TMK.tolist()
    return content


def _lines(prompts: Path, done: set[int]) -> Iterator[tuple[int, bytes]]:
    """Lines that are not empty and not done, with their numbers from 1."""
    with prompts.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if number not in done and line.strip():
                yield number, line


def _finish(answers: Unfinished, out: Path) -> Answered:
    """Put the answers in the order of their lines."""
    kept = {one.line: one for one in answers.answers()}
    failed = sorted(one.line for one in kept.values() if one.is_error)
    with partial_path(out).open("wb") as ordered:
        for _, one in sorted(kept.items()):
            ordered.write(answers.at(one.place))
        ordered.flush()
        os.fsync(ordered.fileno())
    publish(out)
    return Answered(len(kept) - len(failed), failed)


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
