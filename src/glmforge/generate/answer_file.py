"""A file of answers, a JSON object per line, that is made in any number of starts.

Answers are kept in `ANSWERS.unfinished` as they come, so that a command that was stopped resumes when it is run again.
When all are there, they are put in the order of their numbers, and only then is there a file ANSWERS.

The unfinished file only grows. Its first line says of which command the answers are. In each line behind it stand a
checksum, of the command and of the answer, and the answer: a line that is damaged, or of another command, does not
count, and its request is answered again.
"""

import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from glmforge.data.files import disk_errors, partial_path, publish, refuse_unwritable
from glmforge.errors import DataError, GlmforgeError
from glmforge.generate.admission import QueueFullError
from glmforge.generate.answer import Sample
from glmforge.generate.engine import Engine, Prepared
from glmforge.generate.logprobs import TokenLogprob
from glmforge.generate.params import SamplingParams
from glmforge.generate.prompts import Prompt
from glmforge.observe.units import counted

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answered:
    """How many requests have an answer, and the numbers of those with an error."""

    num_answered: int
    failed: list[int]


class Asked(NamedTuple):
    """A request to be answered into a file; `fields` stand in its line between the number and the samples."""

    prompt: Prompt
    params: SamplingParams
    fields: dict[str, object]


class Kept(NamedTuple):
    """An answer in the unfinished file: to which request, whether it is an error, and where its JSON stands."""

    line: int
    is_error: bool
    place: int


class AnswerFile:
    """The answers so far.

    Args:
        file: the unfinished one at `path`, open to read and to append to.
        out: what becomes of it.
        command: all that the answers depend on.

    Attributes:
        done: the numbers of the requests that have an answer, or an error.
    """

    def __init__(self, file: BinaryIO, path: Path, out: Path, command: dict[str, object]) -> None:
        self._file, self._path, self._out, self._command = file, path, out, _json(command)
        self.done = self._resume()

    def _resume(self) -> set[int]:
        self._file.seek(0)
        first, num_others, end = self._file.readline(), 0, 0
        for line in self._file:
            num_others += line.endswith(b"\n")
            end += len(line) if line.endswith(b"\n") else 0
        if self._command.startswith(first) and first != self._command:  # new, or not even that was written whole
            self._file.truncate(0)
            self._append(self._command)
            return set()
        kept = list(self._answers())
        if first != self._command and not kept:
            raise DataError(
                f"{self._path}: has answers to other prompts, from another model or with other settings; use the "
                "original command, remove it, or overwrite it with --force"
            )
        if len(kept) < num_others:
            number = counted(num_others - len(kept), "line")
            _log.warning("%s: %s damaged or from another command; answered again", self._path, number)
        self._file.truncate(len(first) + end)  # a line that was not written whole, as when a machine stops
        return {one.line for one in kept}

    def add(self, number: int, samples: Iterable[Sample], fields: dict[str, object]) -> None:
        """Keep the answer to request `number`."""
        self._add({"line": number} | fields | {"samples": [_plain(sample) for sample in samples]})

    def add_error(self, number: int, reason: str) -> None:
        """Keep why it has no answer."""
        _log.warning(reason)
        self._add({"line": number, "error": reason})

    def read(self) -> Iterator[dict[str, Any]]:
        """The answers and errors so far, in the order of their numbers."""
        return map(json.loads, self._ordered())

    def finish(self) -> Answered:
        """Put all in order into the file that was wanted."""
        kept = {one.line: one for one in self._answers()}
        failed = sorted(one.line for one in kept.values() if one.is_error)
        with partial_path(self._out).open("wb") as ordered:
            ordered.writelines(self._ordered())
            ordered.flush()
            os.fsync(ordered.fileno())
        publish(self._out)
        self._path.unlink(missing_ok=True)
        return Answered(len(kept) - len(failed), failed)

    def _ordered(self) -> Iterator[bytes]:
        places = {one.line: one.place for one in self._answers()}
        for _, place in sorted(places.items()):
            self._file.seek(place)
            yield self._file.readline()

    def _answers(self) -> Iterator[Kept]:
        """All that are as they were written."""
        self._file.seek(0)
        place = len(self._file.readline())
        for line in self._file:
            checksum, _, content = line.partition(b" ")
            if content and checksum == self._checksum(content):
                answer = json.loads(content)
                yield Kept(answer["line"], "error" in answer, place + len(line) - len(content))
            place += len(line)

    def _add(self, answer: dict[str, Any]) -> None:
        content = _json(answer)
        self._append(self._checksum(content) + b" " + content)
        self.done.add(answer["line"])

    def _append(self, line: bytes) -> None:
        self._file.write(line)
        self._file.flush()

    def _checksum(self, content: bytes) -> bytes:
        return hashlib.sha256(self._command + content).hexdigest()[:16].encode()


