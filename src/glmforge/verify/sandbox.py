"""Run a model's programs in a sandbox: no network, no files but Python's, no writing outside /tmp, and limits of time,
memory, processes and output.

The sandbox is bubblewrap's: a program gets new namespaces of everything and runs as a user without rights. Without
bubblewrap nothing runs, unless the caller passes `unsafe`: then programs run as the user, with limits of time, memory
and output only.
"""

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryFile

from glmforge.errors import GlmforgeError

MEMORY_BYTES = 1 << 30
OUTPUT_BYTES = 1 << 16
_FILE_BYTES = 10 << 20
"""Of a file that a program writes. Its output goes to files, so that this stops a program that never stops writing."""
_SCRATCH_BYTES = 256 << 20
"""Of all files under /tmp; they lie in memory."""
_NO_SANDBOX = "running a model's programs needs bubblewrap (apt install bubblewrap) and user namespaces"
_SYSTEM_PYTHON = Path("/usr/bin/python3")
_READ_PROGRAM = (
    "import sys; n = int(sys.stdin.buffer.readline()); s = sys.stdin.buffer.read(n).decode(); "
    "exec(compile(s, 'program.py', 'exec'), {'__name__': '__main__'})"
)
"""The program comes by standard input: an argument has a limit of 128 KiB."""


@dataclass(frozen=True)
class Finished:
    """How a program ended.

    Attributes:
        reason: "exit" by itself; "time" was up; "output" was longer than `OUTPUT_BYTES`.
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
    text, reason = program.encode(errors="replace"), "exit"
    with (
        TemporaryFile() as output,
        TemporaryFile() as errors,
        subprocess.Popen(
            [*_command(timeout_s, memory_bytes, unsafe=unsafe), _python(), "-I", "-S", "-c", _READ_PROGRAM],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=errors,
            env={"PATH": "/usr/bin:/bin", "PYTHONHASHSEED": "0"},
            start_new_session=True,
        ) as process,
    ):
        try:
            process.communicate(b"%d\n%b%b" % (len(text), text, stdin.encode()), timeout_s)
        except subprocess.TimeoutExpired:
            reason = "time"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
        written = [os.pread(file.fileno(), OUTPUT_BYTES + 1, 0) for file in (output, errors)]
    if reason == "exit" and max(map(len, written)) > OUTPUT_BYTES:
        reason = "output"
    return Finished(reason, status, *(part[:OUTPUT_BYTES].decode(errors="replace") for part in written))


def _command(timeout_s: float, memory_bytes: int, *, unsafe: bool) -> list[str]:
    """What runs an interpreter within limits, and in the sandbox if there is one."""
    if not (is_safe := _has_sandbox()) and not unsafe:
        raise GlmforgeError(f"{_NO_SANDBOX}; --unsafe-code runs them without a sandbox, as you")
    if (prlimit := shutil.which("prlimit")) is None:
        raise GlmforgeError("running programs needs prlimit (package util-linux)")
    seconds = max(1, round(timeout_s)) + 1
    limits = [f"--as={memory_bytes}", f"--cpu={seconds}", f"--fsize={_FILE_BYTES}", "--core=0"]
    if is_safe:  # outside a sandbox the limit would count all processes of the user
        limits.append("--nproc=64")
    return [*(_sandbox() if is_safe else ()), prlimit, *limits]


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
    shown = ["/usr", "/etc/alternatives", "/bin", "/lib", "/lib64"]
    if not _python().startswith("/usr/"):
        shown.append(str(sysconfig.get_config_var("prefix")))
    # A program with a user namespace of its own would have root's rights in it; bubblewrap before 0.8 cannot forbid it.
    no_namespaces = ("--unshare-user", "--disable-userns") if _knows("--disable-userns") else ()
    own = [part for path in directories for part in ("--ro-bind", path, path)]
    size = ("--size", str(_SCRATCH_BYTES)) if _knows("--size") else ()
    # The kernel does not limit the processes of root: a fork bomb would take the machine.
    other_user = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups") if os.geteuid() == 0 else ()
    return (
        *other_user,
        shutil.which("bwrap") or "bwrap",
        *no_namespaces,
        *("--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--setenv", "PATH", "/usr/bin:/bin"),
        *("--setenv", "PYTHONHASHSEED", "0"),
        *(part for path in shown for part in ("--ro-bind-try", path, path)),
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
