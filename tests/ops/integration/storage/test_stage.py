"""Files staged to nodes over real ssh: complete and verified everywhere, or the node is named."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from glmforge.data.copies import Copy, copy_missing
from glmforge.errors import HostError
from glmforge.runtime.place import place_for
from glmforge.runtime.ssh import Ssh
from glmforge_ops.hosts.fanout import Fanout
from glmforge_ops.storage import stage as stage_module
from glmforge_ops.storage.sources import SourceFile, list_sources
from glmforge_ops.storage.stage import Staged, remote, stage
from helpers.dev_cluster import slurm_cluster
from helpers.ssh_nodes import skip_unless_possible, ssh_nodes

NODES = ("node0", "node1")
SMALL = "small"  # a disk of 4 MiB
CACHE = "the node's cache"

Nodes = tuple[Ssh, Path, Path]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """How nodes are reached, where they see their disks, and where these really are."""
    skip_unless_possible()
    directory = tmp_path_factory.mktemp("cluster")
    seen, disks = directory / "seen", directory / "disks"
    seen.mkdir()
    for name in (*NODES, SMALL):
        (disks / name).mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disks / SMALL], check=True)
    try:
        with ssh_nodes(directory, [disks / name for name in (*NODES, SMALL)], seen) as ssh:
            yield Ssh.of_command(ssh), seen, disks
    finally:
        subprocess.run(["umount", "-l", disks / SMALL], check=True)


@pytest.fixture
def nodes(servers: Nodes) -> Nodes:
    for disk in servers[2].iterdir():
        for path in disk.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return servers


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory with names that a shell would take apart, two folders and files of several sizes."""
    source = tmp_path / "it's shared"
    (source / "more; rm -rf").mkdir(parents=True)
    sizes = {"web.bin": 200_017, "-n.idx": 65_536, "a 'b\" $c": 5, "empty": 0, "more; rm -rf/é.bin": 65_536}
    for at, (name, size) in enumerate(sizes.items()):
        (source / name).write_bytes(os.urandom(size))
        os.utime(source / name, (1e9, 1e9 + at))
    return source


