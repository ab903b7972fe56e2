"""Copy shards and weights to the nodes' own disks with rsync, and verify them there.

A node that sees the source under the same path (shared storage) copies by itself; to others this machine sends. The
SHA-256 of every file is computed once, here, and compared on each node with what its disk holds. A node that fails is
named and costs the others nothing; run again, only what is missing or different is copied.

Within a Slurm allocation, without a list of hosts, `sbcast` distributes the files to the allocation's nodes.
"""

import hashlib
import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from glmforge.errors import HostError
from glmforge.runtime.hostfile import LOCAL
from glmforge.runtime.ssh import last_line
from glmforge.runtime.waiting import map_in_threads
from glmforge_ops.hosts.fanout import Answer, Fanout, Outcome, Script
from glmforge_ops.storage.sources import SourceFile

LIMIT_S = 24 * 3600.0
_SHORT_S = 60.0
_NUM_THREADS = 4
_CHUNK = 4 << 20
_RSYNC = ("rsync", "--times", "--copy-links", "--from0", "--files-from=-", "--partial-dir=.partial", "--timeout=300")
VERIFY = "LC_ALL=C sha256sum --check --quiet --strict - >&2"


@dataclass
class Staged:
    """What was done. `problems`: host -> one line, for the nodes that do not have everything."""

    num_files: int
    total_bytes: int
    hosts: list[str]
    problems: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


def stage(
    files: Sequence[SourceFile],
    target: Path,
    hosts: Sequence[str],
    fanout: Fanout,
    *,
    verify: bool = True,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Staged:
    """Copy `files` below `target` on all `hosts`.

    Args:
        verify: compare checksums of what is on the nodes' disks; otherwise length and time are believed, as rsync does.
        report: called with the steps done and all steps; a step is a directory, or the comparison, on all nodes.

    Raises:
        HostError: a source cannot be read.
    """
    began = time.monotonic()
    staged = Staged(len(files), sum(file.size for file in files), list(hosts))
    checksums = _checksums(files, target).encode() if verify else b""
    places: dict[tuple[str, str], list[str]] = {}
    for file in files:
        places.setdefault((str(file.original.parent), f"{target / file.directory}/"), []).append(file.name)
    num_steps = len(places) + 1 + verify

    def run(
        on: Sequence[str], script: Script, stdin: bytes, limit_s: float = LIMIT_S, here: bool = False
    ) -> dict[str, Answer]:
        """Answers of the hosts that carried it out; the others get their problem."""
        answers = fanout.run(on, script, limit_s, stdin, here=here)
        staged.problems |= {each.host: _problem(each) for each in answers.values() if not each.is_done}
        return {host: answer for host, answer in answers.items() if answer.is_done}

    directories = "\0".join(sorted({there for _, there in places})).encode()  # too many for a command line
    see = f"test -r {shlex.quote(str(files[0].original))} && command -v rsync >/dev/null && echo yes || echo no"
    reached = run(hosts, f"xargs -0 mkdir -p -- && {{ {see}; }}", directories, _SHORT_S)
    sees = {host: host in LOCAL or answer.stdout.split()[-1:] == [b"yes"] for host, answer in reached.items()}
    report(1, num_steps)
    todo = list(reached)
    for options in ((), ("--checksum",)):  # where a copy has rotted, its length and time do not show it
        for number, ((source, there), names) in enumerate(places.items(), 2):
            listed = "\0".join(names).encode()
            todo = [host for host in todo if host not in staged.problems]
            copy = shlex.join([*_RSYNC, *options, "--", f"{source}/", there])
            run([host for host in todo if sees[host]], copy, listed)
            others = [host for host in todo if not sees[host]]
            command = [*_RSYNC, *options, "--protect-args", "--rsh", fanout.ssh.call(), "--", f"{source}/"]
            scripts = {host: shlex.join([*command, f"{host}:{there}"]) for host in others}
            run(others, scripts.__getitem__, listed, here=True)
            report(number, num_steps)
        todo = [host for host in todo if host not in staged.problems]
        if not verify:
            break
        right = run(todo, VERIFY, checksums)
        todo = [host for host in todo if host not in right]
        report(num_steps, num_steps)
        if not todo or options:
            break
        for host in todo:
            del staged.problems[host]
    staged.seconds = time.monotonic() - began
    return staged


def stage_in_allocation(files: Sequence[SourceFile], target: Path, *, verify: bool = True) -> Staged:
    """Copy `files` below `target` on all nodes of this Slurm allocation. Raises `HostError`."""
    began = time.monotonic()
    staged = Staged(len(files), sum(file.size for file in files), [f"job {os.environ['SLURM_JOB_ID']}"])
    on_each = ["srun", f"--nodes={os.environ['SLURM_JOB_NUM_NODES']}", "--ntasks-per-node=1", "--overlap"]
    directories = sorted({str(target / file.directory) for file in files})
    _run_here([*on_each, "mkdir", "-p", "--", *directories])
    for file in files:
        _run_here(["sbcast", "--force", "--preserve", str(file.original), str(target / file.directory / file.name)])
    if verify:  # srun gives its standard input to every task
        _run_here([*on_each, "sh", "-c", VERIFY], _checksums(files, target))
    staged.seconds = time.monotonic() - began
    return staged


def _problem(answer: Answer) -> str:
    if answer.outcome is not Outcome.FAILED or answer.status is None:
        return f"{answer.reason}; {answer.mend}".rstrip("; ")
    said = first_complaint(answer.stderr)
    if said.endswith(": FAILED"):
        return f"a copy differs from its source ({said}); check the disk there"
    # rsync that ends early there may not get its message through.
    return said or f"{answer.reason}; check the free space there"


def first_complaint(said: str) -> str:
    """The first one of rsync or sha256sum, which names the file; what follows counts them. Otherwise the last line."""
    lines = (line for line in said.splitlines() if line.startswith("rsync: ") or ": FAILED" in line)
    return last_line(next(lines, said))


def _checksums(files: Sequence[SourceFile], target: Path) -> str:
    """A list for sha256sum on the nodes."""

    def line(file: SourceFile) -> str:
        digest = hashlib.sha256()
        try:
            with file.original.open("rb") as source:
                while piece := source.read(_CHUNK):
                    digest.update(piece)
        except OSError as error:
            raise HostError(f"{file.original}: cannot be read ({error.strerror}); make it readable") from None
        return f"{digest.hexdigest()}  {target / file.directory / file.name}\n"

    return "".join(map_in_threads(line, files, _NUM_THREADS))


def _run_here(command: Sequence[str], stdin: str = "") -> None:
    with tempfile.TemporaryFile() as errors:
        try:
            done = subprocess.run(command, input=stdin.encode(), stderr=errors, check=False)
        except OSError as error:
            raise HostError(f"'{command[0]}' cannot be started: {error.strerror}") from None
        errors.seek(0)
        if done.returncode:
            said = first_complaint(errors.read().decode(errors="replace"))
            raise HostError(f"'{command[0]}' failed: {said or f'status {done.returncode}'}")
