"""Lines of hostile output; see test_rank_processes.py for whole processes."""

import pytest

from glmforge_ops.jobs.ranks.rank import BAR_EVERY_S, MAX_LINE, Lines, printable, timestamp


def lines_of(*pieces: bytes, seconds_between: float = 0.0) -> list[str]:
    reader = Lines()
    found = [line for index, piece in enumerate(pieces) for line in reader.feed(piece, index * seconds_between)]
    return found + reader.end()


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([b"a\nb\n"], ["a", "b"]),
        ([b"a", b"b\nc"], ["ab", "c"]),
        ([b"a\r\nb\r", b"\nc\n"], ["a", "b", "c"]),
        ([b"\n\n"], ["", ""]),
        ([b""], []),
        ([b"\xc3", b"\xa9\n"], ["é"]),
    ],
)
def test_breaks(pieces: list[bytes], expected: list[str]) -> None:
    assert lines_of(*pieces) == expected


def test_a_bar_shows_its_last_state() -> None:
    assert lines_of(b"".join(b"%d%%\r" % n for n in range(100)), b"\nnext\n") == ["99%", "next"]


def test_a_bar_that_never_ends_is_shown_now_and_then() -> None:
    shown = lines_of(*(b"%d%%\r" % n for n in range(100)), seconds_between=BAR_EVERY_S / 10)
    assert shown == ["0%", "10%", "20%", "30%", "40%", "50%", "60%", "70%", "80%", "90%", "99%"]


def test_a_long_line_is_cut_and_what_is_left_out_counted() -> None:
    (line, after) = lines_of(*[b"x" * 1000] * 100, b"\nafter\n")
    assert line == "x" * MAX_LINE + f" ... ({100_000 - MAX_LINE} bytes more)"
    assert after == "after"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"\x1b[31mred\x1b[0m \x1b[2Kgone", "red gone"),
        (b"\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        (b"\xff\xfe", "\\xff\\xfe"),
        ("a\u202eb".encode(), "a\\u202eb"),
        (b"tab\there", "tab\there"),
    ],
)
def test_nothing_steers_a_terminal(line: bytes, expected: str) -> None:
    assert printable(line) == expected


def test_times_are_rounded_once() -> None:
    assert timestamp(0.9999996) == "1970-01-01T00:00:01.000000Z"
    assert timestamp(1.25) == "1970-01-01T00:00:01.250000Z"
