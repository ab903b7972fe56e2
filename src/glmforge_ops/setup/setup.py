"""Setting up a cluster: look at the nodes, show what would change, change it.

Each node is prepared by one script (`templates/node.sh.jinja`) that may be run again at any time; run with `look`, it
only says what it would change. On this machine come keys, host keys and scripts in one directory. Files that are there
and differ are replaced with `force` only.

Nodes are reached as the user reaches them now; the cluster's own key and host keys are for what comes after, and are
tried at the end.
"""

import fcntl
import os
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from glmforge.errors import HostError
from glmforge.files import escaped, shown
from glmforge.runtime.hostfile import LOCAL
from glmforge.runtime.ssh import Ssh
from glmforge_ops.hosts.fanout import Answer, Fanout, Outcome
from glmforge_ops.hosts.fold import fold_hosts
from glmforge_ops.hosts.machines import ssh_of
from glmforge_ops.setup.files import File, job_files, node_script, ssh_files
from glmforge_ops.setup.known_hosts import KEY, HostKey, Place, Trust, find_trust, own_key, places_of
from glmforge_ops.setup.wanted import Wanted

_NODE_S = 120.0
_TEST_S = 30.0
_TO_BE_MADE = "restrict,pty ssh-ed25519 (the public key that setup makes)"


@dataclass(frozen=True)
class Options:
    """How setup goes about it.

    Attributes:
        offline: connect to nothing; the plan is that of nodes with nothing on them.
        accepted: fingerprints of host keys by host.
        confirm: asked about host keys that nobody has accepted; None: nobody is there to be asked.
        force: replace files that are there and differ.
    """

    offline: bool = False
    accepted: Mapping[str, set[str]] = field(default_factory=dict)
    confirm: Callable[[Sequence[HostKey]], bool] | None = None
    force: bool = False


@dataclass
class Said:
    """Changes, warnings and errors in words, each with the machines that have it ("" is this one)."""

    lines: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def add(self, kind: str, text: str, host: str = "") -> None:
        self.lines.setdefault((kind, text), []).append(host)

    def of(self, kind: str) -> list[str]:
        """Each text once, after the names of its machines."""
        texts = [(fold_hosts(filter(None, hosts)), text) for (what, text), hosts in self.lines.items() if what == kind]
        return [f"{hosts}: {text}" if hosts else text for hosts, text in texts]

    def count(self, *kinds: str) -> int:
        return sum(len(hosts) for (what, _), hosts in self.lines.items() if what in kinds)

    def hosts(self, kind: str) -> set[str]:
        return {host for (what, _), hosts in self.lines.items() if what == kind for host in hosts}


@dataclass(frozen=True)
class Plan:
    """What is to be done: by which script on each node, and which files here.

    Attributes:
        due: nodes that are to be changed.
        said: what the nodes said of it, and what stands in the way.
    """

    scripts: Mapping[str, str]
    due: Sequence[str]
    files: Sequence[File]
    makes_key: bool
    said: Said
    trust: Trust

    @property
    def count(self) -> int:
        """Of changes."""
        changes = [hosts for (kind, _), hosts in self.said.lines.items() if kind == "change"]
        return sum(host in self.due for hosts in changes for host in hosts) + len(self.files) + self.makes_key


