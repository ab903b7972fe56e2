"""Pages that a parser cannot finish, through the real stage: each is named, and everything beside it is read.

Each is a repetition that some rule of the parsing algorithm answers by going over what it has already seen: attributes
of a tag that must differ, formatting elements that are opened again in each block, elements that are moved out of a
table, end tags that look for their start.
"""

import json
import random
from collections.abc import Callable

import pytest

from glmforge.data.documents.batch import read_batches
from glmforge_corpus.extract.html.process import PageProcess, UnreadablePageError
from glmforge_corpus.extract.stage import Extract
from glmforge_corpus.pipeline.stage import DOCUMENTS, QUARANTINE, StageContext
from glmforge_corpus.pipeline.task import PlannedStep, run_task

Maker = Callable[[int], bytes]

REPEATED = {
    "attributes without end": b"<div a=b>",
    "nested elements": b"<div>",
    "nested inline elements": b"<span>",
    "font and nobr": b"<font><nobr>",
    "links that adopt": b"<a><div>",
    "formatting across paragraphs": b"<b><p>",
    "crossed end tags": b"<b><i><p></b></i>",
    "unclosed paragraphs": b"<p>word",
    "unclosed items": b"<ul><li>word",
    "tables in tables": b"<table><tr><td>",
    "text moved out of a table": b"<table>word<b>",
    "captions": b"<table><caption>",
    "forms": b"<form><input>",
    "buttons": b"<button>",
    "options": b"<select><option>",
    "definitions": b"<dl><dd>",
    "headings": b"<h1>",
    "drawings": b"<svg><g>",
    "formulas": b"<math><mi>",
    "templates": b"<template>",
    "framesets": b"<frameset>",
    "documents": b"<!doctype html><html><body class=x>",
    "comments that do not end": b"<!--",
    "comments": b"<!-- x -->",
    "scripts": b"<script>x</script>",
    "scripts that do not end": b"<script><!--<script>",
    "end tags of nothing": b"<div></p></b></span>",
    "references": b"&amp;&nosuch&#1;&#x110000;",
    "NULs": b"\0\0<p>\0",
    "less-than signs": b"<<<<",
    "line breaks": b"<br><hr>",
}


def _many_attributes(size: int) -> bytes:
    return b"<div " + b" ".join(b"a%d=x" % i for i in range(size)) + b"><p>text</p></div>"


def _attributes_of_the_body(size: int) -> bytes:
    return b"".join(b"<body a%d=x>" % i for i in range(size)) + b"<p>text</p>"


def _formatting_opened_again(size: int) -> bytes:
    return b"".join(b"<b id=%d><p>" % i for i in range(size)) + b"text"


def _one_text(size: int) -> bytes:
    return b"<p>" + b"One giant text of words. " * size


def _one_class(size: int) -> bytes:
    return b'<div class="' + b"sidebar-comment--x " * size + b'">text</div>'


def _one_name(size: int) -> bytes:
    return b"<" + b"name" * size + b">text"


def _one_reference(size: int) -> bytes:
    return b"&" + b"amp" * size + b"; &#" + b"9" * size + b";"


MAKERS: dict[str, Maker] = {
    **{name: (lambda size, piece=piece: piece * size + b"text") for name, piece in REPEATED.items()},  # type: ignore[misc]
    "a tag of many attributes": _many_attributes,
    "a body of many attributes": _attributes_of_the_body,
    "formatting opened again": _formatting_opened_again,
    "one giant text": _one_text,
    "one giant class": _one_class,
    "one giant name": _one_name,
    "one giant reference": _one_reference,
}


def mixed_page(seed: int, size: int) -> bytes:
    """Pieces of all kinds in a random order, in runs of random length."""
    rng = random.Random(seed)
    pieces = [
        *REPEATED.values(),
        b"</table>",
        b"</b>",
        b"</a>",
        b"</template>",
        b"</p>",
        b"</select>",
        b"-->",
        b"word ",
    ]
    page, length = [], 0
    while length < size:
        run = rng.choice(pieces) * rng.choice([1, 1, 2, 10, 300])
        page.append(run)
        length += len(run)
    return b"".join(page)


