"""What a failing rank's last words say: what kind of failure it is, and which line stands for it.

Two failures count as the same when their lines are equal after everything is removed that differs from one start to
the next: addresses, process ids, times, durations, ranks, hosts. Numbers that belong to the error stay: index 7 of a
list is another error than index 9.

The table of kinds is read from top to bottom and the first match wins. What it does not know is the program's own
error, unless it came through a broken connection, which says nothing but that another rank had gone.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

MAX_CHARACTERS = 600

_OF_SRUN = re.compile(
    r"^srun: (error: .{0,300}: Exited with exit code \d+$|Job step aborted|error: Timed out waiting for job step)"
)
"""Said after what the program itself has, or after the reason."""

_NOT_LAUNCHED = re.compile(r"^srun: error: Task launch for \S+ failed on node (\S+?):")
"""Of srun that came to the node and was refused there."""


class Kind(StrEnum):
    """Of a rank's end, by what it said."""

    OWN = "own"  # the program's error: an exception, a line of glmforge's
    FOLLOWED = "followed"  # another rank was lost or failed, and this one only noticed
    MACHINE = "machine"  # hardware, driver, kernel: another node mends it
    DOUBTFUL = "doubtful"  # a fault of the code or of the machine: the same on another node tells
    STORAGE = "storage"
    PASSING = "passing"  # of the moment: a port that is taken
    NOTHING = "nothing"  # it said nothing that helps


@dataclass(frozen=True)
class Sign:
    """What a failure's words are known by."""

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
    _sign(r"(broken link to .{1,300}|leads to .{1,300}, which is not there); mount "
          r"it", Kind.STORAGE, "storage is not mounted"),
    _sign(r"(checkpoint|step-\d+).{0,300}(damaged|not whole|incomplete|checksum)",
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

_STARTS_LATER = re.compile(
    r"has not answered|does not answer|no route|no ssh server|connect(ion|ing|)\b|timed out|timeout|busy|unavailable|"
    r"contact|temporar|communication|unreachable|try again|no reason given|credential|node failure|cancelled|"
    r"killed|terminated|no space left|no port|memory required by task|node configuration is not available|"
    r"node not available|expired or invalid job|invalid job id|already complet|zero bytes|authentication|"
    r"unspecified error",
    re.IGNORECASE,
)
"""Why ranks could not be started now, and may be in a moment. What else a starter says is the same the next time: an
option that it does not know, a program that is not there, a host key, root. A controller of Slurm that has just started
refuses a step for its memory, for it takes that of the last one for in use until the nodes have reported; while it has
not yet queued a job again whose node was lost, that job has "expired"."""
_REFUSES = re.compile(r"unrecogni[sz]ed|invalid|illegal|unknown|refuse|no such|no route|timed out", re.IGNORECASE)

_LOST = re.compile(r"rank (\d+) on (\S+) \(process (\d+)[^)]{0,100}\) (was lost|failed first)")
_NO_ANSWER = re.compile(r"rank (\d+) on (\S+) \(process \d+[^)]{0,100}\).{0,400}gave no answer")
_FRAME = re.compile(r'^\s*File "([^"]{1,400})", line (\d+), in (\S{1,100})')
_EXCEPTION = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Lost|Stop\w*)\b(:|$)")
_OURS = re.compile(r"^glmforge: ")
_CONNECTED = re.compile(r"^\[Gloo\] Rank \d+ is connected to \d+ peer")
_INDENT = " " * len("WARNING  ")
_RANK = re.compile(r"^\[rank\d+\]:\s?")
_CRASH = re.compile(r"error|fail|fatal|terminate called|assert|abort|cannot|not found|killed|denied", re.IGNORECASE)

