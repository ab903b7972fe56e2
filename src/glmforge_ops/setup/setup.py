"""Setting up a cluster: ask, plan, change, test. Eight steps, of which each says what is to be there.

What is there already is left alone: after a setup another one finds nothing to change. Every change is written to a
journal first, so that an interrupted setup can be run again or undone.

Machines are reached as the user reaches them now; the cluster's own key and list of host keys are for what comes
after, and the last step tests that they suffice.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from glmforge.config.cluster import ClusterConfig
from glmforge.errors import HostError
from glmforge.files import kind_of, read_text, shown
from glmforge.runtime.hostfile import LOCAL
from glmforge_ops.hosts.fanout import Fanout
from glmforge_ops.hosts.machines import ssh_of
from glmforge_ops.setup import keys
from glmforge_ops.setup.ask import Asker, Failure, here
from glmforge_ops.setup.change import HERE, Change, Planned
from glmforge_ops.setup.journal import NAME as JOURNAL
from glmforge_ops.setup.journal import Entry, Journal
from glmforge_ops.setup.known_hosts import (
    HostKey,
    KnownHosts,
    Place,
    Trust,
    decide,
    known_already,
    places_of,
    scan,
)
from glmforge_ops.setup.on_node.changes import is_done
from glmforge_ops.setup.plan import Context, Plan, Problem, Step
from glmforge_ops.setup.steps import files
from glmforge_ops.setup.steps.local_disks import local_disks
from glmforge_ops.setup.steps.network import network
from glmforge_ops.setup.steps.prerequisites import prerequisites
from glmforge_ops.setup.steps.tests import run_tests
from glmforge_ops.setup.undo import Undone, undo
from glmforge_ops.setup.wanted import Wanted

Key = tuple[str, str, str]
Progress = Callable[[str, int, int], None]
_STEPS = (
    prerequisites, local_disks, network, files.hostfile, files.ssh, files.launch_script, files.job_script,
)  # fmt: skip
_TO_BE_MADE = "ssh-ed25519 (the public key that setup makes)"
_MAX_KNOWN_HOSTS = 64 << 20


@dataclass(frozen=True)
class Options:
    """How setup goes about it.

    Attributes:
        dry_run: plan only; no key is made.
        offline: connect to nothing; the plan is that of nodes with nothing on them.
        accepted: fingerprints of host keys by host.
        confirm: asked about host keys that nobody has accepted; None: nobody is there to be asked.
        force: replace files that somebody changed since setup wrote them, or that it did not write.
    """

    dry_run: bool = False
    offline: bool = False
    accepted: Mapping[str, set[str]] = field(default_factory=dict)
    confirm: Callable[[Sequence[HostKey]], bool] | None = None
    force: bool = False


class Setup:
    """One setup of `wanted`."""

    def __init__(self, wanted: Wanted, options: Options, progress: Progress = lambda what, done, total: None) -> None:
        self.wanted, self.options, self.progress = wanted, options, progress
        self._found: Mapping[str, Place] = {}
        self._remote = [name for name in wanted.names if name not in LOCAL]

    def plan(self, journal: Journal) -> Plan:
        """What is to be done. Nothing is changed, here or elsewhere."""
        places = self._found = {} if self.options.offline else self._places()
        trust = Trust() if self.options.offline else self._trust(places)
        pair, key_files = self._keys()
        context = Context(self.wanted, {}, places, "", pair.authorized, key_files, offline=True)
        answers, failures = self._ask(context, trust)
        trust.lines = {host: lines for host, lines in trust.lines.items() if host in answers}
        if not self.options.offline:
            facts = {host: answer["facts"] for host, answer in answers.items()}
            _refuse_real_homes(facts)
            context = replace(context, facts=facts, known_hosts=self._known_text(trust), offline=False)
        steps = [step(context) for step in _STEPS]
        steps[0].problems += _problems(failures, trust, self.wanted)
        self._find_changes(steps, {host: answer["states"] for host, answer in answers.items()}, journal)
        steps.insert(5, self._test_notes())
        return Plan(steps, trust.new)

    def run(self, journal: Journal) -> tuple[Plan, list[Problem], Step]:
        """Plan, change and test: the plan, what went wrong in making it, and what the tests found."""
        plan = self.plan(journal)
        problems = self.carry_out(plan, journal)
        ports = {host: place.port for host, place in self._found.items()}
        return plan, problems, run_tests(self.wanted, ports, lambda done, total: self.progress("testing", done, total))

    def carry_out(self, plan: Plan, journal: Journal) -> list[Problem]:
        """Make the plan's changes; what went wrong, on which machines. The rest is done."""
        own = str(self.wanted.ssh_directory)
        here_first = [each for each in plan.changes if each.change.host == HERE and each.change.path.startswith(own)]
        here_last = [each for each in plan.changes if each.change.host == HERE and each not in here_first]
        on_nodes = [each for each in plan.changes if each.change.host != HERE]
        problems = self._apply_here(here_first, journal)
        if on_nodes:
            with nodes_asker(self.wanted.cluster, self._known_text(Trust())) as asker:
                problems += self._apply_on_nodes(on_nodes, journal, asker)
        return problems + self._apply_here(here_last, journal)

    def _places(self) -> dict[str, Place]:
        places = places_of(ssh_of(self.wanted.cluster), self._remote)
        wrong = next((host for host in self._remote if host not in places), None)
        if wrong is not None:
            raise HostError(f"{shown(wrong)}: ssh's configuration gives no address for it; try 'ssh -G {shown(wrong)}'")
        return places

    def _trust(self, places: Mapping[str, Place]) -> Trust:
        """What is known of every machine's key, after those that are new were shown to whoever decides."""
        own = KnownHosts(self._known_text(Trust()))
        unknown = [place for place in places.values() if place.lookup not in own]
        known = known_already(unknown)
        new = scan([place for place in unknown if place.host not in known]) if unknown else {}
        trust = decide(new, self.options.accepted)
        if trust.new and self.options.confirm is not None and self.options.confirm(trust.new):
            for key in trust.new:
                trust.lines.setdefault(key.place.host, []).append(key.line)
                trust.refused.pop(key.place.host, None)
            trust.new = []
        trust.lines |= {host: [key.line for key in of_host] for host, of_host in known.items()}
        return trust

    def _known_text(self, trust: Trust) -> str:
        """The cluster's own file of host keys with what is to be added."""
        text = _own_known_hosts(self.wanted.out)
        return text + "".join(f"{line}\n" for host in self._remote for line in trust.lines.get(host, ()))

    def _ask(self, context: Context, trust: Trust) -> tuple[dict[str, dict[str, Any]], list[Failure]]:
        """Facts of every node, and the states that changes there would meet; in one connection to each.

        `context` knows no facts: the changes are all that there might be.
        """
        of_host: dict[str, list[Change]] = {host: [] for host in self.wanted.names}
        for change in (change for step in _STEPS for change in step(context).wanted if change.host != HERE):
            of_host[change.host].append(change)
        if self.options.offline:
            nothing = {"kind": "absent"}
            return {host: {"states": {key_of(each): nothing for each in some}} for host, some in of_host.items()}, []
        paths = [str(self.wanted.out)]
        if self.wanted.cluster.local_path is not None:
            paths += [str(self.wanted.cluster.local_path), str(self.wanted.cluster.local_path / "glmforge")]
        facts = {"paths": paths, "names": [self.wanted.master_addr], "python": self.wanted.cluster.python}
        requests = {
            host: {"facts": facts, "look": [change.record() for change in some]}
            for host, some in of_host.items()
            if host not in trust.refused
        }
        with nodes_asker(self.wanted.cluster, self._known_text(trust)) as asker:
            answers, failures = asker.ask(requests, lambda done, total: self.progress("asking", done, total))
        for host, answer in answers.items():
            answer["states"] = dict(zip(map(key_of, of_host[host]), answer["look"], strict=True))
        return answers, failures

    def _keys(self) -> tuple[keys.KeyPair, list[Change]]:
        """The pair and, if it is new, its files."""
        directory = self.wanted.ssh_directory
        there = kind_of(directory / keys.NAME, error=HostError) is not None
        if not self._remote or (self.options.dry_run and not there):
            pair = keys.KeyPair(_TO_BE_MADE, "")
        else:
            pair = keys.find_or_make_keys(directory, f"glmforge-{self.wanted.cluster.name}")
        if pair.private is None:
            return pair, []
        return pair, [
            Change(HERE, "file", str(directory / keys.NAME), 0o600, pair.private, secret=True),
            Change(HERE, "file", str(directory / f"{keys.NAME}.pub"), 0o644, pair.public),
        ]

    def _find_changes(self, steps: list[Step], states: Mapping[str, Mapping[Key, Any]], journal: Journal) -> None:
        """Fill in the changes of each step: what it wants and is not there yet."""
        for step in steps:
            for change in step.wanted:
                found = here({"look": [change.record()]})["look"][0] if change.host == HERE else None
                state = found or states[change.host][key_of(change)]
                if is_done(change.record(), state):
                    continue
                problem = None if self.options.force else _in_the_way(change, state, journal)
                if problem is not None:
                    step.problems.append(problem)
                    continue
                step.changes.append(Planned(change, state))

    def _apply_here(self, planned: list[Planned], journal: Journal) -> list[Problem]:
        entries = journal.intend(planned)
        return _settle(journal, entries, here({"apply": _to_apply(planned)})["apply"])

    def _apply_on_nodes(self, planned: list[Planned], journal: Journal, asker: Asker) -> list[Problem]:
        of_host: dict[str, list[Planned]] = {}
        for each in planned:
            of_host.setdefault(each.change.host, []).append(each)
        intended = {host: journal.intend(some) for host, some in of_host.items()}
        requests = {host: {"apply": _to_apply(some)} for host, some in of_host.items()}
        answers, failures = asker.ask(requests, lambda done, total: self.progress("changing", done, total))
        problems = [Problem(failure.reason, failure.mend, (failure.host,)) for failure in failures]
        for host, answer in answers.items():
            problems += _settle(journal, intended[host], answer["apply"])
        return problems

    def _test_notes(self) -> Step:
        step = Step("Connectivity and GPU tests")
        step.notes.append(
            f"after the changes: every node through the cluster's own key, its {self.wanted.cluster.gpus_per_node} "
            f"GPUs, its way to the next node, and port {self.wanted.cluster.master_port} of {self.wanted.master_addr}"
        )
        return step


