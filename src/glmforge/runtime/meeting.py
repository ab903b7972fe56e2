"""How the processes of a job find each other, and whether they belong together.

Rank 0 keeps a store at MASTER_ADDR:MASTER_PORT, and all others come there. Where people start nodes by hand, one is
started late, under a wrong address, or with other files than its neighbour. Whatever it is, each node says it in one
line and ends, rather than waiting for a collective that never comes:

* Rank 0 listens, and calls itself by the address that the others were given: a port in use, and an address that leads
  elsewhere, are its own to tell.
* The others try to reach it for a stated time, and say what they try and how long they will.
* Rank 0 waits for them as long, says for whom, and tells those who came if it is in vain.
* The first process of each node compares what must agree (revision, settings) with what rank 0 has.

Under torchrun its agents have met before, and keep the store.
"""

import atexit
import errno
import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from itertools import groupby

import torch.distributed as dist

from glmforge.errors import GlmforgeError
from glmforge.runtime.launch import LaunchEnvironment
from glmforge.runtime.process import this_process

logger = logging.getLogger(__name__)

Facts = Callable[[], Mapping[str, str]]
"""What must agree on all nodes: name -> value, both in words."""

_SAY_EVERY_S = 10.0
_ATTEMPT_S = 5.0
"""For a connection, before the next is tried."""
_PAUSE_S = 0.5
_POLL_S = 0.05
_AGENT_S = 10.0
"""For torchrun's store, which is there before the ranks are, or has gone with torchrun."""
_FAREWELL_S = 5.0
"""How long rank 0 keeps the store for those who have yet to read why it ends."""
_LISTED_RANKS = 512
"""In larger jobs asking after every rank would be too much for the store."""
_NAMED = 4


class MeetingError(GlmforgeError):
    """The processes of a job did not find each other, or do not belong together."""


def open_store(launch: LaunchEnvironment, *, wait_s: float, timeout_s: float) -> dist.Store:
    """This process's client of the job's store, of its current attempt to run. Rank 0 keeps it unless torchrun does.

    Args:
        wait_s: how long rank 0 is tried to be reached.
        timeout_s: for what is later asked of the store.

    Raises `MeetingError`.
    """
    _met.set()
    address, port = launch.meeting_point()
    timeout = timedelta(seconds=timeout_s)
    if launch.agent_serves or launch.rank != 0:
        _reach(launch, address, port, min(wait_s, _AGENT_S) if launch.agent_serves else wait_s)
        return _of_attempt(_client(launch, timeout), launch)
    listener = _listen(address, port)
    store = dist.TCPStore(
        address,
        port,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    return _of_attempt(store, launch)


_met = threading.Event()
"""Set once this process has looked for others, and may have a process group."""


def end_if_met(ended: SystemExit) -> None:
    """End a process that has had a process group as `ended` says, without freeing anything.

    Gloo's threads live as long as the group, which what PyTorch caches keeps from being freed. One that has yet to free
    a tensor waits for the interpreter's lock; where the interpreter ends meanwhile, that aborts the process ("terminate
    called without an active exception"), after all work was done.
    """
    if _met.is_set():
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended.code if isinstance(ended.code, int) else int(ended.code is not None))


def reopen_store(launch: LaunchEnvironment, *, timeout_s: float) -> dist.Store:
    """Another client of the store, for another thread."""
    return _of_attempt(_client(launch, timedelta(seconds=timeout_s)), launch)


def roll_call(store: dist.Store, launch: LaunchEnvironment, facts: Facts, *, wait_s: float) -> None:
    """Wait until all ranks have come and each node agrees with rank 0.

    Raises `MeetingError`, on all ranks that have come, if they do not within `wait_s` seconds or do not agree.
    """
    address, port = launch.meeting_point()
    try:
        if (
            not launch.agent_serves
        ):  # torchrun numbers the ranks, and starts others under the same attempt for lost ones
            _take_seat(store, launch)
        refusal = _compare(store, launch, facts)
        if refusal is not None:
            store.set("refusal", refusal)
            raise MeetingError(refusal)
        store.set(f"here/{launch.rank}", "")
        store.add("here", 1)
        waits = _wait_for_all if launch.rank == 0 else _wait_for_verdict
        verdict = waits(store, launch, wait_s)
    except dist.DistError as error:
        raise MeetingError(
            f"rank 0 at {address}:{port} has ended before all {launch.world_size} ranks were there: it says why on its "
            "node; start all nodes again"
        ) from error
    if verdict:
        raise MeetingError(verdict)


