"""Hosts as places to fetch files from: this machine, or one that ssh reaches and that has rsync.

rsync goes on in the middle of a file after an interruption. It is not trusted: the caller of `fetch` compares
checksums. A transfer ends with the process that started it, also with one that was killed: rsync then writes to a pipe
that is unused.
"""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import IO, Any, NoReturn, TypeVar

from glmforge.errors import HostError
from glmforge.runtime.durable import fsync_directory
from glmforge.runtime.hostfile import LOCAL
from glmforge.runtime.os_errors import describe_os_error
from glmforge.runtime.ssh import UNREACHABLE, Ssh, explain_unreachable
from glmforge.runtime.waiting import as_done

T = TypeVar("T")
Advance = Callable[[int], None]

_COPY_BYTES = 4 << 20
_AT_ONCE = 4  # nodes that are asked at the same time
_RSYNC = (
    "rsync",
    "--inplace",
    "--ignore-times",
    "-s",
    "--info=progress2",
    "--timeout=120",
    "--from0",
    "--files-from=-",
)
_MARK = b"glmforge:"  # what a login shell prints comes before
_DOOMED = ".deleted-consolidate-0"  # a run also treats it as the leftovers of a process that has exited
_PROGRESS = re.compile(rb"\s*([\d,]+)\s+\d+%")


class Cancelled(Exception):
    """Another node's transfer failed, or the user cancelled."""


