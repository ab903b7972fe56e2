# ruff: noqa: PTH101, PTH102, PTH104, PTH106, PTH108, PTH112, PTH116, PTH118, PTH119, PTH120, PTH123, PTH208
"""Make directories, files and lines, tell what was there before, and take them back: runs on any machine.

Its source is sent to nodes and run by their Python (3.7 or newer, standard library only); on this machine it is
imported. What to do arrives as data, so that no name or path is ever part of a program.

A change is `{"kind": "directory" | "file" | "line", "path": ..., "mode": ..., "text": ...}`; a file may come with its
"sha256" in place of its text where nothing is written. `look` gives the state before it, which `apply` wants back and
compares: what has changed in between is left alone. `undo` knows from the same two what the change has left, and
takes back that only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat

TYPE_CHECKING = False  # as in typing, whose import takes long
if TYPE_CHECKING:
    from typing import Any

MAX_KEPT = 1 << 20
"""Bytes of a file that is replaced: what was in it is kept for undo, so it must be small."""


class Refusal(Exception):
    """Something is not as it was; said in words."""


def look(change: dict[str, Any]) -> dict[str, Any]:
    """The state that the change would meet. Changes nothing."""
    path = _real(change)
    before = _state(path, with_text=change["kind"] == "file" and not change.get("secret"))
    if change["kind"] == "line" and before["kind"] == "file":
        text = _read(path)
        before["has"] = change["text"] in text.split("\n")
        before["open"] = bool(text) and not text.endswith("\n")
    return before


def is_done(change: dict[str, Any], before: dict[str, Any]) -> bool:
    """Whether nothing is left to change."""
    if change["kind"] == "directory":
        return before["kind"] == "directory"
    if change["kind"] == "line":
        return bool(before.get("has"))
    same = before["kind"] == "file" and before["sha256"] == (change.get("sha256") or digest(change["text"]))
    return same and before["mode"] == change["mode"]


def apply(change: dict[str, Any], before: dict[str, Any]) -> None:
    """Make the change if all is as it was when looked at. Raises `Refusal` or OSError."""
    path = _real(change)
    now = look(change)
    if is_done(change, now):
        return
    if _essence(now) != _essence(before):
        raise Refusal(path + " has been changed by somebody else in the meantime; run it again")
    if change["kind"] == "directory":
        _make_directory(path, change["mode"])
    elif change["kind"] == "file":
        _write(path, change["text"], change["mode"])
    else:
        _append(path, change["text"], change["mode"], now)


def undo(change: dict[str, Any], before: dict[str, Any]) -> bool:
    """Take the change back; False if there is nothing left of it. Raises `Refusal` naming what was changed since."""
    path = _real(change)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_part(path))
    now = look(change)
    if now["kind"] == "absent" or not is_made(change, before):
        return False
    if change["kind"] == "directory":
        return _remove_directory(path, now)
    if change["kind"] == "line":
        return _remove_line(path, change["text"], before, now)
    if not is_done(change, now):
        if _essence(now) == _essence(before):
            return False
        raise Refusal(path + " has been changed since; compare it and remove it by hand")
    if before["kind"] == "absent":
        os.unlink(path)
    else:
        _write(path, before["text"], before["mode"])
    return True


def is_made(change: dict[str, Any], before: dict[str, Any]) -> bool:
    """Whether the change had anything to make."""
    return not is_done(change, before)


def digest(text: str) -> str:
    import hashlib  # takes longer than everything else where nothing is looked at

    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def _real(change: dict[str, Any]) -> str:
    """`~` is the home directory of the account; a link is followed where a line goes into what is there already."""
    path = str(change["path"])
    if path.startswith("~/"):
        import pwd

        path = os.path.join(pwd.getpwuid(os.getuid()).pw_dir, path[2:])  # where sshd looks, whatever HOME says
    return os.path.realpath(path) if change["kind"] == "line" else path


def _state(path: str, with_text: bool) -> dict[str, Any]:
    try:
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode) and os.path.isdir(path):
            found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return {"kind": "absent"}
    except PermissionError:
        return {"kind": "hidden"}
    kinds = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "directory"), (stat.S_ISLNK, "link"))
    kind = next((name for test, name in kinds if test(found.st_mode)), "other")
    state: dict[str, Any] = {"kind": kind, "mode": stat.S_IMODE(found.st_mode), "uid": found.st_uid}
    if kind == "file":
        state["size"] = found.st_size
        state["sha256"] = ""
        if found.st_size <= MAX_KEPT and os.access(path, os.R_OK):
            text = _read(path)
            state["sha256"] = digest(text)
            if with_text and text.encode(errors="ignore").decode() == text:
                state["text"] = text  # else it is not UTF-8: nothing that is replaced
    return state


def _essence(state: dict[str, Any]) -> dict[str, Any]:
    return {name: state.get(name) for name in ("kind", "mode", "uid", "sha256")}


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
        return file.read(MAX_KEPT + 1)


def _make_directory(path: str, mode: int) -> None:
    os.mkdir(path, 0o700)
    os.chmod(path, mode)


def _part(path: str) -> str:
    return os.path.join(os.path.dirname(path), "." + os.path.basename(path) + ".glmforge-part")


def _write(path: str, text: str, mode: int) -> None:
    """Whole or not at all, and never readable by more than `mode` says, not for a moment."""
    part = _part(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(part)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        file.write(text)
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())
    os.rename(part, path)


def _append(path: str, line: str, mode: int, now: dict[str, Any]) -> None:
    """In one write, so that what others add at the same time stays."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, mode)
    with os.fdopen(descriptor, "r+b", buffering=0) as file:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if now["kind"] == "absent":
            os.fchmod(descriptor, mode)
        text = file.read()
        if line.encode() not in text.split(b"\n"):
            file.write((b"\n" if text and not text.endswith(b"\n") else b"") + line.encode() + b"\n")
            os.fsync(descriptor)


def _remove_directory(path: str, now: dict[str, Any]) -> bool:
    if now["kind"] != "directory":
        raise Refusal(path + " is no directory any more; look at it and remove it by hand")
    inside = sorted(os.listdir(path))
    if inside:
        raise Refusal(path + " is not empty: it holds " + inside[0] + "; move that away, then undo again")
    os.rmdir(path)
    return True


def _remove_line(path: str, line: str, before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Other lines stay as they are, also those that came later."""
    if not now.get("has"):
        return False
    lines = _read(path).split("\n")
    at = len(lines) - 1 - lines[::-1].index(line)
    if before.get("open") and at == len(lines) - 2:  # it was the last; the line break before it was ours as well
        lines.pop()
    del lines[at]
    if before["kind"] == "absent" and lines == [""]:
        os.unlink(path)
        return True
    owner = os.stat(path)
    _write(path, "\n".join(lines), stat.S_IMODE(owner.st_mode))
    if owner.st_uid != os.geteuid() or owner.st_gid != os.getegid():
        os.chown(path, owner.st_uid, owner.st_gid)
    return True