@contextmanager
def nodes_asker(cluster: ClusterConfig, known: str) -> Iterator[Asker]:
    """Reaches machines as the user reaches them, who knows the host keys in `known` besides their own."""
    ssh = ssh_of(cluster)
    with tempfile.TemporaryDirectory(prefix="glmforge-ssh-") as directory:
        file = Path(directory, "known_hosts")
        file.write_text(known)
        more = ("-o", f"GlobalKnownHostsFile={file} /etc/ssh/ssh_known_hosts")
        yield Asker(Fanout(replace(ssh, command=(*ssh.command, *more)), at_once=cluster.ssh.at_once))


def undo_setup(cluster: ClusterConfig, out: Path, progress: Callable[[int, int], None]) -> Undone:
    """Take back what setups with this directory have changed. Raises `HostError` if there was none."""
    if kind_of(out / JOURNAL, error=HostError) is None:
        raise HostError(f"{shown(out)}: holds no journal of a setup; give --out as setup had it")
    with Journal.opened(out) as journal, nodes_asker(cluster, _own_known_hosts(out)) as asker:
        return undo(journal, asker, progress)


def _own_known_hosts(out: Path) -> str:
    file = out / "ssh" / "known_hosts"
    there = kind_of(file, error=HostError) is not None
    return read_text(file, error=HostError, max_bytes=_MAX_KNOWN_HOSTS) if there else ""


