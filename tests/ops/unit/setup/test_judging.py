"""What steps make of what nodes say: each fault is named for the node that has it, and for no other."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from glmforge.config.cluster import ClusterConfig
from glmforge.runtime.hostfile import HostLine, parse_hosts
from glmforge_ops.hosts.fold import fold_hosts
from glmforge_ops.setup.known_hosts import HostKey, KnownHosts, Place, decide, fingerprint_of
from glmforge_ops.setup.on_node.facts import facts as gather
from glmforge_ops.setup.plan import Context, Step
from glmforge_ops.setup.steps.files import ssh
from glmforge_ops.setup.steps.local_disks import local_disks
from glmforge_ops.setup.steps.network import network
from glmforge_ops.setup.steps.prerequisites import prerequisites
from glmforge_ops.setup.wanted import Wanted

GOOD_PATH = {"kind": "directory", "writable": True, "type": "xfs", "source": "/dev/nvme1n1", "network": False}
GOOD: dict[str, Any] = {
    "packages": {"glmforge": True, "torch": True},
    "programs": ["ssh", "mpirun"],
    "gpus": {"count": 8, "names": ["NVIDIA H200"], "source": "nvidia-smi"},
    "interfaces": {"eth0": {"mtu": 9000, "state": "up", "mbit": 100_000, "type": 1}},
    "route": "eth0",
    "infiniband": [{"device": "mlx5_0", "port": "1", "state": "4: ACTIVE", "link": "InfiniBand", "rate": "400"}],
    "paths": {"/nvme": GOOD_PATH, "/nvme/glmforge": {**GOOD_PATH, "kind": "absent"}, "/out": GOOD_PATH},
    "home": {**GOOD_PATH},
    "home_is_open": False,
    "memlock": -1,
    "addresses": {"a": ["10.0.0.1"]},
}


def context(second: Mapping[str, Any], third: Mapping[str, Any] | None = None, **cluster: Any) -> Context:
    """Three nodes; the second has what is given."""
    config = ClusterConfig(nodes=["a", "b", "c"], local_path=Path("/nvme"), **cluster)
    wanted = Wanted.of("mpi", config, [HostLine(name) for name in "abc"], Path("/out"), 3)
    facts = {"a": GOOD, "b": GOOD | dict(second), "c": GOOD | dict(third or {})}
    return Context(wanted, facts, {}, "", "restrict,pty ssh-ed25519 AAAA")


def errors(step: Step) -> list[str]:
    return [str(problem) for problem in step.problems if "on this machine" not in str(problem)]


def on_path(**changes: Any) -> dict[str, Any]:
    return {"paths": GOOD["paths"] | {"/nvme": GOOD_PATH | changes}}


def test_good_nodes_have_no_problem() -> None:
    for step in (prerequisites, local_disks, network, ssh):
        assert errors(step(context({}))) == []


@pytest.mark.parametrize(
    ("step", "fault", "expected"),
    [
        (prerequisites, {"packages": {"glmforge": False, "torch": True}}, "b: lacks glmforge; install glmforge for"),
        (prerequisites, {"programs": ["ssh"]}, "b: lacks mpirun; apt-get install openmpi-bin"),
        (
            prerequisites,
            {"gpus": GOOD["gpus"] | {"error": "Driver/library version mismatch"}},
            "b: nvidia-smi fails: Driver/library version mismatch; look at the driver there",
        ),
        (local_disks, on_path(kind="absent"), "b: /nvme is not there; mount the disk"),
        (local_disks, on_path(kind="file"), "b: /nvme is a file; give --nvme-path the directory"),
        (
            local_disks,
            on_path(network=True, type="nfs4", source="nas:/home"),
            "b: /nvme is on nfs4 (nas:/home), not a disk of its own; correct --nvme-path",
        ),
        (local_disks, on_path(writable=False), "b: /nvme is not this account's to write to; have root run: install -d"),
        (network, {"infiniband": []}, "b: has tcp only, not infiniband; look at its adapters"),
        (
            network,
            {"infiniband": [GOOD["infiniband"][0] | {"state": "1: DOWN"}]},
            "b: has tcp only, not infiniband; look at its adapters",
        ),
        (network, {"route": None}, "b: has no default route; give 'interface' in cluster.yaml"),
        (
            network,
            {"interfaces": {"eth0": GOOD["interfaces"]["eth0"] | {"mtu": 1500}}},
            "b: MTU 1500, but 9000 elsewhere; make it the same",
        ),
        (
            network,
            {"interfaces": {"eth0": GOOD["interfaces"]["eth0"] | {"state": "down"}}},
            "b: its interface eth0 is down; ip link set eth0 up",
        ),
        (network, {"addresses": {"a": []}}, "b: does not know the master, a; add it to DNS or /etc/hosts there"),
        (network, {"memlock": 65536}, "b: may not pin memory without limit; set memlock to unlimited"),
        (ssh, {"home_is_open": True}, "b: its ~/.ssh/authorized_keys is one that sshd refuses"),
    ],
)
def test_each_fault_alone(step: Any, fault: dict[str, Any], expected: str) -> None:
    (said,) = errors(step(context(fault)))
    assert said.startswith(expected)


def test_two_faults_are_both_named() -> None:
    said = errors(local_disks(context(on_path(kind="absent"), on_path(kind="file"))))
    assert [text.split(":")[0] for text in said] == ["b", "c"]


def test_the_same_fault_is_told_once() -> None:
    (said,) = errors(local_disks(context(on_path(kind="absent"), on_path(kind="absent"))))
    assert said.startswith("b,c: /nvme is not there")


def test_a_node_with_a_wrong_disk_gets_no_directory() -> None:
    step = local_disks(context(on_path(kind="file")))
    assert {change.host for change in step.wanted} == {"a", "c"}


def test_an_interface_that_a_node_lacks() -> None:
    (said,) = errors(network(context({"interfaces": {"ens3": GOOD["interfaces"]["eth0"]}}, interface="eth0")))
    assert said.startswith("b: has no interface eth0, only ens3; correct 'interface' in cluster.yaml")


def test_one_node_writes_to_a_home_that_all_share() -> None:
    shared = {"home": GOOD_PATH | {"network": True, "source": "nas:/home"}}
    step = ssh(context(shared, shared))
    assert {change.host for change in step.wanted if change.host} == {"a", "b"}


def test_this_machine_can_say_all_that_steps_ask_for(tmp_path: Path) -> None:
    said = gather(
        {"paths": [str(tmp_path), "/no/such"], "names": ["localhost", "no-such-host.invalid"], "mounts": True}
    )
    assert set(GOOD) <= set(said)
    assert said["paths"][str(tmp_path)]["kind"] == "directory"
    assert said["paths"]["/no/such"]["kind"] == "absent"
    assert said["addresses"]["localhost"]
    assert said["addresses"]["no-such-host.invalid"] == []
    assert all({"path", "type", "source", "network"} <= set(mount) for mount in said["mounts"])


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ("node[001-128]", "node[001-128]"),
        ("node[8-11]", "node[8-11]"),
        ("node[1-3,7,9-10]", "node[1-3,7,9-10]"),
        ("a,b1,c", "a,b1,c"),
        ("n[1-2]x,n[1-2]y", "n[1-2]x,n[1-2]y"),
        ("gpu[09-11].rack1", "gpu09.rack1,gpu10.rack1,gpu11.rack1"),
    ],
)
def test_folded_names_mean_the_same(names: str, folded: str) -> None:
    hosts = parse_hosts(names)
    assert sorted(parse_hosts(fold_hosts(hosts))) == sorted(hosts)
    if "rack" not in names:
        assert fold_hosts(hosts) == folded


KEYS = [f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{'A' * 42}{last}" for last in "048"]
PLACE = Place("node1", "10.0.0.1", 22, "10.0.0.1")


def test_hashed_names_are_found_again() -> None:
    line = HostKey(PLACE, KEYS[0]).line
    assert "10.0.0.1" not in line
    known = KnownHosts(f"# comment\n{line}\nplain,other ssh-ed25519 AAAA\n@revoked gone ssh-rsa BBBB\n|1|bad|bad x y\n")
    assert [name in known for name in ("10.0.0.1", "plain", "other", "gone", "10.0.0.2")] == [True] * 3 + [False] * 2


def test_only_the_accepted_key_of_that_host_is_taken() -> None:
    new = {
        "node1": [HostKey(PLACE, KEYS[0]), HostKey(PLACE, KEYS[1])],
        "node2": [HostKey(Place("node2", "b", 22, "b"), KEYS[2])],
        "node3": [HostKey(Place("node3", "c", 22, "c"), KEYS[1])],
    }
    accepted = {"node1": {fingerprint_of(KEYS[1])}, "node2": {fingerprint_of(KEYS[1])}}
    trust = decide(new, accepted)
    assert list(trust.lines) == ["node1"]
    assert [line.split(" ", 1)[1] for line in trust.lines["node1"]] == [KEYS[1]]
    assert set(trust.refused) == {"node2", "node3"}
    assert [key.place.host for key in trust.new] == ["node3"]


def test_a_fingerprint_is_what_ssh_keygen_shows(tmp_path: Path) -> None:
    import subprocess

    from glmforge_ops.setup.keys import make_keys

    pair = make_keys("test")
    (tmp_path / "key.pub").write_text(pair.public)
    done = subprocess.run(["ssh-keygen", "-lf", str(tmp_path / "key.pub")], capture_output=True, text=True, check=True)
    assert done.stdout.split()[1] == fingerprint_of(pair.public)