@pytest.fixture(params=["the nodes see the source", "it is sent"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "it is sent":  # as if no node could read it
        monkeypatch.setattr(stage_module, "_FINGERPRINT", "true")
    else:
        monkeypatch.delattr(stage_module, "remote")  # nothing may be sent


def staged(nodes: Nodes, source: Path, hosts: tuple[str, ...] = NODES, verify: bool = True) -> Staged:
    return stage(list_sources([source]), nodes[1] / CACHE, hosts, Fanout(nodes[0]), verify=verify)


def assert_whole(nodes: Nodes, source: Path, hosts: tuple[str, ...] = NODES) -> None:
    files = list_sources([source])
    for host in hosts:
        for file in files:
            copy = nodes[2] / host / CACHE / file.directory / file.name
            assert copy.read_bytes() == file.original.read_bytes()
            assert int(copy.stat().st_mtime) == int(file.original.stat().st_mtime)
        assert sum(path.is_file() for path in (nodes[2] / host / CACHE).rglob("*")) == len(files)


@pytest.mark.usefixtures("way")
def test_all_nodes_get_all_files_and_what_is_there_stays(nodes: Nodes, source: Path) -> None:
    assert staged(nodes, source).problems == {}
    assert_whole(nodes, source)
    copy = copy_of(nodes, NODES[0])
    before = copy.stat().st_ino
    (source / "empty").write_bytes(b"now not")
    assert staged(nodes, source).problems == {}
    assert_whole(nodes, source)
    assert copy.stat().st_ino == before


def copy_of(nodes: Nodes, host: str) -> Path:
    return next((nodes[2] / host / CACHE).rglob("web.bin"))


@pytest.mark.usefixtures("way")
def test_damage_at_rest_is_repaired(nodes: Nodes, source: Path) -> None:
    staged(nodes, source)
    copy = copy_of(nodes, NODES[1])
    status, content = copy.stat(), bytearray(copy.read_bytes())
    content[70_000] ^= 1
    copy.write_bytes(content)
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert staged(nodes, source, verify=False).problems == {}
    assert copy.read_bytes() == content, "without checksums, length and time are believed"
    assert staged(nodes, source).problems == {}
    assert_whole(nodes, source)


def test_an_unreachable_node_is_named_and_the_others_are_done(nodes: Nodes, source: Path) -> None:
    done = staged(nodes, source, (NODES[0], "nowhere.invalid", NODES[1]))
    assert list(done.problems) == ["nowhere.invalid"]
    assert "\n" not in done.problems["nowhere.invalid"]
    assert_whole(nodes, source)


@pytest.mark.usefixtures("way")
def test_a_full_disk_stops_its_node_only(nodes: Nodes, source: Path) -> None:
    (nodes[2] / SMALL / "fill").write_bytes(bytes((4 << 20) - (128 << 10)))
    done = staged(nodes, source, (SMALL, NODES[0]))
    assert list(done.problems) == [SMALL]
    assert "space" in done.problems[SMALL]
    assert_whole(nodes, source, NODES[:1])
    (nodes[2] / SMALL / "fill").unlink()
    assert staged(nodes, source, (SMALL,)).problems == {}
    assert_whole(nodes, source, (SMALL,))


def test_another_file_under_the_same_path_on_a_node_is_not_the_source(nodes: Nodes) -> None:
    ssh, seen, disks = nodes
    here, there = seen / "shards/web.bin", disks / NODES[0] / "shards/web.bin"
    for file, content in ((here, b"the new one"), (there, b"the old one")):
        file.parent.mkdir()
        file.write_bytes(content)
    os.utime(there, (1e9, 1e9))
    try:
        done = stage(list_sources([here.parent]), seen / CACHE, NODES, Fanout(ssh), verify=False)
    finally:
        shutil.rmtree(here.parent)
    assert done.problems == {}
    assert [copy_of(nodes, node).read_bytes() for node in NODES] == [b"the new one"] * 2


@pytest.mark.parametrize("target", ["/local/a\nb", "/local/\x1b[2J", "/local/a\\b", "relative"])
def test_targets_that_a_list_of_checksums_cannot_name(source: Path, target: str) -> None:
    with pytest.raises(HostError, match="give an absolute path") as raised:
        stage(list_sources([source]), Path(target), ["localhost"], Fanout())
    assert str(raised.value).isprintable()


@pytest.mark.parametrize("host", ["fe80::1%eth0", "me@fd00::1", "node1"])
def test_addresses_of_ipv6_reach_ssh(host: str, source: Path, tmp_path: Path) -> None:
    """`ssh` is a program that notes what it is called with."""
    ssh = tmp_path / "ssh"
    ssh.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/call\n')
    ssh.chmod(0o755)
    subprocess.run(["rsync", "--rsh", ssh, "--", source / "web.bin", remote(host, "/x/")], check=False)
    words = (tmp_path / "call").read_text().split()
    assert words[words.index("rsync") - 1] == host.rpartition("@")[2]


def test_a_run_takes_the_copies(nodes: Nodes, source: Path) -> None:
    staged(nodes, source, NODES[:1])
    cache = nodes[2] / NODES[0] / CACHE
    original, copy = source / "web.bin", place_for(source, cache) / "web.bin"
    before = copy.stat()
    copy_missing([Copy(original, copy, None)], cache, setting="data.cache_dir", what="shards")
    assert copy.stat().st_ino == before.st_ino


def test_a_copy_that_stays_different_is_named(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_module, "_checksums", lambda files, target: wrong_sum(files[-1], target))
    done = stage(list_sources([source]), tmp_path / "cache", ["localhost"], Fanout())
    assert re.fullmatch(
        r"a copy differs from its source \(/.*: FAILED\); check the disk there", done.problems["localhost"]
    )


def wrong_sum(file: SourceFile, target: Path) -> str:
    return f"{'0' * 64}  {target / file.directory / file.name}\n"


def test_the_command(nodes: Nodes, source: Path) -> None:
    command = [sys.executable, "-m", "glmforge", "cluster", "stage", str(source), "--to", str(nodes[1] / CACHE)]
    command += ["--hosts", f"{NODES[0]},nowhere.invalid", "--ssh", " ".join(nodes[0].command), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    result = json.loads(done.stdout)
    assert (result["num_files"], list(result["problems"])) == (5, ["nowhere.invalid"])
    assert_whole(nodes, source, NODES[:1])


def test_sbcast_in_an_allocation(source: Path, tmp_path: Path) -> None:
    """The nodes share this machine's disk: what matters is that every file goes through sbcast and is verified."""
    target = tmp_path / "local"
    with slurm_cluster() as cluster:
        shown = cluster.run(
            *("salloc", "--nodes=2", sys.executable, "-m", "glmforge", "cluster", "stage", str(source)),
            *("--to", str(target)),
        )
    assert "complete on the allocation's nodes" in shown
    for file in list_sources([source]):
        assert (target / file.directory / file.name).read_bytes() == file.original.read_bytes()
