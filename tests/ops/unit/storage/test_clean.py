"""What is removed as left behind by our ended jobs, and above all what stays."""

import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from glmforge.runtime import traces as notes
from glmforge.runtime.process import identify
from glmforge.runtime.traces import leave_trace, scratch_prefix
from glmforge_ops.hosts.fanout import Fanout
from glmforge_ops.storage import clean_program as program
from glmforge_ops.storage.clean import Order, clean

HOST = socket.gethostname()
OLD = time.time() - 7200


@pytest.fixture
def dead() -> int:
    """The id of a process that has ended and been waited for."""
    child = subprocess.Popen(["true"])
    child.wait()
    return child.pid


@contextmanager
def living(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(command or ("sleep", "600"))
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def make(path: Path, size: int = 5000) -> Path:
    """A directory with a file, or a file where the name has no leading dot; both two hours old."""
    if path.name.startswith("."):
        path.mkdir(parents=True)
        make(path / "data", size)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))
    os.utime(path, (OLD, OLD))
    return path


def run(tmp_path: Path, dry_run: bool = False, **fields: Any) -> dict[str, Any]:
    """One clean in this process, in places of the test's own."""
    for name in ("disk", "shm", "tmp", "above"):
        (tmp_path / name).mkdir(exist_ok=True)
    order = {
        "paths": [str(tmp_path / "disk")],
        "older_than_s": 3600.0,
        "dry_run": dry_run,
        "processes": False,
        "traces": str(tmp_path / "above"),
        "shm": str(tmp_path / "shm"),
        "tmp": str(tmp_path / "tmp"),
        "jobs": None,
    }
    return program.clean(order | fields)


def removed(found: dict[str, Any]) -> list[str]:
    return sorted(Path(each["path"]).name for each in found["removed"])


def kept(found: dict[str, Any]) -> dict[str, str]:
    return {Path(each["path"]).name: each["why"] for each in found["kept"]}


def note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pid: int, began: int | None = None, **fields: Any) -> Path:
    """The note of a process of ours."""
    (tmp_path / "above").mkdir(exist_ok=True)
    monkeypatch.setattr(notes, "ABOVE", tmp_path / "above")
    with leave_trace("glmforge train", tmp_path / "run"):
        (mine,) = (tmp_path / "above").glob(f"glmforge-*/{os.getpid()}-*.json")
        content = json.loads(mine.read_text())
    content |= {"pid": pid, "began": identify(pid).began if began is None else began} | fields
    file = mine.with_name(f"{pid}-{content['began']}.json")
    file.write_text(json.dumps(content))
    os.utime(file, (OLD, OLD))
    return file


@pytest.mark.parametrize("purpose", ["step-00000010.partial", "step-00000010.deleted"])
def test_partial_checkpoints_of_ended_processes_go(tmp_path: Path, dead: int, purpose: str) -> None:
    gone = make(tmp_path / f"disk/a run/.{purpose}-{HOST}-{dead}")
    found = run(tmp_path)
    assert removed(found) == [gone.name]
    assert found["removed"][0]["bytes"] >= 5000
    assert list((tmp_path / "disk/a run").iterdir()) == []


def test_those_of_living_processes_and_of_other_hosts_stay(tmp_path: Path, dead: int) -> None:
    alive = make(tmp_path / f"disk/run/.step-00000010.partial-{HOST}-{os.getpid()}")
    other = make(tmp_path / f"disk/run/.step-00000020.partial-elsewhere-{dead}")
    found = run(tmp_path)
    assert removed(found) == []
    assert kept(found) == {
        alive.name: f"process {os.getpid()} lives",
        other.name: "is of host elsewhere; clean there",
    }


def test_a_dry_run_removes_nothing_and_says_the_same(tmp_path: Path, dead: int) -> None:
    make(tmp_path / f"disk/.step-00000010.partial-{HOST}-{dead}")
    before = run(tmp_path, dry_run=True)
    assert (tmp_path / f"disk/.step-00000010.partial-{HOST}-{dead}/data").exists()
    assert before["removed"] == run(tmp_path)["removed"] != []


def test_what_is_young_stays(tmp_path: Path, dead: int) -> None:
    path = make(tmp_path / f"disk/.step-00000010.partial-{HOST}-{dead}")
    (path / "data").touch()
    assert kept(run(tmp_path)) == {path.name: "is younger than --older-than"}
    assert removed(run(tmp_path, older_than_s=0.0)) == [path.name]


def test_what_is_not_ours_by_name_is_not_even_looked_at(tmp_path: Path, dead: int) -> None:
    for name in (f".other.partial-{HOST}-{dead}", f".step-1.partial-{HOST}-{dead}", ".git", ".step-00000010"):
        make(tmp_path / "disk" / name)
    make(tmp_path / "disk/model.partial")
    make(tmp_path / "disk/step-00000010/weights")
    assert run(tmp_path) == {"removed": [], "kept": [], "processes": []}


def test_links_are_never_followed(tmp_path: Path, dead: int) -> None:
    precious = make(tmp_path / f"elsewhere/.step-00000010.partial-{HOST}-{dead}")
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk/there").symlink_to(precious.parent)
    link = tmp_path / f"disk/.step-00000020.partial-{HOST}-{dead}"
    link.symlink_to(precious)
    inside = make(tmp_path / f"disk/.step-00000030.partial-{HOST}-{dead}")
    (inside / "out").symlink_to(precious)
    os.utime(inside / "out", (OLD, OLD), follow_symlinks=False)
    os.utime(inside, (OLD, OLD))
    found = run(tmp_path)
    assert removed(found) == [inside.name]
    assert kept(found) == {link.name: "is a link"}
    assert (precious / "data").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("inner", ["", "data"])
