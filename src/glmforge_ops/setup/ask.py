"""Requests to machines and their answers: what is done there is told as data to one fixed program, that of `on_node`.

Standard input stays open until the program is ready to change something, and then tells it to go on: see `turns`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from glmforge.errors import HostError
from glmforge.files import escaped, shown
from glmforge_ops.hosts.fanout import Answer, Fanout, Outcome
from glmforge_ops.hosts.remote_program import WIRE, RemoteProgram, read_answer
from glmforge_ops.setup.on_node import serve, turns

_NODE = "glmforge_ops.setup.on_node"
PROGRAM = RemoteProgram((WIRE, *(f"{_NODE}.{name}" for name in ("changes", "facts", "serve", "turns"))), oldest="3.7")
"""Answers one request; see `serve`."""

READY = json.dumps(turns.READY).encode() + b"\n"
"""What it says before it changes something."""

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

        ready = READY if any(map(turns.changes_something, requests.values())) else b""
        answers = self.fanout.run(
            hosts, self._script, self.timeout_s, lambda host: PROGRAM.sent(requests[host]), count, ready
        )
        for host, answer in answers.items():
            if not answer.is_done:
                failures.append(Failure(host, escaped(answer.reason), answer.mend or self._mend(answer)))
                continue
            try:
                told = read_answer(answer)
            except HostError as error:
                failures.append(Failure(host, str(error), self._mend(answer)))
                continue
            if "refused" in told:
                failures.append(Failure(host, shown(told["refused"]), "wait until no setup is running there"))
            else:
                found[host] = told
        return found, failures

    def _script(self, host: str) -> str:
        return PROGRAM.script(host, self.python)

    def _mend(self, answer: Answer) -> str:
        if answer.outcome is Outcome.FAILED and answer.status == 127:
            return "install Python 3.7 or newer there"
        return f"try '{self.python} --version' there: it must be 3.7 or newer"


def here(request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of this machine."""
    return serve.serve(dict(request))
