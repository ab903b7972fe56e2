"""MathML without TeX of its own, written as TeX.

Presentation elements only, as browsers draw them; symbols stay the Unicode characters that they are. What has no
counterpart here gives what is inside it.
"""

from collections.abc import Callable
from typing import Final

from resiliparse.parse.html.node import ElementNode

_DEEPEST: Final = 100
"""Levels below which a formula is only its text: nobody wrote it."""

_LETTERS: Final = frozenset({"mi", "mn", "mo", "mtext", "ms"})


def mathml_to_tex(math: ElementNode) -> str:
    """The formula in a `math` element; empty if there is none."""
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
