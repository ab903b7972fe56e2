"""Formulas of a page as TeX, before its text is read.

A page says a formula in several ways at once: what the browser draws, what a screen reader says, and often the
author's TeX. Read as text they come out two or three times over, with fractions and exponents lost. Each formula is
therefore replaced by one piece of text, `$...$`, or `$$...$$` in a block of its own where it is displayed:

* MathJax 2 keeps TeX in `<script type="math/tex">`; what it drew stands before it and is removed.
* KaTeX, LaTeXML, Wikipedia and others put TeX into MathML, as an annotation or as `alttext`.
* Formulas that are pictures (WordPress, Wikipedia) have it as `alt`.
* MathML without TeX is written as TeX, presentation elements only; symbols stay the Unicode characters that they are.

TeX that stands in the text between delimiters is text and stays as it is.
"""

import re
from collections.abc import Callable
from typing import Final

from resiliparse.parse.html import HTMLTree
from resiliparse.parse.html.node import ElementNode, Node

_DEEPEST: Final = 100
"""Levels below which a formula is only its text; never occurs in practice."""

_LETTERS: Final = frozenset({"mi", "mn", "mo", "mtext", "ms"})


def mathml_to_tex(math: ElementNode) -> str:
    """The formula in a `math` element, or empty."""
    return " ".join(_write(math, 0).split())


def _children(node: ElementNode) -> list[ElementNode]:
    return [child for child in node.child_nodes if isinstance(child, ElementNode)]


def _write(node: ElementNode, depth: int) -> str:
    tag = (node.tag or "").rpartition(":")[2].lower()
    if tag in _LETTERS or depth > _DEEPEST:
        text = " ".join((node.text or "").split())
        if tag == "mtext" and text:
            return rf"\text{{{text}}}"
        return rf"\mathrm{{{text}}}" if tag == "mi" and len(text) > 1 and text.isascii() else text
    if tag in ("annotation", "annotation-xml"):
        return ""
    children = _children(node)
    if tag == "semantics":
        children = children[:1]
    form = _FORMS.get(tag)
    if form is not None and len(children) == form[0]:
        return form[1](*(_write(child, depth + 1) for child in children))
    if tag == "mtable":
        return r" \\ ".join(_write(row, depth + 1) for row in children)
    if tag in ("mtr", "mlabeledtr"):
        return " & ".join(_write(cell, depth + 1) for cell in children)
    inner = " ".join(_write(child, depth + 1) for child in children)
    if tag == "msqrt":
        return rf"\sqrt{{{inner}}}"
    if tag == "mfenced":
        opened, closed = node.getattr("open") or "(", node.getattr("close") or ")"
        separator = (node.getattr("separators") or ",").strip()[:1]
        return opened + f"{separator} ".join(_write(child, depth + 1) for child in children) + closed
    return inner


def _base(text: str) -> str:
    return text if len(text) <= 1 else f"{{{text}}}"


_FORMS: Final[dict[str, tuple[int, Callable[..., str]]]] = {
    "mfrac": (2, lambda over, under: rf"\frac{{{over}}}{{{under}}}"),
    "msup": (2, lambda base, above: f"{_base(base)}^{{{above}}}"),
    "msub": (2, lambda base, below: f"{_base(base)}_{{{below}}}"),
    "msubsup": (3, lambda base, below, above: f"{_base(base)}_{{{below}}}^{{{above}}}"),
    "mover": (2, lambda base, above: f"{_base(base)}^{{{above}}}"),
    "munder": (2, lambda base, below: f"{_base(base)}_{{{below}}}"),
    "munderover": (3, lambda base, below, above: f"{_base(base)}_{{{below}}}^{{{above}}}"),
    "mroot": (2, lambda base, index: rf"\sqrt[{index}]{{{base}}}"),
}


_SIGNS: Final = ("<math", 'type="math/tex', "mwe-math", 'class="latex', 'class="tex"')
_DRAWN: Final = (
    ".MathJax_Preview, .MathJax, .MathJax_Display, .MathJax_SVG, .MathJax_SVG_Display, .MathJax_CHTML, .mjx-chtml"
)
_WRAPPERS: Final = ".katex-display, .katex, .mwe-math-element, mjx-container"
_PICTURES: Final = "img.latex, img.tex, img.mwe-math-fallback-image-inline, img.mwe-math-fallback-image-display"
_STYLE: Final = re.compile(r"^\{\\(?:displaystyle|textstyle)\s*(.*)\}$", re.DOTALL)


def has_formulas(serialised: str) -> bool:
    """Whether a document that lexbor has written out holds any."""
    return any(sign in serialised for sign in _SIGNS)


def write_formulas_as_tex(tree: HTMLTree) -> None:
    """Replace the formulas of a page, in place."""
    document = tree.document
    assert document is not None
    if document.query_selector("script[type^='math/tex']") is not None:
        for node in document.query_selector_all(_DRAWN):
            _remove(node)
    for script in document.query_selector_all("script[type^='math/tex']"):
        _replace(tree, script, script.text or "", "mode=display" in (script.getattr("type") or ""))
    for wrapper in document.query_selector_all(_WRAPPERS):
        _replace_wrapper(tree, wrapper)
    for math in document.query_selector_all("math"):
        _replace(tree, math, _tex_of(math), math.getattr("display") == "block")
    for picture in document.query_selector_all(_PICTURES):
        _replace(tree, picture, picture.getattr("alt") or "", "display" in (picture.getattr("class") or ""))


def _replace_wrapper(tree: HTMLTree, wrapper: ElementNode) -> None:
    """KaTeX, MathJax 3 and Wikipedia: MathML for readers beside what is drawn."""
    math = wrapper.query_selector("math")
    picture = wrapper.query_selector("img")
    names = wrapper.getattr("class") or ""
    display = "katex-display" in names or wrapper.getattr("display") == "true"
    if math is not None:
        _replace(tree, wrapper, _tex_of(math), display or math.getattr("display") == "block")
    elif picture is not None:
        _replace(tree, wrapper, picture.getattr("alt") or "", "display" in (picture.getattr("class") or ""))


def _tex_of(math: ElementNode) -> str:
    annotation = math.query_selector("annotation[encoding='application/x-tex'], annotation[encoding='TeX']")
    if annotation is not None and (annotation.text or "").strip():
        return str(annotation.text)
    return math.getattr("alttext") or mathml_to_tex(math)


def _replace(tree: HTMLTree, node: Node, tex: str, display: bool) -> None:
    parent = node.parent
    if parent is None:
        return  # went away with a formula around it
    tex = tex.strip()
    inner = _STYLE.match(tex)
    tex = inner.group(1).strip() if inner else tex
    if not tex:
        _remove(node)
    elif display:
        block = tree.create_element("div")
        assert block is not None
        block.append_child(_text(tree, f"$${tex}$$"))
        parent.replace_child(block, node)
    else:
        parent.replace_child(_text(tree, f"${tex}$"), node)


def _text(tree: HTMLTree, text: str) -> Node:
    node = tree.create_text_node(text)
    assert node is not None
    return node


def _remove(node: Node) -> None:
    if node.parent is not None:
        node.parent.remove_child(node)
