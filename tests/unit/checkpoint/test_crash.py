"""A run may die at any moment of a save: it then finds an older or the new checkpoint, never half a one.

Instead of killing a process after random times, the child kills itself with SIGKILL before its n-th change of
the file system, for every n until it survives: all moments that differ on the disk, each exactly once.
"""

import os
import signal
import sys
from pathlib import Path

import pytest
import torch

from glmforge.checkpoint import latest_checkpoint, load_latest, save_checkpoint, verify_checkpoint
from helpers.checkpoints import assert_holds_step, blank_tensors, make_meta, make_tensors, save_steps
from helpers.distributed import run_ranks

CHANGES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}
MAX_CHANGES = 200


def die_before_change(n: int, root: Path) -> None:
    """Kill this process before its n-th change (from 0) below `root`."""
    seen = 0

    def hook(event, args):
        nonlocal seen
        if event in CHANGES and (str(args[0]).startswith(str(root)) or event in {"os.remove", "os.rmdir"}):
            if seen == n:
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1

    sys.addaudithook(hook)


def save_and_die(root: Path, step: int, tensors_of_step: int, n: int) -> bool:
    """Whether a child that dies before its n-th change comes to the end of the save."""
    child = os.fork()
    if child == 0:
        die_before_change(n, root)
        save_checkpoint(root, step, make_tensors(tensors_of_step), make_meta(step))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return not os.WIFSIGNALED(status)


def step_found(root: Path) -> int:
    tensors = blank_tensors()
    load_latest(root, tensors)
    assert verify_checkpoint(latest_checkpoint(root)) == []
    step = int(tensors["optim.step"])
    assert_holds_step(tensors, step)
    return step


def kill_saves_of_a_new_step(root: Path) -> list[int]:
    """Which step is found after a death before change 0, 1, 2, ... of saving step 2 beside step 1."""
    torch.set_num_threads(1)
    found = []
    for n in range(MAX_CHANGES):
        directory = root / str(n)
        save_steps(directory, 1)
        survived = save_and_die(directory, 2, 2, n)
        found.append(step_found(directory))
        save_steps(directory, 3)  # the next life saves again, and clears up
        leftovers = {path.name for path in directory.iterdir()} - {f"step-0000000{s}" for s in (1, 2, 3)}
        assert not leftovers
        if survived:
            return found
    raise AssertionError(f"no end after {MAX_CHANGES} changes")


def kill_saves_of_the_same_step(root: Path) -> list[int]:
    """The same with step 1 being replaced and nothing else to fall back on; it gets the tensors of 7."""
    torch.set_num_threads(1)
    found = []
    for n in range(MAX_CHANGES):
        directory = root / str(n)
        save_steps(directory, 1)
        survived = save_and_die(directory, 1, 7, n)
        found.append(step_found(directory))
        save_steps(directory, 1)
        assert [path.name for path in directory.iterdir()] == ["step-00000001"]
        if survived:
            return found
    raise AssertionError(f"no end after {MAX_CHANGES} changes")


@pytest.mark.parametrize(("scenario", "new"), [(kill_saves_of_a_new_step, 2), (kill_saves_of_the_same_step, 7)])
def test_killed_at_any_moment_the_old_or_the_new_one_is_whole(tmp_path, scenario, new):
    # In a process of its own with one rank and no group: the parent's threads must not be forked.
    (found,) = run_ranks(scenario, 1, tmp_path, init_group=False)
    switch = found.index(new)
    assert found[:switch] == [1] * switch
    assert found[switch:] == [new] * (len(found) - switch)
    assert switch >= 8  # directory, shard, two for DCP's metadata, meta, manifest, the rename: the hook sees them
