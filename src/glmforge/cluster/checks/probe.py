"""Probes on their way to a node and their answers back.

A node needs Python 3.8 and nothing of ours: the probes' sources go there through ssh as one program on standard input,
which runs each in a process of its own. One that hangs in a dead file system is given up after its time, and named;
the others answer all the same.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from glmforge.cluster.checks.facts import FactError, Facts, Times
from glmforge.cluster.hosts.fanout import Answer
from glmforge.config.cluster import ClusterConfig
from glmforge.errors import HostError
from glmforge.files import parse_json, shown

COMMAND = "exec python3 -I -"
"""What runs the program on a node."""

MARK = "glmforge-facts:"
"""Begins the line of the answer; a login shell may print others."""

_TIMES = "times"
"""Stands among the probes in an answer: the node's own clock."""

_PACKAGE = "glmforge.cluster.checks.probes"
_IMPORT = re.compile(rf"^from {re.escape(_PACKAGE)}\.(\w+) import ", re.MULTILINE)
"""What probes may import from ours, whose modules go with those that do."""

_PROGRAM = r"""
import json, os, select, signal, sys, time, types

def share(modules):
    for name, source in modules.items():
        module = types.ModuleType(name)
        exec(compile(source, name, "exec"), module.__dict__)
        sys.modules[name] = module

def run(name, source, cluster):
    space = {"__name__": name}
    try:
        exec(compile(source, name, "exec"), space)
        return {"facts": space["gather"](cluster)}
    except Exception as error:
        return {"error": "%s: %s" % (type(error).__name__, error)}

def start(name, source, cluster):
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        os.close(reading)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.dup2(null, 2)
        with os.fdopen(writing, "w") as pipe:
            json.dump(run(name, source, cluster), pipe)
        os._exit(0)
    os.close(writing)
    return pid, reading

def main(shared, sources, cluster, limit_s):
    started = time.time()
    deadline = time.monotonic() + limit_s
    share(shared)
    running = {}
    answers = {}
    for name, source in sources.items():
        pid, reading = start(name, source, cluster)
        running[reading] = (name, pid, [])
    while running:
        ready = select.select(list(running), [], [], max(0, deadline - time.monotonic()))[0]
        if not ready:
            break
        for reading in ready:
            name, pid, chunks = running[reading]
            chunk = os.read(reading, 65536)
            if chunk:
                chunks.append(chunk)
                continue
            os.close(reading)
            del running[reading]
            os.waitpid(pid, 0)
            try:
                answers[name] = json.loads(b"".join(chunks))
            except ValueError:
                answers[name] = {"error": "ended without an answer"}
    for name, pid, _ in running.values():
        answers[name] = {"error": "no answer within %g s" % limit_s}
        try:
            os.killpg(pid, signal.SIGKILL)
        except OSError:
            pass
    answers[TIMES] = {"facts": {"started": started, "ended": time.time()}}
    print(MARK + json.dumps(answers), flush=True)
    os._exit(0)
"""


@dataclass(frozen=True)
class NodeFacts:
    """What one node said.

    Attributes:
        facts: by probe.
        errors: by probe, why there are no facts.
    """

    facts: Mapping[str, Facts] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)


def probe_program(names: Iterable[str], cluster: ClusterConfig, limit_s: float) -> bytes:
    """The program that gathers the facts of these probes; it takes little longer than `limit_s`."""
    return _program({name: _source(name) for name in names}, cluster, limit_s)


def action_program(
    probe: str, function: str, arguments: Mapping[str, Any], cluster: ClusterConfig, limit_s: float
) -> bytes:
    """The program that calls another function of a probe, with the cluster and the arguments of the host that is its
    own first argument; it answers like a probe.
    """
    given = f"json.loads({json.dumps(json.dumps(dict(arguments)))})[sys.argv[1]]"
    call = f"\nimport json, sys\n\ndef gather(cluster):\n    return {function}(cluster, {given})\n"
    return _program({probe: _source(probe) + call}, cluster, limit_s)


def _program(sources: Mapping[str, str], cluster: ClusterConfig, limit_s: float) -> bytes:
    settings = cluster.model_dump(mode="json")
    # JSON's ASCII text of an ASCII text is a Python literal of it; whatever a path holds stays data.
    given = (_shared(sources.values()), dict(sources), settings)
    data = ", ".join(f"json.loads({json.dumps(json.dumps(each))})" for each in given)
    return f"{_PROGRAM}\nMARK, TIMES = {MARK!r}, {_TIMES!r}\nmain({data}, {limit_s!r})\n".encode()


def read_answer(answer: Answer, names: Iterable[str]) -> NodeFacts:
    """The facts in what a node printed. Raises `HostError` if there are none to be found."""
    lines = answer.stdout.decode(errors="replace").splitlines()
    line = next((line for line in reversed(lines) if line.startswith(MARK)), None)
    if line is None:
        raise HostError(f"{answer.host}: the probe printed no facts; is its python3 at least 3.8?")
    answers = parse_json(line.removeprefix(MARK), dict, source=f"{answer.host}'s answer", error=HostError)
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


@cache
def _source(name: str) -> str:
    return files(_PACKAGE).joinpath(f"{name}.py").read_text(encoding="utf-8")
