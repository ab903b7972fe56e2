"""Pages made to make a parser of HTML slow, large or fall over, in sizes of one's choice.

Each is a repetition that some rule of the parsing algorithm answers by going over what it has already seen: attributes
of a tag that must differ, formatting elements that are opened again in each block, elements that are moved out of a
table, end tags that look for their start.
"""

import random
from collections.abc import Callable

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
