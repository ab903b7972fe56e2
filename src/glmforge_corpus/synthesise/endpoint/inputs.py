"""A model's inputs: documents or questions, prompts from files, requests with reproducible keys."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson
from jinja2 import StrictUndefined, Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from glmforge.data.documents.document import Document
from glmforge.data.documents.read import read_documents
from glmforge.errors import ConfigError, DataError
from glmforge_corpus.synthesise.endpoint.judge import guess_kind


@dataclass(frozen=True, slots=True)
class Question:
    """A question to be solved.

    Attributes:
        id: names it among its fellows.
        question: its text.
        verifier: `kind` and `answer` and further fields of the source; None where the answer is not known.
        source: document it was made from.
    """

    id: str
    question: str
    verifier: dict[str, Any] | None = None
    source: str | None = None


def read_inputs(
    documents: Sequence[Path], questions: Path | None, text_field: str = "text"
) -> tuple[list[Document] | list[Question], list[str]]:
    """(what to ask about, what could not be read and was omitted).

    Args:
        documents: files and directories of documents, or none.
        questions: a file of questions instead.
        text_field: of the documents.

    Raises:
        ConfigError: both or neither are given; DataError: there is nothing in them.
    """
    if bool(documents) == (questions is not None):
        raise ConfigError("inputs: pass either --documents or --questions")
    if questions is None:
        corpus = read_documents(documents, text_field, "skip")
        read = list(corpus)
        return read, corpus.problems + ["..."] * (corpus.num_skipped - len(corpus.problems))
    if not questions.is_file():
        raise DataError(f"{questions}: no such file: check the path")
    lines = list(read_questions(questions))
    found, unreadable = [q for q in lines if isinstance(q, Question)], [q for q in lines if isinstance(q, str)]
    if not found:
        first = f"; the first of {len(unreadable):,} lines: {unreadable[0]}" if unreadable else ""
        raise DataError(f"{questions}: no questions{first}; use JSON lines with one of {_FIELDS}")
    return found, unreadable


_QUESTION_FIELDS = ("question", "problem", "prompt", "instruction")
_FIELDS = ", ".join(_QUESTION_FIELDS)


def read_questions(path: Path) -> Iterator[Question | str]:
    """Questions of a JSONL file: `question` (or `problem`, `prompt`, `instruction`), and `verifier` or `answer`.

    An invalid line is returned as a sentence that says why. GSM8K's answers (`... #### 18`) are understood.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path.name}:{number}"
            try:
                record = orjson.loads(line)
            except ValueError:
                yield f"{where}: not JSON"
                continue
            fields = record if isinstance(record, dict) else {}
            text = next((fields[name] for name in _QUESTION_FIELDS if fields.get(name)), None)
            if isinstance(text, str):
                yield Question(str(fields.get("id", where)), text, _known(fields))
            else:
                yield f"{where}: no text in a field {_FIELDS}"


def _known(record: dict[str, Any]) -> dict[str, Any] | None:
    verifier, answer = record.get("verifier"), record.get("answer")
    if isinstance(verifier, dict) and "kind" in verifier and "answer" in verifier:
        return verifier
    if not isinstance(answer, str | int | float) or answer == "":
        return None
    text = str(answer).rpartition("####")[2].strip()
    return {"kind": guess_kind(text), "answer": text}


_QUESTION = re.compile(r"<question>\s*(.+?)\s*</question>(?:\s*<answer>\s*(.+?)\s*</answer>)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Request:
    """One chat completion to be requested.

    Attributes:
        key: names the request: a hash of the payload, what it is for, and which sample it is.
        payload: the JSON to send.
        prompt_bytes: of the messages' text.
    """

    key: str
    payload: Mapping[str, Any]
    prompt_bytes: int


def load_template(path: Path | None, default: str, names: tuple[str, ...]) -> Template:
    """A prompt file (Jinja), or the one that comes with the package.

    Raises:
        ConfigError: the file cannot be read, is no template, or does not use what it is for.
    """
    try:
        text = (files("glmforge_corpus.synthesise") / "prompts" / default if path is None else path).read_text("utf-8")
        environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=False)
        template = environment.from_string(text)
        marks = {name: f"\0{name}\0" for name in names}
        rendered = template.render(count=1, **marks)
    except OSError as error:
        raise ConfigError(f"prompt {path}: cannot be read ({error.strerror}): check the path") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"prompt {path}: not UTF-8 text; pass a Jinja file") from error
    except TemplateError as error:
        raise ConfigError(f"prompt {path}: {error}: it may use {', '.join(names)}") from error
    for name, mark in marks.items():
        if mark not in rendered:
            raise ConfigError(f"prompt {path}: does not use {{{{ {name} }}}}: insert it where the text belongs")
    return template


def make_request(prompt: str, purpose: str, sample: int, sampling: Mapping[str, Any], send_seed: bool) -> Request:
    """The request for sample `sample` of a prompt.

    Args:
        sampling: model, temperature, max_tokens, ...
        send_seed: add a seed, derived from the key, for servers that repeat themselves on demand.
    """
    payload = {**sampling, "messages": [{"role": "user", "content": prompt}]}
    named = json.dumps([purpose, sample, payload], sort_keys=True, ensure_ascii=False)
    digest = hashlib.blake2b(named.encode(), digest_size=16).digest()
    if send_seed:
        payload["seed"] = int.from_bytes(digest[:4], "little") >> 1
    return Request(digest.hex(), payload, len(prompt.encode()))


def parse_questions(text: str) -> list[tuple[str, str | None]]:
    """(question, answer or None) of each question that a reply spells out; thinking is omitted."""
    return [(q, a or None) for q, a in _QUESTION.findall(text.rpartition("</think>")[2])]
