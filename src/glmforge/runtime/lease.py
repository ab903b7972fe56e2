"""One writer at a time in a directory that many machines may see.

    with Lease(run_dir, "glmforge train"):
        ...                                    # nobody else holds it

`flock` does not do: whether it reaches other machines depends on how each of them has mounted the file system (NFS,
Lustre), and it cannot say who holds it. Here the claims are numbered files:

    <directory>/.lock/00000007    who claimed it the seventh time, since when, and how often it has given a sign of life

* The highest number holds. A claim is the next number, made by link(2), which succeeds for one of any number of
  machines; it is there with its contents or not at all. Numbers only grow: a claim that comes too late is a lower one.
* The holder overwrites its file every few seconds. Its end is known from the kernel on the same machine (also after
  SIGKILL, and at once); on another one by a file that has not changed for `lease_s` seconds of the watcher's own
  clock. No two clocks are compared.
* A holder that was suspended, or cut off from the storage, finds a higher number when it comes back, and stops:
  `ensure_held` raises, and so does every writer that asks `ensure_writable` before it writes. What is left is the
  moment between asking and writing.

Two things follow from what storage can promise. A machine that vanished keeps its directory for `lease_s`; and where
the other machine sees changes later than that (an NFS mount with long caching of attributes), `lease_s` must be longer.
"""

import errno
import logging
import os
import secrets
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from pydantic import BaseModel, ValidationError

from glmforge.errors import GlmforgeError
from glmforge.files import open_regular
from glmforge.runtime.process import ProcessIdentity, is_alive, is_suspended, this_process
from glmforge.runtime.waiting import join

logger = logging.getLogger(__name__)