class Transfers:
    """Transfers in progress, so that all of them can be ended together."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[bytes]] = set()

    def for_each(self, action: Callable[["Host"], T], hosts: Iterable["Host"]) -> list[T]:
        """`action` of each host, a few at the same time. The first failure ends the others and is raised."""
        self._cancelled.clear()  # of an earlier call, which has waited for all that it began
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            futures: list[Future[T]] = []
            try:  # from the first submission on: its transfer may run before the next is submitted
                for host in hosts:
                    futures.append(pool.submit(action, host))
                for future in as_done(futures):
                    future.result()
                return [future.result() for future in futures]
            except BaseException:
                self._cancel()
                pool.shutdown(wait=False, cancel_futures=True)
                for _ in as_done(futures):
                    pass
                raise

    def check(self) -> None:
        """Raise `Cancelled` if the work has been cancelled."""
        if self._cancelled.is_set():
            raise Cancelled

    @contextlib.contextmanager
    def process(self, command: Sequence[str], stdin: IO[bytes] | int, stderr: IO[bytes]) -> Iterator[Any]:
        """A child whose output is read within the block, and which does not outlive it."""
        with self._lock:
            self.check()
            environment = os.environ | {"LC_ALL": "C"}
            child = subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr, env=environment)
            self._processes.add(child)
        try:
            yield child
        finally:
            child.kill()
            child.communicate()
            with self._lock:
                self._processes.discard(child)
            self.check()

    def _cancel(self) -> None:
        with self._lock:
            self._cancelled.set()
            for child in self._processes:
                child.kill()


class Host:
    """This machine; `SshHost` is another one. Directories are absolute, names are those of files in them."""

    def __init__(self, name: str, transfers: Transfers) -> None:
        self.name = name
        self.transfers = transfers

    def fetch_matching(self, root: PurePosixPath, pattern: str, target: Path) -> Path:
        """A local directory with the files of `root` that match `pattern`, such as "step-*/part-*.json": empty
        `target`, filled, or `root` itself."""
        return Path(root)

    def fetch(self, directory: PurePosixPath, names: Sequence[str], target: Path, advance: Advance) -> None:
        """Bring files into `target`, where beginnings of them may lie; `advance` receives the number of bytes.

        Raises `HostError`.
        """
        for name in names:
            source = Path(directory) / name
            try:
                with source.open("rb") as reading, (target / name).open("wb") as writing:
                    while chunk := reading.read(_COPY_BYTES):
                        self.transfers.check()
                        writing.write(chunk)
                        advance(len(chunk))
            except FileNotFoundError:
                self._fail(f"{source}: missing")
            except OSError as error:
                self._fail(describe_os_error(error, f"copying {source} to {target}"))

    def remove(self, root: PurePosixPath, name: str | None) -> None:
        """Remove the directory `name` below `root`, if it is there, and what earlier removals left.

        It gets another name first, so that no half of it is ever found.
        """
        try:
            if name is not None:
                with contextlib.suppress(FileNotFoundError):  # not there, or this disk is another host's as well
                    Path(root, name).rename(Path(root, f".{name}{_DOOMED}"))
                    fsync_directory(Path(root))
            for left in Path(root).glob(f".*{_DOOMED}"):
                shutil.rmtree(left, ignore_errors=True)
                if left.exists():
                    shutil.rmtree(left)
        except OSError as error:
            self._fail(describe_os_error(error, f"removing files below {root}"))

    def _fail(self, reason: str) -> NoReturn:
        raise HostError(f"{self.name}: {reason}")


class SshHost(Host):
    """A machine that ssh reaches without asking for a password."""

    def __init__(self, name: str, transfers: Transfers, ssh: Ssh) -> None:
        super().__init__(name, transfers)
        self.ssh = ssh

    def fetch_matching(self, root: PurePosixPath, pattern: str, target: Path) -> Path:
        depth = pattern.count("/") + 1
        found = self._shell(
            f"cd {shlex.quote(str(root))} 2>/dev/null || exit 0; printf %s {_MARK.decode()}; "
            f"find . -mindepth {depth} -maxdepth {depth} -path {shlex.quote('./' + pattern)} -print0"
        )
        _, _, names = found.partition(_MARK)
        if names:
            self._rsync(root, names, target, lambda num_bytes: None)
        return target

    def fetch(self, directory: PurePosixPath, names: Sequence[str], target: Path, advance: Advance) -> None:
        self._rsync(directory, "\0".join(names).encode(), target, advance)

    def remove(self, root: PurePosixPath, name: str | None) -> None:
        script = f"cd {shlex.quote(str(root))} 2>/dev/null || exit 0; rm -rf -- .*{_DOOMED}"
        if name is not None:
            here, hidden = shlex.quote(name), shlex.quote(f".{name}{_DOOMED}")
            script += f"; [ ! -d {here} ] || mv -- {here} {hidden} || [ ! -d {here} ] && rm -rf -- {hidden}"
        self._shell(script)

    def _rsync(self, directory: PurePosixPath, names: bytes, target: Path, advance: Advance) -> None:
        host = f"[{self.name}]" if ":" in self.name else self.name
        command = [*_RSYNC, "-e", self.ssh.call(), f"{host}:{directory}/", f"{target}/"]
        done = 0
        for line in _lines(self._run(command, names)):
            if found := _PROGRESS.match(line):
                now = int(found[1].replace(b",", b""))
                advance(now - done)
                done = now

    def _shell(self, script: str) -> bytes:
        return b"".join(self._run(self.ssh.to_shell(self.name, script)))

    def _run(self, command: Sequence[str], stdin: bytes = b"") -> Iterator[bytes]:
        """The output of a command as it comes. Raises `HostError` if the command fails."""
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as stderr:
            given.write(stdin)
            given.seek(0)
            try:
                with self.transfers.process(command, given, stderr) as child:
                    while chunk := child.stdout.read1(1 << 16):
                        yield chunk
                    status = child.wait()
            except FileNotFoundError:
                self._fail(f"command not found: '{command[0]}'; install it, or see --ssh")
            if status != 0:
                self._fail(_reason(status, stderr))


def make_host(name: str, transfers: Transfers, ssh: Ssh) -> Host:
    """The host of that name; localhost is this machine and needs no ssh."""
    return Host(name, transfers) if name in LOCAL else SshHost(name, transfers, ssh)


def _reason(status: int, stderr: IO[bytes]) -> str:
    stderr.seek(0)
    text = stderr.read().decode(errors="replace")
    said = [line.strip() for line in text.splitlines() if line.strip()]
    # rsync names the file first and sums up last; ssh says it last.
    first = next((line for line in said if line.startswith("rsync: ")), said[-1] if said else "")
    if status == UNREACHABLE:
        meaning, fix = explain_unreachable(text)
        return f"ssh cannot connect ({meaning}); passwordless ssh is needed: {fix}; or see --ssh"
    return f"{first or 'no reason given'} (status {status})"


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Lines as they come, also those that end in a carriage return only."""
    rest = b""
    for chunk in chunks:
        *lines, rest = re.split(rb"[\r\n]", rest + chunk)
        yield from lines
    yield rest