def _compare(store: dist.Store, launch: LaunchEnvironment, facts: Facts) -> str | None:
    """What of `facts` is otherwise on this node than on that of rank 0, in words; None if nothing is.

    The first process of each node looks.
    """
    if launch.num_nodes == 1:
        return None
    if launch.rank == 0:
        store.set("facts", json.dumps({"host": socket.gethostname(), "facts": dict(facts())}))
    if launch.rank == 0 or not launch.is_first_of_node:
        return None
    said, own = json.loads(store.get("facts")), facts()
    expected: dict[str, str] = said["facts"]
    names = [name for name in {**expected, **own} if expected.get(name) != own.get(name)]
    if not names:
        return None
    others = [f"{name} is {own.get(name, 'not set')}, not {expected.get(name, 'left out')}" for name in names[:_NAMED]]
    more = f"; and {len(names) - _NAMED} more differ" if len(names) > _NAMED else ""
    return (
        f"node {socket.gethostname()} (rank {launch.rank}) differs from node {said['host']} (rank 0): "
        f"{'; '.join(others)}{more}. Start all nodes with the same glmforge, configuration and settings"
    )


def _of_attempt(store: dist.Store, launch: LaunchEnvironment) -> dist.Store:
    """Apart from earlier attempts, of which the agent's store still has what the killed processes left."""
    return dist.PrefixStore(f"glmforge/attempt-{launch.attempt}", store)


def _listen(address: str, port: int) -> socket.socket:
    """A socket of this machine to which `address` leads."""
    host, dual = socket.gethostname(), socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        listener = socket.create_server(("", port), family=family, backlog=socket.SOMAXCONN, dualstack_ipv6=dual)
    except OSError as error:
        what = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be listened on ({error.strerror})"
        raise MeetingError(
            f"port {port} (MASTER_PORT) of {host} {what}: end what listens there, or give all nodes another port"
        ) from error
    listener.settimeout(_ATTEMPT_S)
    try:
        with socket.create_connection((address, port), _ATTEMPT_S):
            listener.accept()[0].close()  # whoever it is: the address leads here
    except OSError as error:
        listener.close()
        raise MeetingError(
            f"MASTER_ADDR {address} does not lead to {host}, where rank 0 is ({_reason(error)}): give all nodes an "
            f"address of {host}, or start node 0 where {address} leads"
        ) from error
    listener.settimeout(None)
    return listener


def _reach(launch: LaunchEnvironment, address: str, port: int, wait_s: float) -> None:
    """Return as soon as a process listens where rank 0, or torchrun, keeps the store."""
    started = said = time.monotonic()
    said -= _SAY_EVERY_S
    while True:
        try:
            socket.create_connection((address, port), _ATTEMPT_S).close()
            return
        except OSError as error:
            reason = _reason(error)
        now = time.monotonic()
        left = started + wait_s - now
        if left <= 0 and launch.agent_serves:
            raise MeetingError(
                f"rank {launch.rank} on {socket.gethostname()} did not reach torchrun at {address}:{port} within "
                f"{wait_s:g} s: {reason}; it has ended, or a firewall is between: start all nodes again"
            )
        if left <= 0:
            raise MeetingError(
                f"rank {launch.rank} on {socket.gethostname()} did not reach rank 0 at {address}:{port} (MASTER_ADDR, "
                f"MASTER_PORT) within {wait_s:g} s: {reason}; start node 0, give all nodes its address, and let them "
                "reach that port"
            )
        if launch.is_first_of_node and now - said >= _SAY_EVERY_S:
            whom = "torchrun" if launch.agent_serves else "rank 0"
            logger.info("%s:%d: %s; waiting for %s, %.0f s left", address, port, reason, whom, left)
            said = now
        time.sleep(min(_PAUSE_S, left))


