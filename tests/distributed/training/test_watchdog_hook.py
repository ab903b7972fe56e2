"""Ranks that really hang: each writes what it was doing, and ends with the watchdog's own status."""

import ctypes
import os
import re
import shutil
import threading
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from glmforge.config.layout import Layout
from glmforge.observe.alive import read_mark
from glmforge.parallel.world import World
from glmforge.training.hooks import watchdog
from glmforge.training.hooks.watchdog import HANG_EXIT_CODE, WatchdogHook, open_collectives, prepare_environment
from helpers.distributed import RankFailure, run_ranks
from helpers.hooks import FakeTrainer, events

TIMEOUT_S = 1.0


class Hanging(FakeTrainer):
    """In step 3 rank 1 waits for ever, and the others for rank 1."""

    def compute(self) -> None:
        if self.state.step == 2 and self.world.rank == 1:
            self.never_comes()
        dist.all_reduce(torch.ones(5))

    def never_comes(self) -> None:
        threading.Event().wait()


def wait_for_the_end_of(pid: int) -> None:
    with suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            threading.Event().wait(0.02)


def rank_hanging(root: Path) -> None:
    rank = int(os.environ["RANK"])
    (root / f"pid-{rank}").write_text(str(os.getpid()))
    prepare_environment(root)
    dist.init_process_group("gloo", init_method=f"file://{root}/store", rank=rank, world_size=2)
    # It takes seconds and has its own test. gloo, unlike NCCL, fails in rank 0 as soon as rank 1 has ended, so rank 1
    # is to end last.
    watchdog._write_native_stacks = lambda file: rank and wait_for_the_end_of(int((root / "pid-0").read_text()))
    trainer = Hanging(WatchdogHook(root, TIMEOUT_S), world=World.join(Layout(dp_shard=2), torch.device("cpu")))
    trainer.start()
    while True:
        trainer.step()


