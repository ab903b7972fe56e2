"""Who of the other ranks was lost, and what it said last: one line instead of a broken connection.

When a rank ends, all the others get an error from the communication library that names an address at best, and often
that of a rank which itself only noticed. What each rank knows for certain it leaves in the job's store:

* A failing rank leaves a last message. The first message counts; those of ranks that failed later are ignored.
* A killed rank leaves none. So each rank watches one other of its machine, by what the kernel says of that process,
  and reports for it when it has exited.
* No process reports for a machine that is lost completely. A rank that meets an error says that it is still here, and
after
  some seconds those are named that have not.

The store is the agent's under torchrun; else rank 0 keeps it, and if it cannot be reached, rank 0 is the one. So rank
0, which may be the first to know, ends when the others have heard, too.
"""

import json
import re
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from pydantic import BaseModel

from glmforge.errors import GlmforgeError
from glmforge.runtime.process import ProcessIdentity, is_alive, this_process

GRACE_S = 10.0
"""How long a rank that has met an error waits to hear who was lost."""
_ENDING_S = 2.0
"""How long the kernel may take to say that a process has ended whose connections it has closed."""
_WATCH_EVERY_S = 1.0
_ROLL_CALL_RANKS = 512
"""In larger jobs asking after every rank would be too much for the store."""
_NAMED = 4
_OF_COMMUNICATION = re.compile(
    r"\bgloo\b|\bnccl|connection (closed|reset|refused)|broken pipe|timed out waiting|socket", re.IGNORECASE
)


class PeerLostError(GlmforgeError):
    """Another rank was lost, and this one cannot go on without it. `lost` says which, and how, as far as is known."""

    def __init__(self, lost: str, here: str) -> None:
        super().__init__(f"{lost}; {here} exits with it. Run it again to resume from the last checkpoint")
        self.lost = lost


class Peer(BaseModel):
    """A rank, as it introduced itself."""

    rank: int
    process: ProcessIdentity
    log: str = ""
    """The file that its stderr goes to, if it is one."""

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.process}"

    @property
    def see_log(self) -> str:
        return f" (its log: {self.log})" if self.log else ""


