"""Eight bytes at once, hashes, characters: the helpers that all compiled loops over text share."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmforge.data.bytes_kernels import character_at, copy_bytes, equal_bytes, hash_bytes, hash_short

EDGES = [0, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x3FFFF, 0x40000, 0x10FFFF]


def characters(data: bytes) -> list[tuple[int, int]]:
    """(code point, bytes) of all characters, `data` between bytes that would go on with it."""
    text = np.frombuffer(b"\xf0" + data + b"\x80\x80\x80", np.uint8)
    found, at, stop = [], 1, 1 + len(data)
    while at < stop:
        code, size = character_at(text, at, stop)
        found.append((int(code), int(size)))
        at += size
    assert at == stop
    return found


@settings(max_examples=200, deadline=None)
@given(st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(list(map(chr, EDGES))))))
def test_characters_are_pythons(text):
    assert characters(text.encode()) == [(ord(c), len(c.encode())) for c in text]


@pytest.mark.parametrize(
    "damaged", [b"\xe4\xb8", b"\x80", b"\xbf\xbf", b"\xc3", b"\xf0\x9f\x99", b"\xf5\x80\x80\x80", b"\xff"]
)
def test_a_byte_that_begins_no_whole_character_stands_for_itself(damaged):
    assert characters(damaged) == [(byte, 1) for byte in damaged]


def test_no_code_point_is_beyond_unicode():
    assert characters(b"\xf4\xbf\xbf\xbf") == [(0x10FFFF, 4)]


@pytest.mark.parametrize("size", range(20))
def test_hashes_do_not_depend_on_what_surrounds(size: int) -> None:
    data = bytes(range(65, 65 + size))
    hashes = set()
    for before, after in [(b"", b""), (b"x", b""), (b"", b"y" * 9), (b"12345678", b"z")]:
        text = np.frombuffer(before + data + after, np.uint8)
        hashes |= {int(function(text, len(before), len(before) + size)) for function in (hash_bytes, hash_short)}
    assert len(hashes) == 1


def test_bytes_are_copied_to_an_earlier_place_of_the_same_array() -> None:
    for distance in range(12):
        data = np.arange(60, dtype=np.uint8)
        assert copy_bytes(data, 20, 57, data, 20 - distance) == 57 - distance
        assert data[20 - distance : 57 - distance].tolist() == list(range(20, 57))


@pytest.mark.parametrize("size", range(20))
def test_equal_bytes(size):
    data = bytes(range(65, 65 + size))
    a, b = np.frombuffer(b"x" + data + b"y", np.uint8), np.frombuffer(b"12" + data + b"3", np.uint8)
    assert equal_bytes(a, 1, b, 2, size)
    for place in range(size):
        other = b.copy()
        other[2 + place] ^= 1
        assert not equal_bytes(a, 1, other, 2, size)
