"""The quick look at one machine: its facts, what the quick checks say of them, and its environment variables.

The facts come through the probes of the checks, each in a process of its own with a time limit: a dead file server or a
broken GPU costs the part that it concerns, not the page.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from glmforge.config.cluster import ClusterConfig
from glmforge.runtime.hostfile import LOCAL
from glmforge_ops.environment.lint import Finding, lint_environment
from glmforge_ops.health.checks.check import Check, Context, Level
from glmforge_ops.health.checks.examine import REACH, examine
from glmforge_ops.health.checks.facts import Facts
from glmforge_ops.health.checks.outcome import Outcome, Status, passed
from glmforge_ops.health.checks.registry import choose_checks
from glmforge_ops.health.checks.thresholds import Thresholds
from glmforge_ops.hosts.machines import fanout_of

PACKAGES = ("glmforge", "torch", "numpy", "triton", "tokenizers", "transformers", "deepspeed", "nvidia-nccl-cu12")
"""Whose versions are told where they are installed."""
PARTS = ("overview", "overview_mounts", "gpu")
"""Probes whose facts stand on the page."""
_OF_A_LOGIN = ("environment", "versions")
"""Probes of what a login there would have; here the environment and the Python of this process count."""
_LIMIT_S = 10.0
_HERE = LOCAL[0]


@dataclass(frozen=True)
class Health:
    """All that a look found out.

    Attributes:
        facts: by probe; a probe that gave none is missing, and in `lost`.
        lost: by probe, why there are no facts.
        outcomes: verdicts of the quick checks.
        versions: of packages in this Python.
    """

    facts: Mapping[str, Facts]
    lost: Mapping[str, str]
    outcomes: Mapping[str, Outcome]
    versions: Mapping[str, str]
    environment: tuple[Finding, ...] = field(default=())

    def count(self, status: Status) -> int:
        """Verdicts of a kind: of checks, of each variable that is wrong, or of the environment that is right."""
        severities = {Status.FAIL: "error", Status.WARNING: "warning"}
        found = sum(outcome.status is status for outcome in self.outcomes.values())
        found += status is Status.PASS and not self.environment
        found += len(self.lost) if status is Status.FAIL else 0
        return found + sum(finding.severity == severities.get(status) for finding in self.environment)

    def exit_status(self, strict: bool) -> int:
        """0 if nothing failed; `strict`: and nothing is to be warned of."""
        return 1 if self.count(Status.FAIL) or (strict and self.count(Status.WARNING)) else 0


def look(cluster: ClusterConfig | None = None, environment: Mapping[str, str] = os.environ) -> Health:
    """Look at this machine; without a `cluster` no more is expected of it than what it has."""
    if cluster is None:
        cluster = ClusterConfig(nodes=[_HERE], gpus_per_node=len(list(Path("/dev").glob("nvidia[0-9]*"))))
    facts: dict[str, Facts] = {}
    own = [_keep(name, facts) for name in PARTS]
    checks = [one for one in choose_checks(Level.QUICK) if one.judge is not None and one.probe not in _OF_A_LOGIN]
    context = Context(cluster, Thresholds(cluster.thresholds))
    findings = examine([_HERE], [*own, *checks], context, fanout_of(cluster), probe_limit_s=_LIMIT_S)
    outcomes = {name: of_hosts[_HERE] for name, of_hosts in findings.outcomes.items()}
    reached = {} if outcomes[REACH].status is Status.PASS else {REACH: outcomes[REACH]}
    return Health(
        facts=facts,
        lost={name: outcomes[name].value for name in PARTS if name not in facts},
        outcomes=reached | {check.name: outcomes[check.name] for check in checks},
        versions=installed_versions(),
        environment=tuple(lint_environment(environment)),
    )


def _keep(name: str, facts: dict[str, Facts]) -> Check:
    """A check that judges nothing, so that the facts of its probe come back with those of the others."""

    def keep(found: Facts, context: Context) -> Outcome:
        facts[name] = found
        return passed("")

    return Check(name, "facts of the page", Level.QUICK, name, judge=keep)


def installed_versions() -> dict[str, str]:
    """Of the packages that are installed; nothing is imported."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
