"""Where checkpoints lie, which of them is the newest complete one, and how a directory appears all at once.

    <run>/checkpoints/step-00000120/                     a checkpoint
    <run>/checkpoints/.step-00000140.partial-host-4711/  being written (or left behind by a dead run)
    <run>/checkpoints/step-00000130.rolled-back/         of a course that the run has left after a loss spike
    <run>/checkpoints/step-00000130.set-aside/           of a branch that the user left; never deleted
    <run>/checkpoints/.resumed-from                      the step that was chosen then, see `chosen_step`
    <run>/checkpoints/.ever-whole                        some checkpoint on the nodes' own disks was whole once

A directory is written beside its final name and renamed when all its files are on the disk, so under a final
name there is never half a checkpoint. There is no pointer file to `latest`: it could disagree with the disk
after a crash. The newest checkpoint is the one with the highest step whose manifest agrees with its files.
"""

import itertools
import logging
import os
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from glmforge.checkpoint.format.manifest import find_problems, summarize_problems
from glmforge.errors import CheckpointError
from glmforge.observe.record_files import read_jsonl
from glmforge.observe.run import RunDirectory
from glmforge.runtime.durable import fsync_directory, write_durably
from glmforge.runtime.lease import ensure_writable
from glmforge.runtime.os_errors import describe_os_error

logger = logging.getLogger(__name__)

# A replaced checkpoint still counts until the one that takes its place has its name: see `publish`.
_CHECKPOINT = re.compile(r"step-(?P<step>\d{8,})(\.replaced)?")
_ASIDE = re.compile(r"step-(?P<step>\d{8,})\.(rolled-back|set-aside(-\d+)?)")
_LEFTOVER = re.compile(r"\.(?P<final>.+)\.(partial|deleted)-(?P<host>.+)-(?P<pid>\d+)")
_REPLACED = ".replaced"
_ROLLED_BACK = ".rolled-back"
_SET_ASIDE = ".set-aside"
_EVER_WHOLE = ".ever-whole"
_RESUMED_FROM = ".resumed-from"


def checkpoint_path(root: Path, step: int) -> Path:
    """Directory of the checkpoint after `step` optimizer steps."""
    return root / f"step-{step:08d}"


def step_of(path: Path) -> int:
    """The step in a checkpoint directory's name."""
    match = _CHECKPOINT.fullmatch(path.name) or _ASIDE.fullmatch(path.name)
    assert match, f"{path} is not a checkpoint name"
    return int(match["step"])


def list_checkpoints(root: Path) -> list[Path]:
    """All checkpoint directories under `root`, whole or not, newest first."""
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if _CHECKPOINT.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: (-step_of(path), path.name.endswith(_REPLACED)))


def set_aside_after(root: Path, step: int, *, keep: bool = False) -> list[Path]:
    """Rename the checkpoints under `root` of steps after `step`, so that no run resumes from them; their old names.

    With `keep` nothing ever deletes them; else they go when a later one is whole, see `list_rolled_back`. Ranks that
    see the same `root` may call this at the same time.
    """
    ensure_writable(root)
    renamed = []
    for path in list_checkpoints(root):
        if step_of(path) > step:
            with suppress(FileNotFoundError):
                path.rename(_kept_name(path) if keep else _rolled_back_name(path))
                renamed.append(path)
    if renamed:
        fsync_directory(root)
    return renamed


def list_rolled_back(root: Path) -> list[Path]:
    """The checkpoints under `root` that the run has left after a loss spike."""
    return sorted(path for path in root.glob(f"step-*{_ROLLED_BACK}") if _ASIDE.fullmatch(path.name))


def list_kept_aside(root: Path) -> list[Path]:
    """The checkpoints under `root` of branches that the user left, newest first."""
    kept = (path for path in root.glob(f"step-*{_SET_ASIDE}*") if _ASIDE.fullmatch(path.name))
    return sorted(kept, key=lambda path: (-step_of(path), path.name))


def chosen_step(root: Path) -> int | None:
    """The step that the user last chose to resume from, if the run has continued since."""
    marker = root / _RESUMED_FROM
    text = marker.read_text().strip() if marker.exists() else ""
    return int(text) if text.isdecimal() else None  # of a machine that lost power it may be empty


def note_chosen_step(root: Path, step: int | None) -> None:
    """Note that the run has gone back to a step by choice, or with None that nothing is chosen any more."""
    marker = root / _RESUMED_FROM
    if step is not None:
        root.mkdir(parents=True, exist_ok=True)
        write_durably(marker, str(step))
    else:
        marker.unlink(missing_ok=True)


def latest_checkpoint(root: Path, *, checksums: bool = False) -> Path | None:
    """The newest complete checkpoint under `root`, or None.

    Broken ones that are newer are named in a warning. `checksums=True` also reads and compares all contents.
    Raises `CheckpointError` if there are checkpoints but none is whole: starting anew must be the user's
    decision.
    """
    broken = []
    for path in list_checkpoints(root):
        problems = find_problems(path, checksums=checksums)
        if not problems:
            return path
        warn_broken(path, problems)
        broken += problems
    if broken:
        raise_none_whole(root, broken)
    return None


