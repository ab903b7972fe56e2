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
from dataclasses import dataclass, replace
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


Line = tuple[str, str, str]
"""A change, note, warning or error, the machine that has it ("" is this one), and the text."""


def texts(lines: Sequence[Line], kind: str) -> list[str]:
    """Each text once, after the names of its machines."""
    hosts: dict[str, list[str]] = {}
    for of_kind, host, text in lines:
        if of_kind == kind:
            hosts.setdefault(escaped(text), []).append(host)
    folded = {text: fold_hosts(filter(None, names)) for text, names in hosts.items()}
    return [f"{names}: {text}" if names else text for text, names in folded.items()]


def _hosts(lines: Sequence[Line], kind: str) -> list[str]:
    return [host for of_kind, host, _ in lines if of_kind == kind]


@dataclass(frozen=True)
class Plan:
    """What is to be done: by which script on each node that is `due`, and which files here.

    `lines` are what the nodes reported, and what prevents setup.
    """

    wanted: Wanted
    scripts: Mapping[str, str]
    due: Sequence[str]
    files: Sequence[File]
    makes_key: bool
    lines: list[Line]
    trust: Trust

    @property
    def count(self) -> int:
        """Of changes."""
        return sum(host in self.due for host in _hosts(self.lines, "change")) + len(self.files) + self.makes_key


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
    remote, ssh = _remote(wanted), ssh_of(wanted.cluster)
    places: list[Place] = []
    trust = Trust()
    if not offline:
        places = places_of(ssh, remote)
        trust = find_trust(places, wanted.ssh_directory / "known_hosts", accepted or {}, confirm)
    lines = [("error", host, reason) for host, reason in trust.refused.items()]
    key = own_key(wanted.ssh_directory, make=False) if remote else ""
    scripts = {host: node_script(wanted, host, key or _TO_BE_MADE) for host in wanted.names}
    if offline:
        lines += [("change", host, "run the script") for host in scripts]
    else:
        asked = {host: script for host, script in scripts.items() if host not in trust.refused}
        answered = _run_scripts(wanted, asked, trust, lines, "look")
        trust.added = {host: keys for host, keys in trust.added.items() if host in answered}
    files = files_here(wanted, places, trust.text)
    if not (force or offline):
        for file in filter(lambda file: file.replaces, files):
            fix = "look at it with --dry-run --force, which shows the difference, and replace it with --force"
            lines.append(("error", "", f"{shown(file.path)} differs from what setup would write; {fix}"))
        files = [file for file in files if not file.replaces]
    due = set(_hosts(lines, "change")) - set(_hosts(lines, "error"))
    return Plan(wanted, scripts, [host for host in scripts if host in due], files, key is None, lines, trust)


def carry_out(plan: Plan) -> tuple[list[Line], int]:
    """What went wrong, and how many changes were made. One node's error does not keep the others from being set up."""
    wanted, remote = plan.wanted, _remote(plan.wanted)
    lines: list[Line] = []
    failed = set(_hosts(plan.lines, "error"))
    usable = [host for host in wanted.names if host not in failed]
    if not usable:
        return [("error", "", "no node is ready, so nothing was changed here either")], 0
    with disk_errors(wanted.out):
        wanted.out.mkdir(parents=True, exist_ok=True)
        if remote:
            wanted.ssh_directory.mkdir(mode=0o700, exist_ok=True)
    comment = f"glmforge-{wanted.cluster.name}"
    key = (own_key(wanted.ssh_directory, make=True, comment=comment) if remote else "") or ""
    for file in plan.files:
        file.write()
    _run_scripts(wanted, {host: node_script(wanted, host, key) for host in plan.due}, plan.trust, lines, "change")
    _test(wanted, usable, lines)
    return lines, len(_hosts(lines, "change")) + len(plan.files) + plan.makes_key


def describe(plan: Plan) -> Iterator[str]:
    """The plan as a person reads it: changes, the script of nodes in full, files as differences."""
    yield "1. Nodes" + ("" if plan.due else ": nothing to change")
    yield from (f"  {line}" for line in texts(plan.lines, "change"))
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


def _run_scripts(wanted: Wanted, scripts: Mapping[str, str], trust: Trust, lines: list[Line], mode: str) -> set[str]:
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
            lines.append(("error", host, answer.problem))
        for line in answer.stdout.decode(errors="replace").splitlines():
            kind, _, text = line.partition(": ")
            if kind in ("change", "error") or (kind == "warning" and mode == "look"):
                lines.append((kind, host, text))
    return {host for host, answer in answers.items() if answer.is_done}


def _test(wanted: Wanted, hosts: Sequence[str], lines: list[Line]) -> None:
    """Each node through the cluster's own key and host keys only."""
    program = Ssh.of_command(wanted.cluster.ssh.command).command[0]
    ssh = Ssh((program, "-F", str(wanted.ssh_directory / "config")), connect_timeout_s=10)
    script = f"test -d {shlex.quote(str(wanted.out))}"
    answers = Fanout(ssh, at_once=wanted.cluster.ssh.at_once).run(hosts, script, _TEST_S)
    for host, answer in answers.items():
        if answer.outcome is Outcome.FAILED and answer.status == 1:
            fix = "give --out a directory on shared storage"
            lines.append(("warning", host, f"does not see {wanted.out}, where the scripts are; {fix}"))
        elif not answer.is_done:
            lines.append(("error", host, f"cannot be reached with the cluster's own key: {answer.problem}"))
    reached = sum(answer.is_done or answer.status == 1 for answer in answers.values())
    lines.append(("note", "", f"{reached} of {len(wanted.names)} nodes answer through the cluster's own key"))
