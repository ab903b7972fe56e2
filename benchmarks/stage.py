"""Weights on the disks of seven nodes: staged from one to the next, against each node reading shared storage itself.

    python benchmarks/stage.py      # some four minutes as root; writes benchmarks/results/stage.json

Eight hosts in network namespaces (`glmforge_ops.dev`), each with one link of `--rate` in each direction. The first
stands for shared storage: everything that is read from it goes through its link. The others are to have its files on
disks of their own.

    tree    `glmforge cluster stage`, which runs on the first host; nodes fetch from each other over ssh
    each    every node reads everything for itself, all at once, over ssh as well, and compares nothing

Bytes are those that the first host's interface has sent, headers and ssh included; times are from the start to the
last node's last byte on its disk.

Expected before the first run, for a link that carries S bytes in t: `each` takes 7 t. A tree of units whose nodes could
send and receive at full rate without a pause would take little more than t; that two units at a time share each link,
that the source gives some units twice as slowly while it gives two at once, and every ssh handshake on two busy cores
cost a part of it: 2 t, so a third of the time, with a seventh of the bytes from storage.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from record import write_result

from glmforge_ops.dev import DevCluster, DevOptions, development_cluster

NODES = 8
UNIT_MIB = 4  # of 64 as usual: as many units as there would be of larger files
CODE = ["src/glmforge_ops/storage", "src/glmforge_ops/cli/cluster/stage.py"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", default="50mbit")
    parser.add_argument("--megabytes", type=int, default=128)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    size = arguments.megabytes * 10**6
    with tempfile.TemporaryDirectory() as directory:
        options = DevOptions(nodes=NODES, gpus=0, slurm=False, link_rate=arguments.rate)
        with development_cluster(Path(directory) / "cluster", options) as cluster:
            storage, *nodes = cluster.nodes
            source = cluster.disk(storage) / "shared"
            source.mkdir()
            for part in range(4):
                (source / f"model-{part}.safetensors").write_bytes(os.urandom(size // 4))
            each = read_by_each(cluster, storage, nodes)
            tree = staged(cluster, storage, nodes)
            for node in nodes:
                check(cluster, node, source)
    content = {
        "nodes": len(nodes),
        "rate": arguments.rate,
        "bytes": size,
        "each": each,
        "tree": tree,
        "bytes_ratio": each["sent_bytes"] / tree["sent_bytes"],
        "time_ratio": each["seconds"] / tree["seconds"],
    }
    print(json.dumps(content, indent=1))
    write_result("stage", content, code=CODE, out=arguments.out)


def read_by_each(cluster: DevCluster, storage: str, nodes: list[str]) -> dict[str, Any]:
    """Every node copies all files from the first host at the same time."""
    ssh = " ".join(cluster.ssh_command)
    script = f"mkdir -p {cluster.local_path}/each && {ssh} {storage} tar -C {cluster.local_path}/shared -cf - . | "
    script += f"tar -C {cluster.local_path}/each -xf - && sync -f {cluster.local_path}/each"
    before, began = sent(cluster, storage), time.monotonic()
    readers = [
        subprocess.Popen(cluster.command(node, "sh", "-c", script), env=cluster.environment_on(node)) for node in nodes
    ]
    assert [reader.wait() for reader in readers] == [0] * len(readers)
    return {"seconds": time.monotonic() - began, "sent_bytes": sent(cluster, storage) - before}


def staged(cluster: DevCluster, storage: str, nodes: list[str]) -> dict[str, Any]:
    """The command, on the first host."""
    command = [sys.executable, "-m", "glmforge", "cluster", "stage", f"{cluster.local_path}/shared"]
    command += [
        "--to",
        f"{cluster.local_path}/cache",
        "--hosts",
        ",".join(nodes),
        "--json",
        "--unit-mib",
        str(UNIT_MIB),
    ]
    command += ["--ssh", " ".join(cluster.ssh_command)]
    before, began = sent(cluster, storage), time.monotonic()
    done = subprocess.run(
        cluster.command(storage, *command),
        env=cluster.environment_on(storage),
        check=False,
        capture_output=True,
        text=True,
    )
    seconds = time.monotonic() - began
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    counted = {name: told[name] for name in ("source_bytes", "peer_bytes", "relayed_bytes")}
    return {"seconds": seconds, "sent_bytes": sent(cluster, storage) - before} | counted


def check(cluster: DevCluster, node: str, source: Path) -> None:
    """Every file is there, byte for byte."""
    for file in source.iterdir():
        (copy,) = (cluster.disk(node) / "cache").glob(f"*/{file.name}")
        assert copy.read_bytes() == file.read_bytes()


def sent(cluster: DevCluster, host: str) -> int:
    """Bytes that the host's interface has sent so far."""
    for line in cluster.run(host, "cat", "/proc/net/dev").stdout.splitlines():
        interface, _, counts = line.partition(":")
        if interface.strip() == "eth0":
            return int(counts.split()[8])
    raise AssertionError(f"{host} has no eth0")


if __name__ == "__main__":
    main()
