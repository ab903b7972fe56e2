"""Changes on a machine: made once, taken back exactly, and nothing of what others changed since."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmforge_ops.setup.ask import here
from glmforge_ops.setup.on_node.changes import Refusal, apply, is_done, look, undo
from helpers.snapshots import snapshot


def directory(path: Path) -> dict[str, Any]:
    return {"kind": "directory", "path": str(path), "mode": 0o750, "text": ""}


def file(path: Path, text: str, mode: int = 0o640) -> dict[str, Any]:
    return {"kind": "file", "path": str(path), "mode": mode, "text": text}


def line(path: Path, text: str) -> dict[str, Any]:
    return {"kind": "line", "path": str(path), "mode": 0o600, "text": text}


def test_each_kind_is_made_once_and_taken_back(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("before\n")
    (tmp_path / "old").chmod(0o604)
    before = snapshot([tmp_path])
    changes = [
        directory(tmp_path / "new"),
        file(tmp_path / "new/file", "content\n"),
        file(tmp_path / "old", "after\n"),
        line(tmp_path / "keys", "mine"),
    ]
    states = []
    for change in changes:
        states.append(look(change))
        assert not is_done(change, states[-1])
        apply(change, states[-1])
        assert is_done(change, look(change))
    made = snapshot([tmp_path], times=True)
    assert made[str(tmp_path / "new")].mode == "drwxr-x---"
    assert made[str(tmp_path / "new/file")].mode == "-rw-r-----"
    assert made[str(tmp_path / "keys")].mode == "-rw-------"
    for change, state in zip(changes, states, strict=True):
        apply(change, state)  # as after an answer that never arrived
    assert snapshot([tmp_path], times=True) == made
    for change, state in reversed(list(zip(changes, states, strict=True))):
        assert undo(change, state)
        assert not undo(change, state)
    assert snapshot([tmp_path]) == before


def test_whatever_the_umask(tmp_path: Path) -> None:
    for umask in (0o000, 0o777):
        old = os.umask(umask)
        try:
            for number, change in enumerate([directory(tmp_path / f"d{umask}"), file(tmp_path / f"f{umask}", "a"),
                                             line(tmp_path / f"l{umask}", "a")]):  # fmt: skip
                apply(change, look(change))
                mode = stat.S_IMODE(Path(change["path"]).stat().st_mode)
                assert mode == change["mode"], (umask, number)
        finally:
            os.umask(old)


def test_a_secret_is_never_readable_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even before it gets the mode that it is to have."""
    modes = []
    real = os.fchmod

    def fchmod(descriptor: int, mode: int) -> None:
        modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        real(descriptor, mode)

    monkeypatch.setattr(os, "fchmod", fchmod)
    old = os.umask(0)
    try:
        change = file(tmp_path / "key", "PRIVATE", 0o600)
        apply(change, look(change))
    finally:
        os.umask(old)
    assert modes == [0o600]
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert "text" not in look(change | {"secret": True})


def test_part_of_a_line_is_not_the_line(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ssh-ed25519 AAAA mine\nssh-ed25519 AAAA mine too\n")
    change = line(path, "ssh-ed25519 AAAA mine")
    before = look(change)
    assert not is_done(change, before)
    apply(change, before)
    assert path.read_text().endswith("mine too\nssh-ed25519 AAAA mine\n")


# Lines as files have them, also bytes that are no UTF-8 and a last line without an end.
_contents = st.lists(st.binary(max_size=8).filter(lambda text: b"\n" not in text), max_size=6)


@settings(max_examples=150, deadline=None)
@given(_contents, st.booleans(), _contents)
def test_other_lines_stay(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], ends: bool, more: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("lines") / "keys"
    content = b"\n".join(lines) + (b"\n" if ends and lines else b"")
    path.write_bytes(content)
    change = line(path, "ssh-ed25519 AAAA mine")
    before = look(change)
    apply(change, before)
    assert path.read_bytes() == content + (b"\n" if content and not content.endswith(b"\n") else b"") + (
        b"ssh-ed25519 AAAA mine\n"
    )
    added = b"".join(text + b"\n" for text in more)
    with path.open("ab") as stream:
        stream.write(added)
    assert undo(change, before)
    left = path.read_bytes()
    if added:
        assert left == content + (b"\n" if content and not content.endswith(b"\n") else b"") + added
    else:
        assert left == content


def test_what_somebody_changed_in_between_is_left_alone(tmp_path: Path) -> None:
    change = file(tmp_path / "a", "ours\n")
    before = look(change)
    (tmp_path / "a").write_text("theirs\n")
    with pytest.raises(Refusal, match="has been changed by somebody else in the meantime"):
        apply(change, before)
    with pytest.raises(Refusal, match="has been changed since"):
        undo(change, before)
    assert (tmp_path / "a").read_text() == "theirs\n"


def test_a_directory_with_something_in_it_stays(tmp_path: Path) -> None:
    change = directory(tmp_path / "a")
    before = look(change)
    apply(change, before)
    (tmp_path / "a/precious").touch()
    with pytest.raises(Refusal, match="it holds precious"):
        undo(change, before)
    (tmp_path / "a/precious").unlink()
    (tmp_path / "a").rmdir()
    (tmp_path / "a").write_text("a file by now")
    with pytest.raises(Refusal, match="is no directory any more"):
        undo(change, before)


def test_a_write_that_was_cut_off_leaves_nothing_behind(tmp_path: Path) -> None:
    before = snapshot([tmp_path])
    change = file(tmp_path / "a", "ours\n")
    state = look(change)
    (tmp_path / ".a.glmforge-part").write_text("ou")  # killed here
    assert not undo(change, state)
    assert snapshot([tmp_path]) == before
    (tmp_path / ".a.glmforge-part").symlink_to("/etc/passwd")
    apply(change, state)
    assert (tmp_path / "a").read_text() == "ours\n"
    assert not (tmp_path / "a").is_symlink()


def test_one_failure_does_not_keep_the_others(tmp_path: Path) -> None:
    changes = [file(tmp_path / "missing/a", "a"), file(tmp_path / "b", "b")]
    states = here({"look": changes})["look"]
    said = here({"apply": [list(pair) for pair in zip(changes, states, strict=True)]})["apply"]
    assert said == [f"{tmp_path}/missing/a: No such file or directory", ""]
    assert (tmp_path / "b").read_text() == "b"
