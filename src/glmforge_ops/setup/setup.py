"""Setting up a cluster: look at the nodes, show what would change, change it.

Each node is prepared by one script (`templates/node.sh.jinja`) that may be run again at any time; run with `look`, it
only says what it would change. Keys, host keys and scripts come into one directory on this machine. Existing files that
differ are replaced with `force` only.

Nodes are reached as the user reaches them now; the cluster's own key and host keys are for what comes after, and are
tried at the end.
"""

import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from glmforge.data.files import disk_errors
from glmforge.files import escaped, shown
from glmforge.observe.work_progress import work_progress
from glmforge.runtime.hostfile import LOCAL
from glmforge.runtime.ssh import Ssh
from glmforge_ops.hosts.fanout import Answer, Fanout, Outcome
from glmforge_ops.hosts.fold import fold_hosts
from glmforge_ops.hosts.machines import ssh_of
from glmforge_ops.setup.files import File, Wanted, files_here, node_script
from glmforge_ops.setup.known_hosts import KEY, HostKey, Place, Trust, find_trust, own_key, places_of

_NODE_S = 120.0
_TEST_S = 30.0
_TO_BE_MADE = "restrict,pty ssh-ed25519 (the public key that setup makes)"


@dataclass
class Said:
    """Changes, notes, warnings and errors, each with the machines that have it ("" is this one)."""

    lines: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def add(self, kind: str, text: str, host: str = "") -> None:
        self.lines.setdefault((kind, escaped(text)), []).append(host)

    def of(self, kind: str) -> list[str]:
        """Each text once, after the names of its machines."""
        texts = [(fold_hosts(filter(None, hosts)), text) for (what, text), hosts in self.lines.items() if what == kind]
        return [f"{hosts}: {text}" if hosts else text for hosts, text in texts]

    def hosts(self, kind: str) -> list[str]:
        """The machine of each line; one that has several stands there as often."""
        return [host for (what, _), hosts in self.lines.items() if what == kind for host in hosts]


@dataclass(frozen=True)
class Plan:
    """What is to be done: by which script on each node that is `due`, and which files here.

    `said` is what the nodes reported, and what prevents setup.
    """

    wanted: Wanted
    scripts: Mapping[str, str]
    due: Sequence[str]
    files: Sequence[File]
    makes_key: bool
    said: Said
    trust: Trust

    @property
    def count(self) -> int:
        """Of changes."""
        return sum(host in self.due for host in self.said.hosts("change")) + len(self.files) + self.makes_key


def make_plan(
    wanted: Wanted,
    *,
    offline: bool = False,
    accepted: Mapping[str, set[str]] | None = None,
    confirm: Callable[[Sequence[HostKey]], bool] | None = None,
    force: bool = False,
) -> Plan:
    """Look at the nodes and the files here; nothing is changed. Raises `HostError`.

    Args:
        offline: connect to nothing; the plan is that of nodes with nothing on them.
        accepted: fingerprints of host keys by host.
        confirm: asked about new host keys; None refuses them.
        force: replace existing files that differ.
    """
    said, remote, ssh = Said(), _remote(wanted), ssh_of(wanted.cluster)
    places: list[Place] = []
    trust = Trust()
    if not offline:
        places = places_of(ssh, remote)
        trust = find_trust(places, wanted.ssh_directory / "known_hosts", accepted or {}, confirm)
    for host, reason in trust.refused.items():
        said.add("error", reason, host)
    key = own_key(wanted.ssh_directory, make=False) if remote else ""
    scripts = {host: node_script(wanted, host, key or _TO_BE_MADE) for host in wanted.names}
    if offline:
        said.lines["change", "run the script"] = list(scripts)
    else:
        asked = {host: script for host, script in scripts.items() if host not in trust.refused}
        answered = _run_scripts(wanted, asked, trust, said, "look")
        trust.added = {host: lines for host, lines in trust.added.items() if host in answered}
    files = files_here(wanted, places, trust.text)
    if not (force or offline):
        for file in filter(lambda file: file.replaces, files):
            fix = "look at it with --dry-run --force, which shows the difference, and replace it with --force"
            said.add("error", f"{shown(file.path)} differs from what setup would write; {fix}")
        files = [file for file in files if not file.replaces]
    due = [host for host in scripts if host in said.hosts("change") and host not in said.hosts("error")]
    return Plan(wanted, scripts, due, files, key is None, said, trust)


