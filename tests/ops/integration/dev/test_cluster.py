"""A development cluster as its users meet it: jobs, ssh, nodes that fail and come back, and nothing left behind."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from glmforge.errors import GlmforgeError, HostError
from glmforge_ops.dev import DevCluster, DevOptions, development_cluster
from glmforge_ops.dev.state import LONGEST, ClusterState, HostRecord, Places
from helpers.dev_cluster import hosts_or_skip, install_slurm_or_skip, short_directory
from helpers.leftovers import belongings_of, mounts_of, processes_of

HOLDER = """
import sys, time
from pathlib import Path
from glmforge_ops.dev.state import LONGEST
from glmforge_ops.dev import DevOptions, development_cluster
options = DevOptions(nodes=1, gpus=0, slurm=False, mode=sys.argv[2])
with development_cluster(Path(sys.argv[1]), options) as cluster:
    print(cluster.state.uplink, flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module", params=["namespaces", "plain"])
def cluster(request: pytest.FixtureRequest) -> Iterator[DevCluster]:
    """In a directory whose path is as long as may be."""
    install_slurm_or_skip()
    if request.param == "namespaces":
        hosts_or_skip()
    options = DevOptions(nodes=3, gpus=2, cpus=4, slurmd_timeout_s=600, mode=request.param)
    with short_directory() as short:
        directory = short / ("x" * (LONGEST - len(f"{short}/")))
        with development_cluster(directory, options) as cluster:
            belongings = belongings_of(cluster)
            yield cluster
    assert belongings.left() == []


def ssh(cluster: DevCluster, host: str, command: str, *options: str) -> "subprocess.CompletedProcess[str]":
    words = [*cluster.ssh_command, *options, host, command]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def is_reached(cluster: DevCluster, host: str) -> bool:
    """Asked of hosts that cannot be, for they make it wait."""
    return ssh(cluster, host, "true", "-o", "ConnectTimeout=1").returncode == 0


def test_a_job_runs_on_every_node_and_sees_its_gpus(cluster: DevCluster) -> None:
    asks = 'echo "$SLURMD_NODENAME $(hostname) $SLURM_GPUS_ON_NODE $CUDA_VISIBLE_DEVICES"'
    answers = cluster.slurm("srun", "-N3", "--gpus-per-node=2", "sh", "-c", asks).splitlines()
    hosts = [line.split() for line in sorted(answers)]
    assert [host[0] for host in hosts] == ["node1", "node2", "node3"]
    assert [host[2:] for host in hosts] == [["2", "0,1"]] * 3
    if cluster.state.mode == "namespaces":
        assert [host[1] for host in hosts] == ["node1", "node2", "node3"]


def test_a_batch_job_runs(cluster: DevCluster) -> None:
    """The socket of its batch step has the longest of all paths; where it cannot be made, the job is requeued."""
    log = cluster.directory / "shared-log"
    cluster.slurm("sbatch", "--wait", f"--output={log}", "--wrap", "echo $SLURM_RESTART_COUNT")
    assert log.read_text() == "\n"


def test_a_node_fails_and_is_healed(cluster: DevCluster) -> None:
    asleep = cluster.run("node2", "sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!").stdout.strip()
    cluster.fail("node2")
    with pytest.raises(HostError, match=r"node2: has failed; bring it back: glmforge cluster dev heal node2"):
        cluster.run("node2", "true")
    with pytest.raises(HostError, match="has failed"):
        cluster.fail("node2")
    if cluster.state.mode == "namespaces":
        assert not is_reached(cluster, "node2")
    cluster.heal("node2")
    assert cluster.slurm("srun", "-wnode2", "sh", "-c", "echo $SLURMD_NODENAME") == "node2\n"
    if cluster.state.mode == "plain":
        assert not Path("/proc", asleep, "cwd").exists()


def test_ssh_knows_every_host_by_its_own_key(cluster: DevCluster) -> None:
    if cluster.state.mode == "plain":
        return
    assert ssh(cluster, "node1", "echo $SLURM_CONF").stdout == f"{cluster.places.slurm_conf}\n"
    known = cluster.places / "ssh/known_hosts"
    right = known.read_text()
    lines = {line.split()[0]: line.split()[2] for line in right.splitlines()}
    assert len(set(lines.values())) == len(lines) == 4
    try:
        known.write_text(right.replace(lines["node1"], lines["node2"]))
        refused = ssh(cluster, "node1", "true")
    finally:
        known.write_text(right)
    assert refused.returncode == 255
    assert "IDENTIFICATION HAS CHANGED" in refused.stderr or "verification failed" in refused.stderr


def test_hosts_of_their_own(cluster: DevCluster) -> None:
    """What only namespaces give: addresses, disks, memory, links."""
    if cluster.state.mode == "plain":
        with pytest.raises(HostError, match="nodes of a plain cluster have no links; start one as root"):
            cluster.cut("node1")
        return
    assert cluster.run("node1", "ssh", "node3", "hostname").stdout == "node3\n"  # with no options at all
    cluster.run("node1", "sh", "-c", f"echo one > {cluster.local_path}/file; echo two > /dev/shm/glmforge-test")
    assert (cluster.disk("node1") / "file").read_text() == "one\n"
    assert cluster.run("node2", "ls", str(cluster.local_path), "/dev/shm").stdout.split() == [
        "/dev/shm:",
        f"{cluster.local_path}:",
    ]
    assert not Path("/dev/shm/glmforge-test").exists()
    assert cluster.run("node2", "ls", "/sys/class/net").stdout.split() == ["eth0", "lo"]
    assert "default" not in cluster.run("node2", "ip", "route").stdout
    cluster.cut("node3")
    assert not is_reached(cluster, "node3")
    assert cluster.run("node3", "hostname").stdout == "node3\n"  # it runs on
    cluster.heal("node3")
    assert ssh(cluster, "node3", "hostname").stdout == "node3\n"


def test_the_end_of_a_crashed_cluster_spares_another_that_has_its_interfaces_name(
    cluster: DevCluster, short_path: Path
) -> None:
    if cluster.state.mode == "plain":
        return
    places = Places(short_path / "crashed")
    hosts = {name: HostRecord() for name in cluster.state.hosts}
    index = cluster.state.uplink_index - 1
    with places.lock():
        crashed = ClusterState(places=places, options=cluster.state.options, hosts=hosts)
        crashed.model_copy(update={"uplink": cluster.state.uplink, "uplink_index": index}).write()
    DevCluster.end(places.directory)
    assert is_reached(cluster, "node1")


@pytest.mark.parametrize("mode", ["namespaces", "plain"])
def test_a_cluster_ends_with_the_process_that_holds_it(short_path: Path, mode: str) -> None:
    hosts_or_skip() if mode == "namespaces" else install_slurm_or_skip()
    directory = short_path / "cluster"
    command = [sys.executable, "-c", HOLDER, str(directory), mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        uplink = holder.stdout.readline().strip()
        keepers = processes_of(directory)
        holder.kill()
    assert keepers
    assert uplink
    while processes_of(directory) or mounts_of(directory):  # the test's time limit is the machine's patience
        pass
    DevCluster.end(directory)
    assert not directory.exists()
    assert not Path("/sys/class/net", uplink).exists()


def test_a_slow_link(cluster: DevCluster) -> None:
    if cluster.state.mode == "plain":
        return
    cluster.limit_rate("node1", "5mbit")
    for host, interface in {"node1": "eth0", "head": "node1"}.items():
        assert "rate 5Mbit" in cluster.run(host, "tc", "qdisc", "show", "dev", interface).stdout
    cluster.limit_rate("node1", None)
    assert "5Mbit" not in cluster.run("node1", "tc", "qdisc", "show", "dev", "eth0").stdout


def test_a_daemon_that_ends_is_shown_and_healed(cluster: DevCluster) -> None:
    pid = (cluster.places.host("node3") / "slurmd.pid").read_text().strip()
    cluster.run("node3", "kill", "-KILL", pid)
    while not (ended := cluster.ended_daemons("node3")):  # the test's time limit is the machine's patience
        pass
    assert ended == ["slurmd 137"]
    cluster.heal("node3")
    assert cluster.ended_daemons("node3") == []
    assert cluster.slurm("srun", "-wnode3", "echo", "up") == "up\n"


def test_what_is_not_possible(cluster: DevCluster, short_path: Path) -> None:
    up, absent = cluster.directory, short_path / "absent"
    (short_path / "thesis.tex").touch()
    for expected, wrong in {
        r"a cluster is up there already; end it: glmforge cluster dev down": lambda: DevCluster.start(up, DevOptions()),
        r"node9: no such host in this cluster; choose one of head, node1, node2, node3": lambda: cluster.fail("node9"),
        r"head: the cluster cannot run without it; choose one of node1, node2, node3": lambda: cluster.fail("head"),
        r"no development cluster is up there; start it: glmforge cluster dev up": lambda: DevCluster.open(absent),
        r"no development cluster there": lambda: DevCluster.end(absent),
        r"is not empty; use a new or an empty directory": lambda: DevCluster.start(short_path, DevOptions()),
    }.items():
        with pytest.raises(GlmforgeError, match=expected) as raised:
            wrong()
        assert "\n" not in str(raised.value)
    with cluster.places.lock(), pytest.raises(HostError, match="locked by another command; wait"):
        cluster.fail("node1")
    assert [path.name for path in short_path.iterdir()] == ["thesis.tex"]
