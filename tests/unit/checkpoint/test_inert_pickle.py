"""Pickles are read as data: equal to what pickle itself makes of them, and nothing is imported, called or exhausted."""

import pickle
import struct
from collections import OrderedDict
from pathlib import Path

import pytest

from glmforge.checkpoint.format.inert_pickle import InertPickleError, Made, Name, Pairs, parse

ALL_NAMES = type("All", (), {"__contains__": lambda self, name: True})()


class Point:
    def __init__(self, x: object, y: object) -> None:
        self.x, self.y = x, y


def plain(value: object) -> object:
    """What was parsed, with dicts as dicts and objects as tuples."""
    if isinstance(value, Pairs):
        return {key: plain(item) for key, item in value}
    if isinstance(value, Made):
        return (str(value.maker), tuple(map(plain, value.args)), plain(value.state))
    if isinstance(value, Name):
        return str(value)
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value))
    return value


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "value",
    [
        None,
        [True, False, None],
        (),
        (1,),
        (1, 2, 3, 4),
        [0, 1, 255, 256, 65535, 65536, -1, -(2**31), 2**31, 2**62, -(2**62)],
        {"a": 1, "b": [{"c": ()}]},
        [0.1, -1e300, float("inf")],
        "text \u00e4\U0001f600" * 100,
        [["x"] * 3, ["x"] * 3000],
        {str(i): i for i in range(3000)},
    ],
    ids=lambda value: repr(value)[:20],
)
def test_plain_values_are_those_of_pickle(value: object, protocol: int) -> None:
    assert plain(parse(pickle.dumps(value, protocol), ())) == value


def test_numbers_beyond_64_bits_are_floats_which_no_size_is() -> None:
    (number,) = parse(pickle.dumps([10**25]), ())
    assert type(number) is float
    assert number == pytest.approx(1e25)
    with pytest.raises(InertPickleError, match="512 bits"):
        parse(pickle.dumps(10**200), ())


@pytest.mark.parametrize("protocol", [2, 4])
def test_objects_are_named_and_not_made(protocol: int) -> None:
    shared = ("s", "s")
    data = pickle.dumps([Point(1, shared), OrderedDict(), Path, shared], protocol)
    point, mapping, path, again = plain(parse(data, ALL_NAMES))
    assert point[0].endswith(".Point")
    assert point[2] == {"x": 1, "y": shared}
    assert again == shared
    assert mapping == ("collections.OrderedDict", (), None)
    assert path.endswith(".Path")


class Planted:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("allowed", [(), ALL_NAMES], ids=["not allowed", "even if allowed"])
def test_a_planted_call_is_never_made(tmp_path: Path, allowed: object) -> None:
    data = pickle.dumps({"a": Planted(tmp_path / "marker")})
    if allowed:
        parse(data, allowed)
    else:
        with pytest.raises(InertPickleError, match="pathlib"):
            parse(data, allowed)
    assert not (tmp_path / "marker").exists()
    pickle.loads(data)  # the test's own plant is a live one
    assert (tmp_path / "marker").exists()


BOMBS = {
    "memo with a gap": b"\x80\x02Nr\xff\xff\xff\x7f.",
    "a long of many bytes": b"\x80\x02\x8b" + struct.pack("<i", 1 << 30) + b"\x00.",
    "levels without end": b"\x80\x02" + b"(" * 100_000 + b".",
    "pops below a mark": b"\x80\x02N(\x85\x86tt.",
    "no end": b"\x80\x02N",
    "more behind its end": b"\x80\x02N.N",
    "nothing": b"",
    "a name without end": b"\x80\x02c" + b"a" * 100_000,
    "extension registry": b"\x80\x02\x82\x01.",
    "attributes of a class": b"\x80\x02ccollections\nOrderedDict\nN}X\x01\x00\x00\x00a)s\x86b.",
    "a list as a dict": b"\x80\x02]NNs.",
    "a call of a number": b"\x80\x02K\x01)R.",
}


@pytest.mark.parametrize("data", BOMBS.values(), ids=BOMBS)
def test_bombs_are_refused(data: bytes) -> None:
    with pytest.raises(InertPickleError):
        parse(data, ALL_NAMES)


def test_a_hash_bomb_costs_nothing() -> None:
    """Tuples that hold each other twice, forty levels deep, as the key of a dict: its hash takes 2^40 steps."""
    one_more_level = (b"h" + bytes([level]) + b"h" + bytes([level]) + b"\x86\x94" for level in range(39))
    data = b"\x80\x04}(" + b")\x94" + b"".join(one_more_level) + b"u."  # 40 tuples, as the 20 pairs of a dict
    assert len(parse(data, ALL_NAMES)) == 20
