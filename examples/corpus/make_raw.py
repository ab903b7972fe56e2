"""Raw data for examples/corpus/pipeline.yaml: a crawl in small, with all that is wrong with crawls, in a few seconds.

    python examples/corpus/make_raw.py [directory]

The words are this Python's own documentation strings, made into pages, records and a repository: some of them twice,
some nearly twice, some with addresses in them, some cut off or not even text. Everything lies in runs/corpus/raw unless
another directory is given, and what an earlier call has written there is replaced.
"""

import gzip
import html
import inspect
import json
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from glmforge.data.documents.document import Document
from glmforge.recipes.demo.docstrings import docstring_conversations
from glmforge.recipes.demo.standard_library import standard_library_documents

PAGES, NOISE, REPOSITORY = 150, 10, 60

_MENU = (
    "<nav><ul>"
    + "".join(f"<li><a href='/{word}'>{word}</a></li>" for word in ("Home", "News", "Log in"))
    + "</ul></nav>"
)
_FOOTER = "<footer>Copyright. All rights reserved. We use cookies. Accept all cookies.</footer>"


def make_raw(directory: Path) -> None:
    """Write web/, records/ and repository/ into `directory`."""
    shutil.rmtree(directory, ignore_errors=True)
    documents = list(standard_library_documents())
    random_ = random.Random(0)
    articles = list(_articles(documents))
    random_.shuffle(articles)
    _write_pages(directory / "web", articles[:PAGES], random_)
    _write_records(directory / "records", articles[PAGES:], random_)
    _write_repository(directory / "repository" / "library", documents[:REPOSITORY])
    print(f"{directory}: {PAGES} pages, {len(articles) - PAGES} records, a repository of {REPOSITORY} files")


def _articles(documents: list[Document]) -> Iterator[tuple[str, str]]:
    """(title, text): what a module says of everything in it."""
    for document in documents:
        answers = [turns[1]["content"] for turns in docstring_conversations([document])]
        text = "\n\n".join(inspect.cleandoc(answer) for answer in answers)
        for part, start in enumerate(range(0, len(text), 4000)):
            if len(text[start : start + 4000]) > 500:
                yield f"{document.id} ({part + 1})", text[start : start + 4000]


def _write_pages(directory: Path, articles: list[tuple[str, str]], random_: random.Random) -> None:
    directory.mkdir(parents=True)
    for number, (title, text) in enumerate(articles):
        paragraphs = "".join(f"<p>{html.escape(paragraph)}</p>\n" for paragraph in text.split("\n\n"))
        page = (
            f"<html><head><title>{title}</title></head><body>{_MENU}<main><h1>{title}</h1>{paragraphs}</main>{_FOOTER}"
        )
        (directory / f"page{number:04d}.html").write_text(page, encoding="utf-8")
    for number in range(NOISE):
        (directory / f"noise{number:04d}.html").write_bytes(random_.randbytes(2000))


def _write_records(directory: Path, articles: list[tuple[str, str]], random_: random.Random) -> None:
    directory.mkdir(parents=True)
    lines = []
    for title, text in articles:
        lines.append(_record(title, text))
        match random_.randrange(10):
            case 0:
                lines.append(_record(title + " again", text))
            case 1:
                words = text.split(" ")
                words[random_.randrange(len(words))] = "something"
                lines.append(_record(title + " nearly", " ".join(words)))
            case 2:
                lines.append(
                    _record(title + " mailed", f"{text}\n\nQuestions to anna.muster@post.example.net, please.")
                )
            case 3:
                lines.append(b'{"text": "cut o')
            case 4:
                lines.append(_record(title + " shouting", "BUY NOW!!! " * 100))
    middle = len(lines) // 2
    (directory / "a.jsonl").write_bytes(b"\n".join(lines[:middle]) + b"\n")
    whole = gzip.compress(b"\n".join(lines[middle:]) + b"\n", mtime=0)
    (directory / "b.jsonl.gz").write_bytes(whole)
    (directory / "c.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    (directory / "empty.jsonl").touch()


def _record(title: str, text: str) -> bytes:
    return json.dumps({"title": title, "text": text}).encode()


def _write_repository(directory: Path, documents: list[Document]) -> None:
    for document in documents:
        path = directory / document.id
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(document.text, encoding="utf-8")
    licence = "SPDX-License-Identifier: PSF-2.0\n\nPython Software Foundation License Version 2\n"
    (directory / "LICENSE").write_text(licence, encoding="utf-8")


if __name__ == "__main__":
    make_raw(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/corpus/raw"))
