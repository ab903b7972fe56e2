from pathlib import Path

import pytest

from glmforge.config import dump_config
from glmforge.config.cluster import ClusterConfig
from glmforge.errors import GlmforgeError
from glmforge.runtime.hostfile import HostLine
from glmforge_ops.hosts.machines import load_cluster, machines_of, ssh_of


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    return file


def test_a_cluster_names_its_machines(tmp_path: Path) -> None:
    cluster = load_cluster(
        write(tmp_path, "nodes: ['node[01-03]', login]\ngpus_per_node: 4\nssh: {user: me, port: 23}")
    )
    assert machines_of(cluster) == [HostLine(name, 4) for name in ("node01", "node02", "node03", "login")]
    command = ssh_of(cluster).to("node01", "true")
    assert command[command.index("-l") + 1] == "me"
    assert command[command.index("-p") + 1] == "23"


def test_a_hostfile_lies_beside_the_file_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "hosts.txt").write_text("node1 slots=2\n")
    assert machines_of(load_cluster(write(tmp_path, "hostfile: hosts.txt"))) == [HostLine("node1", 2)]


def test_a_cluster_without_machines_is_this_one() -> None:
    assert machines_of(load_cluster(None)) == [HostLine("localhost", 8)]


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    cluster = ClusterConfig.model_validate({"nodes": ["a"], "local_path": "/local", "thresholds": {"fd-limit": 10.0}})
    assert load_cluster(write(tmp_path, dump_config(cluster))) == cluster


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nodes: [a]\nhostfile: b", "hostfile: nodes also names the machines"),
        ("nodes: ['a;b']", "not the name of a host"),
        ("local_path: nvme", "'nvme' is not absolute"),
        ("node: [a]", "did you mean 'nodes'"),
        ("ssh: {user: '-oProxyCommand=x'}", "user"),
        ("interface: '$(reboot)'", "interface"),
        ("monitoring: {prometheus: 'file:///etc/passwd'}", "prometheus"),
        ('ssh: {command: "ssh \'x"}', "not a command"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(GlmforgeError, match=reason):
        read_all(write(tmp_path, text))


def read_all(file: Path) -> None:
    cluster = load_cluster(file)
    machines_of(cluster)
    ssh_of(cluster)
