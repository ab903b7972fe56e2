"""A format whose reader makes every mistake that the suite looks for, one per case: what proves that it finds them."""

import os
import pickle
import subprocess
import time
from pathlib import Path

from fuzz.format import Format
from glmforge.errors import ConfigError


def write(directory: Path) -> None:
    (directory / "file").write_text("good")


def read(directory: Path) -> object:
    content = (directory / "file").read_text()
    if content != "good":
        _MISTAKES[content](directory)
    return content


def _raise(error: Exception) -> None:
    raise error


def _compute(directory: Path) -> None:
    started = time.process_time()
    while time.process_time() - started < 1.2:
        pass


def _compute_for_ever(directory: Path) -> None:
    while True:
        pass


def _swallow_what_is_forbidden(directory: Path) -> None:
    try:
        os.system("true")
    except BaseException as error:
        raise ConfigError("refused") from error


_MISTAKES = {
    "refused": lambda directory: _raise(ConfigError("file: wrong")),
    "traceback": lambda directory: _raise(KeyError("file")),
    "two_lines": lambda directory: _raise(ConfigError("file: wrong\nvery wrong")),
    "escape_code": lambda directory: _raise(ConfigError("file: \x1b[2J")),
    "long_line": lambda directory: _raise(ConfigError("x" * 100_000)),
    "memory": lambda directory: bytearray(600_000_000),
    "slow": _compute,
    "endless": _compute_for_ever,
    "fifo": lambda directory: (os.mkfifo(directory / "fifo"), (directory / "fifo").read_bytes()),
    "died": lambda directory: os.abort(),
    "system": lambda directory: os.system("true"),
    "process": lambda directory: subprocess.run(["true"], check=True),
    "eval": lambda directory: eval("1 + 1"),
    "pickle": lambda directory: pickle.loads(pickle.dumps(Path)),
    "write": lambda directory: Path("/tmp/fuzz-was-here").write_text("x"),
    "swallowed": _swallow_what_is_forbidden,
}

FORMAT = Format(
    name="planted",
    write=write,
    read=read,
    mutators={"file": lambda content, rng: rng.choice((b"good", b"refused"))},
    bombs={name: lambda directory, name=name: (directory / "file").write_text(name) for name in _MISTAKES},
    damages_directory=False,
)
