"""What lies below directories, so that before and after can be compared."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class Seen(NamedTuple):
    """A file or directory; `changed` (ns) is 0 where it is not looked at."""

    mode: str
    owner: int
    content: bytes
    changed: int = 0


def snapshot(roots: Iterable[Path], times: bool = False) -> dict[str, Seen]:
    """Everything below `roots`, themselves included, with contents; with `times` also when each was last changed."""
    found: dict[str, Seen] = {}
    for root in roots:
        if root.exists():
            for path in [root, *root.rglob("*")]:
                info = path.lstat()
                content = b""
                if stat.S_ISREG(info.st_mode):
                    content = path.read_bytes()
                elif stat.S_ISLNK(info.st_mode):
                    content = os.readlink(path).encode()  # noqa: PTH115
                found[str(path)] = Seen(
                    stat.filemode(info.st_mode), info.st_uid, content, info.st_mtime_ns if times else 0
                )
    return found
