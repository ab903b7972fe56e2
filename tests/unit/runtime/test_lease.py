"""One holder at a time: races, killed and suspended holders, holders on other machines, claims that are damaged."""

import errno
import io
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from glmforge.errors import GlmforgeError
from glmforge.files import open_regular
from glmforge.runtime import lease as room
from glmforge.runtime.lease import Claim, HeldError, Lease, LeaseLostError, ensure_writable

HOLDER = """
import sys
from pathlib import Path
from glmforge.runtime.lease import Lease
from glmforge.errors import GlmforgeError
lease = Lease(Path(sys.argv[1]), "holder", lease_s=float(sys.argv[2]))
print("ready", flush=True)
sys.stdin.readline()
try:
    lease.acquire()
except GlmforgeError as error:
    print(f"refused: {error}", flush=True)
    sys.exit(1)
print("holds", flush=True)
for line in sys.stdin:
    try:
        lease.ensure_held()
        print("still holds", flush=True)
    except GlmforgeError as error:
        print(f"lost: {error}", flush=True)
lease.release()
"""

Start = Callable[..., "Contender"]


class Contender:
    """A process that takes the lease when told to."""

    def __init__(self, directory: Path, lease_s: float) -> None:
        command = [sys.executable, "-c", HOLDER, str(directory), str(lease_s)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.hear() == "ready"

    def tell(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self) -> str:
        self.tell()
        return self.hear()

    def end(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(30)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Contender] = []

    def start_one(lease_s: float = 60.0) -> Contender:
        started.append(Contender(tmp_path / "run", lease_s))
        return started[-1]

    yield start_one
    for contender in started:
        contender.process.kill()
        contender.process.wait()
        for stream in (contender.process.stdin, contender.process.stdout):
            if stream is not None:
                stream.close()


def claims(directory: Path) -> list[Path]:
    return sorted((directory / ".lock").iterdir())


def rewrite(directory: Path, **changes: object) -> None:
    """Change what the newest claim says, as if somebody else had written it."""
    path = claims(directory)[-1]
    claim = Claim.model_validate_json(path.read_bytes())
    holder = claim.holder.model_copy(update={k: v for k, v in changes.items() if k in ("boot", "host", "pid")})
    own = {k: v for k, v in changes.items() if k in Claim.model_fields}
    path.write_bytes(room._encode(claim.model_copy(update=own | {"holder": holder})))


def on_another_machine(directory: Path) -> None:
    rewrite(directory, boot="another", host="node-7")


def test_of_many_that_start_at_once_one_holds(start: Start, tmp_path: Path) -> None:
    contenders = [start() for _ in range(6)]
    for contender in contenders:
        contender.tell()
    answers = [contender.hear() for contender in contenders]
    assert answers.count("holds") == 1
    winner = contenders[answers.index("holds")].process.pid
    refusals = [answer for answer in answers if answer != "holds"]
    assert all(f"in use by 'holder' on {os.uname().nodename} (process {winner}" in answer for answer in refusals)
    assert [path.name for path in claims(tmp_path / "run")] == ["00000001"]


def test_of_many_that_find_a_dead_holder_one_takes_over(start: Start, tmp_path: Path) -> None:
    dead = start()
    assert dead.ask() == "holds"
    dead.process.kill()
    dead.process.wait()
    contenders = [start() for _ in range(6)]
    for contender in contenders:
        contender.tell()
    assert [contender.hear() for contender in contenders].count("holds") == 1


def test_a_killed_holder_is_no_obstacle_even_before_it_is_reaped(start: Start, tmp_path: Path) -> None:
    dead = start()
    assert dead.ask() == "holds"
    dead.process.kill()
    os.waitid(os.P_PID, dead.process.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
    following = Lease(tmp_path / "run", "following", lease_s=1e6)
    assert following.attempt()
    following.release()


def test_a_process_id_that_is_used_again_is_not_the_holder(tmp_path: Path) -> None:
    with Lease(tmp_path, "first"):
        pass
    rewrite(tmp_path, released=False, pid=1)  # init lives, but did not begin when the holder did
    with Lease(tmp_path, "second"):
        assert [path.name for path in claims(tmp_path)] == ["00000002"]


def test_what_was_given_back_is_free(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        with Lease(tmp_path, "command"):
            assert [path.name for path in claims(tmp_path)] == [f"{number:08d}"]


def test_a_suspended_holder_of_this_machine_holds(start: Start) -> None:
    holder = start(lease_s=1e6)  # it gives no sign of life meanwhile
    assert holder.ask() == "holds"
    holder.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, holder.process.pid, os.WSTOPPED | os.WNOWAIT)
    assert "suspended" in start(lease_s=0.3).ask()
    holder.process.send_signal(signal.SIGCONT)
    assert holder.ask() == "still holds"


def test_a_holder_that_finds_itself_taken_over_writes_nothing_more(start: Start, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    holder = start()
    assert holder.ask() == "holds"
    holder.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, holder.process.pid, os.WSTOPPED | os.WNOWAIT)
    on_another_machine(directory)  # from where nobody sees that it is only suspended
    second = start(lease_s=0.2)
    assert second.ask() == "holds"
    holder.process.send_signal(signal.SIGCONT)
    answer = holder.ask()
    assert answer.startswith(f"lost: {directory}: taken over by 'holder' on ")
    assert f"process {second.process.pid}" in answer
    assert holder.end() == 0
    assert second.ask() == "still holds"  # what the first one did at its end does not concern it


def test_a_holder_on_another_machine_that_gives_no_sign_is_waited_for(tmp_path: Path) -> None:
    with Lease(tmp_path, "first"):
        pass
    rewrite(tmp_path, released=False, boot="another", host="node-7")
    lease = Lease(tmp_path, "second", lease_s=0.3)
    assert not lease.attempt()
    lease.acquire()
    assert [path.name for path in claims(tmp_path)] == ["00000002"]
    lease.release()


def test_a_sign_of_life_from_another_machine_is_a_refusal_whatever_its_clock_says(tmp_path: Path) -> None:
    with Lease(tmp_path, "glmforge train"):
        pass
    rewrite(tmp_path, released=False, boot="another", host="node-7", last_beat="1999-01-01T00:00:00Z")
    lease = Lease(tmp_path, "second", lease_s=1e6)
    assert not lease.attempt()
    rewrite(tmp_path, beats=1, last_beat="1999-01-01T00:00:05Z")
    with pytest.raises(HeldError, match=r"'glmforge train' on node-7 .*last heartbeat 1999-01-01T00:00:05Z"):
        lease.attempt()


@pytest.mark.parametrize("content", [b"", b"\0" * 2048, b"{}", b"\xff\xfe"])
def test_a_claim_that_cannot_be_read_holds_for_a_lease(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".lock").mkdir()
    (tmp_path / ".lock" / "00000003").write_bytes(content)
    lease = Lease(tmp_path, "second", lease_s=0.2)
    assert not lease.attempt()
    lease.acquire()
    assert [path.name for path in claims(tmp_path)] == ["00000004"]
    lease.release()


def test_a_late_claim_of_a_low_number_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody looked before others came and went, and claims now."""
    for _ in range(3):
        with Lease(tmp_path, "command"):
            pass
    late = Lease(tmp_path, "late")
    assert not late._try_claim(2)
    assert [path.name for path in claims(tmp_path)] == ["00000003"]


def test_a_copy_of_a_held_directory_is_free(tmp_path: Path) -> None:
    with Lease(tmp_path / "run", "command"):
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        with Lease(tmp_path / "copy", "command"):
            pass
        ensure_writable(tmp_path / "run" / "file")


def test_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    with Lease(tmp_path, "first"), pytest.raises(HeldError, match="'first'"):
        Lease(tmp_path, "second").acquire()
    Lease(tmp_path, "third").attempt()


def test_a_full_disk_without_hard_links_leaves_no_claim_that_nobody_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "no hard links here")

    with Lease(tmp_path, "first"):
        pass
    monkeypatch.setattr(os, "link", refuse)

    class Full(io.FileIO):
        def write(self, content: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    for full in ("wb", "xb"):  # its first write finds no room, or the copy of that

        def open_full(path: Path, mode: str = "rb", *, full: str = full, **options: Any) -> Any:
            return Full(path, mode.replace("b", "")) if mode == full else open_regular(path, mode, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(room, "open_regular", open_full)
        with pytest.raises(GlmforgeError, match="cannot be locked"):
            Lease(tmp_path, "second").attempt()
        assert [path.name for path in sorted((tmp_path / ".lock").iterdir())] == ["00000001"]


def test_the_holder_gives_signs_of_life(tmp_path: Path) -> None:
    with Lease(tmp_path, "command", lease_s=0.12):
        path = claims(tmp_path)[0]
        before, beaten = path.read_bytes(), threading.Event()
        while path.read_bytes() == before:  # it comes every hundredth of a second; the outcome needs no deadline
            beaten.wait(0.005)
        assert path.stat().st_size == room._FILE_BYTES


def test_writers_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_CHECK_EVERY_S", 0.0)
    inside, outside = tmp_path / "run" / "checkpoints" / "x", tmp_path / "run-2" / "x"
    with Lease(tmp_path / "run", "command"):
        ensure_writable(inside)
        shutil.rmtree(tmp_path / "run")
        with pytest.raises(LeaseLostError, match="was removed while this process worked in it"):
            ensure_writable(inside)
        ensure_writable(outside)
    ensure_writable(inside)


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GlmforgeError, match=r"file/run: cannot be locked \(Not a directory\)"):
        Lease(tmp_path / "file" / "run", "command").acquire()
