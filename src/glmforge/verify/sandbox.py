"""Programs of a model, run in a sandbox: no network, no files but Python's, no writing outside /tmp, limited in time,
memory, processes and output.

It is bubblewrap's: a program sees new namespaces of everything, as a user without rights. Without bubblewrap nothing
runs, unless `unsafe` says so in so many words: then a program runs as the user, with limits of time and memory only.
"""

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO

from glmforge.errors import GlmforgeError

MEMORY_BYTES = 1 << 30
OUTPUT_BYTES = 1 << 16
_SCRATCH_BYTES = 256 << 20
"""Of all files under /tmp; they lie in memory."""
_NO_SANDBOX = "running a model's programs needs bubblewrap (apt install bubblewrap) and user namespaces"
_SYSTEM_PYTHON = Path("/usr/bin/python3")


@dataclass(frozen=True)
class Finished:
    """How a program ended.

    Attributes:
        reason: "exit" by itself; "time" was up; "output" was more than it may write.
        status: its exit status, negative for a signal.
        output, errors: the beginning of what it wrote.
    """

    reason: str
    status: int
    output: str
    errors: str

    @property
    def is_ok(self) -> bool:
        return self.reason == "exit" and self.status == 0


def run_program(
    program: str, stdin: str = "", *, timeout_s: float = 10.0, memory_bytes: int = MEMORY_BYTES, unsafe: bool = False
) -> Finished:
    """Run a Python program to its end.

    Args:
        unsafe: run it without a sandbox where there is none.

    Raises:
        GlmforgeError: there is no sandbox.
    """
    command = _limits(timeout_s, memory_bytes)
    if _has_sandbox():
        command = [*_sandbox(), *command]
    elif not unsafe:
        raise GlmforgeError(f"{_NO_SANDBOX}; --unsafe-code runs them without a sandbox, as you")
    process = subprocess.Popen(
        [*command, "-c", _READ_PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PATH": "/usr/bin:/bin", "PYTHONHASHSEED": "0"},
        start_new_session=True,
    )
    text = program.encode(errors="replace")
    try:
        reason, output, errors = _communicate(process, b"%d\n%b%b" % (len(text), text, stdin.encode()), timeout_s)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    return Finished(reason, process.returncode, output.decode(errors="replace"), errors.decode(errors="replace"))


_READ_PROGRAM = (
    "import sys; n = int(sys.stdin.buffer.readline()); s = sys.stdin.buffer.read(n).decode(); "
    "exec(compile(s, 'program.py', 'exec'), {'__name__': '__main__'})"
)
"""The program comes by standard input: an argument has a limit of 128 KiB."""


def _limits(timeout_s: float, memory_bytes: int) -> list[str]:
    prlimit = shutil.which("prlimit")
    if prlimit is None:
        raise GlmforgeError("running programs needs prlimit (package util-linux)")
    seconds = max(1, round(timeout_s)) + 1
    limits = [f"--as={memory_bytes}", f"--cpu={seconds}", "--nproc=64", "--fsize=10485760", "--core=0"]
    if not _has_sandbox():
        limits.remove("--nproc=64")  # it counts all processes of the user
    return [prlimit, *limits, _python(), "-I", "-S"]


def _python() -> str:
    """An interpreter that the sandbox shows: the system's if there is one."""
    return str(_SYSTEM_PYTHON if _SYSTEM_PYTHON.exists() else Path(sys.executable).resolve())


def sandboxed(packages: Iterable[Path]) -> list[str]:
    """What stands in front of this interpreter and its arguments to run it in the sandbox, with its own libraries and
    those in the directories `packages`; other files of the user are not there.

    Raises:
        GlmforgeError: there is no sandbox.
    """
    if not _has_sandbox():
        raise GlmforgeError(f"{_NO_SANDBOX}, to keep what a reply makes a verifier execute from this machine")
    paths = tuple(map(str, packages))
    own = (sys.prefix, sys.base_prefix, *paths)
    return [*_opened(own), *_sandbox(own), "--setenv", "PYTHONPATH", os.pathsep.join(paths)]


def _opened(directories: Sequence[str]) -> list[str]:
    """Root's own directories, such as /root, are closed to the user that its programs run as. There, what stands in
    front of the sandbox puts an empty directory in the place of each closed one, with nothing but `directories`."""
    parents = {parent for path in directories for parent in Path(path).parents}
    closed = [parent for parent in sorted(parents) if os.geteuid() == 0 and not parent.stat().st_mode & 0o001]
    outermost = [one for one in closed if not any(other in one.parents for other in closed)]
    if not outermost:
        return []
    inside = [path for path in directories if any(one in Path(path).parents for one in outermost)]
    between = sorted({one for path in inside for one in Path(path).parents if set(one.parents) & set(outermost)})
    return [
        *(shutil.which("bwrap") or "bwrap", "--die-with-parent", "--dev-bind", "/", "/"),
        *(part for one in outermost for part in ("--tmpfs", str(one))),
        *(part for one in between for part in ("--dir", str(one))),  # else open to root alone
        *(part for path in inside for part in ("--ro-bind", path, path)),
    ]


@lru_cache
def _sandbox(directories: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Arguments of bubblewrap in front of a command that may read these directories, too."""
    shown: list[str] = []
    for path in filter(Path.is_dir, map(Path, ("/usr", "/etc/alternatives"))):
        shown += ["--ro-bind", str(path), str(path)]
    if not _python().startswith("/usr/"):
        base = str(sysconfig.get_config_var("prefix"))
        shown += ["--ro-bind", base, base]
    for path in map(Path, ("/bin", "/lib", "/lib64")):
        if path.is_symlink():
            shown += ["--symlink", f"usr/{path.name}", str(path)]
        elif path.is_dir():
            shown += ["--ro-bind", str(path), str(path)]
    # A program with a user namespace of its own would have root's rights in it; bubblewrap before 0.8 cannot forbid it.
    no_namespaces = ("--unshare-user", "--disable-userns") if _knows("--disable-userns") else ()
    own = [part for path in directories for part in ("--ro-bind", path, path)]
    size = ("--size", str(_SCRATCH_BYTES)) if _knows("--size") else ()
    # The kernel counts no processes of root, whatever the limit: a fork bomb would take the machine.
    other_user = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups") if os.geteuid() == 0 else ()
    return (
        *other_user,
        shutil.which("bwrap") or "bwrap",
        *no_namespaces,
        *("--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--setenv", "PATH", "/usr/bin:/bin"),
        *("--setenv", "PYTHONHASHSEED", "0"),
        *shown,
        *("--proc", "/proc", "--dev", "/dev", *size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),
        *(*size, "--tmpfs", "/tmp", *own, "--chdir", "/tmp", "--remount-ro", "/"),
        *("--uid", "65534", "--gid", "65534", "--cap-drop", "ALL"),
    )


@lru_cache
def _knows(option: str) -> bool:
    """Whether this bubblewrap has an option."""
    return option in subprocess.run(["bwrap", "--help"], capture_output=True, text=True, check=False).stdout


@lru_cache(maxsize=1)
def _has_sandbox() -> bool:
    """Whether bubblewrap is there and may make namespaces."""
    if shutil.which("bwrap") is None:
        return False
    done = subprocess.run([*_sandbox(), "true"], capture_output=True, check=False, timeout=30)
    return done.returncode == 0


def _communicate(process: subprocess.Popen[bytes], given: bytes, timeout_s: float) -> tuple[str, bytes, bytes]:
    """Write `given`, and read what comes until the end, the time limit or too much output."""
    stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
    assert stdin is not None
    assert stdout is not None
    assert stderr is not None
    end = time.monotonic() + timeout_s
    parts = {stdout: b"", stderr: b""}
    with selectors.DefaultSelector() as selector:
        os.set_blocking(stdin.fileno(), False)
        selector.register(stdin, selectors.EVENT_WRITE)
        for stream in parts:
            selector.register(stream, selectors.EVENT_READ)
        reason = "exit"
        while any(stream in (key.fileobj for key in selector.get_map().values()) for stream in parts):
            if (left := end - time.monotonic()) <= 0:
                reason = "time"
                break
            for key, _ in selector.select(left):
                if key.fileobj is stdin:
                    given = _write(stdin, given)
                    if not given:
                        selector.unregister(stdin)
                        stdin.close()
                    continue
                stream = stdout if key.fd == stdout.fileno() else stderr
                if read := os.read(key.fd, 1 << 16):
                    parts[stream] += read
                else:
                    selector.unregister(stream)
            if any(len(part) > OUTPUT_BYTES for part in parts.values()):
                reason = "output"
                break
    if reason == "exit":
        try:
            process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            reason = "time"
    output, errors = (part[:OUTPUT_BYTES] for part in parts.values())
    return reason, output, errors


def _write(stream: IO[bytes], given: bytes) -> bytes:
    """Write what fits; what is left of it, nothing if nobody reads any more."""
    try:
        return given[os.write(stream.fileno(), given[: 1 << 16]) :]
    except BlockingIOError:
        return given
    except BrokenPipeError:
        return b""
