from pathlib import Path

import pytest

from glmforge.cluster.hostfile import parse_hosts, read_hostfile
from glmforge.cluster.hosts import Host, SshHost, Transfers, make_host
from glmforge.errors import HostError


def test_hosts_are_told_from_files_and_lists(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# the job's nodes\nnode1 slots=8\n\nroot@10.0.0.2   # second\nnode1 slots=8\n")
    assert read_hostfile(file) == ["node1", "root@10.0.0.2"]
    assert parse_hosts("a, b,,a") == ["a", "b"]
    for names, reason in (
        ("node[1-4]", "expands Slurm's lists"),
        ("-oProxyCommand=x", "not the name"),
        (",", "no host"),
    ):
        with pytest.raises(HostError, match=reason):
            parse_hosts(names)
    with pytest.raises(HostError, match="cannot be read"):
        read_hostfile(tmp_path / "none")
    assert type(make_host("localhost", Transfers(), "ssh")) is Host
    assert type(make_host("node1", Transfers(), "ssh")) is SshHost
