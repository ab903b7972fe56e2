"""Questions and answers that Python sources hold already: what does this do, and its docstring.

A small honest source of dialogue for machines without any other: real sentences that people wrote about real code,
turned into the form of a conversation and nothing else.
"""

import ast
import hashlib
import inspect
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from glmforge.data.documents.document import Document

MAX_ANSWER_CHARACTERS = 800
MIN_ANSWER_CHARACTERS = 20

_QUESTIONS = (
    "What does {name} do?",
    "Explain {name}.",
    "How does {name} work?",
    "What is {name} for?",
    "Tell me about {name}.",
    "{name}?",
)

Turns = list[dict[str, str]]


def docstring_conversations(documents: Iterable[Document]) -> Iterator[Turns]:
    """One user turn and one assistant turn for every public name with a docstring, in the order of the sources.

    Documents that are not Python are skipped. The wording of each question depends on the name alone.
    """
    for document in documents:
        for found in documented(document):
            answer = _first_paragraphs(found.docstring)
            if len(answer) >= MIN_ANSWER_CHARACTERS:
                yield [
                    {"role": "user", "content": question_about(found.name)},
                    {"role": "assistant", "content": answer},
                ]


class Documented(NamedTuple):
    """A public name with its docstring; of functions also the names of the arguments, without self and cls."""

    name: str
    docstring: str
    arguments: Sequence[str] = ()


def documented(document: Document) -> Iterator[Documented]:
    """What of a Python source has a docstring; nothing of another text."""
    try:
        tree = ast.parse(document.text)
    except (SyntaxError, ValueError):  # another language, Python 2, or a NUL byte
        return
    pending: list[tuple[str, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]] = [
        (module_of(document), tree)
    ]
    while pending:
        name, node = pending.pop(0)
        docstring = ast.get_docstring(node)
        if docstring:
            yield Documented(name, docstring, _arguments(node))
        if isinstance(node, ast.Module | ast.ClassDef):
            pending += [
                (f"{name}.{child.name}", child)
                for child in node.body
                if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
                and not child.name.startswith("_")
            ]


def module_of(document: Document) -> str:
    """The name under which a source is imported, by its path."""
    return ".".join(PurePosixPath(document.id).with_suffix("").parts).removesuffix(".__init__")


def _arguments(node: ast.AST) -> list[str]:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return []
    given = node.args
    named = [*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs, given.kwarg]
    return [argument.arg for argument in named if argument is not None and argument.arg not in ("self", "cls")]


def _first_paragraphs(docstring: str) -> str:
    """Whole paragraphs up to the limit; at least the first, cut at a word."""
    paragraphs = inspect.cleandoc(docstring).split("\n\n")
    answer = paragraphs[0]
    for paragraph in paragraphs[1:]:
        if len(answer) + 2 + len(paragraph) > MAX_ANSWER_CHARACTERS:
            break
        answer += "\n\n" + paragraph
    if len(answer) > MAX_ANSWER_CHARACTERS:
        answer = answer[:MAX_ANSWER_CHARACTERS].rsplit(None, 1)[0]
    return answer.strip()


def question_about(name: str) -> str:
    """One of several wordings, which depends on the name alone."""
    digest = hashlib.blake2b(name.encode(), digest_size=2).digest()
    return _QUESTIONS[int.from_bytes(digest, "little") % len(_QUESTIONS)].format(name=name)