class Setup:
    """One setup of `wanted`. `progress` is called with what is being done, and with how many of how many nodes."""

    def __init__(self, wanted: Wanted, options: Options) -> None:
        self.wanted, self.options = wanted, options
        self.progress: Callable[[str, int, int], None] = lambda what, done, total: None
        self._remote = [name for name in wanted.names if name not in LOCAL]

    def plan(self) -> Plan:
        """Changes nothing, here or elsewhere."""
        wanted, options, said = self.wanted, self.options, Said()
        places, trust = ([], Trust()) if options.offline else self._find_trust(said)
        key = own_key(wanted.ssh_directory, make=False) if self._remote else ""
        scripts = {host: node_script(wanted, host, key or _TO_BE_MADE) for host in wanted.names}
        if options.offline:
            said.lines["change", "run the script"] = list(scripts)
        else:
            asked = {host: script for host, script in scripts.items() if host not in trust.refused}
            answered = self._run_scripts(asked, trust, said, "look")  # others may show a key that is not the known one
            trust.added = {host: lines for host, lines in trust.added.items() if host in answered}
        failed = said.hosts("error")
        due = [host for host in scripts if host in said.hosts("change") - failed]
        if wanted.master_host in failed:
            said.add(
                "error", f"the master, {wanted.master_addr}, is not ready; fix that, or give another --master-addr"
            )
        files = [file for file in (*ssh_files(wanted, places, trust.text), *job_files(wanted)) if not file.is_written]
        if not (options.force or options.offline):
            for file in filter(lambda file: file.replaces, files):
                fix = "look at it with --dry-run --force, which shows the difference, and replace it with --force"
                said.add("error", f"{shown(file.path)} differs from what setup would write; {fix}")
            files = [file for file in files if not file.replaces]
        return Plan(scripts, due, files, key is None, said, trust)

    def carry_out(self, plan: Plan) -> Said:
        """What was changed on the nodes, and what went wrong. The rest is done."""
        wanted, said = self.wanted, Said()
        usable = set(wanted.names) - plan.said.hosts("error")
        if not usable:
            said.add("error", "no node is ready, so nothing was changed here either")
            return said
        with _alone(wanted.out, wanted.ssh_directory if self._remote else None):
            if self._remote:
                key = own_key(wanted.ssh_directory, make=True, comment=f"glmforge-{wanted.cluster.name}") or ""
            for file in plan.files:
                file.write()
            said.lines["made", ""] = [""] * (len(plan.files) + plan.makes_key)
            scripts = {host: node_script(wanted, host, key if self._remote else "") for host in plan.due}
            self._run_scripts(scripts, plan.trust, said, "change")
        self._test([host for host in wanted.names if host in usable], said)
        return said

    def _find_trust(self, said: Said) -> tuple[list[Place], Trust]:
        places = places_of(ssh_of(self.wanted.cluster), self._remote)
        own, options = self.wanted.ssh_directory / "known_hosts", self.options
        trust = find_trust(places, own, options.accepted, options.confirm)
        for host, reason in trust.refused.items():
            said.add("error", reason, host)
        fix = "which is not taken over; add it to ssh/config, or set up from a machine within the cluster's network"
        for place in filter(lambda place: place.through, places):
            said.add("warning", f"ssh goes through {shown(place.through)}, {fix}", place.host)
        return places, trust

    def _run_scripts(self, scripts: Mapping[str, str], trust: Trust, said: Said, mode: str) -> set[str]:
        """Each node runs its script, to `look` or to `change`; those that have."""
        done: set[str] = set()
        came = count(1)

        def take(answer: Answer) -> None:
            self.progress(mode, next(came), len(scripts))
            if answer.is_done:
                done.add(answer.host)
            else:
                said.add("error", escaped(f"{answer.reason}; {answer.fix}".rstrip("; ")), answer.host)
            for line in answer.stdout.decode(errors="replace").splitlines():
                kind, _, text = line.partition(": ")
                if kind in ("change", "error") or (kind == "warning" and mode == "look"):
                    said.add(kind, escaped(text), answer.host)

        ssh, sent = ssh_of(self.wanted.cluster), {host: script.encode() for host, script in scripts.items()}
        with tempfile.TemporaryDirectory(prefix="glmforge-ssh-") as directory:
            known = Path(directory, "known_hosts")
            known.write_text(trust.text)
            more = ("-o", f"GlobalKnownHostsFile={known} /etc/ssh/ssh_known_hosts")
            fanout = Fanout(replace(ssh, command=(*ssh.command, *more)), at_once=self.wanted.cluster.ssh.at_once)
            fanout.run(list(scripts), f"exec sh -s {mode}", _NODE_S, sent.__getitem__, take)
        return done

    def _test(self, hosts: Sequence[str], said: Said) -> None:
        """Each node through the cluster's own key and host keys, whatever the user's configuration says."""
        program = Ssh.of_command(self.wanted.cluster.ssh.command).command[0]
        ssh = Ssh((program, "-F", str(self.wanted.ssh_directory / "config")), connect_timeout_s=10)
        script = f"test -d {shlex.quote(str(self.wanted.out))}"
        answers = Fanout(ssh, at_once=self.wanted.cluster.ssh.at_once).run(hosts, script, _TEST_S)
        for host, answer in answers.items():
            if answer.outcome is Outcome.FAILED and answer.status == 1:
                fix = "give --out a directory on shared storage"
                said.add("warning", f"does not see {self.wanted.out}, where the scripts are; {fix}", host)
            elif not answer.is_done:
                reason = f"cannot be reached with the cluster's own key: {answer.reason}; {answer.fix}".rstrip("; ")
                said.add("error", escaped(reason), host)
        reached = sum(answer.is_done or answer.status == 1 for answer in answers.values())
        said.add("note", f"{reached} of {len(self.wanted.names)} nodes answer through the cluster's own key")


@contextmanager
def _alone(directory: Path, private: Path | None) -> Iterator[None]:
    """One setup at a time in the directory, which is made, and the private one in it. Raises `HostError`."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if private is not None:
            private.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError as error:
        raise HostError(f"{shown(directory)}: cannot be written: {error.strerror}; give another --out") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise HostError(f"{shown(directory)}: another setup of this cluster is running; wait for it") from None
    finally:
        os.close(descriptor)


def describe(plan: Plan, wanted: Wanted) -> Iterator[str]:
    """The plan as a person reads it: changes, the script of nodes in full, files as differences."""
    yield "1. Nodes" + ("" if plan.due else ": nothing to change")
    yield from (f"  {line}" for line in plan.said.of("change"))
    of_script: dict[str, list[str]] = {}
    for host in plan.due:
        of_script.setdefault(plan.scripts[host], []).append(host)
    for script, hosts in of_script.items():
        yield f"  {fold_hosts(hosts)}: by this script:"
        yield from (f"    {escaped(line)}" for line in script.splitlines())
    yield f"2. Files in {shown(wanted.out)}" + ("" if plan.files or plan.makes_key else ": nothing to change")
    if plan.makes_key:
        yield f"  make a pair of keys, {shown(wanted.ssh_directory / KEY)}, which only its owner can read"
    for file in plan.files:
        yield from (f"  {line}" for line in file.describe())