def _client(launch: LaunchEnvironment, timeout: timedelta) -> dist.Store:
    """Of a store to which a connection is possible. What never answers would be waited for without end by torch."""
    address, port = launch.meeting_point()
    found: list[dist.Store] = []
    errors: list[Exception] = []

    def connect() -> None:
        try:
            found.append(dist.TCPStore(address, port, is_master=False, timeout=timeout, wait_for_workers=False))
        except dist.DistError as error:
            errors.append(error)

    thread = threading.Thread(target=connect, name="meeting", daemon=True)
    thread.start()
    thread.join(timeout.total_seconds() + _ATTEMPT_S)
    if found:
        return found[0]
    raise MeetingError(
        f"what answers at {address}:{port} (MASTER_ADDR, MASTER_PORT) is not rank 0 of this run: give all nodes the "
        "address of node 0 and a port that nothing else uses"
    ) from (errors[0] if errors else None)


def _take_seat(store: dist.Store, launch: LaunchEnvironment) -> None:
    me = f"{this_process()}"
    first = store.compare_set(f"seat/{launch.rank}", "", me).decode()
    if first != me:
        raise MeetingError(
            f"rank {launch.rank} of this run is on {first} already: {socket.gethostname()} has the number of another "
            "node, or was started twice"
        )


def _wait_for_all(store: dist.Store, launch: LaunchEnvironment, wait_s: float) -> str:
    """Of rank 0: why the job cannot begin, which all who came get as well; empty if it can."""
    started = said = time.monotonic()
    said -= _SAY_EVERY_S if launch.num_nodes > 1 else 0
    address, port = launch.meeting_point()
    verdict = None
    while verdict is None:
        now = time.monotonic()
        left = started + wait_s - now
        if store.check(["refusal"]):
            verdict = store.get("refusal").decode()
        elif (here := store.add("here", 0)) >= launch.world_size:
            verdict = ""
        elif left <= 0:
            verdict = (
                f"{_absent(store, launch, here)} did not come to {address}:{port} (MASTER_ADDR, MASTER_PORT) within "
                f"{wait_s:g} s: start all nodes, with the same address and port, and let them reach it"
            )
        else:
            if now - said >= _SAY_EVERY_S:
                logger.info("%s:%d: waiting for %s, %.0f s left", address, port, _absent(store, launch, here), left)
                said = now
            time.sleep(_POLL_S)
    store.set("verdict", verdict)
    until = time.monotonic() + _FAREWELL_S
    while verdict and store.add("read", 0) < store.add("here", 0) - 1 and time.monotonic() < until:
        time.sleep(_POLL_S)
    return verdict


def _wait_for_verdict(store: dist.Store, launch: LaunchEnvironment, wait_s: float) -> str:
    """Of the others: what rank 0 says, which began to wait before they came."""
    until = time.monotonic() + wait_s + 2 * _FAREWELL_S
    while not store.check(["verdict"]):
        if time.monotonic() > until:
            return f"timed out after {wait_s:g} s waiting for rank 0 to count the ranks: see its node's output"
        time.sleep(_POLL_S * (1 + launch.world_size / 64))  # not too many questions at a time
    verdict = store.get("verdict").decode()
    if verdict:
        store.add("read", 1)
    return verdict


def _absent(store: dist.Store, launch: LaunchEnvironment, here: int) -> str:
    """Ranks that have not come, in words."""
    if launch.world_size > _LISTED_RANKS:
        return f"{launch.world_size - here} of {launch.world_size} ranks"
    return _ranges([rank for rank in range(launch.world_size) if not store.check([f"here/{rank}"])])


def _ranges(ranks: Sequence[int]) -> str:
    """[2] -> "rank 2", [2, 3, 4, 7] -> "ranks 2 to 4, 7"."""
    runs = [[rank for _, rank in run] for _, run in groupby(enumerate(ranks), lambda pair: pair[1] - pair[0])]
    words = [f"{run[0]} to {run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    more = f" and {len(words) - _NAMED} more" if len(words) > _NAMED else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(words[:_NAMED])}{more}"


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
