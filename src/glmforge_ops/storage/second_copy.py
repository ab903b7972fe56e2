"""Second copies of a run's checkpoints: on another file system, or on a machine that ssh reaches.

    DESTINATION/<run>/checkpoints/step-00000120/     as in the run itself
    DESTINATION/<run>/config.yaml, tokenizer/ ...    so that the copy is a run that can be resumed

rsync copies the newest whole checkpoint beside its final name and continues after an interruption; `sha256sum` there
compares every file with the manifest before the directory gets its name. Then older copies are removed. The run may
delete the checkpoint meanwhile, when a later one is whole: then that one is copied.
"""

import hashlib
import logging
import re
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from glmforge.checkpoint.format.manifest import MANIFEST_FILE, read_manifest
from glmforge.checkpoint.format.store import latest_checkpoint
from glmforge.errors import CheckpointError, HostError
from glmforge.files import absolute, shown
from glmforge.observe.run import RunDirectory
from glmforge.runtime.hostfile import LOCAL, parse_hosts
from glmforge.runtime.lease import Lease
from glmforge.runtime.ssh import Ssh
from glmforge.runtime.traces import ABOVE, directory_of_traces
from glmforge_ops.hosts.fanout import Answer, Fanout, Outcome
from glmforge_ops.storage.stage import LIMIT_S, VERIFY, first_complaint, problem_of, remote

logger = logging.getLogger(__name__)

_REMOTE = re.compile(r"(?:\[(?P<address>[^\]]+)\]|(?P<host>[^/:]+)):(?P<directory>/.*)")
_RSYNC = ("rsync", "--recursive", "--times", "--inplace", "--protect-args", "--timeout=300")
_ATTEMPTS = 3


class Destination(NamedTuple):
    """Where copies of runs are kept: a directory of `host`, which may be this machine."""

    host: str
    directory: Path

    def __str__(self) -> str:
        return str(self.directory) if self.host in LOCAL else remote(self.host, str(self.directory))


@dataclass(frozen=True)
class Copied:
    """A checkpoint that is whole at the destination now, and the copies that were removed for it."""

    name: str
    num_files: int
    num_bytes: int
    seconds: float
    removed: tuple[str, ...]


def parse_destination(text: str) -> Destination:
    """DIRECTORY, HOST:/DIRECTORY or [ADDRESS]:/DIRECTORY. Raises `HostError`."""
    if text.isprintable() and (found := _REMOTE.fullmatch(text)):
        names = parse_hosts(found["address"] or found["host"], "--to")
        if len(names) == 1:
            return Destination(names[0], Path(found["directory"]))
    elif text.isprintable() and text and not re.match(r"[^/]+:", text):
        return Destination(LOCAL[0], Path(text).absolute())
    raise HostError(f"--to {shown(text)}: give a directory, or HOST:/DIRECTORY with one host and an absolute path")


def copy_checkpoints(
    run: Path,
    destination: Destination,
    ssh: Ssh,
    *,
    keep: int,
    report: Callable[[Copied], None],
    every_s: float | None = None,
    wait: Callable[[float], Any] = time.sleep,
) -> None:
    """Copy the newest whole checkpoint of a run; with `every_s`, also every one that comes, until interrupted.

    What fails is then tried again. Raises the errors of `copy_newest`, and `GlmforgeError` if another process of this
    user on this machine copies the run to the same place.
    """
    key = hashlib.sha256(f"{absolute(run)} {destination}".encode()).hexdigest()[:12]
    with Lease(directory_of_traces(ABOVE), f"glmforge checkpoint copy {shown(run)}", name=f"copy-{key}"):
        last: str | None = None
        while True:
            try:
                if done := copy_newest(run, destination, ssh, keep=keep, unless=last):
                    last = done.name
                    report(done)
            except (HostError, CheckpointError) as error:
                if every_s is None:
                    raise
                logger.warning("%s; trying again in %.0f s", error, every_s)
            if every_s is None:
                return
            wait(every_s)


