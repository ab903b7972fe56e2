"""Calls in processes that can be killed: what one may do, and that no other call is lost for it."""

import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

import glmforge
import helpers
from glmforge.runtime.process import identify, is_alive
from glmforge.verify import pool as pool_module
from glmforge.verify import sandbox
from glmforge.verify.pool import Outcome, Pool

needs_sandbox = pytest.mark.skipif(not sandbox._has_sandbox(), reason="bubblewrap is not here, or may not run")
GOOD = "helpers.verifiers:double"


def bad(name):
    return f"helpers.verifiers:{name}"


@pytest.fixture(scope="module")
def pool():
    with Pool(2, timeout_s=120.0, memory_bytes=1 << 30) as pool:
        yield pool


@pytest.fixture
def small_pool():
    with Pool(1, timeout_s=120.0, memory_bytes=1 << 30) as pool:
        yield pool


def wait_until(condition, what, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def is_gone(pid):
    try:
        state = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]  # noqa: PTH123, SIM115
    except FileNotFoundError:
        return True
    return state == "Z"  # dead, and not waited for by whoever inherited it


def test_outcomes_come_in_order_or_as_they_are_done(pool, tmp_path):
    assert [one.value for one in pool.map(GOOD, [(n,) for n in range(50)])] == [2 * n for n in range(50)]
    done = pool.as_completed(bad("wait_for"), [(str(tmp_path / "a"), str(tmp_path / "go")), (str(tmp_path / "b"), "/")])
    assert next(done) == (1, Outcome("done"))
    (tmp_path / "go").touch()
    assert list(done) == [(0, Outcome("done"))]


def test_threads_get_their_own_outcomes(pool):
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda n: pool.submit(GOOD, n).result(), range(100)))
    assert [one.value for one in found] == [2 * n for n in range(100)]


def test_workers_are_light(pool):
    loaded = pool.submit(bad("loaded")).result().value
    assert not {"torch", "numpy", "pydantic", "yaml"} & set(loaded)


@pytest.mark.parametrize(
    ("name", "failed"),
    [
        ("leave", "crash"),
        ("end", "crash"),
        ("devour", "crash"),
        ("flood", "crash"),
        ("fail", "error: ValueError: two lines"),
        ("unprintable", "error: TypeError: Object of type object is not JSON serializable"),
        ("missing", "error: AttributeError: module 'helpers.verifiers' has no attribute 'missing'"),
    ],
)
def test_a_bad_call_fails_alone(small_pool, name, failed):
    first, second, third = (small_pool.submit(call, *args) for call, *args in [(GOOD, 1), (bad(name),), (GOOD, 2)])
    assert (first.result(), third.result()) == (Outcome(2), Outcome(4))
    assert second.result() == Outcome(None, failed)


def test_a_call_that_hangs_is_killed_and_its_worker_replaced(tmp_path):
    with Pool(1, timeout_s=0.3, memory_bytes=1 << 30) as pool:
        assert pool.submit(bad("hang"), str(tmp_path / "pid")).result() == Outcome(None, "timeout")
        assert is_gone(int((tmp_path / "pid").read_text()))
        pool._timeout_s = 120.0
        assert pool.submit(GOOD, 4).result() == Outcome(8)


def test_what_a_call_prints_is_no_answer(small_pool):
    assert small_pool.submit(bad("talk"), 7).result() == Outcome(7)
    assert small_pool.submit(GOOD, 7).result() == Outcome(14)


def test_a_call_that_forks_answers_once(small_pool, tmp_path):
    assert small_pool.submit(bad("fork"), 7, str(tmp_path / "child")).result() == Outcome(7)
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: is_gone(child), "the child goes on as a second worker")
    assert small_pool.submit(GOOD, 7).result() == Outcome(14)


def test_children_end_with_their_worker(tmp_path):
    with Pool(1, timeout_s=120.0, memory_bytes=1 << 30) as pool:
        child = pool.submit(bad("leave_child"), str(tmp_path / "child")).result().value
        assert not is_gone(child)
    wait_until(lambda: is_gone(child), "a child outlives its worker")


def test_a_large_argument_is_carried(small_pool):
    assert small_pool.submit(GOOD, "x" * (3 << 20)).result() == Outcome("x" * (6 << 20))


def test_waiting_in_the_queue_is_no_time_out(small_pool, monkeypatch, tmp_path):
    """The clock stands but when the test moves it: a thousand seconds while one call runs and another waits."""
    now = SimpleNamespace(value=0.0)
    monkeypatch.setattr(pool_module, "time", SimpleNamespace(monotonic=lambda: now.value))
    first = small_pool.submit(bad("wait_for"), str(tmp_path / "begun"), str(tmp_path / "go"))
    second = small_pool.submit(bad("wait_for"), str(tmp_path / "begun2"), str(tmp_path / "go2"))
    wait_until((tmp_path / "begun").exists, "it does not begin")
    now.value = 1000.0
    (tmp_path / "go").touch()
    wait_until((tmp_path / "begun2").exists, "it does not begin")
    time.sleep(0.05)  # for a pool that counts the queue to give up
    (tmp_path / "go2").touch()
    assert (first.result(), second.result()) == (Outcome("done"), Outcome("done"))


