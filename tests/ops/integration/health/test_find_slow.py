"""8 hosts in network namespaces, 8 gloo ranks: a slow link, a slow path and a lost host are found by real exchanges.

Links are as fast as this machine, but for what is made slow, to 100 Mbit/s: tens of times less, which no load of the
machine makes up for. What is slow has to be within a tenth of the others.
"""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from glmforge.errors import GlmforgeError
from glmforge.runtime.launch import LaunchEnvironment
from glmforge_ops.dev.cluster import DevCluster, development_cluster
from glmforge_ops.dev.state import DevOptions
from glmforge_ops.health.ranks import joined
from glmforge_ops.health.slow_host import find_slow
from helpers.dev_cluster import hosts_or_skip
from helpers.distributed import run_ranks
from helpers.linked_hosts import INTERFACE, LinkedHost

SLOW = "100mbit"
PATIENT_S = 60.0
SOON_S = 6.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    hosts_or_skip()
    with development_cluster(tmp_path_factory.mktemp("dev"), DevOptions(nodes=8, slurm=False)) as made:
        yield made


def hosts_of(cluster: DevCluster) -> list[LinkedHost]:
    found = []
    for node in cluster.nodes:
        keeper = cluster.state.hosts[node].keeper
        assert keeper is not None
        found.append(LinkedHost(node, cluster.address(node), keeper.pid, cluster.disk(node), cluster.local_path))
    return found


def searched(timeout_s: float, meeting: Path | None = None) -> dict[str, Any] | str:
    """What rank 0 found, or the error of another rank. With `meeting`, rank 0 waits there after the first round."""

    def wait_for_the_cut(line: str) -> None:
        if meeting is not None and not (meeting / "measured").exists():
            (meeting / "measured").touch()
            with (meeting / "go").open() as pipe:
                pipe.read()

    launch, device = LaunchEnvironment.read(), torch.device("cpu")
    try:
        with joined(launch, "gloo", device, timeout_s=timeout_s, connect_at_once=False) as store:
            found, _ = find_slow(
                launch,
                store,
                device,
                timeout_s=timeout_s,
                num_bytes=1 << 20,
                slow_below=0.1,
                done=wait_for_the_cut,
            )
    except GlmforgeError as error:
        return str(error)
    return "" if found is None else found.as_dict()


def search_on(cluster: DevCluster, timeout_s: float = PATIENT_S, meeting: Path | None = None) -> dict[str, Any]:
    results = run_ranks(searched, 8, timeout_s, meeting, hosts=hosts_of(cluster), init_group=False, timeout_s=400)
    assert isinstance(results[0], dict), results
    return results[0] | {"others": results[1:]}


def test_the_slow_link_among_8_hosts_is_found(cluster: DevCluster) -> None:
    cluster.limit_rate("node6", SLOW)
    try:
        found = search_on(cluster)
    finally:
        cluster.limit_rate("node6", None)
    assert [one["hosts"] for one in found["slow_hosts"]] == [("node6",)]
    assert found["slow_hosts"][0]["gb_per_s"] < 0.02  # 100 Mbit/s are 0.0125 GB/s, and a first burst
    assert (found["slow_paths"], found["lost"], found["rounds"]) == ([], [], 8)


def limit_path(cluster: DevCluster, node: str, other: str) -> None:
    """What `node` sends to `other` goes at 100 Mbit/s, all else as fast as it can."""
    lines = (
        f"qdisc add dev {INTERFACE} root handle 1: htb default 1 r2q 10000",
        f"class add dev {INTERFACE} parent 1: classid 1:1 htb rate 100gbit quantum 60000",
        f"class add dev {INTERFACE} parent 1: classid 1:2 htb rate {SLOW} quantum 60000",
        f"filter add dev {INTERFACE} parent 1: protocol ip u32 match ip dst {cluster.address(other)}/32 flowid 1:2",
    )
    for line in lines:
        cluster.run(node, "tc", *line.split())


def test_a_slow_path_between_two_hosts_that_are_fast_with_all_others(cluster: DevCluster) -> None:
    limit_path(cluster, "node3", "node8")
    try:
        found = search_on(cluster)
    finally:
        cluster.run("node3", "tc", "qdisc", "delete", "dev", INTERFACE, "root")
    assert [path["hosts"] for path in found["slow_paths"]] == [("node3", "node8")]
    assert (found["slow_hosts"], found["lost"]) == ([], [])


@pytest.mark.chaos
def test_a_host_cut_off_during_the_search_is_named_and_the_rest_goes_on(cluster: DevCluster, tmp_path: Path) -> None:
    cluster.limit_rate("node2", SLOW)
    os.mkfifo(tmp_path / "go")

    def cut_when_measured() -> None:
        with (tmp_path / "go").open("w"):  # opens when rank 0 has opened it, and lets it go on when it closes
            cluster.cut("node7")

    cutting = threading.Thread(target=cut_when_measured, daemon=True)
    cutting.start()
    try:
        found = search_on(cluster, SOON_S, tmp_path)
    finally:
        cutting.join(PATIENT_S)
        cluster.heal("node7")
        cluster.limit_rate("node2", None)
    assert found["lost"] == ["node7"]
    assert [one["hosts"] for one in found["slow_hosts"]] == [("node2",)]
