import os
import socket

import pytest

from glmforge.checkpoint import (
    apply_retention,
    latest_checkpoint,
    list_checkpoints,
    load_checkpoint,
    load_latest,
    save_checkpoint,
)
from glmforge.checkpoint.format.store import step_of
from glmforge.config.checkpoint import CheckpointConfig, KeepBestConfig
from helpers.checkpoints import assert_holds_step, blank_tensors, make_meta, make_tensors, save_steps

HOST = socket.gethostname()
DEAD_PID = 2**22 + 1  # above what Linux gives out
LIVE_PID = os.getppid()


def test_the_latest_is_the_highest_step_and_not_the_last_written(tmp_path):
    save_steps(tmp_path, 2, 100_000_000, 30)
    assert [step_of(path) for path in list_checkpoints(tmp_path)] == [100_000_000, 30, 2]
    assert latest_checkpoint(tmp_path).name == "step-100000000"


def test_other_things_beside_checkpoints_are_none_of_ours(tmp_path):
    save_steps(tmp_path, 1)
    (tmp_path / "step-notes").mkdir()
    (tmp_path / "step-00000009").write_text("a file")
    (tmp_path / "latest").symlink_to("step-00000001")
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000001"]


def test_no_checkpoints(tmp_path):
    assert latest_checkpoint(tmp_path) is None
    assert latest_checkpoint(tmp_path / "absent") is None


@pytest.mark.parametrize(
    ("name", "removed"),
    [
        (f".step-00000007.partial-{HOST}-{DEAD_PID}", True),
        (f".step-00000002.partial-{HOST}-{os.getpid()}", True),
        (".step-00000007.partial-other-node-3-17", True),
        (f".step-00000007.deleted-{HOST}-{DEAD_PID}", True),
        (f".step-00000007.partial-{HOST}-{LIVE_PID}", False),
        (f".export.partial-{HOST}-{DEAD_PID}", False),
        (".step-00000007.notes", False),
    ],
    ids=range(7),  # names hold process ids, which differ between test workers
)
def test_a_save_clears_what_dead_runs_left(tmp_path, name, removed):
    (tmp_path / name).mkdir()
    (tmp_path / name / "__0_0.distcp").write_bytes(b"half")
    save_steps(tmp_path, 2)
    assert (tmp_path / name).exists() is not removed


def test_a_checkpoint_being_replaced_is_found_until_the_new_one_has_its_name(tmp_path):
    """The moment between the two renames of a replacement, at which a run may die."""
    (path,) = save_steps(tmp_path, 5)
    aside = path.rename(path.with_name(path.name + ".replaced"))
    assert latest_checkpoint(tmp_path) == aside
    tensors = blank_tensors()
    load_latest(tmp_path, tensors)
    assert_holds_step(tensors, 5)
    save_steps(tmp_path, 5)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_save_that_replaces_does_not_lose_an_aside_one_early(tmp_path):
    (path,) = save_steps(tmp_path, 5)
    path.rename(path.with_name(path.name + ".replaced"))
    save_steps(tmp_path, 6)  # another step: nothing has taken the place of step 5 yet
    assert [step_of(p) for p in list_checkpoints(tmp_path)] == [6, 5]


@pytest.mark.parametrize(
    ("keep_last", "keep_every_steps", "kept"),
    [
        (1, None, [60]),
        (2, None, [60, 50]),
        (9, None, [60, 50, 40, 30, 20, 10]),
        (1, 30, [60, 30]),
        (2, 20, [60, 50, 40, 20]),
    ],
)
def test_retention(tmp_path, keep_last, keep_every_steps, kept):
    save_steps(tmp_path, 10, 20, 30, 40, 50, 60)
    deleted = apply_retention(tmp_path, CheckpointConfig(keep_last=keep_last, keep_every_steps=keep_every_steps))
    assert [step_of(path) for path in list_checkpoints(tmp_path)] == kept
    assert sorted(kept + [step_of(path) for path in deleted]) == [10, 20, 30, 40, 50, 60]
    assert len(list(tmp_path.iterdir())) == len(kept)


@pytest.mark.parametrize(
    ("mode", "values", "kept"),
    [
        ("max", {10: 0.2, 20: 0.9, 30: 0.9, 40: 0.1}, [60, 30]),  # of equal ones the newest
        ("min", {10: 0.2, 20: 0.9, 30: 0.9, 40: 0.1}, [60, 40]),
        ("max", {40: 0.1, 60: 0.5}, [60]),  # the newest is the best one
        ("max", {}, [60]),
    ],
)
def test_retention_keeps_the_best_one(tmp_path, mode, values, kept):
    for step in range(10, 70, 10):
        measured = {"gsm8k": values[step], "nll": -float(step)} if step in values else {}
        meta = make_meta(step).model_copy(update={"measured": measured})
        save_checkpoint(tmp_path, step, make_tensors(step), meta)
    keep_best = KeepBestConfig(metric="gsm8k", mode=mode)
    apply_retention(tmp_path, CheckpointConfig(keep_last=1, keep_best=keep_best))
    assert [step_of(path) for path in list_checkpoints(tmp_path)] == kept


def test_retention_does_not_count_broken_ones_nor_delete_them(tmp_path):
    paths = save_steps(tmp_path, 10, 20, 30, 40)
    (paths[3] / "meta.json").unlink()
    (paths[1] / "meta.json").unlink()
    assert apply_retention(tmp_path, CheckpointConfig(keep_last=1)) == [paths[0]]
    assert latest_checkpoint(tmp_path) == paths[2]
    assert paths[1].exists()
    assert paths[3].exists()


def test_a_deletion_that_was_cut_short_leaves_no_half_checkpoint(tmp_path, monkeypatch):
    save_steps(tmp_path, 10, 20)

    def power_failure(path):
        raise KeyboardInterrupt

    monkeypatch.setattr("glmforge.checkpoint.format.store.shutil.rmtree", power_failure)
    with pytest.raises(KeyboardInterrupt):
        apply_retention(tmp_path, CheckpointConfig(keep_last=1))
    monkeypatch.undo()
    assert [step_of(path) for path in list_checkpoints(tmp_path)] == [20]
    save_steps(tmp_path, 30)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_root_that_cannot_be_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"step-00000001 was not saved: .*file.*There is no older checkpoint"):
        save_checkpoint(tmp_path / "file" / "checkpoints", 1, make_tensors(1), make_meta(1))


def test_a_path_without_a_checkpoint_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere/manifest\.json: missing; .*nowhere is not a checkpoint"):
        load_checkpoint(tmp_path / "nowhere", {})
