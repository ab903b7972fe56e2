"""A run may die at any moment of a save: it then finds an older or the new checkpoint, never half a one.

Instead of killing a process after random times, the child kills itself with SIGKILL before its n-th change of
the file system, for every n until it survives: all moments that differ on the disk, each exactly once.
"""

import os
import shutil
from pathlib import Path

import pytest
import torch

from glmforge.checkpoint import latest_checkpoint, load_latest, save_checkpoint, verify_checkpoint
from glmforge.checkpoint.policy.saver import CheckpointSaver
from glmforge.config.checkpoint import CheckpointConfig
from helpers.checkpoints import (
    assert_holds_step,
    blank_tensors,
    die_before_change,
    make_meta,
    make_tensors,
    save_steps,
)
from helpers.distributed import run_ranks

MAX_CHANGES = 200


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


def saver_of(folder: Path) -> CheckpointSaver:
    config = CheckpointConfig(local_dir=folder / "disk", keep_last=1, keep_ephemeral=1)
    return CheckpointSaver(folder / "checkpoints", config, run_name="test")


def save_with(saver: CheckpointSaver, *steps: int, ephemeral: bool = False) -> None:
    for step in steps:
        saver.save(step, make_tensors(step), make_meta(step), ephemeral=ephemeral)
    saver.wait()
    assert all(report.error is None for report in saver.poll())


def save_in_background_and_die(folder: Path, n: int) -> bool:
    child = os.fork()
    if child == 0:
        saver = saver_of(folder)
        die_before_change(n, folder)
        save_with(saver, 3)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return not os.WIFSIGNALED(status)


def kill_background_saves(root: Path) -> list[tuple[int, int]]:
    """Which step is found, with the local disk and without it, after a death before change 0, 1, 2, ... of a
    permanent save of step 3 by way of the local disk, retention included, beside a permanent 1 and an ephemeral 2.
    """
    torch.set_num_threads(1)
    found = []
    first = saver_of(root / "first")
    save_with(first, 1)
    save_with(first, 2, ephemeral=True)
    for n in range(MAX_CHANGES):
        folder = root / str(n)
        shutil.copytree(root / "first", folder)
        saver = saver_of(folder)
        survived = save_in_background_and_die(folder, n)
        tensors = blank_tensors()
        _, meta = load_latest(saver.root, tensors, local_root=saver.local_root)
        assert_holds_step(tensors, meta.step)
        found.append((meta.step, step_found(saver.root)))
        save_with(saver, 4)  # the next life saves again, and clears up
        for directory in (saver.root, saver.local_root):
            assert {path.name for path in directory.iterdir()} - {".ever-whole"} == {"step-00000004"}
        if survived:
            return found
    raise AssertionError(f"no end after {MAX_CHANGES} changes")


@pytest.mark.chaos
def test_killed_at_any_moment_of_a_background_save(tmp_path):
    (found,) = run_ranks(kill_background_saves, 1, tmp_path, init_group=False)
    local, shared = [step for step, _ in found], [step for _, step in found]
    assert local == sorted(local)
    assert set(local) == {2, 3}
    assert shared == sorted(shared)
    assert set(shared) == {1, 3}
    # Whole on the local disk first: so many changes, of which the hook sees these, make the copy.
    assert shared.index(3) - local.index(3) >= 6  # the directory, three files, the manifest, the rename
