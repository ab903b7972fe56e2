"""Copy shards and weights to the nodes' own disks with rsync, and verify them there.

A node that sees the same files under the same paths (shared storage) copies them itself; to others this machine sends.
The SHA-256 of every file is computed once, here, and compared on each node with what its disk holds. A node that fails
is named and costs the others nothing; run again, only what is missing or different is copied.

Within a Slurm allocation, without a list of hosts, `sbcast` distributes the files to the allocation's nodes.
"""

import hashlib
import os
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from glmforge.errors import HostError
from glmforge.files import shown
from glmforge.runtime.hostfile import LOCAL
from glmforge.runtime.ssh import last_line
from glmforge.runtime.waiting import map_in_threads
from glmforge_ops.hosts.fanout import Answer, Fanout, Outcome, Script
from glmforge_ops.storage.sources import SourceFile

LIMIT_S = 24 * 3600.0
VERIFY = "LC_ALL=C sha256sum --check --quiet --strict - >&2"
_NUM_THREADS = 4
_RSYNC = ("rsync", "--times", "--copy-links", "--from0", "--files-from=-", "--partial-dir=.partial", "--timeout=300")
# Printed only by a node with rsync that has these files with these sizes and times.
_FINGERPRINT = "command -v rsync >/dev/null && xargs -0 stat --dereference --format='%s %Y' -- 2>/dev/null | sha256sum"


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
        verify: compare checksums of what is on the nodes' disks; otherwise size and time are compared, as rsync does.
        report: called with the steps done and all steps; a step is a directory, or the comparison, on all nodes.

    Raises:
        HostError: a source cannot be read, or `target` is not a path that all tools can name.
    """
    began, staged = time.monotonic(), _begin(files, target, hosts)
    checksums = _checksums(files, target).encode() if verify else b""
    places: dict[tuple[str, str], list[bytes]] = {}
    for file in files:
        places.setdefault((f"{file.original.parent}/", f"{target / file.directory}/"), []).append(
            os.fsencode(file.name)
        )
    num_steps = len(places) + 1 + verify

    def run(on: Sequence[str], script: Script, stdin: bytes, here: bool = False) -> dict[str, Answer]:
        """Answers of the hosts that carried it out; the others get their problem and are asked no more."""
        todo = [host for host in on if host not in staged.problems]
        answers = fanout.run(todo, script, LIMIT_S, stdin, here=here)
        staged.problems |= {each.host: problem_of(each) for each in answers.values() if not each.is_done}
        return {host: answer for host, answer in answers.items() if answer.is_done}

    originals = b"\0".join(os.fsencode(file.original) for file in files)  # too many for a command line
    expected = hashlib.sha256("".join(f"{file.size} {file.changed}\n" for file in files).encode()).hexdigest()
    answers = run(hosts, f"{_FINGERPRINT} || true", originals)
    sees = {host: host in LOCAL or expected.encode() in answer.stdout for host, answer in answers.items()}
    run(list(sees), "xargs -0 mkdir -p --", "\0".join(sorted({there for _, there in places})).encode())
    todo = list(sees)
    for options in ((), ("--checksum",)):  # damage at rest changes neither size nor time of a copy
        for number, ((source, there), names) in enumerate(places.items(), 1):
            report(number, num_steps)
            rsync, listed = [*_RSYNC, *options], b"\0".join(names)
            run([host for host in todo if sees[host]], shlex.join([*rsync, "--", source, there]), listed)
            rsync += ["--protect-args", "--rsh", fanout.ssh.call(), "--", source]
            scripts = {host: shlex.join([*rsync, remote(host, there)]) for host in todo if not sees[host]}
            run(list(scripts), scripts.__getitem__, listed, here=True)
        todo = [host for host in todo if host not in staged.problems]
        report(num_steps, num_steps)
        if not verify:
            break
        right = run(todo, VERIFY, checksums)
        todo = [host for host in todo if host not in right]
        if not todo or options:
            break
        for host in todo:
            del staged.problems[host]
    staged.seconds = time.monotonic() - began
    return staged


def stage_in_allocation(files: Sequence[SourceFile], target: Path, *, verify: bool = True) -> Staged:
    """Copy `files` below `target` on all nodes of this Slurm allocation. Raises `HostError`."""
    began, staged = time.monotonic(), _begin(files, target, [f"job {os.environ['SLURM_JOB_ID']}"])
    srun = ["srun", f"--nodes={os.environ['SLURM_JOB_NUM_NODES']}", "--ntasks-per-node=1", "--overlap"]

    def run(*words: str, stdin: str = "") -> None:
        (answer,) = Fanout().run(LOCAL[:1], shlex.join(words), LIMIT_S, stdin.encode()).values()
        if not answer.is_done:
            raise HostError(f"'{words[0]}' failed: {problem_of(answer)}")

    run(*srun, "mkdir", "-p", "--", *sorted({str(target / file.directory) for file in files}))
    for file in files:
        run("sbcast", "--force", "--preserve", str(file.original), str(target / file.directory / file.name))
    if verify:  # srun gives its standard input to every task
        run(*srun, "sh", "-c", VERIFY, stdin=_checksums(files, target))
    staged.seconds = time.monotonic() - began
    return staged


def remote(host: str, path: str) -> str:
    """A path of a host for rsync: an IPv6 address stands in brackets."""
    user, at, address = host.rpartition("@")
    return f"{user}{at}[{address}]:{path}" if ":" in address else f"{host}:{path}"


def problem_of(answer: Answer) -> str:
    """Why a host's command did not succeed, in one line."""
    if answer.outcome is not Outcome.FAILED or answer.status is None:
        return answer.problem
    said = first_complaint(answer.stderr)
    if said.endswith(": FAILED"):
        return f"a copy differs from its source ({said}); check the disk there"
    return said or f"{answer.reason}; check the free space there"  # rsync may end without a word


def first_complaint(said: str) -> str:
    """The first one of rsync or sha256sum, which names the file; what follows counts them. Otherwise the last line."""
    lines = (line for line in said.splitlines() if line.startswith("rsync: ") or ": FAILED" in line)
    return last_line(next(lines, said))


def _begin(files: Sequence[SourceFile], target: Path, hosts: Sequence[str]) -> Staged:
    if not target.is_absolute() or not str(target).isprintable() or "\\" in str(target):
        raise HostError(f"--to {shown(target)}: give an absolute path without control characters and backslashes")
    return Staged(len(files), sum(file.size for file in files), list(hosts))


def _checksums(files: Sequence[SourceFile], target: Path) -> str:
    """A list for sha256sum on the nodes."""

    def line(file: SourceFile) -> str:
        try:
            with file.original.open("rb") as source:
                digest = hashlib.file_digest(source, "sha256").hexdigest()
        except OSError as error:
            raise HostError(f"{file.original}: cannot be read ({error.strerror}); make it readable") from None
        return f"{digest}  {target / file.directory / file.name}\n"

    return "".join(map_in_threads(line, files, _NUM_THREADS))