def copy_newest(
    run: Path, destination: Destination, ssh: Ssh, *, keep: int = 2, unless: str | None = None
) -> Copied | None:
    """Copy the newest whole checkpoint of a run; None if it is called `unless`.

    Raises:
        CheckpointError: the run has no whole checkpoint, or its newest one is damaged.
        HostError: the destination cannot be reached or written.
    """
    run = absolute(run)  # rsync takes a relative a:b for a path on host a
    root, there = RunDirectory(run), _Place(Destination(destination.host, destination.directory / run.name), ssh)
    if not root.checkpoints.is_dir():
        raise CheckpointError(f"{shown(run)}: has no checkpoints; give the directory of a run that has saved")
    for _ in range(_ATTEMPTS):
        newest = latest_checkpoint(root.checkpoints)
        if newest is None:
            raise CheckpointError(f"{root.checkpoints}: no checkpoint yet; wait for the run's first")
        if newest.name == unless:
            return None
        try:
            return _copy(root, newest, there, keep)
        except (HostError, CheckpointError, OSError):
            if newest.exists():
                raise
            logger.info("%s was deleted by the run while it was copied; taking the next", newest)
    raise CheckpointError(
        f"{root.checkpoints}: checkpoints are deleted faster than they are copied; raise checkpoint.keep_last"
    )


def _copy(root: RunDirectory, checkpoint: Path, there: "_Place", keep: int) -> Copied:
    began, name = time.monotonic(), checkpoint.name.removesuffix(".replaced")
    manifest = read_manifest(checkpoint).files
    sums = {file: record.sha256 for file, record in manifest.items()}
    sums[MANIFEST_FILE] = hashlib.sha256((checkpoint / MANIFEST_FILE).read_bytes()).hexdigest()
    listed = "".join(f"{digest}  ./{file}\n" for file, digest in sums.items())
    there.run("mkdir -p checkpoints")
    beside = [path for path in (root.config, root.adapters, root.info, root.tokenizer) if path.exists()]
    if beside:
        there.send(beside, "")
    if there.complaint(f"cd checkpoints/{name} && {VERIFY}", listed):
        there.run(f"mkdir -p checkpoints/.copying-{name}")
        arrived = f"checkpoints/.copying-{name}/{checkpoint.name}"
        for options in ((), ("--checksum",)):  # damage of an earlier attempt shows in neither size nor time
            there.send([checkpoint], f"checkpoints/.copying-{name}/", *options)
            if not (said := there.complaint(f"cd {arrived} && {VERIFY}", listed)):
                break
        else:
            raise HostError(f"{there}: the copy differs from the manifest ({said}): check the disks of both")
        # What has the name already is broken, or of an earlier course of the run: it stays under another name.
        there.run(
            f"if [ -e checkpoints/{name} ]; then mv checkpoints/{name} checkpoints/.broken-{name}-$(date +%s); fi; "
            f"mv {arrived} checkpoints/{name}; rm -rf checkpoints/.copying-*; sync -f checkpoints"
        )
    older = f"ls -d step-*/{MANIFEST_FILE} | grep -Eo '^step-[0-9]{{8,}}' | head -n -{keep} | grep -vx {name} || true"
    removed = there.run(f'cd checkpoints; for step in $({older}); do rm -rf "$step"; echo "$step"; done')
    num_bytes = sum(record.size for record in manifest.values())
    return Copied(name, len(sums), num_bytes, time.monotonic() - began, tuple(removed.split()))


class _Place:
    """The run's directory at the destination. Methods raise `HostError`."""

    def __init__(self, destination: Destination, ssh: Ssh) -> None:
        self._destination, self._fanout = destination, Fanout(ssh)

    def __str__(self) -> str:
        return shown(self._destination)

    def run(self, script: str) -> str:
        """What a script in the directory prints."""
        return self._done(self._ask(script)).stdout.decode(errors="replace")

    def complaint(self, script: str, stdin: str) -> str:
        """Why a script in the directory fails; empty if it does not."""
        answer = self._ask(script, stdin)
        if answer.outcome is Outcome.FAILED and answer.status is not None:
            return first_complaint(answer.stderr) or answer.reason
        self._done(answer)
        return ""

    def send(self, paths: list[Path], directory: str, *options: str) -> None:
        """Copy files and directories into `directory` below the run's."""
        target = f"{self._destination._replace(directory=self._destination.directory / directory)}/"
        command = [*_RSYNC, *options, "--rsh", self._fanout.ssh.call(), "--", *map(str, paths), target]
        (answer,) = self._fanout.run([self._destination.host], shlex.join(command), LIMIT_S, here=True).values()
        self._done(answer)

    def _ask(self, script: str, stdin: str = "") -> Answer:
        path = shlex.quote(str(self._destination.directory))
        script = f"set -e; mkdir -p {path}; cd {path}; {script}"
        (answer,) = self._fanout.run([self._destination.host], script, LIMIT_S, stdin.encode()).values()
        return answer

    def _done(self, answer: Answer) -> Answer:
        if not answer.is_done:
            raise HostError(f"{self}: {problem_of(answer)}")
        return answer
