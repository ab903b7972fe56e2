"""Ranks that write one checkpoint to one place without a word between them, and publish it all the same at once.

    <run>/checkpoints/.step-00000100.pending-<save>/    ranks write here, each its files and, last, its part
    <run>/checkpoints/.step-00000100.whole-<save>/      all parts are there; one rank writes the manifest
    <run>/checkpoints/step-00000100/                    published

Each rank writes its files, forces them to the disk, adds `part-<rank>.json`, and then looks whether that was the last
one: a rank that sees all parts renames the directory, which succeeds for exactly one of them, and publishes it.
So a step gets its name when its last rank has come, no rank waits, and there is no moment at which a death leaves half
a checkpoint under the name, or a whole one that is lost: what is whole and not published yet, because its publisher
died, or because two last ranks did not see each other's part (an NFS mount may answer from memory), is published by the
next save or the next start.
"""

import logging
import re
import shutil
from contextlib import suppress
from pathlib import Path

from glmforge.checkpoint.format.manifest import MANIFEST_FILE, find_problems, write_manifest
from glmforge.checkpoint.format.store import checkpoint_path, publish
from glmforge.checkpoint.node_local.parts_of_ranks import (
    list_present,
    merged_records,
    part_name,
    read_parts,
    whole_saves,
)
from glmforge.errors import CheckpointError
from glmforge.files import read_text
from glmforge.runtime.durable import fsync_directory
from glmforge.runtime.lease import ensure_writable

logger = logging.getLogger(__name__)

_PENDING = re.compile(r"\.step-(?P<step>\d{8,})\.(?P<state>pending|whole)-(?P<session>[0-9a-f]+)-(?P<number>\d+)")


def pending_path(root: Path, step: int, save: str) -> Path:
    """Where the ranks write the save `<session>-<number>` of a step."""
    return root / f".step-{step:08d}.pending-{save}"


def begin(directory: Path, rank: int) -> None:
    """Create the directory of a save; other ranks may be at it as well. An earlier save's part of this rank goes."""
    ensure_writable(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / part_name(rank)).unlink(missing_ok=True)
    _failure(directory, rank).unlink(missing_ok=True)
    fsync_directory(directory.parent)


def is_pending(root: Path, step: int, save: str) -> bool:
    """Whether the save has been begun and not been published."""
    pending = pending_path(root, step, save)
    return pending.exists() or _whole_path(pending).exists()


def publish_if_whole(root: Path, step: int, save: str) -> bool:
    """Publish the save if the parts of all ranks are there and no other rank is publishing it; whether it was done."""
    pending = pending_path(root, step, save)
    parts, _ = read_parts(pending)
    if not whole_saves(parts):
        return False
    whole = _whole_path(pending)
    try:
        pending.rename(whole)
    except FileNotFoundError:  # another rank was faster
        return False
    _publish(whole, checkpoint_path(root, step))
    return True


def clear_up(root: Path, before: str | None = None) -> None:
    """Publish complete saves that no rank is writing any more, and delete the others.

    That is all of them at the start of a run. `before` is a save `<session>-<number>` that is whole, so that every
    rank has come to the end of the earlier ones of its session: only these.
    """
    session, _, number = (before or "").rpartition("-")
    for path in sorted(root.glob(".step-*")):
        found = _PENDING.fullmatch(path.name)
        if not found or (before and (found["session"] != session or int(found["number"]) >= int(number))):
            continue
        if found["state"] == "whole":
            if not before:  # in a live run, another rank is writing it
                _publish(path, checkpoint_path(root, int(found["step"])))
        elif not publish_if_whole(root, int(found["step"]), f"{found['session']}-{found['number']}"):
            logger.info("removing %s, which is incomplete", path)
            shutil.rmtree(path, ignore_errors=True)


def _publish(whole: Path, final: Path) -> None:
    if not (whole / MANIFEST_FILE).exists() or find_problems(whole, checksums=False):
        parts, _ = read_parts(whole)
        save = whole_saves(parts)[0]
        write_manifest(whole, merged_records(save))
        fsync_directory(whole)
    for file in whole.glob("part-*.json"):
        file.unlink()
    publish(whole, final)


def withdraw(directory: Path, rank: int, message: str) -> None:
    """Remove what a rank has written of a save that failed, and say so in its place, as far as the disk permits."""
    with suppress(OSError):
        for file in [directory / part_name(rank), *directory.glob(f"*.rank{rank}.safetensors")]:
            file.unlink(missing_ok=True)
        _failure(directory, rank).write_text(message + "\n", encoding="utf-8")


def said_to_have_failed(directory: Path) -> list[str]:
    """What ranks that could not write their part of a save have said, by rank."""
    return [read_text(file, error=CheckpointError).strip() for file in list_present(directory, "failed-*.txt")]


def _failure(directory: Path, rank: int) -> Path:
    return directory / f"failed-{rank:05d}.txt"


def _whole_path(pending: Path) -> Path:
    return pending.with_name(pending.name.replace(".pending-", ".whole-"))
