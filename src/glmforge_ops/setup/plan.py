"""What setup would do, step by step: changes that are still to be made, and what stands in the way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from glmforge_ops.hosts.fold import fold_hosts
from glmforge_ops.setup.change import Change, Planned
from glmforge_ops.setup.known_hosts import HostKey, Place
from glmforge_ops.setup.wanted import Wanted


@dataclass(frozen=True)
class Problem:
    """Something that setup cannot mend, in words, on some machines (none: this one).

    `is_error`: the cluster is not set up as long as it stands; otherwise only worth knowing.
    """

    text: str
    mend: str
    hosts: tuple[str, ...] = ()
    is_error: bool = True

    def __str__(self) -> str:
        where = f"{fold_hosts(self.hosts)}: " if self.hosts else ""
        return f"{where}{self.text}" + (f"; {self.mend}" if self.mend else "")


@dataclass
class Step:
    """One of the eight. `notes`: what was found or will be done, in words."""

    title: str
    wanted: list[Change] = field(default_factory=list)
    changes: list[Planned] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Context:
    """What steps are made from.

    Attributes:
        facts: by machine, of those that answered; see `on_node.facts`.
        places: by machine, where ssh leads.
        known_hosts: what the cluster's own file of host keys is to hold.
        authorized: the line that lets the cluster's key in.
        key_files: of the pair, if it is new.
        offline: nothing was asked; what is there is not known.
    """

    wanted: Wanted
    facts: Mapping[str, Mapping[str, Any]]
    places: Mapping[str, Place]
    known_hosts: str
    authorized: str
    key_files: Sequence[Change] = ()
    offline: bool = False


@dataclass
class Plan:
    """All steps in their order; `new_keys`: host keys that somebody has to compare and accept."""

    steps: list[Step]
    new_keys: list[HostKey] = field(default_factory=list)

    @property
    def changes(self) -> list[Planned]:
        return [change for step in self.steps for change in step.changes]

    @property
    def problems(self) -> list[Problem]:
        return [problem for step in self.steps for problem in step.problems]

    @property
    def has_errors(self) -> bool:
        return any(problem.is_error for problem in self.problems)


def problems_by_text(of_hosts: Mapping[str, tuple[str, str]], is_error: bool = True) -> list[Problem]:
    """One problem for each text, with all machines that have it; `of_hosts`: text and mend."""
    groups: dict[tuple[str, str], list[str]] = {}
    for host, said in of_hosts.items():
        groups.setdefault(said, []).append(host)
    return [Problem(text, mend, tuple(hosts), is_error) for (text, mend), hosts in groups.items()]
