"""The reader of small files from outside: what it refuses, in one line that names the file."""

import os
from pathlib import Path

import pytest

from glmforge.errors import CheckpointError, ConfigError
from glmforge.files import MAX_DEPTH, MAX_DIGITS, absolute, kind_of, parse_json, read_bytes, read_json, shown


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"a": -Infinity}', "-Infinity is not a JSON number"),
        ('{"a": 1e999}', "too large"),
        ('{"a": -' + "9" * (MAX_DIGITS + 1) + "}", f"an integer of {MAX_DIGITS + 1} digits"),
        ('{"a": ' + "9" * 5000 + "}", "an integer of 5,000 digits"),
        ("[" * 100_000, f"more than {MAX_DEPTH} levels"),
        ('{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1), f"more than {MAX_DEPTH} levels"),
        ("{" + "[],[]," * 500_000, "more than 1,000,000 values"),
        ('{"a": "\\ud800"}', "surrogate"),
        ('{"\\ud800": 1}', "surrogate"),
        ("[]", "one JSON object, not"),
        ('{\n"a" 1}', "f.json:2: not valid JSON"),
        ("", "f.json:1: not valid JSON"),
    ],
)
def test_refused_json(text: str, problem: str) -> None:
    with pytest.raises(CheckpointError, match=r"^f\.json:") as refused:
        parse_json(text, dict, source="f.json", error=CheckpointError)
    assert problem in str(refused.value)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("9" * MAX_DIGITS, int("9" * MAX_DIGITS)),
        ('"\\ud83d\\ude00"', "😀"),
        ("[" * MAX_DEPTH + "]" * MAX_DEPTH, None),
        ("-1.5e300", -1.5e300),
    ],
)
def test_accepted_json(text: str, value: object) -> None:
    read = parse_json(text, object, source="f.json", error=ConfigError)
    assert value is None or read == value


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")  # opened plainly, this would wait for a writer for ever
    for path in (tmp_path / "fifo", Path("/dev/zero"), Path("/dev/null")):
        assert kind_of(path, error=ConfigError) == "other"
        with pytest.raises(ConfigError, match="is not a regular file"):
            read_bytes(path, error=ConfigError)
    assert kind_of(tmp_path, error=ConfigError) == "directory"
    with pytest.raises(ConfigError, match="Is a directory"):
        read_bytes(tmp_path, error=ConfigError)


@pytest.mark.parametrize("name", ["absent", "a\0b", "x" * 5000, "a\nb", "\ud800"])
def test_names_of_no_file(tmp_path: Path, name: str) -> None:
    assert kind_of(tmp_path / name, error=ConfigError) is None
    with pytest.raises(ConfigError, match="cannot be read") as refused:
        read_bytes(tmp_path / name, error=ConfigError)
    assert str(refused.value).isprintable()


def test_a_circle_of_links(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(ConfigError, match=r"a: cannot be read: .*symbolic links"):
        kind_of(tmp_path / "a", error=ConfigError)


def test_bounded_size_and_text(tmp_path: Path) -> None:
    file = tmp_path / "f.json"
    file.write_bytes(b"[" + b" " * 98 + b"]")
    assert read_json(file, list, error=ConfigError, max_bytes=100) == []
    with pytest.raises(ConfigError, match="more than 99 bytes"):
        read_json(file, list, error=ConfigError, max_bytes=99)
    file.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(ConfigError, match=r"not UTF-8 text \(byte 7\)"):
        read_json(file, dict, error=ConfigError)


def test_names_are_shown_in_one_line() -> None:
    assert shown("a\nb\x1b[31m") == r"'a\nb\x1b[31m'"
    assert len(shown("x" * 10_000)) < 500


def test_a_path_that_goes_up_leads_where_the_system_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b")
    monkeypatch.chdir(tmp_path / "a")
    assert absolute(Path("../lab")) == tmp_path / "lab"
    assert absolute(tmp_path / "link" / ".." / "lab") == tmp_path / "a" / "lab"
    assert absolute(tmp_path / "link" / "lab") == tmp_path / "link" / "lab"
