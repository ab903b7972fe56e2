"""What needles are made of: keys that are easy to read, values that cannot be guessed.

A key is an adjective and a noun, one of 4,096; values are numbers of seven digits, pairs of words, or UUIDs.
"""

import uuid

import numpy as np

from glmforge.config.needles import NeedleValues


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ADJECTIVES = _words(
    "amber ancient autumn blue bold brave bright broken calm clever copper crimson curious dark distant dusty early "
    "empty faint fallen famous frozen gentle gilded golden grand green hidden hollow honest humble icy iron ivory "
    "jagged jolly kind late lively lonely lucky marble mellow misty narrow noble northern pale patient plain polished "
    "proud quiet rapid royal rusty sandy scarlet secret shallow silent silver slow velvet"
)
NOUNS = _words(
    "anchor anvil apple arrow basket beacon bell bridge button candle canyon carpet castle chimney cloud compass "
    "cottage cradle dragon drum eagle engine falcon feather fiddle forest fountain garden glacier hammer harbor helmet "
    "island jacket kettle ladder lantern lemon meadow mirror mitten needle oak orchard otter paddle pebble pencil "
    "pillow planet pocket river saddle sailor shadow spoon stable tiger tower tunnel turnip valley violin window"
)

KIND = {"numbers": "number", "words": "word", "uuids": "code"}
"""What a needle calls its value."""

_MIN_NUMBER, _MAX_NUMBER = 10**6, 10**7


def draw_keys(rng: np.random.Generator, num: int) -> list[str]:
    """So many different keys, such as 'quiet lantern'."""
    return [" ".join(pair) for pair in _pairs(rng, num)]


def draw_values(rng: np.random.Generator, num: int, kind: NeedleValues) -> list[str]:
    """So many different values."""
    if kind == "words":
        return ["-".join(pair) for pair in _pairs(rng, num)]
    found: dict[str, None] = {}
    while len(found) < num:
        value = uuid.UUID(bytes=rng.bytes(16), version=4) if kind == "uuids" else rng.integers(_MIN_NUMBER, _MAX_NUMBER)
        found[str(value)] = None
    return list(found)


def draw_names(rng: np.random.Generator, num: int) -> list[str]:
    """So many different names of variables, five capital letters each."""
    found: dict[str, None] = {}
    while len(found) < num:
        found["".join(chr(ord("A") + letter) for letter in rng.integers(0, 26, 5))] = None
    return list(found)


def _pairs(rng: np.random.Generator, num: int) -> list[tuple[str, str]]:
    chosen = rng.choice(len(ADJECTIVES) * len(NOUNS), num, replace=False)
    return [(ADJECTIVES[one // len(NOUNS)], NOUNS[one % len(NOUNS)]) for one in chosen.tolist()]
