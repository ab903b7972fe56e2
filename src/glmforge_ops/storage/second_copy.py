"""Second copies of a run's checkpoints: on another file system, or on a machine that ssh reaches.

    DESTINATION/<run>/checkpoints/step-00000120/     as in the run itself
    DESTINATION/<run>/config.yaml, tokenizer/ ...    so that the copy is a run that can be resumed

rsync copies the newest whole checkpoint beside its final name and continues after an interruption; `sha256sum` there
compares every file with the manifest before the directory gets its name. Then older copies are removed. The run may
delete the checkpoint meanwhile, when a later one is whole: then that one is copied. The destination needs rsync,
sha256sum and flock.
"""

import contextlib
import hashlib
import logging
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from glmforge.checkpoint.format.manifest import MANIFEST_FILE, read_manifest
from glmforge.checkpoint.format.store import latest_checkpoint
from glmforge.errors import CheckpointError, HostError
from glmforge.files import absolute, shown
from glmforge.observe.run import RunDirectory
from glmforge.runtime.hostfile import LOCAL, parse_hosts
from glmforge.runtime.ssh import UNREACHABLE, Ssh, unreachable
from glmforge_ops.storage.stage import VERIFY, first_complaint

logger = logging.getLogger(__name__)

_HOST_AND_DIRECTORY = re.compile(r"(?P<host>[^/:]+):(?P<directory>/.*)", re.DOTALL)
_STEP = re.compile(r"step-\d{8,}/")
_ATTEMPTS = 3
_LOCKED = 75


@dataclass(frozen=True)
class Destination:
    """Where copies of runs are kept: a directory of `host`, which is this machine unless it is named."""

    host: str
    directory: Path

    def __str__(self) -> str:
        return str(self.directory) if self.host in LOCAL else f"{self.host}:{self.directory}"


@dataclass(frozen=True)
class Copied:
    """A checkpoint that is whole at the destination now, and the copies that were removed for it."""

    name: str
    num_files: int
    num_bytes: int
    seconds: float
    removed: tuple[str, ...]


def parse_destination(text: str) -> Destination:
    """DIRECTORY, or HOST:/DIRECTORY. Raises `HostError`."""
    if found := _HOST_AND_DIRECTORY.fullmatch(text):
        names = parse_hosts(found["host"], "--to")
        if len(names) != 1:
            raise HostError(f"--to {shown(text)}: names more than one host; give one")
        return Destination(names[0], Path(found["directory"]))
    if not text or re.match(r"[^/]+:", text):
        raise HostError(f"--to {shown(text)}: give a directory, or HOST:/DIRECTORY with an absolute path")
    return Destination(LOCAL[0], Path(text).absolute())


def copy_newest(
    run: Path, destination: Destination, ssh: Ssh, *, keep: int = 2, unless: str | None = None
) -> Copied | None:
    """Copy the newest whole checkpoint of a run; None if it is called `unless`.

    Raises:
        CheckpointError: the run has no whole checkpoint, or its newest one is damaged.
        HostError: the destination cannot be reached or written, or another copy to it is under way.
    """
    run = absolute(run)  # rsync takes a relative a:b for a path on host a
    root = RunDirectory(run)
    if not root.checkpoints.is_dir():
        raise CheckpointError(f"{shown(run)}: has no checkpoints; give the directory of a run that has saved")
    for _ in range(_ATTEMPTS):
        newest = latest_checkpoint(root.checkpoints)
        if newest is None:
            raise CheckpointError(f"{root.checkpoints}: no checkpoint yet; wait for the run's first")
        if newest.name == unless:
            return None
        try:
            return _copy(root, newest, _Remote(destination, run.name, ssh), keep)
        except (HostError, CheckpointError, OSError):
            if newest.exists():
                raise
            logger.info("%s was deleted by the run while it was copied; taking the next", newest)
    raise CheckpointError(
        f"{root.checkpoints}: checkpoints are deleted faster than they are copied; raise checkpoint.keep_last"
    )


def _copy(root: RunDirectory, checkpoint: Path, there: "_Remote", keep: int) -> Copied:
    began, name = time.monotonic(), checkpoint.name.removesuffix(".replaced")
    manifest = read_manifest(checkpoint).files
    sums = {file: record.sha256 for file, record in manifest.items()}
    sums[MANIFEST_FILE] = hashlib.sha256((checkpoint / MANIFEST_FILE).read_bytes()).hexdigest()
    listed = "".join(f"{digest}  ./{file}\n" for file, digest in sums.items())
    with there.locked():
        there.send([path for path in (root.config, root.adapters, root.info, root.tokenizer) if path.exists()], ".")
        if there.script(f"cd checkpoints/{name} && sha256sum --check --status --strict -", listed, may_fail=True):
            there.script(f"mkdir -p checkpoints/.copying-{name}")
            arrived, said = f"checkpoints/.copying-{name}/{checkpoint.name}", ""
            for options in ((), ("--checksum",)):  # damage of an earlier attempt shows in neither length nor time
                there.send([checkpoint], f"checkpoints/.copying-{name}", options)
                said = there.script(f"cd {arrived} && {VERIFY}", listed, may_fail=True)
                if not said:
                    break
            if said:
                raise HostError(f"{there}: the copy differs from the manifest ({said}): check the disks of both")
            # What has the name already is broken, or of an earlier course of the run: it stays under another name.
            there.script(
                f"if [ -e checkpoints/{name} ]; then mv checkpoints/{name} checkpoints/.broken-{name}-$(date +%s); fi; "
                f"mv {arrived} checkpoints/{name}; rm -rf checkpoints/.copying-*; sync -f checkpoints"
            )
        listing = there.script(f"cd checkpoints && ls -d step-*/{MANIFEST_FILE}").split("\n")
        copies = sorted({each.partition("/")[0] for each in listing if _STEP.match(each)})
        removed = [each for each in copies[:-keep] if each != name]
        if removed:
            there.script(f"cd checkpoints && rm -rf -- {' '.join(removed)}")
    num_bytes = sum(record.size for record in manifest.values())
    return Copied(name, len(sums), num_bytes, time.monotonic() - began, tuple(removed))