def test_workers_are_replaced_after_many_calls(monkeypatch):
    monkeypatch.setattr(pool_module, "_MAX_CALLS", 3)
    with Pool(1, timeout_s=120.0, memory_bytes=1 << 30) as pool:
        pids = [one.value for one in pool.map(bad("pid"), [()] * 7)]
    assert [pids.index(pid) for pid in pids] == [0, 0, 0, 3, 3, 3, 6]


def test_closing_ends_calls_under_way(tmp_path):
    pool = Pool(1, timeout_s=120.0, memory_bytes=1 << 30)
    running, waiting = pool.submit(bad("hang"), str(tmp_path / "pid")), pool.submit(GOOD, 1)
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "it does not begin")
    pool.close()
    assert running.result() == Outcome(None, "crash")
    assert waiting.cancelled()
    assert is_gone(int((tmp_path / "pid").read_text()))
    pool.close()


def test_leaving_early_cancels_what_waits(small_pool, tmp_path):
    paths = [(str(tmp_path / f"begun{n}"), str(tmp_path)) for n in range(20)]
    outcomes = small_pool.map(bad("wait_for"), paths)
    assert next(outcomes) == Outcome("done")
    outcomes.close()
    assert small_pool.submit(GOOD, 1).result() == Outcome(2)


@needs_sandbox
def test_the_sandbox_hides_the_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("API_KEY", "secret")
    (tmp_path / "secret").touch()
    packages = [Path(helpers.__file__).parents[1], Path(glmforge.__file__).parents[1]]
    with socket.create_server(("127.0.0.1", 0)) as server:
        arguments = str(tmp_path / "secret"), server.getsockname()[1]
        with Pool(1, timeout_s=120.0, memory_bytes=1 << 30) as pool:
            assert pool.submit(bad("seen"), *arguments).result() == Outcome([True, "secret", True])
        with Pool(1, timeout_s=120.0, memory_bytes=1 << 30, packages=packages) as pool:
            assert pool.submit(bad("seen"), *arguments).result() == Outcome([False, None, False])
            assert pool.submit(bad("devour")).result() == Outcome(None, "crash")
            assert pool.submit(bad("end")).result() == Outcome(None, "crash")
            assert pool.submit(GOOD, 2).result() == Outcome(4)


@needs_sandbox
def test_a_sandboxed_worker_ends_with_its_pool_and_with_a_parent_that_is_killed():
    script = (
        "import sys, time\n"
        "from glmforge.verify.pool import Pool\n"
        "def outer(pool):\n"
        "    assert pool.submit('builtins:len', [1]).result().value == 1\n"
        "    return next(iter(pool._workers.values()))._process.pid\n"
        f"with Pool(1, packages={[str(Path(glmforge.__file__).parents[1])]!r}) as pool:\n"
        "    print(outer(pool), flush=True)\n"
        "pool = Pool(1, packages=sys.argv[1:])\n"
        "print(outer(pool), flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", script, str(Path(glmforge.__file__).parents[1])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        try:
            closed, living = (int(parent.stdout.readline()) for _ in range(2))
            pids = [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()]
            inner = [pid for pid in pids if is_below(pid, living)]
        finally:
            parent.kill()
    assert is_gone(closed)
    assert inner, "processes of the sandbox"
    for pid in (living, *inner):
        wait_until(lambda pid=pid: is_gone(pid), "a sandboxed worker lives without its parent")


def is_below(pid, ancestor):
    """Whether a process is a child of another, or a child's child."""
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
        if pid == ancestor:
            return True
    return False


@pytest.mark.parametrize("calls", ["hang", "idle"])
def test_workers_end_with_a_parent_that_is_killed(tmp_path, calls):
    mark = tmp_path / "pid"
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from glmforge.verify.pool import Pool\n"
        "pool = Pool(1, timeout_s=600.0)\n"
        + (
            f"pool.submit('helpers.verifiers:hang', {str(mark)!r}).result()\n"
            if calls == "hang"
            else f"Path({str(mark)!r}).write_text(str(pool.submit('helpers.verifiers:pid').result().value))\n"
            "time.sleep(600)\n"
        )
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    try:
        wait_until(lambda: mark.exists() and mark.read_text(), "no worker")
        worker = identify(int(mark.read_text()))
        assert is_alive(worker)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    wait_until(lambda: not is_alive(worker) or is_gone(worker.pid), "the worker lives without its parent")
