"""What a check is: a name, what it finds out, and one of three ways of doing so.

- `judge`: from what one node says of itself (facts of the probe of the same subject);
- `compare`: from what all nodes say, for what must be equal everywhere;
- `act`: by doing something with the nodes, such as starting a job.

Checks of one subject stand in one module, which lists them as `CHECKS`; `registry.py` knows the modules.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from glmforge.config.cluster import ClusterConfig
from glmforge.runtime.hostfile import HostLine
from glmforge_ops.health.checks.facts import Facts
from glmforge_ops.health.checks.outcome import Outcome
from glmforge_ops.health.checks.thresholds import Thresholds
from glmforge_ops.hosts.fanout import Fanout


class Level(IntEnum):
    """How long a node may be kept busy: before every job (seconds), by hand (a minute), after a repair (minutes)."""

    QUICK = 0
    STANDARD = 1
    THOROUGH = 2


@dataclass(frozen=True)
class Context:
    """What checks hold facts against."""

    cluster: ClusterConfig
    thresholds: Thresholds
    machines: Mapping[str, HostLine] = field(default_factory=dict)


@dataclass(frozen=True)
class Session:
    """What a check needs that does something: the machines that answered, and the way to ask them."""

    context: Context
    hosts: list[str]
    fanout: Fanout
    facts: Mapping[str, Mapping[str, Facts]]
    """By host, then by probe."""


Judge = Callable[[Facts, Context], Outcome]
Compare = Callable[[Mapping[str, Facts], Context], Mapping[str, Outcome]]
Act = Callable[[Session], Mapping[str, Outcome]]


@dataclass(frozen=True)
class Check:
    """One thing that is found out about every machine.

    Attributes:
        name: "subject.thing", as users name it: "disk.free".
        about: what it finds out, in one line.
        level: the lowest level at which it runs.
        probe: whose facts `judge` and `compare` read; for `act` those that it needs, or none.
    """

    name: str
    about: str
    level: Level
    probe: str = ""
    judge: Judge | None = None
    compare: Compare | None = None
    act: Act | None = None

    def __post_init__(self) -> None:
        ways = [way for way in (self.judge, self.compare, self.act) if way is not None]
        assert len(ways) == 1, f"{self.name} has {len(ways)} ways of finding out"
        assert self.probe or self.act is not None, f"{self.name}: a probe is what judge and compare read"