def note_whole(root: Path) -> None:
    """Note, where all nodes see it, that a checkpoint of the run is whole, wherever its parts lie."""
    root.mkdir(parents=True, exist_ok=True)
    marker = root / _EVER_WHOLE
    if not marker.exists():
        marker.touch()
        fsync_directory(root)


def was_ever_whole(root: Path, *, by_events: bool = True) -> bool:
    """Whether the run ever had a complete checkpoint, as far as is known where all nodes see it.

    What earlier versions saved is known from the run's events; those of a run with adapters are of one rank.
    """
    if (root / _EVER_WHOLE).exists():
        return True
    events = RunDirectory(root.parent).events
    return by_events and events.exists() and any(event.get("event") == "saved" for event in read_jsonl(events))


def warn_broken(path: Path, problems: list[str]) -> None:
    """Say in the log that `path` is skipped, and why."""
    logger.warning("%s is incomplete and is skipped: %s", path, summarize_problems(problems))


def raise_none_whole(root: Path, problems: list[str]) -> NoReturn:
    """Refuse to go on as if there had never been a checkpoint under `root`."""
    raise CheckpointError(
        f"{root}: no complete checkpoint: {summarize_problems(problems)}; "
        "restore one from a copy, or move the directory away to start over"
    )


def make_partial(final: Path) -> Path:
    """Create the directory in which `final` is assembled, and clear what dead runs left beside it."""
    ensure_writable(final)
    final.parent.mkdir(parents=True, exist_ok=True)
    fsync_directory(final.parent.parent)
    remove_leftovers(final)
    partial = partial_path(final)
    partial.mkdir()
    return partial


def partial_path(final: Path) -> Path:
    """Where this process puts `final` together."""
    return _hidden(final, "partial")


def publish(partial: Path, final: Path) -> None:
    """Give the finished directory `partial` its name; what bears it already is replaced.

    All files of `partial` must have been forced to the disk. A replaced directory is moved aside first and
    deleted last: whenever the power fails, the old or the new one is there to be found.
    """
    fsync_directory(partial)
    ensure_writable(final)
    replaced = final.with_name(final.name + _REPLACED)
    if final.exists():
        if replaced.exists():
            shutil.rmtree(replaced)
        final.rename(replaced)
    partial.rename(final)
    fsync_directory(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)  # mostly not there; what stays is removed by the next save


@contextmanager
def new_directory(final: Path) -> Iterator[Path]:
    """A directory to write to, which gets the name `final` when the block has ended, and is gone if it fails.

    Files must have been forced to the disk by then. Raises `CheckpointError` if `final` exists, and for what the
    operating system refuses.
    """
    if final.exists():
        raise CheckpointError(f"{final}: exists; choose another directory")
    try:
        partial = make_partial(final)
        try:
            yield partial
            publish(partial, final)
        finally:
            shutil.rmtree(partial, ignore_errors=True)  # gone already if it was published
    except OSError as error:
        raise CheckpointError(f"{final} was not written: {describe_os_error(error)}") from error


def delete_checkpoint(path: Path) -> None:
    """Delete a checkpoint such that, if this is interrupted, no half of it is left under its name."""
    ensure_writable(path)
    doomed = _hidden(path, "deleted")
    path.rename(doomed)
    fsync_directory(path.parent)
    shutil.rmtree(doomed)


def remove_leftovers(final: Path) -> None:
    """Remove what runs that are no longer alive were still writing, replacing or deleting beside `final`.

    That is their `final`, or any step where `final` is a checkpoint. A directory of a live process of this
    machine is left alone. Whether a process of another machine lives is unknown; only one run works in a directory
    (`glmforge.runtime.lease`), and after a node has failed its leftovers must go.
    """
    mine = _CHECKPOINT if _CHECKPOINT.fullmatch(final.name) else re.compile(re.escape(final.name))
    for path in final.parent.iterdir():
        leftover = _LEFTOVER.fullmatch(path.name)
        dead = leftover and not _is_other_live_process(leftover["host"], int(leftover["pid"]))
        name = path.name.removesuffix(_REPLACED)
        superseded = name != path.name and path.with_name(name).exists()
        if (leftover and dead and mine.fullmatch(leftover["final"])) or (superseded and mine.fullmatch(name)):
            logger.info("removing %s, left behind by an interrupted run", path)
            with suppress(FileNotFoundError):  # other ranks of a node may be at it as well
                shutil.rmtree(path)


def _rolled_back_name(path: Path) -> Path:
    """A free one: what an earlier spike left there is deleted."""
    aside = checkpoint_path(path.parent, step_of(path)).with_suffix(_ROLLED_BACK)
    if aside.exists():
        delete_checkpoint(aside)
    return aside


def _kept_name(path: Path) -> Path:
    """A free one."""
    plain = checkpoint_path(path.parent, step_of(path)).with_suffix(_SET_ASIDE)
    names = itertools.chain([plain], (plain.with_name(f"{plain.name}-{n}") for n in itertools.count(2)))
    return next(name for name in names if not name.exists())


def _hidden(final: Path, purpose: str) -> Path:
    return final.with_name(f".{final.name}.{purpose}-{socket.gethostname()}-{os.getpid()}")


def _is_other_live_process(host: str, pid: int) -> bool:
    if host != socket.gethostname() or pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # alive, and of another user
        return True
    return True
