"""Probes on their way to a node and their answers back.

A node needs Python 3.8 and nothing of ours: the probes' sources go there with the program that runs them
(`on_node.gather`), only those that are asked for.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from glmforge.config.cluster import ClusterConfig
from glmforge.files import shown
from glmforge_ops.health.checks.facts import FactError, Facts, Times
from glmforge_ops.hosts.fanout import Answer
from glmforge_ops.hosts.remote_program import WIRE, RemoteProgram, read_answer, source_of

PROGRAM = RemoteProgram((WIRE, "glmforge_ops.health.checks.on_node.gather"), oldest="3.8")
"""Runs probes on a node."""

_TIMES = "times"
"""Stands among the probes in an answer: the node's own clock."""

_PACKAGE = "glmforge_ops.health.checks.probes"
_IMPORT = re.compile(rf"^from {re.escape(_PACKAGE)}\.(\w+) import ", re.MULTILINE)
"""What probes may import from ours, whose modules go with those that do."""


@dataclass(frozen=True)
class NodeFacts:
    """What one node said.

    Attributes:
        facts: by probe.
        errors: by probe, why there are no facts.
    """

    facts: Mapping[str, Facts] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)


def ask_for_facts(names: Iterable[str], cluster: ClusterConfig, limit_s: float) -> bytes:
    """What `PROGRAM` is sent to gather the facts of these probes; it takes little longer than `limit_s`."""
    return PROGRAM.sent(_order(names, "gather", cluster, limit_s))


def ask_to_act(
    probe: str, function: str, arguments: Mapping[str, Mapping[str, Any]], cluster: ClusterConfig, limit_s: float
) -> Callable[[str], bytes]:
    """What it is sent, by host, to call another function of a probe with the cluster and the host's own arguments; it
    answers like a probe.
    """
    order = _order([probe], function, cluster, limit_s)
    return lambda host: PROGRAM.sent(order | {"arguments": dict(arguments[host])})


def _order(names: Iterable[str], function: str, cluster: ClusterConfig, limit_s: float) -> dict[str, Any]:
    probes = {name: _source(name) for name in names}
    return {
        "shared": _shared(probes.values()),
        "probes": probes,
        "function": function,
        "cluster": cluster.model_dump(mode="json"),
        "limit_s": limit_s,
    }


def read_facts(answer: Answer, names: Iterable[str]) -> NodeFacts:
    """The facts in what a node printed. Raises `HostError` if there are none to be found."""
    answers = read_answer(answer)
    times = _times(answers.get(_TIMES), answer)
    facts: dict[str, Facts] = {}
    errors: dict[str, str] = {}
    for name in names:
        found = answers.get(name)
        if isinstance(found, dict) and isinstance(found.get("facts"), dict):
            facts[name] = Facts(found["facts"], times)
        else:
            errors[name] = shown(found.get("error")) if isinstance(found, dict) else "no answer"
    return NodeFacts(facts, errors)


def _times(found: Any, answer: Answer) -> Times | None:
    """None if the node does not tell; who wants them says so."""
    try:
        clock = Facts(found["facts"] if isinstance(found, dict) and isinstance(found.get("facts"), dict) else {})
        started, ended = clock.number("started"), clock.number("ended")
    except FactError:
        return None
    if started is None or ended is None:
        return None
    return Times(answer.asked_at, started, ended, answer.asked_at + answer.seconds)


def _shared(sources: Iterable[str]) -> dict[str, str]:
    """The modules that these import from ours, each after what it imports itself."""
    found: dict[str, str] = {}
    for text in sources:
        for name in _IMPORT.findall(text):
            source = _source(name)
            found |= {**_shared([source]), f"{_PACKAGE}.{name}": source}
    return found


def _source(name: str) -> str:
    return source_of(f"{_PACKAGE}.{name}")
