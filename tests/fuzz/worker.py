"""Reads case after case in a process of its own, under limits, and says what came of each.

    python -m fuzz.worker MODULE SEED SCRATCH LIMITS        # case names on stdin, a line of JSON for each on stdout

A case that needs too much memory is refused it (RLIMIT_AS); one that never ends, with or without computing, is ended
by the operating system together with this process (RLIMIT_CPU, SIGALRM), and the parent, which knows the case, starts
another. Before that the stack is written to stderr.

That nothing of a file is run as code is watched with an audit hook: Python announces starting processes, opening
files for writing, removing them, connecting, executing code objects and finding classes for a pickle. What the hook
sees outside the scratch directory ends the case, even if the reader would catch every exception.
"""

import faulthandler
import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

from fuzz.cases import Original
from fuzz.format import Format
from glmforge.errors import GlmforgeError

MAX_MEMORY = 500_000_000  # bytes of address space that one reading may add
MAX_CPU_S = 1.0
_KILL_CPU_S = 2  # a reading that computes for so long is ended rather than timed
_KILL_WALL_S = int(os.environ.get("FUZZ_WALL_S", "30"))  # for what waits and does not compute
_LONGEST_LINE = 4000  # characters; an error that shows a megabyte of the file is not a line for anybody


class ForbiddenEvent(BaseException):
    """Something that reading never does; no `except Exception` catches it."""


class Canary:
    """Watches what happens while a case is read."""

    def __init__(self, scratch: Path, allowed: frozenset[str]) -> None:
        self.scratch, self.allowed = str(scratch.resolve()), allowed
        self.watching = False
        self.seen: str | None = None
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.watching or event in self.allowed or not self._is_forbidden(event, arguments):
            return
        self.watching = False
        self.seen = f"{event} {arguments!r:.200}"
        raise ForbiddenEvent(self.seen)

    def _is_forbidden(self, event: str, arguments: tuple[Any, ...]) -> bool:
        if event == "open":
            path, _, flags = arguments
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            return bool(writes) and not self._is_ours(path)
        if event in _CHANGES_FILES:
            return not self._is_ours(arguments[0])
        if event in _RUNS_CODE:
            return not _is_import()
        return event.startswith(_NEVER)

    def _is_ours(self, path: object) -> bool:
        if isinstance(path, int) or not isinstance(path, str | bytes | os.PathLike):
            return True  # a descriptor that is open already
        name = os.path.abspath(os.fsdecode(path))  # noqa: PTH100  resolve() would itself raise events
        return name == "/dev/null" or name.startswith(self.scratch)


_CHANGES_FILES = {
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.chmod",
    "os.chown",
    "os.link",
    "os.symlink",
    "os.truncate",
}
_RUNS_CODE = {"exec", "compile", "pickle.find_class", "ctypes.dlopen"}
_NEVER = (
    *("os.system", "subprocess.", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "pty.", "socket.connect"),
    *("socket.bind", "urllib.", "os.putenv"),
)


def _is_import() -> bool:
    """Whether a module is being imported for the first time, which executes its code."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def read_case(form: Format, original: Original, canary: Canary, case: str, seed: int) -> dict[str, Any]:
    """Damage, read, restore; outcome, CPU seconds and what is wrong if something is."""
    original.damage(case, seed)
    _limit(resource.RLIMIT_AS, _address_space() + MAX_MEMORY)
    _limit(resource.RLIMIT_CPU, int(time.process_time()) + _KILL_CPU_S + 1)
    signal.setitimer(signal.ITIMER_REAL, _KILL_WALL_S)
    started = time.process_time()
    canary.seen, canary.watching = None, True
    try:
        form.read(original.directory)
        outcome, detail = "accepted", ""
    except GlmforgeError as error:
        outcome, detail = _judge_refusal(str(error), form.lines)
    except MemoryError:
        outcome, detail = "memory", _where()
    except ForbiddenEvent as event:
        outcome, detail = "code_run", str(event)
    except BaseException:  # noqa: BLE001  whatever it is, it is what the suite looks for
        outcome, detail = "traceback", _where()
    finally:
        canary.watching = False
        cpu_s = time.process_time() - started
        signal.setitimer(signal.ITIMER_REAL, 0)
        _limit(resource.RLIMIT_AS, resource.RLIM_INFINITY)
    if canary.seen:
        outcome, detail = "code_run", canary.seen
    elif cpu_s > MAX_CPU_S and outcome in ("accepted", "refused"):
        outcome, detail = "slow", f"{cpu_s:.1f} s of CPU time"
    original.restore()
    return {"outcome": outcome, "detail": detail, "cpu_s": round(cpu_s, 4)}


def _judge_refusal(message: str, max_lines: int) -> tuple[str, str]:
    lines = message.split("\n")
    if len(lines) > max_lines:
        return "not_one_line", f"{len(lines)} lines: {message[:300]!r}"
    for line in lines:
        if not line.strip() or not line.isprintable() or len(line) > _LONGEST_LINE:
            return "not_one_line", f"{len(line):,} characters: {line[:300]!r}"
    return "refused", message


def _where() -> str:
    """The exception in a line, and the last lines of the project that it passed."""
    kind, value, trace = sys.exc_info()
    frames = [frame for frame in traceback.extract_tb(trace) if "/glmforge/" in frame.filename]
    places = [f"{frame.filename.rpartition('/glmforge/')[2]}:{frame.lineno}" for frame in frames[-3:]]
    name = kind.__name__ if kind else ""
    return f"{name} at {' < '.join(reversed(places))}: {ascii(str(value))[:300]}"


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _limit(which: int, soft: int) -> None:
    resource.setrlimit(which, (soft, resource.getrlimit(which)[1]))


def main(module: str, seed: int, scratch: Path) -> NoReturn:
    """Read cases from stdin until it ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the project prints must not come between the answers
    form: Format = importlib.import_module(module).FORMAT
    original = Original(form, scratch / "case")
    canary = Canary(scratch, form.events)
    for _ in range(2):  # imports what reading imports, and shows that the originals are good
        form.read(original.directory)
    for number in (signal.SIGALRM, signal.SIGXCPU):
        faulthandler.register(number, all_threads=False, chain=True)
    print("ready", file=answers)
    for line in sys.stdin:
        print(json.dumps(read_case(form, original, canary, line.strip(), seed)), file=answers)
    sys.exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