def _refuse_real_homes(facts: Mapping[str, Mapping[str, Any]]) -> None:
    """Of a development cluster whose hosts have the home directory of the machine's user: a key in there would open
    this machine, and no host. Raises `HostError`."""
    hosts = [host for host, of_host in facts.items() if of_host["home_is_users"]]
    if hosts:
        raise HostError(
            f"{hosts[0]}: is of a development cluster and has your own home directory; setup is for one that is "
            "brought up with 'glmforge cluster dev up --bare'; nothing was changed"
        )


def key_of(change: Change) -> Key:
    return change.kind, change.path, change.text


def _to_apply(planned: Sequence[Planned]) -> list[list[Any]]:
    return [[each.change.record(), dict(each.before)] for each in planned]


def _settle(journal: Journal, entries: list[Entry], said: list[str]) -> list[Problem]:
    pairs = list(zip(entries, said, strict=True))
    journal.settle("made", [entry for entry, reason in pairs if not reason])
    journal.settle("not_made", [entry for entry, reason in pairs if reason])
    return [Problem(reason, "", (entry.host,) if entry.host else ()) for entry, reason in pairs if reason]


def _in_the_way(change: Change, state: Mapping[str, Any], journal: Journal) -> Problem | None:
    """Why the change must not be made as things are."""
    hosts = (change.host,) if change.host else ()
    path = shown(change.path)
    if change.kind != "directory" and state["kind"] not in ("absent", "file"):
        return Problem(f"{path} is a {state['kind']}, not a file", "move it away", hosts)
    if change.kind == "directory" and state["kind"] != "absent":
        return Problem(f"{path} is a {state['kind']}, not a directory", "move it away", hosts)
    if change.kind == "file" and state["kind"] == "file" and not change.secret:
        text = state.get("text")
        if text is None:
            return Problem(f"{path} is there and is no short text file", "move it away", hosts)
        ours = state["sha256"] == journal.written(change.host, change.path)
        if not ours and not (change.adds and change.text.startswith(text)):
            return Problem(
                f"{path} has been changed, or is not setup's",
                "look at it with --dry-run --force, which shows the difference, and replace it with --force",
                hosts,
            )
    return None


def _problems(failures: Sequence[Failure], trust: Trust, wanted: Wanted) -> list[Problem]:
    groups: dict[tuple[str, str], list[str]] = {}
    for failure in failures:
        groups.setdefault((failure.reason, failure.mend), []).append(failure.host)
    problems = [Problem(reason, mend, tuple(hosts)) for (reason, mend), hosts in groups.items()]
    mend = "compare its fingerprint with what the machine itself says, and give --accept-host-keys FILE"
    problems += [Problem(reason, mend, (host,)) for host, reason in trust.refused.items()]
    lost = {failure.host for failure in failures} | set(trust.refused)
    if wanted.master_host in lost:
        text = f"the master, {wanted.master_addr}, is not reached"
        problems.append(Problem(text, "mend that, or give another --master-addr"))
    return problems
