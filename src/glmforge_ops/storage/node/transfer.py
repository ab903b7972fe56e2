"""What receives and serves files on a node. One process for each order, which is the first line that it hears.

keep     holds the lock of a directory, says what is there already, and takes files in, unit by unit
serve    sends units to whoever asks: another node, or the machine that stages
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from pathlib import Path
from typing import Any

from glmforge_ops.hosts.on_node.wire import CHUNK, IDLE_S, begin, listen, read_bytes, say
from glmforge_ops.storage.node.peer import Peer, PeerFailed
from glmforge_ops.storage.node.units import STATE, Units
from glmforge_ops.storage.node.work import Refused


def main(program: bytes) -> None:
    """`program` is what was sent here, to be sent on to a node that is asked for units."""
    order = begin()
    if order is None:
        return
    try:
        keep(order, program) if order["mode"] == "keep" else serve(order)
    except Refused as error:
        say({"refused": str(error)})
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        say({"refused": f"{error.filename or order['root']}: {error.strerror}"})


def keep(order: dict[str, Any], program: bytes) -> None:
    """Take files in until there is nobody any more who sends them."""
    with Locked(Path(order["root"]), order["lock"]):
        units = Units(order["root"], order["files"], order["unit_bytes"])
        found = units.survey(order["verify"])
        units.check_space(found)
        units.unmark(found)
        say({"files": found})
        peer = Peer(order["root"], program)
        while (asked := listen()) is not None:
            say(act(asked, units, peer))
        peer.leave()


def act(asked: dict[str, Any], units: Units, peer: Peer) -> dict[str, Any]:
    """Do what is asked, and say what came of it."""
    what = asked["do"]
    if what == "put":
        return _put(asked, units)
    if what == "get":
        return _get(asked, units, peer)
    if what == "check":
        return units.check(asked["file"], asked["unit"], asked["sha256"])
    if what == "publish":
        return units.publish(asked["file"], asked["units"])
    if what == "finish":
        return units.finish(asked["origins"])
    return {"ok": True}


def _put(asked: dict[str, Any], units: Units) -> dict[str, Any]:
    """A unit that follows, and after it its SHA-256."""
    offset, length = units.spans(asked["file"])[asked["unit"]]
    digest = units.write(asked["file"], offset, read_bytes(length))
    wanted = listen()
    if wanted is None:
        sys.exit(1)
    return units.accept(asked["file"], asked["unit"], digest, wanted["sha256"])


def _get(asked: dict[str, Any], units: Units, peer: Peer) -> dict[str, Any]:
    """A unit from another node."""
    file = units.files[asked["file"]]
    offset, length = units.spans(asked["file"])[asked["unit"]]
    wanted = {"directory": file["directory"], "name": file["name"], "offset": offset, "length": length}
    try:
        digest = units.write(asked["file"], offset, peer.fetch(asked["peer"], wanted))
    except PeerFailed as error:
        peer.leave()
        return {"peer_failed": str(error)}
    return units.accept(asked["file"], asked["unit"], digest, asked["sha256"])


def serve(order: dict[str, Any]) -> None:
    """Send units until there is nobody any more who asks for them."""
    while (asked := listen()) is not None:
        path = Path(order["root"], asked["directory"], asked["name"])
        descriptor = _open(path)
        if descriptor is None:
            say({"error": f"it does not have {path.name} any more"})
            continue
        say({"length": asked["length"]})
        offset, end = asked["offset"], asked["offset"] + asked["length"]
        try:
            while offset < end:
                piece = os.pread(descriptor, min(CHUNK, end - offset), offset)
                if not piece:
                    sys.exit(1)
                signal.alarm(IDLE_S)
                sys.stdout.buffer.write(piece)
                offset += len(piece)
        finally:
            os.close(descriptor)
        sys.stdout.buffer.flush()


def _open(path: Path) -> int | None:
    partial = path.with_name(path.name + ".partial")
    for name in (partial, path, partial):  # it may get its name, or lose it, between two attempts
        try:
            return os.open(name, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
    return None


class Locked:
    """The right to write below a directory, which a run that copies files there takes as well."""

    def __init__(self, root: Path, name: str) -> None:
        try:
            (root / STATE).mkdir(parents=True, exist_ok=True)
            self._file = (root / name).open("a")
        except OSError as error:
            raise Refused(f"{root}: cannot be written ({error.strerror}); choose another place") from None

    def __enter__(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(
                f"{self._file.name}: another process copies files there; wait until it ends, and run this again"
            ) from None

    def __exit__(self, *error: object) -> None:
        self._file.close()
