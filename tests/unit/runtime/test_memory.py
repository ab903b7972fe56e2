"""The memory that a process may use, by the files of control groups."""

import os
from pathlib import Path

import pytest

from glmforge.runtime.memory import usable_memory

PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("membership", "limits", "expected"),
    [
        ("", {}, PHYSICAL),
        ("0::/job/step\n", {"job/memory.max": "4096", "job/step/memory.max": "max"}, 4096),
        ("0::/job\n", {"job/memory.max": "4096", "other/memory.max": "1"}, 4096),
        ("0::/hidden\n", {"memory.max": "8192"}, 8192),  # a container sees its own group as the root
        ("4:cpu,memory:/job\n3:cpuset:/\n", {"memory/job/memory.limit_in_bytes": "4096"}, 4096),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": str(2**63 - 4096)}, PHYSICAL),
    ],
)
def test_the_tightest_limit_around_a_process_counts(
    tmp_path: Path, membership: str, limits: dict[str, str], expected: int
) -> None:
    (tmp_path / "membership").write_text(membership)
    for name, limit in limits.items():
        file = tmp_path / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(limit + "\n")
    assert usable_memory(tmp_path / "cgroup", tmp_path / "membership") == expected


def test_a_system_without_control_groups_has_its_physical_memory(tmp_path: Path) -> None:
    assert usable_memory(tmp_path, tmp_path / "none") == PHYSICAL