LOCK = ".lock"
LEASE_S = 60.0
_BEATS_PER_LEASE = 12
_FILE_BYTES = 2048
"""A claim has a fixed size and is overwritten in place: that also works on a full disk."""
_NO_HARD_LINKS = {errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
_CHECK_EVERY_S = 1.0
"""A writer trusts a look at the claims for so long."""


class HeldError(GlmforgeError):
    """The directory is locked by another process."""


class LeaseLostError(GlmforgeError):
    """The directory was taken over while this process gave no sign of life."""


class Claim(BaseModel):
    """The contents of a claim."""

    token: str
    what: str
    holder: ProcessIdentity
    inode: int
    """Of the directory of claims: a copy of a directory is not held by whoever holds the original."""
    since: str
    beats: int = 0
    last_beat: str
    released: bool = False

    def __str__(self) -> str:
        state = ", suspended" if is_suspended(self.holder) else ""
        return f"'{self.what}' on {self.holder}{state}, since {self.since}, last heartbeat {self.last_beat}"


class Found(NamedTuple):
    """The highest claim: number 0 if there is none, `claim` None if it is unreadable."""

    number: int
    content: bytes
    """Changes with every sign of life."""
    claim: Claim | None


class Lease:
    """The right to write in `directory`, which is made if need be. A context manager; not reentrant.

    Args:
        what: the command that holds it, for others to read.
        lease_s: seconds without a sign of life after which a holder on another machine counts as gone. The watcher's
            value counts.
        name: of the directory of claims; rights of different names do not exclude each other.
    """

    def __init__(self, directory: Path, what: str, *, lease_s: float = LEASE_S, name: str = LOCK) -> None:
        self.directory, self.what, self.lease_s = directory, what, lease_s
        self._claims = Path(os.path.abspath(directory)) / name  # noqa: PTH100 - links in it stay as they are
        self._token = secrets.token_hex(8)
        self._number = 0
        self._claim: Claim | None = None
        self._seen: tuple[bytes, float] | None = None
        self._lost: str | None = None
        self._checked = 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def acquire(self) -> None:
        """Take it. Raises `HeldError`, after at most `lease_s` seconds of doubt, if another process holds it."""
        while not self.attempt():
            time.sleep(min(1.0, self.lease_s / 20))

    def attempt(self) -> bool:
        """Take it if that is possible now; False while it is not clear whether the holder lives: try again soon.

        Raises `HeldError` if the holder lives, `GlmforgeError` if nothing can be written there.
        """
        assert self._claim is None, "a lease is taken once"
        try:
            self._claims.parent.mkdir(parents=True, exist_ok=True)
            self._claims.mkdir(mode=self._claims.parent.stat().st_mode & 0o777, exist_ok=True)
            found = self._newest()
            while self._is_over(found):
                if self._try_claim(found.number + 1):
                    self._begin()
                    return True
                found = self._newest()
        except OSError as error:
            raise GlmforgeError(
                f"{self.directory}: cannot be locked ({error.strerror}); make it writable, or name another directory"
            ) from error
        return False

    def ensure_held(self, *, max_age_s: float = 0.0) -> None:
        """Raise `LeaseLostError` if another process has taken over; a look `max_age_s` seconds ago is good enough."""
        if self._lost is None and _clock() - self._checked >= max_age_s:
            with suppress(OSError):  # storage that cannot be read is no proof; what is to be written will fail too
                self._check()
        if self._lost is not None:
            raise LeaseLostError(self._lost)

    def release(self) -> None:
        """Give it back, if it is held and was not lost."""
        if self._thread is None or self._claim is None:
            return
        self._stop.set()
        join(self._thread)
        self._thread = None
        try:
            self._check()
            if self._lost is None:
                self._write(self._claim.model_copy(update={"released": True}))
        except OSError as error:
            logger.warning("%s: the lock could not be released (%s)", self.directory, error.strerror)
        finally:
            _held.remove(self)
            self._claim = None

    def newest(self) -> Found:
        """The claim that holds if any does; number 0 without any. Raises `OSError` if that cannot be read."""
        try:
            return self._newest()
        except FileNotFoundError:
            return Found(0, b"", None)

    def covers(self, path: Path) -> bool:
        """Whether `path` lies in the directory."""
        return Path(os.path.abspath(path)).is_relative_to(self._claims.parent)  # noqa: PTH100

    def _is_over(self, found: Found) -> bool:
        """Whether the claim no longer holds. Raises `HeldError` if it certainly does."""
        if found.number == 0 or (found.claim is not None and self._has_ended(found.claim)):
            return True
        lives = None if found.claim is None else is_alive(found.claim.holder)
        now, key = time.monotonic(), b"%d " % found.number + found.content
        if self._seen is None:
            self._seen = key, now
            if not lives:
                logger.info("%s; waiting up to %.0f s for a sign of life", self._describe(found), self.lease_s)
        if lives or self._seen[0] != key:
            raise HeldError(
                f"{self._describe(found)}; wait until it ends, or stop it ('glmforge control' stops a run), or name "
                "another directory"
            )
        return now - self._seen[1] >= self.lease_s

    def _has_ended(self, claim: Claim) -> bool:
        if claim.released:
            return True
        lives = is_alive(claim.holder)
        return lives is False or (lives is True and claim.inode != self._claims.stat().st_ino)

    def _describe(self, found: Found) -> str:
        return f"{self.directory}: in use by {found.claim or f'an unreadable lock (#{found.number})'}"

    def _newest(self) -> Found:
        for number in sorted(self._numbers(), reverse=True):
            with suppress(FileNotFoundError):  # a higher one has come since
                content = _content(self._path(number))
                return Found(number, content, _parse(content))
        return Found(0, b"", None)

    def _numbers(self) -> list[int]:
        return [int(path.name) for path in self._claims.iterdir() if path.name.isdecimal()]

    def _path(self, number: int) -> Path:
        return self._claims / f"{number:08d}"

    def _try_claim(self, number: int) -> bool:
        claim = self._new_claim()
        if self._put(claim, number):
            self._number, self._claim = number, claim
        return self._claim is not None

    def _new_claim(self) -> Claim:
        now, inode = _utc_now(), self._claims.stat().st_ino
        return Claim(
            token=self._token,
            what=self.what,
            holder=this_process(),
            inode=inode,
            since=now,
            last_beat=now,
        )

    def _put(self, claim: Claim, number: int) -> bool:
        """Whether it is now the newest."""
        partial = self._claims / f".{self._token}"
        try:
            with open_regular(partial, "wb") as file:
                file.write(_encode(claim))
            _create(partial, self._path(number))
        except FileExistsError:
            if not self._is_mine(self._path(number)):  # else the answer to a first try was lost on its way
                return False
        finally:
            partial.unlink(missing_ok=True)
        if self._newest().number != number:  # it came too late: later ones have been here and gone
            self._path(number).unlink(missing_ok=True)
            return False
        for older in self._numbers():
            if older < number:
                self._path(older).unlink(missing_ok=True)
        return True

    def _is_mine(self, path: Path) -> bool:
        with suppress(FileNotFoundError):
            claim = _parse(_content(path))
            return claim is not None and claim.token == self._token
        return False

    def _begin(self) -> None:
        self._checked = _clock()
        _held.append(self)
        self._thread = threading.Thread(target=self._keep_alive, name="lease", daemon=True)
        self._thread.start()

    def _keep_alive(self) -> None:
        warned = False
        while not self._stop.wait(self.lease_s / _BEATS_PER_LEASE):
            try:
                self._check()
                if self._lost is not None:
                    return
                assert self._claim is not None
                beat = {"beats": self._claim.beats + 1, "last_beat": _utc_now()}
                self._claim = self._claim.model_copy(update=beat)
                self._write(self._claim)
            except OSError as error:
                if not warned:
                    logger.warning("%s: the lock gives no sign of life (%s)", self.directory, error.strerror)
                warned = True

    def _write(self, claim: Claim) -> None:
        with self._path(self._number).open("r+b", buffering=0) as file:
            file.write(_encode(claim))

    def _check(self) -> None:
        """Look whether the claim still is the highest, and note it if not."""
        began = _clock()
        try:
            found = self._newest()
        except FileNotFoundError:
            self._lost = f"{self.directory}: was removed while this process worked in it; it stops here"
            return
        if found.number == self._number and (found.claim is None or found.claim.token == self._token):
            self._checked = began
            return
        by = f"taken over by {found.claim}" if found.claim is not None else "unlocked by another process"
        self._lost = (
            f"{self.directory}: {by} while this process gave no sign of life (suspended, or cut off from storage); "
            "it stops here and writes nothing more"
        )


def newest_claim(directory: Path, *, name: str = LOCK) -> Claim | None:
    """Who claimed the directory last, for people to read; None if nobody did, or if that cannot be read.

    Whether the claim still holds, only `Lease` finds out.
    """
    with suppress(OSError):
        return Lease(directory, "", name=name).newest().claim
    return None


_held: list[Lease] = []
"""What this process holds."""


def ensure_writable(path: Path) -> None:
    """Raise `LeaseLostError` if `path` lies in a directory that this process held and that was taken over.

    A process that holds nothing there may write: it is for its command to take a lease.
    """
    for lease in _held:
        if lease.covers(path):
            lease.ensure_held(max_age_s=_CHECK_EVERY_S)


def _create(partial: Path, path: Path) -> None:
    """Give `partial` a second name that must be free; where there are no hard links, copy it under that name."""
    try:
        os.link(partial, path)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        with open_regular(path, "xb", buffering=0) as file:
            try:
                file.write(partial.read_bytes())
            except OSError:  # a full disk: nobody could read such a claim, and everybody would wait for its holder
                path.unlink(missing_ok=True)
                raise


def _content(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read(_FILE_BYTES)


def _encode(claim: Claim) -> bytes:
    return claim.model_dump_json(indent=1).encode().ljust(_FILE_BYTES - 1) + b"\n"


def _parse(content: bytes) -> Claim | None:
    try:
        return Claim.model_validate_json(content)
    except ValidationError:
        return None


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _clock() -> float:
    """Seconds, also those that the machine slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
