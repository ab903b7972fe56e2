"""`glmforge cluster init`: what is found becomes settings, what is not is said, and the file loads again."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from glmforge.cli.app import app
from glmforge.config.cluster import ClusterConfig, SlurmConfig
from glmforge.config.load import load_settings
from glmforge.config.tree import parse
from glmforge.errors import DataError
from glmforge_ops.hosts.fanout import Answer, Fanout, Outcome
from glmforge_ops.hosts.machines import load_cluster
from glmforge_ops.hosts.on_node.wire import MARK
from glmforge_ops.setup import facts, find
from glmforge_ops.setup.find import config_text, find_cluster


def said_by_a_node(**changes: Any) -> dict[str, Any]:
    return {
        "gpus": ["NVIDIA H200"] * 8,
        "links": ["Ethernet", "InfiniBand"],
        "disks": [["/local disk"], ["/scratch"]],
        "shared": [["/shared", "nas:/all"], ["/other", "nas:/this node's"]],
    } | changes


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any] | None]:
    """What each node says; None: it does not answer."""
    nodes: dict[str, dict[str, Any] | None] = {}

    def answer(host: str) -> Answer:
        if nodes[host] is None:
            return Answer(host, Outcome.UNREACHABLE, reason="it does not answer", fix="look at it")
        return Answer(host, Outcome.DONE, 0, b"\n" + MARK + json.dumps(nodes[host]).encode() + b"\n")

    monkeypatch.setattr(Fanout, "run", lambda self, hosts, *rest: {host: answer(host) for host in hosts})
    return nodes


def load(text: str) -> ClusterConfig:
    return load_settings(ClusterConfig, parse(text, "cluster.yaml"))


def test_what_all_have_becomes_settings(nodes: dict[str, Any]) -> None:
    nodes |= {f"node{number}": said_by_a_node() for number in (1, 2, 3)}
    found = find_cluster(ClusterConfig(nodes=["node[1-3]"]))
    cluster = load(config_text(found))
    assert (cluster.nodes, cluster.gpus_per_node, cluster.network) == (["node[1-3]"], 8, "infiniband")
    assert (cluster.local_path, cluster.shared_path) == (Path("/local disk"), Path("/shared"))
    assert found.missing == []
    assert "3 machines: node[1-3]" in found.said
    assert "#   local_path: /local disk (also /scratch)" in config_text(found)


def test_what_differs_or_lacks_is_said(nodes: dict[str, Any]) -> None:
    few = said_by_a_node(gpus=["NVIDIA H200"] * 7, disks=[], shared=[["/other", "nas:/its own"]])
    nodes |= {"a": said_by_a_node(), "b": said_by_a_node(), "c": few, "d": None}
    found = find_cluster(ClusterConfig(nodes=["a", "b", "c", "d"]))
    assert found.settings["gpus_per_node"] == 8
    assert any("the same GPUs everywhere: c differs" in line for line in found.missing)
    assert any("what d has: it does not answer; look at it" in line for line in found.missing)
    assert "local_path: no disk of 200 GB or more that all nodes have" in found.missing
    assert "shared_path: no network file system that all nodes have" in found.missing
    cluster = load(config_text(found))
    assert cluster.local_path is None


def test_slurm_promises_gpus_that_nobody_could_count(nodes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    nodes |= {"n1": None}
    monkeypatch.setattr("glmforge_ops.hosts.machines.slurm_nodes", lambda partition: ["n1"])
    monkeypatch.setattr(find, "gres_of", lambda partition: ["gpu:h200:8(S:0-1)", "(null)"])
    found = find_cluster(ClusterConfig(slurm=SlurmConfig(partition="gpu")))
    cluster = load(config_text(found))
    assert cluster.slurm is not None
    assert (cluster.slurm.partition, cluster.gpus_per_node) == ("gpu", 8)


@pytest.mark.parametrize("path", ["/a: b #c", "/'a'", "/%s{{ x }}"])
def test_any_path_is_read_back_as_it_is(nodes: dict[str, Any], path: str) -> None:
    nodes["a"] = said_by_a_node(disks=[[path], ["/x\n\nnetwork: tcp"]])
    assert load(config_text(find_cluster(ClusterConfig(nodes=["a"])))).local_path == Path(path)


def test_no_file_is_replaced_unless_forced(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    options = ["cluster", "init", "--hosts", "localhost", "--out", str(file)]
    first = CliRunner().invoke(app, options)
    assert first.exit_code == 0, first.exception
    assert load_cluster(file).nodes == ["localhost"]
    assert "found: 1 machine: localhost" in first.output
    file.write_text("name: mine\n")
    again = CliRunner().invoke(app, options)
    assert isinstance(again.exception, DataError)
    assert str(again.exception) == f"{file}: already exists; choose another name, or pass --force to overwrite it"
    assert file.read_text() == "name: mine\n"
    assert CliRunner().invoke(app, [*options, "--force"]).exit_code == 0
    assert load_cluster(file).nodes == ["localhost"]
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.yaml"]


def test_disks_of_a_node_are_sorted_and_the_systems_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"/": 9e12, "/scratch": 9e12, "/big": 10e12, "/fast\tdisk": 7e12, "/small": 1e11}
    mounts = "/dev/sda1 / ext4\n/dev/sdb /scratch xfs\n/dev/sdc /big xfs\n/dev/nvme1n1 /fast\\011disk xfs\n"
    more = "/dev/sdd /small xfs\nnas:/all /shared nfs4\nproc /proc proc\n"
    monkeypatch.setattr(facts, "_text", lambda path: mounts + more)
    monkeypatch.setattr(facts, "_size", lambda path: int(sizes[path]))
    assert facts._file_systems() == {
        "disks": [["/fast\tdisk"], ["/big"], ["/scratch"]], "shared": [["/shared", "nas:/all"]]
    }  # fmt: skip


def test_this_machine_says_what_it_has() -> None:
    assert facts.facts().keys() == {"gpus", "links", "disks", "shared"}