def test_files_of_another_user_stay(tmp_path: Path, dead: int, inner: str) -> None:
    path = make(tmp_path / f"disk/.step-00000010.partial-{HOST}-{dead}")
    os.chown(path / inner, 65534, 65534)
    assert "another user" in kept(run(tmp_path))[path.name]
    assert (path / "data").exists()


def test_copies_go_if_nobody_holds_their_lock(tmp_path: Path) -> None:
    cache = tmp_path / "disk/cache"
    half, whole = make(cache / "0123456789ab/web.bin.partial"), make(cache / "0123456789ab/web.idx")
    foreign = make(cache / "music/song.partial")
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert kept(run(tmp_path)) == {half.name: "a copy may be under way"}
    assert removed(run(tmp_path)) == [half.name]
    assert whole.exists()
    assert foreign.exists()


def test_shared_memory_needs_a_note(tmp_path: Path, dead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, other = make(tmp_path / f"shm/torch_{dead}_1_2"), make(tmp_path / "shm/torch_999999999_1_2")
    alive = make(tmp_path / f"shm/torch_{os.getpid()}_1_2")
    trace = note(tmp_path, monkeypatch, dead, began=17)
    found = run(tmp_path)
    assert removed(found) == sorted([ours.name, trace.name])
    assert kept(found) == {other.name: "no note says that process 999999999 was ours"}
    assert alive.exists()


def test_a_note_stays_as_long_as_it_is_needed(tmp_path: Path, dead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is older than the shared memory; without it, that would be nobody's for ever."""
    make(tmp_path / f"shm/torch_{dead}_1_2").touch()
    trace = note(tmp_path, monkeypatch, dead, began=17)
    assert list(kept(run(tmp_path)).values()) == ["is younger than --older-than", "its shared memory is kept"]
    assert trace.exists()


def test_a_note_in_a_directory_that_others_can_write_is_not_believed(
    tmp_path: Path, dead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = make(tmp_path / f"shm/torch_{dead}_1_2")
    note(tmp_path, monkeypatch, dead, began=17).parent.chmod(0o777)
    assert removed(run(tmp_path)) == []
    assert ours.exists()


def test_scratch_directories_name_their_process(tmp_path: Path) -> None:
    prefix = scratch_prefix("parts")
    mine = make(tmp_path / "tmp" / f"{prefix}abc")
    parts = prefix.split("-")
    other_boot = make(tmp_path / "tmp" / f"{prefix.replace(parts[2], '00000000')}abc")
    gone = make(tmp_path / "tmp" / "-".join([*parts[:5], "1", "abc"]))
    found = run(tmp_path)
    assert removed(found) == [gone.name]
    assert mine.exists()
    assert kept(found) == {other_boot.name: "is of another boot or container"}


def test_stale_processes_are_listed_and_ended_only_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with living() as stale, living() as busy, living() as reused:
        note(tmp_path, monkeypatch, stale.pid, slurm_job="41")
        note(tmp_path, monkeypatch, busy.pid, slurm_job="42")
        note(tmp_path, monkeypatch, reused.pid, began=1, slurm_job="41")
        assert run(tmp_path, jobs=None)["processes"] == []  # nobody can tell
        for asked in ({"processes": False}, {"processes": True, "dry_run": True}):
            found = run(tmp_path, jobs=["42"], **asked)
            assert [each["pid"] for each in found["processes"]] == [stale.pid]
            assert stale.poll() is None
        stale_ended = run(tmp_path, jobs=["42"], processes=True)["processes"]
        assert [each["pid"] for each in stale_ended] == [stale.pid]
        assert stale.wait(5) == -15
        assert busy.poll() is None
        assert reused.poll() is None


def test_a_rank_whose_torchrun_has_ended_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dead: int) -> None:
    with living() as rank:
        note(tmp_path, monkeypatch, rank.pid, launcher={"pid": dead, "began": 17})
        found = run(tmp_path)["processes"]
        assert [(each["pid"], each["why"]) for each in found] == [
            (rank.pid, f"its torchrun (process {dead}) has ended")
        ]


def test_one_that_does_not_listen_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_GRACE_S", 0.2)
    deaf = "import signal, sys, time; signal.signal(15, signal.SIG_IGN); print('x', flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    with child.stdout:
        note(tmp_path, monkeypatch, child.pid, slurm_job="41")
        run(tmp_path, jobs=[], processes=True)
        assert child.wait(5) == -9


def test_of_two_at_once_one_waits(tmp_path: Path, dead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a node that a hostfile names twice."""
    path = make(tmp_path / f"disk/.step-00000010.partial-{HOST}-{dead}")
    order = Order(paths=[tmp_path / "disk"], traces=tmp_path, shm=tmp_path, tmp=tmp_path)
    directory = notes.directory_of_traces(tmp_path)
    directory.mkdir()
    lock = os.open(directory, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with monkeypatch.context() as patch:
        patch.setattr("glmforge_ops.storage.clean._LIMIT_S", 2.0)
        (waited,) = clean(["localhost"], order, Fanout())
    os.close(lock)
    assert "no answer within 2 s" in waited.problem
    assert path.exists()
    (done,) = clean(["localhost"], order, Fanout())
    assert ([each.path for each in done.removed], path.exists()) == ([str(path)], False)


def test_an_unreachable_node_is_named(tmp_path: Path) -> None:
    order = Order(traces=tmp_path, shm=tmp_path, tmp=tmp_path)
    here, nowhere = clean(["localhost", "nowhere.invalid"], order, Fanout())
    assert (here.host, here.problem) == ("localhost", "")
    assert "its name is not known" in nowhere.problem
