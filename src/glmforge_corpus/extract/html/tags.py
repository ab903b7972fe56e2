"""What is known of HTML elements, as tables that compiled loops index by a small number per element name."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

TEXT: Final = 0
"""The tag of a text node."""

OTHER: Final = 1
"""The tag of every element that is not named below."""

VOID: Final = 1
RAW: Final = 2
SKIPPED: Final = 4
BLOCK: Final = 8
CONTAINER: Final = 16
HEADING: Final = 32
CELL: Final = 64
PROSE: Final = 128
"""Properties of elements, as bits: has no content; content is no markup; never read; begins on a new line; can be
the main content; h1 to h6; cell of a table; holds running text."""

# fmt: off
_PROPERTIES: dict[str, int] = {
    "area": VOID | SKIPPED, "base": VOID | SKIPPED, "br": VOID, "col": VOID, "embed": VOID | SKIPPED,
    "hr": VOID | BLOCK, "img": VOID, "input": VOID | SKIPPED, "link": VOID | SKIPPED, "meta": VOID | SKIPPED,
    "param": VOID | SKIPPED, "source": VOID | SKIPPED, "track": VOID | SKIPPED, "wbr": VOID,
    "script": RAW | SKIPPED, "style": RAW | SKIPPED, "iframe": RAW | SKIPPED, "noembed": RAW | SKIPPED,
    "noframes": RAW | SKIPPED, "xmp": RAW | BLOCK, "plaintext": RAW | BLOCK,
    "noscript": 0, "template": SKIPPED, "svg": SKIPPED, "math": 0, "canvas": SKIPPED, "object": SKIPPED,
    "audio": SKIPPED, "video": SKIPPED, "map": SKIPPED, "select": SKIPPED, "option": SKIPPED, "optgroup": SKIPPED,
    "datalist": SKIPPED, "textarea": SKIPPED, "button": SKIPPED, "dialog": SKIPPED, "menu": SKIPPED, "nav": SKIPPED,
    "label": 0, "title": SKIPPED, "head": SKIPPED, "footer": BLOCK | CONTAINER, "aside": BLOCK | CONTAINER,
    "html": BLOCK, "body": BLOCK | CONTAINER, "main": BLOCK | CONTAINER, "article": BLOCK | CONTAINER,
    "section": BLOCK | CONTAINER, "header": BLOCK | CONTAINER, "div": BLOCK | CONTAINER, "center": BLOCK | CONTAINER,
    "form": BLOCK | CONTAINER, "fieldset": BLOCK | CONTAINER, "details": BLOCK | CONTAINER, "summary": BLOCK,
    "legend": BLOCK, "address": BLOCK, "hgroup": BLOCK, "figure": BLOCK, "figcaption": BLOCK, "caption": BLOCK,
    "h1": BLOCK | HEADING, "h2": BLOCK | HEADING, "h3": BLOCK | HEADING, "h4": BLOCK | HEADING,
    "h5": BLOCK | HEADING, "h6": BLOCK | HEADING,
    "p": BLOCK | PROSE, "blockquote": BLOCK | CONTAINER | PROSE, "pre": BLOCK | PROSE, "listing": BLOCK | PROSE,
    "ul": BLOCK, "ol": BLOCK, "li": BLOCK, "dl": BLOCK, "dt": BLOCK, "dd": BLOCK | CONTAINER,
    "table": BLOCK | CONTAINER, "thead": BLOCK, "tbody": BLOCK | CONTAINER, "tfoot": BLOCK, "tr": BLOCK,
    "td": BLOCK | CONTAINER | CELL, "th": BLOCK | CELL, "colgroup": SKIPPED,
    "a": 0, "b": 0, "strong": 0, "i": 0, "em": 0, "u": 0, "s": 0, "del": SKIPPED, "ins": 0, "span": 0, "font": 0,
    "code": 0, "kbd": 0, "samp": 0, "var": 0, "tt": 0, "sub": 0, "sup": 0, "small": 0, "big": 0, "mark": 0, "q": 0,
    "cite": 0, "abbr": 0, "acronym": 0, "time": 0, "picture": 0, "rp": SKIPPED, "rt": SKIPPED,
}
# fmt: on

NAMES: Final = ("#text", "#other", *_PROPERTIES)
TAG: Final = {name: number for number, name in enumerate(NAMES)}
PROPERTIES: Final[NDArray[np.uint8]] = np.array([0, 0, *_PROPERTIES.values()], np.uint8)

_FNV_OFFSET: Final = 0xCBF29CE484222325
_FNV_PRIME: Final = 0x100000001B3


def fnv1a(name: bytes) -> int:
    """The 64-bit FNV-1a hash, which `scan` computes of element names while it reads them."""
    digest = _FNV_OFFSET
    for byte in name:
        digest = ((digest ^ byte) * _FNV_PRIME) & 0xFFFFFFFFFFFFFFFF
    return digest


def _hash_table() -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """Open addressing in 512 places; an empty place has hash 0."""
    hashes, tags = np.zeros(512, np.uint64), np.full(512, OTHER, np.uint8)
    for name, tag in TAG.items():
        digest = fnv1a(name.encode())
        place = digest & 511
        while hashes[place]:
            place = (place + 1) & 511
        hashes[place], tags[place] = digest, tag
    return hashes, tags


NAME_HASHES, NAME_TAGS = _hash_table()
