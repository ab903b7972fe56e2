"""Keeps one host of a development cluster: its first process, which starts its daemons and ends with all it holds.

A program of its own (`python -I -S keeper.py SPEC`), with nothing but the standard library: it is started inside new
namespaces, before anything of the host is there. With namespaces it is process 1 of the host, so that the kernel ends
every process of the host with it, at once; without, orphans become its children, and it ends them all.

It prints its id, as it is seen from outside, when the host is furnished. Then it takes lines from stdin: `start
DAEMON`, and `detach`, after which it no longer ends with whoever writes them. How a daemon ended is a line in the file
`ended`.
"""

import ctypes
import json
import os
import select
import signal
import sys
from contextlib import suppress
from typing import Any, NoReturn

MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> NoReturn:
    # No pathlib here: it takes as long to import as all the rest.
    seen_from_outside = os.readlink("/proc/self")  # noqa: PTH115  # before the host has a /proc of its own
    with open(sys.argv[1], encoding="utf-8") as file:  # noqa: PTH123
        spec = json.load(file)
    if spec["namespaces"]:
        _furnish(spec)
    else:
        _call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    print(seen_from_outside, flush=True)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, sys.stdout.fileno())
    Keeper(spec).keep()


class Keeper:
    """The loop: commands from stdin, children that ended."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.tied = bool(spec["tied"])
        self.daemons: dict[int, str] = {}

    def keep(self) -> NoReturn:
        woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGTERM, lambda number, frame: self.end())
        # Without namespaces, a node's keeper has to look itself whether the head is still there.
        head = os.pidfd_open(self.spec["head"]) if self.spec["head"] else None
        inputs, rest = [0, woken, *([] if head is None else [head])], b""
        while True:
            ready = select.select(inputs, [], [])[0]
            if head in ready:
                self.end()
            if woken in ready:
                os.read(woken, 4096)
                self.reap()
            if 0 in ready:
                read = os.read(0, 4096)
                *lines, rest = (rest + read).split(b"\n")
                for line in lines:
                    self.obey(line.decode())
                if not read:
                    if self.tied:
                        self.end()
                    inputs.remove(0)

    def obey(self, line: str) -> None:
        command, _, name = line.partition(" ")
        if command == "detach":
            self.tied = False
        elif command == "start":
            self.start(name, **self.spec["daemons"][name])

    def start(self, name: str, command: list[str], environment: dict[str, str], log: str) -> None:
        pid = os.fork()
        if pid:
            self.daemons[pid] = name
            return
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            for descriptor, source in ((0, 1), (1, output), (2, output)):  # 1 leads nowhere, see main
                os.dup2(source, descriptor)
            os.chdir("/")
            os.execvpe(command[0], command, environment)
        except OSError as error:
            os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        finally:
            os._exit(127)

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self.daemons:
                line = f"{self.daemons.pop(pid)} {os.waitstatus_to_exitcode(status)}\n"
                with open(self.spec["ended"], "a", encoding="utf-8") as file:  # noqa: PTH123
                    file.write(line)

    def end(self) -> NoReturn:
        """Of process 1 the kernel does the rest."""
        while not self.spec["namespaces"]:
            for pid in _descendants():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                break
        os._exit(0)


def _furnish(spec: dict[str, Any]) -> None:
    """Name and mounts; a mount is [source, target, type, options]. The sources are opened before the first mount hides
    one of them."""
    _call("sethostname", spec["hostname"].encode(), len(spec["hostname"].encode()))
    _mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    opened = {source: os.open(source, os.O_PATH) for source, _, kind, _ in spec["mounts"] if kind == "bind"}
    for source, target, kind, options in spec["mounts"]:
        if kind == "directory":
            os.makedirs(target, exist_ok=True)  # noqa: PTH103
        elif kind == "bind":
            _mount(f"/proc/self/fd/{opened[source]}".encode(), target.encode(), None, MS_BIND | MS_REC, None)
        else:
            _mount(source.encode(), target.encode(), kind.encode(), 0, options.encode())
    for descriptor in opened.values():
        os.close(descriptor)


def _mount(source: bytes, target: bytes, kind: bytes | None, flags: int, options: bytes | None) -> None:
    try:
        _call("mount", source, target, kind, ctypes.c_ulong(flags), options)
    except OSError as error:
        sys.exit(f"mounting {(kind or source).decode()} on {target.decode()}: {error.strerror}")


def _call(function: str, *arguments: object) -> None:
    if getattr(_libc, function)(*arguments) == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _descendants() -> list[int]:
    """All processes below this one, but those that have ended and wait to be reaped."""
    parents, alive = {}, set()
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                    state, parent = file.read().rpartition(")")[2].split()[:2]
            except OSError:  # it has just ended
                continue
            parents[int(name)] = int(parent)
            if state not in "ZX":
                alive.add(int(name))

    def is_below(pid: int) -> bool:
        while pid in parents and pid != os.getpid():
            pid = parents[pid]
        return pid == os.getpid()

    return [pid for pid in alive if pid != os.getpid() and is_below(pid)]


if __name__ == "__main__":
    main()