PROSE = "The river rose in the night, and by morning the lower road was gone; nobody had heard it go. "
GOOD = f"<article><p>{PROSE * 3}</p></article>".encode()


def write_archive(path, pages):
    """Hostile pages in an archive, a good one before and after each."""
    with path.open("wb") as stream:
        for page in [GOOD, *(each for hostile in pages for each in (hostile, GOOD))]:
            message = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + page
            header = (
                f"WARC/1.0\r\nWARC-Type: response\r\nContent-Type: application/http\r\nContent-Length: {len(message)}"
            )
            stream.write(header.encode() + b"\r\n\r\n" + message + b"\r\n\r\n")


def run(directory, pages, seconds):
    """(labels of documents, lines of the quarantine) of the stage on an archive of hostile pages."""
    directory.mkdir(exist_ok=True)
    write_archive(directory / "h.warc", pages)
    stage = Extract.model_validate(
        {"inputs": [{"source": "s", "path": str(directory / "h.warc")}], "max_page_seconds": seconds}
    ).check()
    (step,) = stage.steps(StageContext(directory / "out", ()))
    planned = PlannedStep(step, directory / "out", "fingerprint")
    run_task(planned, 0)
    here = planned.task_directory(0)
    ids = [id_.rpartition(":")[2] for batch in read_batches(here / DOCUMENTS) for id_ in batch.ids]
    file = here / QUARANTINE
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [int(id_) for id_ in ids], lines


def check(num_hostile, documents, lines):
    """Every good page is a document; every hostile one is a document or a line that names it."""
    aside = [int(line["where"].rpartition(":")[2]) for line in lines]
    assert set(range(1, 2 * num_hostile + 2, 2)) <= set(documents)
    assert sorted(documents + aside) == list(range(1, 2 * num_hostile + 2))


def test_a_page_that_does_not_end_and_one_that_ends_the_parser_are_named_and_the_rest_is_read(tmp_path):
    # Two minutes of CPU time, and a stack of 100,000 calls, on the machine where this was written.
    pages = [MAKERS["a tag of many attributes"](300_000), MAKERS["templates"](300_000)]
    documents, lines = run(tmp_path, pages, seconds=0.5)
    check(2, documents, lines)
    assert documents == [1, 3, 5]
    assert [line["reason"] for line in lines] == ["unreadable page"] * 2
    assert "took more than 0.5 s of CPU time" in lines[0]["detail"]
    assert "killed the parser with SIGSEGV" in lines[1]["detail"]
    assert [line["where"].endswith(f"h.warc:{label}") for line, label in zip(lines, (2, 4), strict=True)] == [True] * 2


def test_hostile_pages_of_all_kinds(tmp_path):
    pages = [make(300) for make in MAKERS.values()] + [mixed_page(seed, 20_000) for seed in range(10)]
    documents, lines = run(tmp_path, pages, seconds=60)
    check(len(pages), documents, lines)
    assert {line["reason"] for line in lines} <= {"no main text"}  # sizes that every parser bears


@pytest.mark.full
def test_large_hostile_pages_of_all_kinds(tmp_path):
    pages = [make(100_000) for make in MAKERS.values()] + [mixed_page(seed, 3_000_000) for seed in range(20)]
    documents, lines = run(tmp_path, pages, seconds=3)
    check(len(pages), documents, lines)


def test_memory_is_bounded():
    # Formatting elements that are opened again in each paragraph: two million elements of over 100 bytes.
    process = PageProcess(memory=100 << 20)
    try:
        with pytest.raises(UnreadablePageError, match=r"memory|killed the parser with"):
            process.read(MAKERS["formatting opened again"](2_000), None, 60)
        assert process.read(GOOD, None, 60).text.startswith(b"The river")
    finally:
        process.close()
