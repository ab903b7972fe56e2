"""What keeps second copies of a run's checkpoints: receives one, names it when it is whole, drops old ones.

    DIRECTORY/checkpoints/step-00000120/            a whole one
    DIRECTORY/checkpoints/.copying-step-00000140/   being received, or left behind by a copy that was interrupted

A checkpoint is whole if all files of its `manifest.json` are there, as long as it says; this is read here once more,
since the machine that keeps copies has nothing of glmforge.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from glmforge_ops.hosts.on_node.wire import CHUNK, begin, listen, say
from glmforge_ops.storage.node.peer import Peer
from glmforge_ops.storage.node.transfer import Locked, act
from glmforge_ops.storage.node.units import STATE, Units
from glmforge_ops.storage.node.work import Refused, StillAlive, sync_directory

_STEP = re.compile(r"step-\d{8,}")
_RECEIVING = ".copying-"
_DELETED = ".deleted-"


def main(program: bytes) -> None:
    """Serve one copy of a run until there is nobody any more who sends something."""
    order = begin()
    if order is None:
        return
    root = Path(order["root"])
    try:
        with Locked(root, order["lock"]):
            (root / "checkpoints").mkdir(exist_ok=True)
            say({"ok": True})
            _serve(root, program)
    except Refused as error:
        say({"refused": str(error)})
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        say({"refused": f"{error.filename or root}: {error.strerror}"})


def _serve(root: Path, program: bytes) -> None:
    checkpoints, peer = root / "checkpoints", Peer(str(root), program)
    units = Units(str(root), [], 1)
    while (asked := listen()) is not None:
        what = asked["do"]
        if what == "open":
            units = _open(root, asked)
        elif what == "verify":
            say({"problem": _find_problem(checkpoints / asked["name"], contents=True)})
        elif what == "digest":
            say({"sha256": _digest(checkpoints / asked["name"] / "manifest.json", StillAlive())})
        elif what == "name":
            _name(checkpoints, asked["name"])
            say({"ok": True})
        elif what == "rotate":
            say({"removed": _rotate(checkpoints, asked["keep"], asked["safe"])})
        else:
            say(act(asked, units, peer))


def _open(root: Path, asked: dict[str, Any]) -> Units:
    """Get ready for the files of a checkpoint, or of the run itself; what is there already is not sent again."""
    into = root
    if asked["name"] is not None:
        into = root / "checkpoints" / f"{_RECEIVING}{asked['name']}"
        for left in (root / "checkpoints").iterdir():  # of an older checkpoint, or of a removal that was interrupted
            if left != into and left.name.startswith((_RECEIVING, _DELETED)):
                shutil.rmtree(left)
    (into / STATE).mkdir(parents=True, exist_ok=True)
    units = Units(str(into), asked["files"], asked["unit_bytes"])
    found = units.survey(True)
    units.check_space(found)
    say({"files": found})
    return units


def _name(checkpoints: Path, name: str) -> None:
    """Give a checkpoint that has been received its name; a broken one that bears it makes way."""
    received, final = checkpoints / f"{_RECEIVING}{name}", checkpoints / name
    shutil.rmtree(received / STATE)
    if (problem := _find_problem(received, contents=False)) is not None:
        raise Refused(problem)
    listed = {*_manifest(received)["files"], "manifest.json"}
    for stray in received.iterdir():
        if stray.name not in listed:
            stray.unlink()
    sync_directory(received)
    doomed = checkpoints / f"{_DELETED}{name}"
    if final.exists():
        final.rename(doomed)
    received.rename(final)
    sync_directory(checkpoints)
    shutil.rmtree(doomed, ignore_errors=True)


def _rotate(checkpoints: Path, keep: int, safe: str) -> list[str]:
    """Remove whole copies but for the newest `keep`, and never `safe`; broken ones are for a person to look at."""
    whole = [path for path in checkpoints.iterdir() if _STEP.fullmatch(path.name) and not path.is_symlink()]
    whole = [path for path in whole if _find_problem(path, contents=False) is None]
    whole.sort(key=lambda path: int(path.name.removeprefix("step-")), reverse=True)
    removed = []
    for path in whole[max(keep, 1) :]:
        if path.name != safe:
            doomed = path.with_name(f"{_DELETED}{path.name}")
            path.rename(doomed)
            sync_directory(checkpoints)
            shutil.rmtree(doomed)
            removed.append(path.name)
    return removed


def _find_problem(checkpoint: Path, *, contents: bool) -> str | None:
    """What is wrong with a checkpoint, None if it is whole; `contents` also compares SHA-256 of everything."""
    alive = StillAlive()
    try:
        for name, record in _manifest(checkpoint)["files"].items():
            file = checkpoint / name
            if "/" in name or file.is_symlink() or file.stat().st_size != record["size"]:
                return f"{file}: is not what manifest.json says"
            if contents and _digest(file, alive) != record["sha256"]:
                return f"{file}: SHA-256 differs from manifest.json"
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{checkpoint / 'manifest.json'}: is not a manifest"
    return None


def _manifest(checkpoint: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((checkpoint / "manifest.json").read_bytes())
    return content


def _digest(file: Path, alive: StillAlive) -> str:
    digest = hashlib.sha256()
    with contextlib.closing(file.open("rb")) as stream:
        while piece := stream.read(CHUNK):
            digest.update(piece)
            alive()
    return digest.hexdigest()
