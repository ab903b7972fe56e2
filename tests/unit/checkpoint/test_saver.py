"""Saves beside training: what they hold, what becomes of failures, and what stays of what they write."""

import resource
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from glmforge.checkpoint import latest_checkpoint, list_checkpoints, load_latest, read_meta, verify_checkpoint
from glmforge.checkpoint.format import manifest as manifest_module
from glmforge.checkpoint.format.store import step_of
from glmforge.checkpoint.policy import saver as saver_module
from glmforge.checkpoint.policy.saver import CheckpointSaver
from glmforge.config.checkpoint import CheckpointConfig
from glmforge.errors import CheckpointError
from helpers.checkpoints import assert_holds_step, blank_tensors, make_meta, make_tensors
from helpers.distributed import run_ranks
from helpers.late_copies import late_copies


class Run:
    """What a test needs of a run: a saver, and a shorthand to save a step."""

    def __init__(self, folder: Path, **config: object) -> None:
        self.shared = folder / "checkpoints"
        self.saver = CheckpointSaver(self.shared, CheckpointConfig.model_validate(config), run_name="test")

    def save(self, *steps: int, **how: bool) -> None:
        for step in steps:
            self.saver.save(step, make_tensors(step), make_meta(step), **how)

    @property
    def local(self) -> Path:
        assert self.saver.local_root is not None
        return self.saver.local_root

    def resumed_step(self, before_step: int | None = None) -> int:
        tensors = blank_tensors()
        _, meta = load_latest(self.shared, tensors, local_root=self.saver.local_root, before_step=before_step)
        assert_holds_step(tensors, meta.step)
        return meta.step


def steps_under(root: Path) -> list[int]:
    return [step_of(path) for path in list_checkpoints(root)]


@pytest.fixture
def gate(monkeypatch) -> Iterator[threading.Event]:
    """Background saves wait before they write, with their copy made, until the event is set."""
    event = threading.Event()
    real = saver_module.save_checkpoint

    def save_checkpoint(*args, **kwargs):
        if threading.current_thread().name == "checkpoint":
            assert event.wait(60)
        return real(*args, **kwargs)

    monkeypatch.setattr(saver_module, "save_checkpoint", save_checkpoint)
    yield event
    event.set()


def test_what_is_saved_is_what_there_was_at_the_call(tmp_path, gate):
    run = Run(tmp_path)
    tensors, rng_state = make_tensors(1), torch.get_rng_state()
    with late_copies() as copies:
        run.saver.save(1, tensors, make_meta(1), rng_state=rng_state)
        rng_state.zero_()
        run.saver.finish_copy()
        for tensor in tensors.values():
            tensor.zero_()
        copies.let_go()
    assert run.saver.poll() == []
    assert not run.shared.exists()
    gate.set()
    run.saver.wait()
    assert run.resumed_step() == 1
    (report,) = run.saver.poll()
    assert report.error is None
    assert report.path == latest_checkpoint(run.shared)
    assert verify_checkpoint(report.path) == []
    assert report.num_bytes == sum(f.stat().st_size for f in report.path.iterdir() if f.name != "manifest.json")
    assert report.bytes_per_second == pytest.approx(report.num_bytes / report.seconds_total)
    assert 0 < report.seconds_blocked < report.seconds_total


def test_a_save_waits_for_the_one_before_and_uses_its_buffers_again(tmp_path, gate):
    run = Run(tmp_path)
    run.save(1)
    pages = {name: buffer.data_ptr() for name, buffer in run.saver._staging._buffers.items()}
    opener = threading.Timer(0.05, gate.set)
    opener.start()
    run.save(2)
    run.saver.wait()
    assert {name: buffer.data_ptr() for name, buffer in run.saver._staging._buffers.items()} == pages
    first, second = run.saver.poll()
    assert (first.step, second.step) == (1, 2)
    assert second.seconds_blocked >= first.seconds_total - first.seconds_blocked - 0.05  # the rest of the first one
    assert run.resumed_step() == 2
    assert run.resumed_step(before_step=2) == 1


def test_in_the_foreground_all_is_there_on_return(tmp_path):
    run = Run(tmp_path, background=False)
    run.save(1)
    (report,) = run.saver.poll()
    assert report.seconds_blocked >= report.seconds_total
    assert run.resumed_step() == 1
    assert run.saver._staging._buffers == {}


