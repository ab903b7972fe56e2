"""Memory of this machine that its processes may use together."""

import os
from collections.abc import Iterator
from pathlib import Path


def usable_memory(cgroup: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes of physical memory, or fewer where a control group of this process (a container, a job) allows fewer."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *_limits(cgroup, membership)])


def _limits(cgroup: Path, membership: Path) -> Iterator[int]:
    """The limits of this process's group and of those around it, by control groups version 2 and 1."""
    for line in membership.read_text().splitlines() if membership.exists() else []:
        _, controllers, group = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root, name = (cgroup / "memory", "memory.limit_in_bytes") if controllers else (cgroup, "memory.max")
        folder = root / group.lstrip("/")
        for place in (folder, *folder.parents):
            if place.is_relative_to(root) and (place / name).exists():
                limit = (place / name).read_text().strip()
                if limit != "max":
                    yield int(limit)
