"""What the last lines of a failing rank mean: the kind of failure, and the line that stands for it.

Two failures count as the same when their lines are equal after everything is removed that differs from one start to
the next: addresses, process ids, times, durations, ranks, hosts. Numbers that belong to the error stay: index 7 of a
list is another error than index 9.

The table of kinds is read from top to bottom and the first match wins. Lines that it does not know are the program's
own error.
"""

import re
import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

MAX_CHARACTERS = 600

_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT}

_OF_SRUN = re.compile(
    r"^srun: (error: .{0,300}: Exited with exit code \d+$|Job step aborted|error: Timed out waiting for job step)"
)
"""Printed after what the program itself has, or after the reason."""

_NOT_LAUNCHED = re.compile(r"^srun: error: Task launch for \S+ failed on node (\S+?):")
"""Of srun that came to the node and was refused there."""


class Kind(StrEnum):
    """Of a rank's end."""

    OWN = "own"  # the program's error: an exception, a line of glmforge's
    FOLLOWED = "followed"  # another rank was lost or failed, and this one only noticed
    MACHINE = "machine"  # hardware, driver, kernel: take another node
    DOUBTFUL = "doubtful"  # a fault of the code or of the machine: another node with the same fault decides
    STORAGE = "storage"
    PASSING = "passing"  # of the moment: a port that is taken
    NOTHING = "nothing"  # no line helps


@dataclass(frozen=True)
class Sign:
    """A pattern by which a kind of failure is known."""

    pattern: re.Pattern[str]
    kind: Kind
    meaning: str


def _sign(pattern: str, kind: Kind, meaning: str) -> Sign:
    return Sign(re.compile(pattern, re.IGNORECASE), kind, meaning)


SIGNS = (
    _sign(r"rank \d+ on \S+ \(process \d+.{0,80}\) (was lost|failed first)|gave no answer: lost with the machine",
          Kind.FOLLOWED, "another rank was lost"),
    _sign(r"no space left on device|disk quota exceeded|\bENOSPC\b", Kind.STORAGE, "no space left on a disk"),
    _sign(r"stale file handle|transport endpoint is not connected|\bESTALE\b", Kind.STORAGE, "storage was lost"),
    _sign(r"read-only file system|input/output error|remote i/o error", Kind.STORAGE, "storage fails"),
    _sign(r"broken link to .{1,300}; mount it", Kind.STORAGE, "storage is not mounted"),
    _sign(r"(checkpoint|step-\d+).{0,300}(damaged|incomplete|checksum)",
          Kind.STORAGE, "a checkpoint is damaged"),
    _sign(r"uncorrectable ecc|\bECC error|\bxid\b.{0,40}\d|fallen off the bus|gpu is lost|nvlink.{0,40}error",
          Kind.MACHINE, "a GPU is broken"),
    _sign(r"no cuda-capable device|cuda driver initialization failed|cuda_error_not_initialized|"
          r"system not yet initialized|driver/library version mismatch|nvml.{0,60}(not found|failed|unknown error)",
          Kind.MACHINE, "a GPU's driver does not work"),
    _sign(r"cannot allocate memory|\bENOMEM\b|bus error|unable to allocate shared memory|insufficient shared memory",
          Kind.MACHINE, "the machine has no memory left"),
    _sign(r": in use by '.{1,200}' on \S+", Kind.PASSING, "an earlier start had not ended"),
    _sign(r"address already in use|\bEADDRINUSE\b", Kind.PASSING, "a port was taken"),
    _sign(r"illegal memory access|misaligned address|unspecified launch failure|device-side assert|cublas_status_"
          r"|cuda error", Kind.DOUBTFUL, "a computation on a GPU failed"),
    _sign(r"another rank was lost|did not come to \S+|did not reach rank 0|does not lead to", Kind.FOLLOWED,
          "another rank was lost or did not come"),
    _sign(r"connection (closed|reset|refused|was closed)|broken pipe|no route to host|timed out waiting|"
          r"remote process has terminated|socket timeout|\bgloo\b|\bnccl\b|distbackenderror|diststoreerror|"
          r"distnetworkerror|watchdog caught collective|process group.{0,80}(abort|timeout)",
          Kind.FOLLOWED, "a connection to another rank broke"),
)  # fmt: skip

