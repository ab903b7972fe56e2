"""What a model is asked about: documents to make questions from, or questions that are there already."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

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
        verifier: `kind` and `answer` and whatever else the source said; None where the answer is not known.
        source: document it was made from.
    """

    id: str
    question: str
    verifier: dict[str, Any] | None = None
    source: str | None = None


def read_inputs(
    documents: Sequence[Path], questions: Path | None, text_field: str = "text"
) -> tuple[list[Document] | list[Question], list[str]]:
    """(what to ask about, what could not be read and was left out).

    Args:
        documents: files and directories of documents, or none.
        questions: a file of questions instead.
        text_field: of the documents.

    Raises:
        ConfigError: both or neither are given; DataError: there is nothing in them.
    """
    if bool(documents) == (questions is not None):
        raise ConfigError("inputs: give either --documents or --questions")
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
        raise DataError(f"{questions}: no questions in it{first}: give JSON lines with one of {_FIELDS}")
    return found, unreadable


_QUESTION_FIELDS = ("question", "problem", "prompt", "instruction")
_FIELDS = ", ".join(_QUESTION_FIELDS)


def read_questions(path: Path) -> Iterator[Question | str]:
    """Questions of a JSONL file: `question` (or `problem`, `prompt`, `instruction`), and `verifier` or `answer`.

    A line that is none comes as a sentence that says why. GSM8K's answers (`... #### 18`) are understood.
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
