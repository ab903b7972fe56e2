"""Requests to machines and their answers: what is done there is told as data to one fixed program.

The program is the source of `on_node`. It goes to the machine's Python through ssh, on standard input, together with
the request: no name, path or text of a user's is ever part of a command line or of a program.

Standard input stays open until the program is ready to change something, and then tells it to go on: see `turns`.
"""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from glmforge.cluster.hosts.fanout import Answer, Fanout, Outcome
from glmforge.cluster.setup.on_node import changes, facts, serve, turns
from glmforge.errors import HostError
from glmforge.files import escaped, parse_json

_MARK = b"glmforge-answer:"
_READY = f"\n{turns.READY}\n".encode()
_PROGRAM = """import json, sys
given = json.loads(sys.stdin.buffer.readline())
space = {"__name__": "glmforge_on_node"}
for source in given["sources"]:
    exec(compile(source, "glmforge", "exec", dont_inherit=True), space)
print("\\nglmforge-answer:" + json.dumps(space["answer"](given["request"], space)))
"""
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Failure:
    """A machine that did not answer, why, and what to do about it."""

    host: str
    reason: str
    mend: str


@dataclass(frozen=True)
class Asker:
    """Asks machines through `fanout`; `python` is theirs."""

    fanout: Fanout
    python: str = "python3"
    timeout_s: float = TIMEOUT_S

    def ask(
        self,
        requests: Mapping[str, Mapping[str, Any]],
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> tuple[dict[str, dict[str, Any]], list[Failure]]:
        """Answers by host, and those that gave none, whatever the reason."""
        hosts, found, failures = list(requests), dict[str, dict[str, Any]](), []
        came = 0

        def count(_: Answer) -> None:
            nonlocal came
            came += 1
            progress(came, len(hosts))

        ready = _READY if any(map(turns.changes_something, requests.values())) else b""
        answers = self.fanout.run(
            hosts, self._command, self.timeout_s, lambda host: _stdin(requests[host]), count, ready
        )
        for host, answer in answers.items():
            try:
                found[host] = _read(answer)
            except HostError as error:
                failures.append(Failure(host, str(error), answer.mend or self._mend(answer)))
                continue
            refused = found[host].get("refused")
            if refused is not None:
                del found[host]
                failures.append(Failure(host, escaped(str(refused)), "wait until no setup is running there"))
        return found, failures

    def _command(self, host: str) -> str:
        return shlex.join([self.python, "-I", "-c", _PROGRAM])

    def _mend(self, answer: Answer) -> str:
        if answer.outcome is Outcome.FAILED and answer.status == 127:
            return "install Python 3.7 or newer there"
        return f"try '{self.python} --version' there: it must be 3.7 or newer"


def here(request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of this machine."""
    return serve.serve(dict(request), {**vars(changes), **vars(facts)})


def _read(answer: Answer) -> dict[str, Any]:
    """Raises `HostError` with the reason."""
    if not answer.is_done:
        raise HostError(escaped(answer.reason))
    line = next((line for line in reversed(answer.stdout.splitlines()) if line.startswith(_MARK)), None)
    if line is None:
        raise HostError("its Python gave no answer")
    text = line.removeprefix(_MARK).decode("utf-8", "replace")
    found: dict[str, Any] = parse_json(text, dict, source="its answer", error=HostError)
    return found


def _stdin(request: Mapping[str, Any]) -> bytes:
    return json.dumps({"sources": _sources(), "request": request}).encode() + b"\n"


@cache
def _sources() -> Sequence[str]:
    names = ("facts.py", "changes.py", "serve.py", "turns.py")
    return [files("glmforge.cluster.setup.on_node").joinpath(name).read_text(encoding="utf-8") for name in names]