def carry_out(plan: Plan) -> tuple[Said, int]:
    """What went wrong, and how many changes were made. One node's error does not keep the others from being set up."""
    wanted, said, remote = plan.wanted, Said(), _remote(plan.wanted)
    usable = [host for host in wanted.names if host not in plan.said.hosts("error")]
    if not usable:
        said.add("error", "no node is ready, so nothing was changed here either")
        return said, 0
    with disk_errors(wanted.out):
        wanted.out.mkdir(parents=True, exist_ok=True)
        if remote:
            wanted.ssh_directory.mkdir(mode=0o700, exist_ok=True)
    comment = f"glmforge-{wanted.cluster.name}"
    key = (own_key(wanted.ssh_directory, make=True, comment=comment) if remote else "") or ""
    for file in plan.files:
        file.write()
    _run_scripts(wanted, {host: node_script(wanted, host, key) for host in plan.due}, plan.trust, said, "change")
    _test(wanted, usable, said)
    return said, len(said.hosts("change")) + len(plan.files) + plan.makes_key


def describe(plan: Plan) -> Iterator[str]:
    """The plan as a person reads it: changes, the script of nodes in full, files as differences."""
    yield "1. Nodes" + ("" if plan.due else ": nothing to change")
    yield from (f"  {line}" for line in plan.said.of("change"))
    of_script: dict[str, list[str]] = {}
    for host in plan.due:
        of_script.setdefault(plan.scripts[host], []).append(host)
    for script, hosts in of_script.items():
        yield f"  {fold_hosts(hosts)}: by this script:"
        yield from (f"    {escaped(line)}" for line in script.splitlines())
    out = plan.wanted.out
    yield f"2. Files in {shown(out)}" + ("" if plan.files or plan.makes_key else ": nothing to change")
    if plan.makes_key:
        yield f"  make a pair of keys, {shown(out / 'ssh' / KEY)}, which only its owner can read"
    for file in plan.files:
        yield from (f"  {line}" for line in file.describe())


def _remote(wanted: Wanted) -> list[str]:
    return [name for name in wanted.names if name not in LOCAL]


def _run_scripts(wanted: Wanted, scripts: Mapping[str, str], trust: Trust, said: Said, mode: str) -> set[str]:
    """Each node runs its script, to `look` or to `change`; returns those that have."""
    ssh, came = ssh_of(wanted.cluster), count(1)
    with tempfile.TemporaryDirectory(prefix="glmforge-ssh-") as directory, work_progress(mode, 64) as show:
        known = Path(directory, "known_hosts")
        known.write_text(trust.text)
        more = ("-o", f"GlobalKnownHostsFile={known} /etc/ssh/ssh_known_hosts")
        fanout = Fanout(replace(ssh, command=(*ssh.command, *more)), at_once=wanted.cluster.ssh.at_once)

        def progress(answer: Answer) -> None:
            show(number := next(came), f"{number} of {len(scripts)} nodes")

        answers = fanout.run(
            list(scripts), f"exec sh -s {mode}", _NODE_S, lambda host: scripts[host].encode(), progress
        )
    for host, answer in answers.items():
        if not answer.is_done:
            said.add("error", answer.problem, host)
        for line in answer.stdout.decode(errors="replace").splitlines():
            kind, _, text = line.partition(": ")
            if kind in ("change", "error") or (kind == "warning" and mode == "look"):
                said.add(kind, text, host)
    return {host for host, answer in answers.items() if answer.is_done}


def _test(wanted: Wanted, hosts: Sequence[str], said: Said) -> None:
    """Each node through the cluster's own key and host keys only."""
    program = Ssh.of_command(wanted.cluster.ssh.command).command[0]
    ssh = Ssh((program, "-F", str(wanted.ssh_directory / "config")), connect_timeout_s=10)
    script = f"test -d {shlex.quote(str(wanted.out))}"
    answers = Fanout(ssh, at_once=wanted.cluster.ssh.at_once).run(hosts, script, _TEST_S)
    for host, answer in answers.items():
        if answer.outcome is Outcome.FAILED and answer.status == 1:
            fix = "give --out a directory on shared storage"
            said.add("warning", f"does not see {wanted.out}, where the scripts are; {fix}", host)
        elif not answer.is_done:
            said.add("error", f"cannot be reached with the cluster's own key: {answer.problem}", host)
    reached = sum(answer.is_done or answer.status == 1 for answer in answers.values())
    said.add("note", f"{reached} of {len(wanted.names)} nodes answer through the cluster's own key")