_NORMAL = (
    (re.compile(r"\x1b\[[0-9;]*[A-Za-z]"), ""),
    (re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(?:[.,]\d+)?(?:Z|[+-]\d{2}:?\d{2})?"), "<time>"),
    (re.compile(r"\b\d{1,2}:\d{2}:\d{2}(?:[.,]\d+)?\b"), "<time>"),
    (re.compile(r"0x[0-9a-fA-F]+"), "<address>"),
    (re.compile(r"\[?\b\d{1,3}(?:\.\d{1,3}){3}\b\]?(?::\d+)?"), "<host>"),
    (re.compile(r"\b(pid|process(?: id)?|PID)([ =:#]+)\d+"), r"\1\2<pid>"),
    (re.compile(r"\b((?:global |local |data )?ranks?)([ =:#]+)\d+", re.IGNORECASE), r"\1\2<rank>"),
    (re.compile(r"\[rank\d+\]:?\s*", re.IGNORECASE), ""),
    (re.compile(r"\b(port[ =:]+)\d+"), r"\1<port>"),
    (re.compile(r"\bcuda:\d+"), "cuda:<n>"),
    (re.compile(r"\b\d+(?:\.\d+)?\s?(?:ms|s|seconds|minutes|milliseconds)\b"), "<time>"),
    (re.compile(r"/(?:tmp|dev/shm|var/tmp)/[\w./-]+"), "<temporary file>"),
    (re.compile(r"\s+"), " "),
)


@dataclass(frozen=True)
class Words:
    """What a rank's last lines say.

    Attributes:
        line: that which says it, as it was printed; empty if no line does.
        place: file, line and function that raised it, where there is a traceback.
        meaning: in words, where the kind is known; else empty.
    """

    kind: Kind
    line: str = ""
    place: str = ""
    meaning: str = ""


def read_words(lines: Sequence[str]) -> Words:
    """What the last lines that a rank printed say."""
    line, place = _telling_line(lines)
    if not line:
        return Words(Kind.NOTHING)
    for sign in SIGNS:
        if sign.pattern.search(line):
            return Words(sign.kind, line, place, sign.meaning)
    return Words(Kind.OWN, line, place)


def read_starter(lines: Sequence[str]) -> str:
    """The line in which a starter says why it has started nothing; empty if there is none."""
    said = [_NORMAL[0][0].sub("", line).strip() for line in lines if not _OF_SRUN.match(line)]
    return next((line for line in reversed(said) if _CRASH.search(line) or _REFUSES.search(line)), "")


def may_start_later(line: str) -> bool:
    """Whether that is of the moment, or of a machine: another one may be taken."""
    if _STARTS_LATER.search(line) is not None:
        return True
    return any(_is_known(line, kind) for kind in (Kind.MACHINE, Kind.STORAGE, Kind.PASSING))


def not_launched(lines: Sequence[str]) -> str | None:
    """The node on which srun could not start its task."""
    return next((found[1] for line in lines if (found := _NOT_LAUNCHED.match(line))), None)


def who_was_lost(lines: Sequence[str]) -> tuple[int, str] | None:
    """The rank, and its host, that these lines name as the one that was lost or failed first."""
    for line in reversed(lines):
        found = _LOST.search(line) or _NO_ANSWER.search(line)
        if found is not None:
            return int(found[1]), found[2]
    return None


def signature(words: Words, hosts: Collection[str] = ()) -> str:
    """The line and its place without what differs from start to start; empty without a line."""
    if not words.line:
        return ""
    text = words.line
    for host in sorted(hosts, key=len, reverse=True):
        text = re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", "<host>", text)
    for pattern, put in _NORMAL:
        text = pattern.sub(put, text)
    text = text.strip()[:MAX_CHARACTERS]
    return f"{text} ({words.place})" if words.place else text


def _telling_line(lines: Sequence[str]) -> tuple[str, str]:
    """The line that says what happened, and the place that a traceback before it gives.

    That of glmforge, else the last exception, else the last line with a known sign, else the last that speaks of an
    error. What a program prints without a word of failure is no error.
    """
    cleaned = [_RANK.sub("", _NORMAL[0][0].sub("", line).rstrip()) for line in lines]
    remarks = _remarks(cleaned)
    told = [index for index in reversed(range(len(cleaned))) if index not in remarks]
    for test in (_OURS.search, _EXCEPTION.search, _is_known, _CRASH.search):
        for index in told:
            if test(cleaned[index]):
                return cleaned[index].strip(), _place(cleaned[:index])
    broken = [cleaned[index] for index in sorted(remarks, reverse=True) if _is_known(cleaned[index], Kind.MACHINE)]
    return (broken[0].strip(), "") if broken else ("", "")


def _remarks(lines: Sequence[str]) -> set[int]:
    """Lines of a log below the level of an error, with those that they go on in: after them the program went on."""
    found = set[int]()
    for index, line in enumerate(lines):
        goes_on = index - 1 in found and line.startswith(_INDENT)
        if goes_on or line.startswith(("DEBUG ", "INFO ", "WARNING ")) or _CONNECTED.search(line):
            found.add(index)
    return found


def _is_known(line: str, kind: Kind | None = None) -> bool:
    return any(sign.kind is (kind or sign.kind) and sign.pattern.search(line) for sign in SIGNS)


def _place(before: Sequence[str]) -> str:
    """The innermost frame that is not of an installed package; the innermost one if all are."""
    innermost = ""
    for line in reversed(before):
        frame = _FRAME.match(line)
        if frame is not None:
            place = f"{frame[1]}, line {frame[2]}, in {frame[3]}"
            if "site-packages/" not in frame[1] and "/lib/python3" not in frame[1]:
                return place
            innermost = innermost or place
        elif line.lstrip().startswith("Traceback (most") and innermost:
            break
    return innermost