class Peers:
    """What this rank tells the others of a job, and hears of them. All ranks make one.

    Args:
        store: of this attempt to run the job; the process group's own, or another client of it.
        reconnect: makes another client of that store, for the thread that watches.
        kept_by_rank_zero: the store ends with rank 0.
    """

    def __init__(
        self, store: dist.Store, rank: int, size: int, *, reconnect: Callable[[], dist.Store], kept_by_rank_zero: bool
    ) -> None:
        self._store, self.rank, self.size = store, rank, size
        self._reconnect, self._kept_by_rank_zero = reconnect, kept_by_rank_zero
        self._me = Peer(rank=rank, process=this_process(), log=_log_file())
        self._main = self._me
        self._neighbours: list[Peer] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def introduce(self) -> None:
        """Say who this rank is. To be called before the process group is made, which then is where all have."""
        introduction = self._me.model_dump_json()
        self._store.set(f"who/{self.rank}", introduction)
        self._store.append(_machine_key(self._me.process), introduction + "\n")  # type: ignore[attr-defined]  # torch's stub lacks it

    def meet(self) -> None:
        """Get to know those of this machine, and watch one of them. To be called when there is a process group."""
        self._main = Peer.model_validate_json(self._store.get("who/0"))
        lines = self._store.get(_machine_key(self._me.process)).decode().splitlines()
        here = sorted(map(Peer.model_validate_json, lines), key=lambda peer: peer.rank)
        place = [peer.rank for peer in here].index(self.rank)
        self._neighbours = here[place + 1 :] + here[:place]
        if self._neighbours:
            self._thread = threading.Thread(target=self._watch, args=(self._neighbours[0],), name="peers", daemon=True)
            self._thread.start()

    def leave(self) -> None:
        """Stop watching."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_WATCH_EVERY_S)  # it may be looking for a store that has gone
            self._thread = None

    def say_last_words(self, words: str) -> None:
        """Leave what ended this rank, unless another rank failed before it, or the store is gone."""
        with suppress(RuntimeError):  # of torch.distributed
            _post_failure(self._store, self._me, words)

    def explain(self, error: BaseException) -> PeerLostError | None:
        """What to tell the user instead of `error`, if that comes of another rank's end; None if it is this rank's own.

        Takes up to `GRACE_S` seconds if the answer is not known at once. From here on SIGTERM is ignored: a launcher
        sends it as soon as a rank has died, and the line is to be said first.
        """
        if not _is_of_communication(error):
            return None
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        found: list[str | None] = []
        # The connection to a store whose machine is gone may hang for ever.
        asking = threading.Thread(target=self._ask_store, args=(found,), name="peers-ask", daemon=True)
        asking.start()
        ended = self._just_ended(found)
        asking.join(GRACE_S * 2)
        lost = found[0] if found else self._without_store(ended)
        if lost is None:
            lost = f"another rank was lost, rank unknown ({_first_line(error)})"
        return PeerLostError(lost, f"rank {self.rank} on {self._me.process.host}")

    def _ask_store(self, found: list[str | None]) -> None:
        """Add to `found` who was lost, or None if unknown; nothing if there is no store any more."""
        if self._kept_by_rank_zero and any(p.rank == 0 and is_alive(p.process) is False for p in self._neighbours):
            return
        with suppress(RuntimeError):  # of torch.distributed
            self._store.set_timeout(timedelta(seconds=GRACE_S))
            self._store.set(f"here/{self.rank}", "1")
            self._store.add("asking", 1)
            found.append(self._find_out())
            self._store.add("asking", -1)
            self._wait_for_those_who_ask()

    def _find_out(self) -> str | None:
        for _ in range(int(GRACE_S / 0.1)):
            self._report_dead_neighbours(self._store)
            if self._store.check(["words"]):
                return self._first_words()
            if self._stop.wait(0.1):
                break
        return self._roll_call()

    def _wait_for_those_who_ask(self) -> None:
        """Of rank 0, whose store ends with it."""
        deadline = time.monotonic() + GRACE_S / 2
        while self._kept_by_rank_zero and self.rank == 0 and time.monotonic() < deadline:
            if self._store.add("asking", 0) <= 0 or self._stop.wait(0.1):
                return

    def _first_words(self) -> str | None:
        said = json.loads(self._store.get("words"))
        peer = Peer.model_validate(said["peer"])
        return f"{peer} failed first: {said['words']}{peer.see_log}" if said["words"] else _was_killed(peer)

    def _just_ended(self, found: list[str | None]) -> Peer | None:
        """The rank of this machine that ended when the error was met, as far as the kernel says so within `_ENDING_S`.
        One that ends later has itself only noticed. There is no need to know when the store has answered."""
        for _ in range(int(_ENDING_S / 0.1)):
            for peer in self._neighbours:
                if is_alive(peer.process) is False:
                    return peer
            if found or self._stop.wait(0.1):
                break
        return None

    def _without_store(self, ended: Peer | None) -> str | None:
        if ended is not None:
            return _was_killed(ended)
        if self._kept_by_rank_zero and self.rank != 0:
            return f"{self._main} was lost: it is unreachable"
        return None

    def _roll_call(self) -> str | None:
        if self.size > _ROLL_CALL_RANKS:
            return None
        absent = [rank for rank in range(self.size) if not self._store.check([f"here/{rank}"])]
        if not absent:
            return None
        named = [str(Peer.model_validate_json(self._store.get(f"who/{rank}"))) for rank in absent[:_NAMED]]
        more = f" and {len(absent) - _NAMED} more" if len(absent) > _NAMED else ""
        return f"{', '.join(named)}{more} gave no answer: lost with the machine, or hanging"

    def _watch(self, neighbour: Peer) -> None:
        while not self._stop.wait(_WATCH_EVERY_S):
            if is_alive(neighbour.process) is False:
                with suppress(RuntimeError):  # of torch.distributed: the store has gone as well
                    _post_failure(self._reconnect(), neighbour, "")
                return

    def _report_dead_neighbours(self, store: dist.Store) -> None:
        for peer in self._neighbours:
            if is_alive(peer.process) is False:
                _post_failure(store, peer, "")


def _was_killed(peer: Peer) -> str:
    how = "it exited without a message: killed, crashed, or out of memory"
    return f"{peer} was lost: {how}{peer.see_log}"


def _post_failure(store: dist.Store, peer: Peer, words: str) -> None:
    store.compare_set("words", "", json.dumps({"peer": peer.model_dump(), "words": " ".join(words.split())}))


def _machine_key(process: ProcessIdentity) -> str:
    return f"machine/{process.host}/{process.boot}/{process.namespace}"


def _log_file() -> str:
    """Where this process's stderr goes, if that is a file."""
    try:
        target = Path("/proc/self/fd/2").readlink()
    except OSError:
        return ""
    return str(target) if target.is_file() else ""


def _is_of_communication(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, dist.DistError) or (
            isinstance(error, RuntimeError) and _OF_COMMUNICATION.search(str(error)) is not None
        ):
            return True
        error = error.__cause__
    return False


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