@pytest.fixture(scope="module")
def hang(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The directory of a run that hung, and how its ranks ended."""
    root = tmp_path_factory.mktemp("run")
    with pytest.raises(RankFailure) as failure:
        run_ranks(rank_hanging, 2, root, init_group=False, timeout_s=60)
    return root, str(failure.value)


def test_every_rank_ends_with_the_status_and_says_so(hang: tuple[Path, str]) -> None:
    root, ended = hang
    assert ended.count(f"ended with code {HANG_EXIT_CODE} without a result") == 2
    for rank in range(2):
        assert f"glmforge: rank {rank} hangs: no progress for 1 s, since on_step_start; terminating it" in ended
    ((event, step, detail),) = events(root)
    assert (event, step) == ("hang", 2)
    assert "since on_step_start" in detail


@pytest.mark.parametrize(("rank", "doing"), [(0, "in all_reduce"), (1, "in never_comes")])
def test_the_report_says_where_the_rank_was(hang: tuple[Path, str], rank: int, doing: str) -> None:
    root, _ = hang
    (path,) = (root / "hangs").glob(f"*-rank-{rank:05d}.txt")
    report = path.read_text()
    for line in (f"rank: {rank} of 2", "steps done: 2", "phase: main", "last progress: on_step_start"):
        assert f"\n{line}\n" in report
    stacks, collectives = report.split("== Python stacks ==")[1].split("== unfinished collectives ==")
    assert doing in stacks
    assert "in compute" in stacks
    open_ones = [line for line in collectives.splitlines() if line.startswith("gloo:")]
    assert len(open_ones) == (1 if rank == 0 else 0)
    assert all("all_reduce" in line and "[[5]]" in line for line in open_ones)


SLOW_S = 2.0
"""Limit of silence where a rank works for longer; collectives have as long."""


class Busy(FakeTrainer):
    """In its third step rank 1 is busy and says so, until `busy_s` are over; then all meet, or it hangs."""

    def compute(self) -> None:
        if self.state.step == 2 and self.world.rank == 1:
            busy_until = time.monotonic() + self.busy_s
            while time.monotonic() < busy_until:
                self.alive("evaluation, batch 7 of 9")
                threading.Event().wait(0.05)
            if self.hangs:
                threading.Event().wait()
        dist.all_reduce(torch.ones(5))


def rank_busy(root: Path, busy_s: float, hangs: bool) -> tuple[int, float]:
    """Steps done, and the time limit of collectives behind them."""
    rank = int(os.environ["RANK"])
    (root / f"pid-{rank}").write_text(str(os.getpid()))
    dist.init_process_group(
        "gloo", init_method=f"file://{root}/store", rank=rank, world_size=2, timeout=timedelta(seconds=SLOW_S)
    )
    watchdog._write_native_stacks = lambda file: rank and wait_for_the_end_of(int((root / "pid-0").read_text()))
    world = World.join(Layout(dp_shard=2), torch.device("cpu"), timedelta(seconds=SLOW_S))
    trainer = Busy(WatchdogHook(root, SLOW_S), world=world)
    trainer.busy_s, trainer.hangs = busy_s, hangs
    trainer.start()
    for _ in range(4):
        trainer.step()
    trainer.close()
    limit = dist.group.WORLD._get_backend(torch.device("cpu")).options._timeout  # type: ignore[union-attr]
    return trainer.state.step, limit.total_seconds()


def test_a_busy_rank_and_one_that_waits_for_it_are_left_alone(tmp_path: Path) -> None:
    """Neither the watchdogs nor the process group end them, and the supervisor sees the file's time."""
    assert run_ranks(rank_busy, 2, tmp_path, 3 * SLOW_S, False, init_group=False) == [(4, SLOW_S)] * 2
    mark = read_mark(tmp_path / "alive")
    assert mark is not None
    assert (mark.rank, mark.what) == (1, "evaluation, batch 7 of 9")


def test_what_was_busy_and_hangs_ends_both(tmp_path: Path) -> None:
    with pytest.raises(RankFailure) as failure:
        run_ranks(rank_busy, 2, tmp_path, SLOW_S / 2, True, init_group=False, timeout_s=60)
    ended = str(failure.value)
    assert ended.count(f"ended with code {HANG_EXIT_CODE} without a result") == 2
    assert re.search(r"rank 1 hangs: no progress for \d+ s, since evaluation, batch 7 of 9; terminating it", ended)
    ((_, _, detail),) = events(tmp_path)
    of_rank_1 = r"rank 1's, \d+ s ago: evaluation, batch 7 of 9"
    assert re.search(f"since on_step_start; last progress of any rank: {of_rank_1}; see", detail)
    (report,) = (tmp_path / "hangs").glob("*-rank-00000.txt")
    assert re.search(f"\nlast progress of any rank: {of_rank_1}\n", report.read_text())


def rank_slow_first_step(root: Path, factor: float) -> None:
    """The first step lasts `factor` timeouts, the second for ever."""
    watchdog._write_native_stacks = lambda file: None
    trainer = FakeTrainer(WatchdogHook(root, 0.4))
    waits = iter((0.4 * factor, None))
    trainer.compute = lambda: threading.Event().wait(next(waits))  # type: ignore[method-assign]
    trainer.start()
    trainer.step()
    (root / "first step done").touch()
    trainer.step()


@pytest.mark.parametrize(("factor", "survives"), [(2.0, True), (40.0, False)])
def test_the_first_step_may_take_longer(tmp_path: Path, factor: float, survives: bool) -> None:
    with pytest.raises(RankFailure, match=f"code {HANG_EXIT_CODE}"):
        run_ranks(rank_slow_first_step, 1, tmp_path, factor)
    assert (tmp_path / "first step done").exists() == survives


def rank_closed(root: Path) -> str:
    """Nothing is watched after `close`, also by the timer in C."""
    watchdog._GRACE_S = 0.1
    trainer = FakeTrainer(WatchdogHook(root, 0.1))
    trainer.start()
    trainer.step()
    trainer.hooks[0].close()
    threading.Event().wait(0.6)
    return "lives"


def test_nothing_is_watched_after_the_end(tmp_path: Path) -> None:
    assert run_ranks(rank_closed, 1, tmp_path) == ["lives"]


def rank_without_gil(root: Path) -> None:
    watchdog._GRACE_S = 0.5
    trainer = FakeTrainer(WatchdogHook(root, 0.3))
    trainer.start()
    trainer.step()
    ctypes.PyDLL(None).sleep(60)  # holds the GIL: no thread of Python runs


def test_a_held_gil_is_no_refuge(tmp_path: Path) -> None:
    with pytest.raises(RankFailure, match="rank 0 ended with code 1 without a result") as failure:
        run_ranks(rank_without_gil, 1, tmp_path, timeout_s=30)
    assert "in rank_without_gil" in str(failure.value)


def rank_full_disk(root: Path) -> None:
    (root / "hangs").write_text("in the way")
    trainer = FakeTrainer(WatchdogHook(root, 0.2))
    trainer.start()
    trainer.step()
    threading.Event().wait()


def test_it_ends_also_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(RankFailure, match=f"code {HANG_EXIT_CODE}") as failure:
        run_ranks(rank_full_disk, 1, tmp_path, timeout_s=30)
    assert "nothing could be written" in str(failure.value)


def native_stacks(path: Path) -> str:
    with path.open("w") as file:
        watchdog._write_native_stacks(file)
    return path.read_text()


def test_stacks_below_python(tmp_path: Path) -> None:
    stacks = native_stacks(tmp_path / "stacks")
    assert "native_stacks" in stacks or "it needs CAP_SYS_PTRACE" in stacks


def test_without_py_spy_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    assert native_stacks(tmp_path / "stacks") == "py-spy or timeout is not installed\n"


def rank_not_recording(store: Path) -> bool:
    os.environ["TORCH_FR_BUFFER_SIZE"] = "0"
    prepare_environment(store.parent)  # leaves the user's choice
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    dist.all_reduce(torch.ones(5))
    return open_collectives() is None


def test_a_recorder_that_is_off_is_no_empty_one(tmp_path: Path) -> None:
    assert run_ranks(rank_not_recording, 1, tmp_path / "store", init_group=False) == [True]
