"""What reaches a terminal of text that somebody else wrote."""

import sys

import pytest

from glmforge.cli.terminal import as_shown


@pytest.mark.parametrize(
    "character", ["\x1b", "\x07", "\x9b", "\r", "\u202e", "\u2066", "\u2028", "\ufeff", "\U000e0041"]
)
def test_nothing_steers_a_terminal_and_a_pipe_gets_all(character: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert as_shown(f"a{character}b") == f"a{ascii(character)[1:-1]}b"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    assert as_shown(f"a{character}b") == f"a{character}b"


def test_good_text_is_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    chinese, french, persian = "\u4f60\u597d\u3000", "10\u202f000\u00a0\u20ac\n", "\u0646\u0645\u06cc\u200c\u062e"
    text = f"{chinese}\t{french}{persian} \U0001f469\u200d\U0001f4bb \u2764\ufe0f"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert as_shown(text) == text
