from pathlib import Path

import pytest

from glmforge.errors import HostError
from glmforge.runtime.hostfile import HostLine, parse_hosts, read_host_lines, read_hostfile


def test_hosts_are_told_from_files_and_lists(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# the job's nodes\nnode1 slots=8\n\nroot@10.0.0.2   # second\nnode[08-10,3]-ib slots=4\n")
    names = ["node1", "root@10.0.0.2", "node3-ib", "node08-ib", "node09-ib", "node10-ib"]
    assert read_hostfile(file) == names
    assert [line.slots for line in read_host_lines(file)] == [8, None, 4, 4, 4, 4]
    assert parse_hosts("a, b,n[1-2,5]") == ["a", "b", "n1", "n2", "n5"]
    assert parse_hosts("r[1-2]n[1-2]") == ["r1n1", "r1n2", "r2n1", "r2n2"]


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ("-oProxyCommand=x", "not the name"),
        ("a;reboot", "not the name"),
        ("a\nb", "not the name"),
        ("@a", "not the name"),
        ("a" * 256, "not the name"),
        (",", "names no host"),
        ("node[1-]", "not a range"),
        ("node[3-1]", "not a range"),
        ("node[8-011]", "padding"),
        ("node[1-2][1-2]", "bracket"),
        ("node[1,1-2]", "names a host twice"),
        ("node[1-999999999]", "more than 100000"),
        ("a[1-9999]b[1-9999]", "more than 100000"),
        ("a,b,a", "a is named twice"),
    ],
)
def test_names_that_are_none_are_refused(names: str, reason: str) -> None:
    with pytest.raises(HostError, match=reason):
        parse_hosts(names)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("node1 slots=8\nnode1 slots=8\n", "hosts:2: node1 stands in line 1 already"),
        ("node1 slots=0\n", "hosts:1: slots=0 is not understood"),
        ("node1 8\n", "hosts:1: 8 is not understood"),
        ("ok\n$(reboot) slots=1\n", r"hosts:2: \$\(reboot\) is not the name"),
        ("# nothing\n", "names no host"),
        ("\x00", "not the name"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(HostError, match=reason):
        read_hostfile(tmp_path / "hosts")


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="cannot be read"):
        read_hostfile(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(HostError, match="not UTF-8"):
        read_hostfile(tmp_path / "binary")


def test_a_thousand_hosts_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("node[0001-1024] slots=8\n")
    lines = read_host_lines(tmp_path / "hosts")
    assert (lines[0], lines[-1], len(lines)) == (HostLine("node0001", 8), HostLine("node1024", 8), 1024)