def test_defects_are_raised_where_training_is(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise TypeError("a defect")

    run = Run(tmp_path)
    monkeypatch.setattr("glmforge.checkpoint.policy.saver.save_checkpoint", fail)
    run.save(1)
    with pytest.raises(TypeError, match="a defect"):
        run.saver.wait()


# Failures


def block(run: Run) -> None:
    """Make every save fail: where the run's directory is to be lies a file."""
    run.shared.write_text("")


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("allowed", [0, 2])
def test_after_too_many_failures_in_a_row_the_next_call_raises(tmp_path, background, allowed):
    run = Run(tmp_path, max_failed_saves=allowed, background=background)
    run.save(1)
    run.saver.wait()
    aside = run.shared.rename(tmp_path / "aside")
    block(run)
    for step in range(2, 2 + allowed):
        run.save(step)
    run.saver.wait()
    run.shared.unlink()
    aside.rename(run.shared)
    run.save(10)  # counting begins anew after a good one
    run.saver.wait()
    assert [report.error is None for report in run.saver.poll()] == [True, *[False] * allowed, True]
    run.shared.rename(aside)
    block(run)
    for step in range(11, 11 + allowed):
        run.save(step)
    if background:
        run.save(98)  # fails like the others, which the next call tells
    with pytest.raises(CheckpointError, match=f"exceeding checkpoint.max_failed_saves = {allowed}; the last: .*step-"):
        run.save(99)
    reports = run.saver.poll()
    assert len(reports) == allowed + 1


def test_a_save_that_must_be_durable_raises_at_once(tmp_path):
    run = Run(tmp_path)
    block(run)
    with pytest.raises(CheckpointError, match="step-00000001 was not saved"):
        run.save(1, durable=True)
    assert len(run.saver.poll()) == 1


def full_disk_for_a_while(root: Path, local: bool) -> tuple[list[bool], list[str]]:
    """A limit on the size of files stands for the full disk; the shards are beyond it."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    run = Run(root, **({"local_dir": root / "disk"} if local else {}))
    large = {"model.weight": torch.zeros(100_000)}
    run.save(1)
    run.saver.wait()
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
    run.saver.save(2, large, make_meta(2))
    run.saver.wait()
    left = sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file() and "00000002" in str(p))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert run.resumed_step() == 1
    run.save(3)
    run.saver.wait()
    assert run.resumed_step() == 3
    reports = run.saver.poll()
    assert "file too large writing" in reports[1].error
    return [report.error is None for report in reports], left


@pytest.mark.parametrize("local", [False, True])
def test_a_disk_that_is_full_for_a_while(tmp_path, local):
    ((fine, left),) = run_ranks(full_disk_for_a_while, 1, tmp_path, local, init_group=False)
    assert fine == [True, False, True]
    assert left == []


@pytest.mark.parametrize("local", [False, True])
def test_a_bit_that_flips_between_writing_and_reading_back(tmp_path, monkeypatch, local):
    run = Run(tmp_path, **({"local_dir": tmp_path / "disk"} if local else {}))
    run.save(1)
    run.saver.wait()

    def flip(file):
        if file.suffix == ".distcp":
            content = bytearray(file.read_bytes())
            content[len(content) // 2] ^= 1
            file.write_bytes(content)

    monkeypatch.setattr(manifest_module, "drop_from_memory", flip)
    run.save(2)
    run.saver.wait()
    monkeypatch.undo()
    _, failed = run.saver.poll()
    assert "the data on disk differs from what was written" in failed.error
    assert "__0_0.distcp: SHA-256 differs" in failed.error
    assert not [path for path in tmp_path.rglob("*00000002*")]
    assert run.resumed_step() == 1


def test_unverified_saves_are_not_read_back(tmp_path, monkeypatch):
    def fail(file):
        raise AssertionError(file)

    monkeypatch.setattr(manifest_module, "drop_from_memory", fail)
    run = Run(tmp_path, verify_after_save=False)
    run.save(1, durable=True)
    assert run.resumed_step() == 1


# Tiers


def test_both_tiers_on_shared_storage(tmp_path):
    run = Run(tmp_path, keep_last=2, keep_ephemeral=1)
    for step in range(1, 10):
        run.save(step, ephemeral=step % 3 != 0)
    run.saver.wait()
    assert steps_under(run.shared) == [9, 8, 6]
    assert [read_meta(path).ephemeral for path in list_checkpoints(run.shared)] == [False, True, False]
    assert [report.ephemeral for report in run.saver.poll()] == [step % 3 != 0 for step in range(1, 10)]


def test_every_save_lies_on_the_local_disk_and_lasting_ones_on_both(tmp_path):
    run = Run(tmp_path, local_dir=tmp_path / "disk", keep_last=2, keep_ephemeral=2)
    assert run.local == tmp_path / "disk" / "test"
    for step in range(1, 9):
        run.save(step, ephemeral=step % 3 != 0)
    run.saver.wait()
    assert steps_under(run.shared) == [6, 3]
    assert steps_under(run.local) == [8, 7]
    assert sorted(path.name for path in (run.local / "step-00000008").iterdir()) == [
        ".metadata",
        "__0_0.distcp",
        "meta.json",
        "part-00000.json",
    ]
    reports = run.saver.poll()
    assert [report.path.parent for report in reports[-3:]] == [run.shared, run.local, run.local]
    assert run.resumed_step() == 8
    assert verify_checkpoint(latest_checkpoint(run.shared)) == []


def test_a_lasting_one_stays_on_the_local_disk_until_shared_storage_has_one_as_new(tmp_path):
    run = Run(tmp_path, local_dir=tmp_path / "disk", keep_ephemeral=1, max_failed_saves=9)
    run.save(1, 2)
    run.saver.wait()
    aside = run.shared.rename(tmp_path / "aside")
    block(run)
    run.save(3)
    run.saver.wait()
    run.shared.unlink()
    aside.rename(run.shared)
    assert [report.error is None for report in run.saver.poll()] == [True, True, False]
    run.save(4, 5, ephemeral=True)
    run.saver.wait()
    assert steps_under(run.local) == [5, 3]
    run.save(6)
    run.saver.wait()
    assert (steps_under(run.local), steps_under(run.shared)) == ([6], [6, 2, 1])


def test_damage_on_the_local_disk_turns_to_the_next_older_one(tmp_path, caplog):
    run = Run(tmp_path, local_dir=tmp_path / "disk", keep_ephemeral=3)
    run.save(1, durable=True)
    run.save(2, 3, 4, ephemeral=True)
    run.saver.wait()
    shard = run.local / "step-00000004" / "__0_0.distcp"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    (run.local / "step-00000003" / "part-00000.json").unlink()
    assert run.resumed_step() == 2
    assert "step-00000004 is incomplete and is skipped" in caplog.text
    assert "step-00000003 is incomplete and is skipped: the parts of all ranks" in caplog.text
    run.save(5, 6, ephemeral=True)
    run.saver.wait()
    assert "deleting" in caplog.text
    assert steps_under(run.local) == [6, 5, 4]  # whose damage nobody sees by sizes; 3 was incomplete


def test_the_local_disk_may_be_gone(tmp_path):
    run = Run(tmp_path, local_dir=tmp_path / "disk")
    run.save(1, durable=True)
    run.local.rename(tmp_path / "elsewhere")
    assert run.resumed_step() == 1


@pytest.mark.parametrize("local", [False, True])
def test_a_run_that_goes_back_leaves_what_came_after(tmp_path, local):
    run = Run(tmp_path, keep_ephemeral=9, **({"local_dir": tmp_path / "disk"} if local else {}))
    run.save(1)
    run.save(2, 3, ephemeral=True)
    run.save(4)
    run.saver.wait()
    assert run.resumed_step(before_step=3) == 2
    assert run.resumed_step() == 2  # also if it is killed now
    assert (run.shared / "step-00000004.rolled-back").is_dir()
    run.save(3, 5)
    run.saver.wait()
    assert run.resumed_step() == 5
    assert not list(tmp_path.rglob("*.rolled-back"))


def test_nothing_to_go_back_to(tmp_path):
    run = Run(tmp_path)
    run.save(3, durable=True)
    assert load_latest(run.shared, blank_tensors(), before_step=3) is None
    assert steps_under(run.shared) == [3]