@contextmanager
def open_answers(out: Path, command: dict[str, object], *, overwrite: bool = False) -> Iterator[AnswerFile]:
    """The answers so far of what becomes `out`, for one process at a time on this machine.

    Args:
        command: all that the answers depend on: prompts, model, settings. Those of another one are not resumed.
        overwrite: replace what is at `out`, finished or not.

    Raises:
        GlmforgeError: a file cannot be read or written, or unfinished answers are those of another command.
    """
    refuse_unwritable(out, overwrite)
    path = out.with_name(out.name + ".unfinished")
    with disk_errors(out), path.open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"{path}: another process is writing here; wait for it, or choose another file") from None
        refuse_unwritable(out, overwrite)  # another process may have come to its end meanwhile
        if overwrite:
            file.truncate(0)
        answers = AnswerFile(file, path, out, command)
        try:
            yield answers
        except KeyboardInterrupt:
            number = counted(len(answers.done), "prompt")
            raise KeyboardInterrupt(f"{number} answered; run it again to resume") from None


@dataclass
class _Request:
    """A request in the engine: its number in the file, and its samples as they grow."""

    number: int
    fields: dict[str, object]
    samples: list[Sample]

    @property
    def is_done(self) -> bool:
        return all(sample.finished for sample in self.samples)


def answer_requests(
    engine: Engine,
    requests: Iterable[tuple[int, Callable[[], Asked]]],
    answers: AnswerFile,
    *,
    name: Callable[[int], str] = "request {}".format,
    on_answer: Callable[[int], None] | None = None,
) -> None:
    """Answer what is not done.

    Args:
        requests: by number, what makes each; it may raise `GlmforgeError`, which is kept in the place of an answer.
        name: of a request, for its errors.
        on_answer: called with the number of requests done.
    """

    def fail(number: int, reason: str) -> None:
        place = name(number)
        answers.add_error(number, reason if reason.startswith(place) else f"{place}: {reason}")

    def tell() -> None:
        if on_answer is not None:
            on_answer(len(answers.done))

    running: dict[int, _Request] = {}
    left = ((number, make) for number, make in requests if number not in answers.done)
    waits: tuple[Prepared, _Request] | None = None
    while True:
        # As many as run at once wait beside them, so that none of the engine's places is ever empty.
        while len(running) < 2 * engine.config.max_sequences:
            if waits is None:
                if (one := next(left, None)) is None:
                    break
                number, make = one
                try:
                    asked = make()
                    samples = [Sample() for _ in range(asked.params.num_samples)]
                    waits = engine.prepare(asked.prompt, asked.params), _Request(number, asked.fields, samples)
                except GlmforgeError as error:
                    fail(number, str(error))
                    tell()
                    continue
            try:
                running[engine.queue(waits[0])], waits = waits[1], None
            except QueueFullError:
                break
        if not running:
            return
        for update in engine.step():
            request = running[update.request]
            request.samples[update.sample].add(update)
            if request.is_done:
                del running[update.request]
                if (reason := next((one.error for one in request.samples if one.error is not None), None)) is not None:
                    fail(request.number, reason)
                else:
                    answers.add(request.number, request.samples, request.fields)
                tell()


def _plain(sample: Sample) -> dict[str, object]:
    content: dict[str, object] = {"tokens": sample.tokens, "text": sample.text, "finished": sample.finished}
    if sample.drafts.num_drafted:
        content["drafts"] = sample.drafts._asdict()
    if sample.logprobs:
        content["logprobs"] = _logprobs(sample.logprobs)
    if sample.details is not None and sample.details.prompt_logprobs:
        content["prompt_logprobs"] = _logprobs(sample.details.prompt_logprobs)
    if sample.details is not None and sample.details.experts_TMK is not None:
        content["experts"] = sample.details.experts_TMK.tolist()
    return content


def _logprobs(logprobs: Iterable[TokenLogprob]) -> list[dict[str, object]]:
    return [{name: value for name, value in one._asdict().items() if name != "named" or value} for one in logprobs]


def _json(value: dict[str, object]) -> bytes:
    # In a JSON string, what Python writes for a character without UTF-8 is its escape.
    return json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
