"""nccl-tests, where it is installed: one process that drives all GPUs of this machine, and its table read into rows.

Used only on one machine: with several ranks nccl-tests must be built with MPI and started by it, and then has nothing
that this program's ranks do not measure themselves.

What a program on PATH prints is taken for a stranger's: bounded in size and time, every column looked up by the name in
the header, every number checked. Versions differ in their columns: `error` (a deviation) came before `#wrong` (a number
of elements), `root` was added later.
"""

import math
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence

from glmforge.errors import HostError
from glmforge.files import escaped
from glmforge_ops.health.collectives.kinds import DTYPES, KINDS
from glmforge_ops.health.collectives.rows import Row
from glmforge_ops.health.collectives.settings import BenchSettings

_MAX_OUTPUT = 4 << 20
_MAX_LINE = 1000
_MAX_ROWS = 1000
_LARGEST = 1e15
"""No number of the table is larger."""
_TYPES = frozenset(name for name, _ in DTYPES.values())
_COLUMNS = ("size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "error")


def find_program(kind: str) -> str | None:
    """The path of nccl-tests' program for a collective; None if it is not on PATH, or there is none."""
    binary = KINDS[kind].binary
    return (shutil.which(binary) or shutil.which(f"{binary}_mpi")) if binary else None


def run_nccl_tests(kind: str, settings: BenchSettings, num_gpus: int) -> list[Row]:
    """Measure `kind` on this machine's first GPUs. Raises `HostError`, naming the program and what it said."""
    program = find_program(kind)
    if program is None:
        raise HostError(
            f"{KINDS[kind].binary or f'a program for {kind}'} of nccl-tests is not on PATH: build nccl-tests "
            "(https://github.com/NVIDIA/nccl-tests) and add its build directory, or give --nccl-tests never"
        )
    factor = settings.sizes[1] / settings.sizes[0] if len(settings.sizes) > 1 else 2
    command = [program, "-b", str(settings.sizes[0]), "-e", str(settings.sizes[-1]), "-f", f"{max(2, round(factor))}"]
    command += ["-g", str(num_gpus), "-d", DTYPES[settings.dtype][0], "-n", str(settings.iterations)]
    command += ["-w", str(settings.warmup), "-c", "1" if settings.check else "0"]
    limit_s = settings.timeout_s * (1 + len(settings.sizes))
    with tempfile.TemporaryFile() as out:
        try:
            ended = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            raise HostError(f"{program} was not done within {limit_s:g} s: give a longer --timeout") from None
        except OSError as error:
            raise HostError(f"{program} cannot be run: {error.strerror}; give --nccl-tests never") from None
        out.seek(0, os.SEEK_SET)
        text = out.read(_MAX_OUTPUT + 1).decode("utf-8", "replace")
    if ended.returncode and not _has_row(text):
        said = next((line for line in reversed(text.splitlines()) if line.strip()), "nothing")
        raise HostError(f"{program} ended with {ended.returncode}: {escaped(said.strip()[:200])}")
    return parse(text, kind, source=program)


def parse(text: str, kind: str, *, source: str = "nccl-tests") -> list[Row]:
    """The rows of nccl-tests' table, two of each line (out of place, in place). Raises `HostError`, naming the line."""
    if len(text) > _MAX_OUTPUT:
        raise HostError(f"{source} printed more than {_MAX_OUTPUT:,} bytes: is it nccl-tests?")
    rows: list[Row] = []
    header: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.replace("#wrong", " #wrong").split()
        if line.lstrip().startswith("#") and {"size", "time", "busbw"} <= {word.strip("#") for word in words}:
            header = [word if word == "#wrong" else word.strip("#") for word in words if word != "#"]
        elif header and _is_row(line):
            rows += _rows_of(words, header, kind, f"{source}, line {number}")
            if len(rows) > 2 * _MAX_ROWS:
                raise HostError(f"{source} printed more than {_MAX_ROWS} rows: is it nccl-tests?")
    if not rows:
        said = next((line for line in reversed(text.splitlines()) if line.strip()), "nothing")
        raise HostError(f"{source} printed no table of nccl-tests; its last line: {escaped(said.strip()[:200])}")
    return rows


def _is_row(line: str) -> bool:
    return len(line) <= _MAX_LINE and re.match(r"\s*\d{1,16}\s+\d{1,16}\s", line) is not None


def _has_row(text: str) -> bool:
    return any(_is_row(line) for line in text.splitlines())


def _rows_of(words: Sequence[str], header: Sequence[str], kind: str, where: str) -> list[Row]:
    if len(words) < len(header) or any(name not in _COLUMNS for name in header):
        shown = escaped(" ".join(words)[:80])
        raise HostError(
            f"{where}: {shown!r} does not have the columns of the header ({escaped(' '.join(header)[:80])})"
        )
    times = [place for place, name in enumerate(header) if name == "time"]
    first = dict(zip(header[: times[0]], words, strict=False))
    if first.get("type") not in _TYPES:
        raise HostError(
            f"{where}: {escaped(first.get('type', '')[:20])!r} is no type of elements that is measured here"
        )
    ends = [*times[1:], len(header)]
    rows = []
    for index, (low, high) in enumerate(zip(times, ends, strict=True)):
        named = dict(zip(header[low:high], words[low:high], strict=True))
        rows.append(
            Row(
                kind=kind,
                size=int(_number(first["size"], where)),
                count=int(_number(first["count"], where)),
                type=first["type"],
                redop=first.get("redop", "none") if first.get("redop", "none").isalnum() else "none",
                root=int(_number(first.get("root", "-1"), where, at_least=-1)),
                time_us=_number(named["time"], where),
                algbw=_number(named["algbw"], where),
                busbw=_number(named["busbw"], where),
                wrong=_wrong(named.get("#wrong", "N/A"), where),
                in_place=index == 1,
            )
        )
    return rows


def _wrong(word: str, where: str) -> int | None:
    return None if word == "N/A" else int(_number(word, where))


def _number(word: str, where: str, at_least: float = 0) -> float:
    try:
        value = float(word) if len(word) <= 32 else math.nan
    except ValueError:
        value = math.nan
    if not at_least <= value <= _LARGEST:
        raise HostError(f"{where}: {escaped(word[:32])!r} is no number of a measurement")
    return value
