"""A page's bytes to its main text."""

import codecs
from typing import NamedTuple

import numpy as np
from resiliparse.parse.encoding import detect_encoding
from resiliparse.parse.html import HTMLTree

from glmforge_corpus.extract.html.choose import find_main
from glmforge_corpus.extract.html.formulas import has_formulas, write_formulas_as_tex
from glmforge_corpus.extract.html.render import render
from glmforge_corpus.extract.html.scan import scan

_MAX_TITLE = 500


class Page(NamedTuple):
    """What a page says.

    Attributes:
        text: UTF-8; empty if it has no running text.
        title: of its head, white space collapsed.
        language: its declared language in lower case, without the country; None if it declares none.
    """

    text: bytes
    title: str
    language: str | None


def read_page(data: bytes, charset: str | None = None, *, recall_first: bool = False) -> Page:
    """The main text of a page; `charset` is what the server said. `recall_first`: see `find_main`."""
    tree = HTMLTree.parse(decode(data, charset))
    document = tree.document
    assert document is not None
    serialised = document.html
    if has_formulas(serialised):
        write_formulas_as_tex(tree)
        serialised = document.html
    root = document.document_element
    language = str((root.getattr("lang") if root is not None else None) or "").strip().lower()
    title = " ".join((tree.title or "").split())[:_MAX_TITLE]
    return Page(main_text(serialised, recall_first), title, language.replace("_", "-").partition("-")[0] or None)


def decode(data: bytes, charset: str | None = None) -> str:
    """A page as characters. Valid UTF-8 is decoded as such, regardless of the declaration (few other texts happen to
    be); then the server's word counts, then the page's own, then a guess from the bytes."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        pass
    for name in (charset, detect_encoding(data, from_html_meta=True)):
        encoding = _known(name)
        try:
            if encoding and encoding != "utf-8":
                return data.decode(encoding)
        except UnicodeDecodeError:
            continue
    return data.decode(_known(detect_encoding(data)) or "utf-8", "replace")


def _known(encoding: str | None) -> str | None:
    try:
        return codecs.lookup(encoding).name if encoding else None
    except LookupError:
        return None


def main_text(serialised: str, recall_first: bool = False) -> bytes:
    """The main text of a document that lexbor has written out, as UTF-8."""
    # A few bytes more, so that loops may look ahead.
    html = np.frombuffer(serialised.encode("utf-8", "replace") + b"\n" * 8, np.uint8)
    nodes = scan(html)
    return render(html, nodes, find_main(html, nodes, recall_first))
