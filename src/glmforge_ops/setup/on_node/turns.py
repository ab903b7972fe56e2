"""Changes on a machine one request after the other, and none of a request whose asker is gone.

A setup that is killed leaves requests behind that are still on their way. None of them may change anything after
somebody has looked at the machine for running the setup again or undoing it. So a request that changes something first
takes the machine's turn, then says that it is `READY`, and goes on only when told to within a limit: who is gone tells
nothing any more. Whoever looks or changes waits until the turn is free. What could still be told to go on had its turn
before its asker ended, so it is waited for; what comes later is never told.

The turn is an abstract socket: it leaves nothing in a file system, does not ask which file systems have locks, and is
given back by the kernel however its holder ends.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import sys
import time

from glmforge_ops.hosts.on_node.wire import begin, say
from glmforge_ops.setup.on_node.serve import serve

TYPE_CHECKING = False  # as in typing, whose import takes long
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

READY = {"ready": True}
GO_LIMIT_S = 45.0
"""How long a request waits to be told to go on."""
TURN_LIMIT_S = 80.0
"""How long a request waits for its turn: more than another one waits, with the time for its changes."""
_AGAIN_S = 0.05


def main(program: bytes) -> None:
    """Answer one request."""
    request = begin()
    if request is not None:
        say(answer(request))


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """What `serve` answers to the request when it has its turn; `{"refused": why}` if it does not get it."""
    with contextlib.ExitStack() as held:
        try:
            if changes_something(request):
                held.enter_context(_turn())
            elif "look" in request:
                _wait_while_others_change()
        except TimeoutError:
            return {"refused": "another setup has been changing it for " + str(int(TURN_LIMIT_S)) + " s"}
        if changes_something(request) and not _is_told_to_go_on():
            return {"refused": "it was not told to go on, and has changed nothing"}
        return serve(request)


def changes_something(request: Mapping[str, Any]) -> bool:
    """Whether it waits for its turn and to be told to go on."""
    return "apply" in request or "undo" in request


def _name() -> str:
    return "\0glmforge-setup-" + str(os.getuid())


@contextlib.contextmanager
def _turn() -> Iterator[None]:
    """Raises TimeoutError."""
    until = time.monotonic() + TURN_LIMIT_S
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as holder:
        while True:
            try:
                holder.bind(_name())
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            _wait_a_little(until)
        yield


def _wait_while_others_change() -> None:
    """Raises TimeoutError."""
    until = time.monotonic() + TURN_LIMIT_S
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(_name())
            except ConnectionRefusedError:  # nobody has the name
                return
        _wait_a_little(until)


def _wait_a_little(until: float) -> None:
    if time.monotonic() > until:
        raise TimeoutError
    time.sleep(_AGAIN_S)


def _is_told_to_go_on() -> bool:
    """Whether a line comes, rather than the end of input or nothing."""
    say(READY)
    came, _, _ = select.select([sys.stdin.buffer], [], [], GO_LIMIT_S)
    return bool(came and sys.stdin.buffer.readline().endswith(b"\n"))