class _Remote:
    """The run's directory at the destination."""

    def __init__(self, destination: Destination, run: str, ssh: Ssh) -> None:
        self._host, self._ssh = destination.host, ssh
        self._directory = destination.directory / run
        self._is_here = destination.host in LOCAL

    def __str__(self) -> str:
        return str(self._directory) if self._is_here else f"{self._host}:{self._directory}"

    def _command(self, script: str) -> list[str]:
        return ["sh", "-c", script] if self._is_here else self._ssh.to_shell(self._host, script)

    def script(self, script: str, stdin: str = "", may_fail: bool = False) -> str:
        """What a script in the directory prints; with `may_fail`, its last line of errors, nothing if it succeeds.

        Raises `HostError`.
        """
        done = self._run(self._command(f"set -e; cd {shlex.quote(str(self._directory))}; {script}"), stdin)
        if done.returncode == 0:
            return "" if may_fail else done.stdout
        if may_fail and (self._is_here or done.returncode != UNREACHABLE):
            return first_complaint(done.stdout + done.stderr) or f"status {done.returncode}"
        self._fail(done.stdout + done.stderr, done.returncode)

    def _run(self, command: list[str], stdin: str = "") -> "subprocess.CompletedProcess[str]":
        try:
            return subprocess.run(command, input=stdin, capture_output=True, text=True, errors="replace", check=False)
        except OSError as error:
            raise _not_started(command, error) from None

    def send(self, paths: list[Path], directory: str, options: Sequence[str] = ()) -> None:
        """Copy files and directories into `directory` below the run's. Raises `HostError`."""
        if not paths:
            return
        target = f"{self._directory}/{directory}/"
        reach = [] if self._is_here else ["--rsh", self._ssh.call()]
        command = ["rsync", "--recursive", "--times", "--inplace", "--protect-args", "--timeout=300", *reach]
        to = target if self._is_here else f"{self._host}:{target}"
        done = self._run([*command, *options, "--", *map(str, paths), to])
        if done.returncode:
            self._fail(done.stderr, done.returncode)

    def _fail(self, said: str, status: int) -> NoReturn:
        if status == UNREACHABLE and not self._is_here:
            raise HostError(unreachable(str(self), said))
        raise HostError(f"{self}: {first_complaint(said) or f'status {status}'}")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the run's copies within the block. Raises `HostError` if another process holds it."""
        place = shlex.quote(str(self._directory))
        hold = f"exec flock -n -E {_LOCKED} .copy.lock sh -c 'echo locked; cat'"
        script = f"mkdir -p {place}/checkpoints && cd {place} && {hold}"
        with tempfile.TemporaryFile() as errors:
            command = self._command(script)
            try:
                holder: Any = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
            except OSError as error:
                raise _not_started(command, error) from None
            try:
                if not any(line == b"locked\n" for line in iter(holder.stdout.readline, b"")):
                    status = holder.wait()
                    if status == _LOCKED:
                        raise HostError(f"{self}: another copy is under way there; wait until it is done")
                    errors.seek(0)
                    self._fail(errors.read().decode(errors="replace"), status)
                yield
            finally:
                holder.stdin.close()
                holder.wait()


def _not_started(command: Sequence[str], error: OSError) -> HostError:
    return HostError(f"'{command[0]}' cannot be started: {error.strerror}; install it, or correct --ssh")


def follow(
    copy: Callable[[str | None], Copied | None],
    interval_s: float,
    tell: Callable[[Copied], None],
    wait: Callable[[float], Any] = time.sleep,
) -> None:
    """Copy every checkpoint that comes, until the caller's process is interrupted. What fails is tried again.

    Args:
        copy: copies the newest one, unless it has the name it is given.
        wait: between two looks.
    """
    last: str | None = None
    while True:
        try:
            done = copy(last)
            if done is not None:
                last = done.name
                tell(done)
        except (HostError, CheckpointError) as error:
            logger.warning("%s; trying again in %.0f s", error, interval_s)
        wait(interval_s)