_COMPLAINS = re.compile(r"unrecogni[sz]ed|invalid|illegal|unknown|refuse|no such|no route|timed out", re.IGNORECASE)
_LOST = re.compile(r"rank (\d+) on (\S+) \(process \d+[^)]{0,100}\) (?:was lost|failed first)")
_NO_ANSWER = re.compile(r"rank (\d+) on (\S+) \(process \d+[^)]{0,100}\).{0,400}gave no answer")
_EXCEPTION = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Lost|Stop\w*)\b(:|$)")
_OURS = re.compile(r"^glmforge: ")
_REMARK = re.compile(r"^(DEBUG|INFO|WARNING) |^\[Gloo\] Rank \d+ is connected to \d+ peer")
_INDENT = " " * len("WARNING  ")
_RANK = re.compile(r"^\[rank\d+\]:\s?")
_CRASH = re.compile(r"error|fail|fatal|terminate called|assert|abort|cannot|not found|killed|denied", re.IGNORECASE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

_NORMAL = (
    (re.compile(r"(\d{4}-\d{2}-\d{2}[T ])?\b\d{1,2}:\d{2}:\d{2}([.,]\d+)?(Z|[+-]\d{2}:?\d{2})?"), "<time>"),
    (re.compile(r"0x[0-9a-fA-F]+"), "<address>"),
    (re.compile(r"\[?\b\d{1,3}(\.\d{1,3}){3}\b\]?(:\d+)?"), "<host>"),
    (re.compile(r"\b(pid|process(?: id)?|(?:\w+ )?ranks?|port)([ =:#]+)\d+", re.IGNORECASE), r"\1\2<number>"),
    (re.compile(r"\bcuda:\d+"), "cuda:<number>"),
    (re.compile(r"\b\d+(\.\d+)?\s?(ms|s|seconds|minutes|milliseconds)\b"), "<time>"),
    (re.compile(r"/(tmp|dev/shm|var/tmp)/[\w./-]+"), "<temporary file>"),
    (re.compile(r"\s+"), " "),
)


@dataclass(frozen=True)
class Words:
    """What a rank's end means.

    Attributes:
        line: the one that tells, as it was printed; empty if none does.
        meaning: in words, where the kind is known; else empty.
    """

    kind: Kind
    line: str = ""
    meaning: str = ""

    def __str__(self) -> str:
        return f"{self.meaning} ({self.line})" if self.meaning and self.line else self.meaning or self.line


def read_words(lines: Sequence[str]) -> Words:
    """Of the last lines that a rank printed."""
    line = _telling_line([_RANK.sub("", _COLOUR.sub("", line).rstrip()) for line in lines])
    if not line:
        return Words(Kind.NOTHING)
    sign = next((sign for sign in SIGNS if sign.pattern.search(line)), None)
    return Words(Kind.OWN, line) if sign is None else Words(sign.kind, line, sign.meaning)


def read_end(lines: Sequence[str], status: int | None) -> Words:
    """Of a rank's last lines and its status: a signal tells more than lines about other ranks."""
    words, number = read_words(lines), _signal_of(status)
    if words.kind in (Kind.STORAGE, Kind.MACHINE):
        return words
    if status is None:
        return Words(Kind.MACHINE, meaning="it left no end, and its node's program neither")
    if number == signal.SIGKILL:
        meaning = "it was killed (SIGKILL): by a person, by the node, or because memory ran out"
        return Words(Kind.MACHINE, meaning=meaning)
    if number in _CRASHES and words.kind in (Kind.NOTHING, Kind.OWN, Kind.DOUBTFUL):
        return Words(Kind.DOUBTFUL, words.line, f"it crashed with {signal.Signals(number).name}")
    if words.kind is not Kind.NOTHING:
        return words
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    how = f"; its last line: {last[:200]}" if last else ", and printed nothing"
    return Words(Kind.NOTHING, meaning=f"it ended with status {status}{how}")


def _signal_of(status: int | None) -> int:
    """The signal in a status, as `Popen` or as a shell has it; 0 without one."""
    number = 0 if status is None else -status if status < 0 else status - 128
    return number if number in set(signal.Signals) else 0


def read_starter(lines: Sequence[str]) -> str:
    """The line in which a starter says why it has started nothing; its last one if none complains."""
    said = [_COLOUR.sub("", line).strip() for line in lines if not _OF_SRUN.match(line)]
    complaints = (line for line in reversed(said) if _CRASH.search(line) or _COMPLAINS.search(line))
    return next(complaints, said[-1] if said else "")


def not_launched(lines: Sequence[str]) -> str | None:
    """The node on which srun could not start its task."""
    return next((found[1] for line in lines if (found := _NOT_LAUNCHED.match(line))), None)


def who_was_lost(lines: Sequence[str]) -> tuple[int, str] | None:
    """The rank, and its host, that these lines name as the one that was lost or failed first."""
    found = (_LOST.search(line) or _NO_ANSWER.search(line) for line in reversed(lines))
    return next(((int(each[1]), each[2]) for each in found if each), None)


def signature(line: str, hosts: Collection[str] = ()) -> str:
    """The line without what differs from start to start."""
    for host in sorted(hosts, key=len, reverse=True):
        line = re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", "<host>", line)
    for pattern, put in _NORMAL:
        line = pattern.sub(put, line)
    return line.strip()[:MAX_CHARACTERS]


def _telling_line(lines: Sequence[str]) -> str:
    """One of glmforge's, else the last exception, else the last with a known sign, else the last that speaks of an
    error. Below the level of an error only a broken machine counts."""
    remarks = _remarks(lines)
    errors = [line.strip() for index, line in enumerate(lines) if index not in remarks]
    for test in (_OURS.search, _EXCEPTION.search, _is_known, _CRASH.search):
        for line in reversed(errors):
            if test(line):
                return line
    broken = [lines[index].strip() for index in sorted(remarks) if _is_known(lines[index], Kind.MACHINE)]
    return broken[-1] if broken else ""


def _remarks(lines: Sequence[str]) -> set[int]:
    """Lines of a log below the level of an error, with those that continue them: after them the program went on."""
    found = set[int]()
    for index, line in enumerate(lines):
        if _REMARK.search(line) or (index - 1 in found and line.startswith(_INDENT)):
            found.add(index)
    return found


def _is_known(line: str, kind: Kind | None = None) -> bool:
    return any(sign.kind is (kind or sign.kind) and sign.pattern.search(line) for sign in SIGNS)
