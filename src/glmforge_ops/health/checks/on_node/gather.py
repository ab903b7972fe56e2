"""Runs probes on a node and tells what they find; one that hangs or dies costs the others nothing.

Workers, processes of their own, run one probe after the other, so that what one imports is there for the next: with a
process for each probe the node is busy for three times as long. There is one worker as long as its probes take no
time. When every worker has been with its probe for `_PATIENCE_S`, another one goes on with what is left; one that hangs
in a dead file system is given up at the end.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time

from glmforge_ops.hosts.on_node.wire import begin, say

_PATIENCE_S = 0.5
_CHUNK = 1 << 16
_STDIN = 0
"""Stays open as long as somebody waits for the answer, and says nothing more."""


def main(program: bytes) -> None:
    """Carry out one order: of each of its probes the function that it names, within `limit_s`."""
    started = time.time()
    order = begin()
    if order is None:
        return
    deadline = time.monotonic() + order["limit_s"]
    for name, source in order["shared"].items():
        module = sys.modules[name] = type(sys)(name)
        exec(compile(source, name, "exec", dont_inherit=True), module.__dict__)
    answers = gather(order, deadline)
    answers["times"] = {"facts": {"started": started, "ended": time.time()}}
    say(answers)
    os._exit(0)  # whatever hangs


def gather(order: dict, deadline: float) -> dict:
    """The facts of each probe, or why there are none."""
    crew = Crew(order)
    while time.monotonic() < deadline:
        until = min(deadline, crew.assign())
        busy = {worker.hearing: worker for worker in crew.workers if worker.name}
        if not busy:
            break
        for end in select.select([*busy, _STDIN], [], [], max(0.0, until - time.monotonic()))[0]:
            if end == _STDIN:
                crew.abandon()
            crew.hear(busy[end])
    return crew.answers()


class Crew:
    """The workers, what is left for them, and what they have found."""

    def __init__(self, order: dict) -> None:
        self._order, self._left = order, list(order["probes"])
        self._found: dict = {}
        self.workers: list = []

    def assign(self) -> float:
        """Give what is left to who is free; when somebody else would be needed, if nobody gets free."""
        while self._left:
            if all(worker.name and worker.is_slow() for worker in self.workers):
                self.workers.append(Worker(self._order, self.workers))
            free = next((worker for worker in self.workers if not worker.name), None)
            if free is None:
                return max(worker.since for worker in self.workers) + _PATIENCE_S
            free.give(self._left.pop(0))
        return float("inf")

    def hear(self, worker: Worker) -> None:
        """Take what the worker says."""
        answer = worker.hear()
        if answer is not None:
            self._found[worker.name], worker.name = answer, ""
            if worker.is_gone:
                self.workers.remove(worker)

    def abandon(self) -> None:
        """Nobody waits for answers any more: end with all that the probes have started."""
        for worker in self.workers:
            worker.kill()
        os._exit(1)

    def answers(self) -> dict:
        """Of all probes; whoever is with one still is ended."""
        for worker in self.workers:
            if worker.name:
                self._found[worker.name] = {"error": f"no answer within {self._order['limit_s']:g} s"}
                worker.kill()
            else:
                worker.leave()
        return dict({name: {"error": "there was no time left for it"} for name in self._left}, **self._found)


class Worker:
    """A process that runs the probes that it is given. `name`: the one that it is with, `since` when."""

    def __init__(self, order: dict, others: list) -> None:
        reading, self._giving = os.pipe()
        self.hearing, writing = os.pipe()
        self.name, self.since, self.is_gone, self._said = "", 0.0, False, b""
        self._pid = os.fork()
        if self._pid == 0:
            for worker in [self, *others]:
                os.close(worker._giving)
                os.close(worker.hearing)
            _work(order, reading, writing)
        os.close(reading)
        os.close(writing)

    def is_slow(self) -> bool:
        """Whether it has been with its probe for long."""
        return time.monotonic() - self.since >= _PATIENCE_S

    def give(self, name: str) -> None:
        """Have it run a probe."""
        self.name, self.since = name, time.monotonic()
        os.write(self._giving, name.encode() + b"\n")

    def hear(self) -> dict | None:
        """What it has found, once it has said so to the end."""
        chunk = os.read(self.hearing, _CHUNK)
        self._said += chunk
        self.is_gone = not chunk
        if self.is_gone:
            return {"error": "ended without an answer"}
        if not chunk.endswith(b"\n"):
            return None
        found, self._said = json.loads(self._said), b""
        return found

    def leave(self) -> None:
        """It has nothing to do any more, and ends."""
        os.close(self._giving)
        os.waitpid(self._pid, 0)

    def kill(self) -> None:
        """With all that it has started."""
        try:
            os.killpg(self._pid, signal.SIGKILL)
        except OSError:  # not there any more
            return


def _work(order: dict, reading: int, writing: int) -> None:
    """Run what comes, until nothing more comes; never returns."""
    try:
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(null, standard)
        with os.fdopen(reading, "rb") as names, os.fdopen(writing, "wb") as answers:
            for name in iter(names.readline, b""):
                answers.write(_run(name.decode().strip(), order) + b"\n")
                answers.flush()
        os._exit(0)
    finally:
        os._exit(1)


def _run(name: str, order: dict) -> bytes:
    """What a probe finds, as JSON; whatever it raises is its answer."""
    space = {"__name__": name}
    arguments = [order["arguments"]] if "arguments" in order else []
    try:
        exec(compile(order["probes"][name], name, "exec", dont_inherit=True), space)
        found = {"facts": space[order["function"]](order["cluster"], *arguments)}  # type: ignore[operator]
        return json.dumps(found).encode()
    except Exception as error:  # noqa: BLE001  # whatever it is, the other probes go on
        return json.dumps({"error": f"{type(error).__name__}: {error}"}).encode()
