"""Files put together unit by unit on a node: what counts as arrived, after whatever happened."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from glmforge_ops.storage.node.units import STATE, Units
from glmforge_ops.storage.node.work import Refused

UNIT = 1000
CONTENT = os.urandom(2500)
PIECES = [CONTENT[at : at + UNIT] for at in range(0, len(CONTENT), UNIT)]
DIGESTS = [hashlib.sha256(piece).hexdigest() for piece in PIECES]


def make(root: Path, **changes: Any) -> Units:
    (root / STATE).mkdir(exist_ok=True)
    file = {"directory": "0123456789ab", "name": "a b", "size": 2500, "mtime_ns": 10**18 + 5}
    return Units(str(root), [file | changes], UNIT)


def put(units: Units, *numbers: int) -> None:
    for number in numbers:
        digest = units.write(0, number * UNIT, [PIECES[number]])
        assert units.accept(0, number, digest, DIGESTS[number]) == {"ok": True}


def whole(root: Path) -> Units:
    units = make(root)
    put(units, 2, 0, 1)
    assert units.publish(0, DIGESTS) == {"ok": True}
    return units


def flip(file: Path, at: int) -> None:
    """Change one byte, and leave the time as it was."""
    status, content = file.stat(), bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_file_takes_its_name_when_it_is_whole(tmp_path: Path) -> None:
    units = whole(tmp_path)
    assert units.path(0).read_bytes() == CONTENT
    assert units.path(0).stat().st_mtime_ns == 10**18 + 5
    assert not units.partial(0).exists()
    assert make(tmp_path).survey(True) == [{"named": True, "units": DIGESTS}]


def test_what_arrives_damaged_is_not_noted(tmp_path: Path) -> None:
    units = make(tmp_path)
    digest = units.write(0, 0, [b"x" * UNIT])
    assert units.accept(0, 0, digest, DIGESTS[0]) == {"damaged": [0]}
    assert make(tmp_path).survey(True) == [{"named": False, "units": [None, None, None]}]


def test_what_the_disk_changed_is_found_before_the_file_has_its_name(tmp_path: Path) -> None:
    units = make(tmp_path)
    put(units, 0, 1, 2)
    flip(units.partial(0), 1500)
    assert units.publish(0, DIGESTS) == {"damaged": [1]}
    assert not units.path(0).exists()


def test_after_an_interruption_units_are_read_not_believed(tmp_path: Path) -> None:
    units = make(tmp_path)
    put(units, 0, 2)
    flip(units.partial(0), 2400)
    assert make(tmp_path).survey(False) == [{"named": False, "units": [DIGESTS[0], None, None]}]


def test_a_damaged_file_loses_its_name_and_keeps_its_good_units(tmp_path: Path) -> None:
    units = whole(tmp_path)
    flip(units.path(0), 10)
    assert make(tmp_path).survey(False)[0]["named"]  # by length and time it is good
    assert make(tmp_path).survey(True) == [{"named": False, "units": [None, *DIGESTS[1:]]}]
    assert not units.path(0).exists()


def test_another_original_of_that_name_is_fetched_anew(tmp_path: Path) -> None:
    whole(tmp_path)
    lacking = [{"named": False, "units": [None, None, None]}]
    assert make(tmp_path, mtime_ns=10**18 + 10**9).survey(False) == lacking
    assert make(tmp_path, size=2600).survey(False) == lacking


def test_a_file_that_somebody_else_put_there_is_fetched_anew(tmp_path: Path) -> None:
    units = make(tmp_path)
    units.path(0).parent.mkdir()
    units.path(0).write_bytes(CONTENT)
    os.utime(units.path(0), ns=(10**18, 10**18))
    assert units.survey(False) == [{"named": False, "units": [None, None, None]}]


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_journal_that_was_cut_off_costs_its_last_line_only(tmp_path: Path, cut: int) -> None:
    units = make(tmp_path)
    put(units, 0, 1)
    (journal,) = (tmp_path / STATE).glob("*.jsonl")
    journal.write_bytes(journal.read_bytes()[:-cut])
    again = make(tmp_path)
    assert again.survey(False)[0]["units"][0] == DIGESTS[0]
    put(again, 1)
    assert make(tmp_path).survey(False) == [{"named": False, "units": [*DIGESTS[:2], None]}]


@pytest.mark.parametrize("line", [b"[]", b"{}", b"\xff", b'{"unit": 1}', b"9" * 5000, b"null"])
def test_a_journal_of_nonsense_tells_nothing(tmp_path: Path, line: bytes) -> None:
    units = make(tmp_path)
    put(units, 0)
    (journal,) = (tmp_path / STATE).glob("*.jsonl")
    journal.write_bytes(line + b"\n" + journal.read_bytes())
    assert make(tmp_path).survey(False)[0]["units"] == [DIGESTS[0], None, None]


def test_a_damaged_original_is_refused_and_not_kept(tmp_path: Path) -> None:
    units = make(tmp_path, sha256="0" * 64)
    put(units, 0, 1, 2)
    with pytest.raises(Refused, match="the original is damaged"):
        units.publish(0, DIGESTS)
    assert not units.path(0).exists()
    assert not units.partial(0).exists()


def test_a_check_on_demand(tmp_path: Path) -> None:
    units = whole(tmp_path)
    assert units.check(0, 1, DIGESTS[1]) == {"ok": True}
    flip(units.path(0), 1999)
    assert units.check(0, 0, DIGESTS[0]) == {"ok": True}
    assert units.check(0, 1, DIGESTS[1]) == {"damaged": [1]}
    assert not units.path(0).exists()
    put(units, 1)
    assert units.publish(0, DIGESTS) == {"ok": True}


def test_no_room_is_refused(tmp_path: Path) -> None:
    units = make(tmp_path, size=1 << 60)
    units.unit_bytes = 1 << 50
    with pytest.raises(Refused, match="make room"):
        units.check_space(units.survey(False))


def test_a_link_in_the_place_of_a_file_is_not_written_through(tmp_path: Path) -> None:
    units = make(tmp_path)
    precious = tmp_path / "precious"
    precious.write_text("mine")
    units.path(0).parent.mkdir()
    units.partial(0).symlink_to(precious)
    with pytest.raises(OSError, match="symbolic"):
        units.write(0, 0, [PIECES[0]])
    assert precious.read_text() == "mine"


def test_the_marker_says_what_is_whole_and_goes_when_it_is_not(tmp_path: Path) -> None:
    units = whole(tmp_path)
    units.finish({"0123456789ab": "/shared/data"})
    (marker,) = (tmp_path / STATE).glob("*.complete.json")
    assert json.loads(marker.read_text()) == {
        "directory": "0123456789ab",
        "origin": "/shared/data",
        "files": {"a b": 2500},
    }
    assert make(tmp_path).survey(True)[0]["named"]  # the journal was shortened, not lost
    flip(units.path(0), 0)
    again = make(tmp_path)
    again.unmark(again.survey(True))
    assert not marker.exists()


def test_a_file_without_bytes(tmp_path: Path) -> None:
    units = make(tmp_path, size=0)
    assert units.publish(0, []) == {"ok": True}
    assert units.path(0).read_bytes() == b""
