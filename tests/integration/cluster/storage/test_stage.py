"""Files staged to nodes over real ssh: read once, whole everywhere, whatever happens on the way."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from glmforge.cluster.hosts.ssh import Ssh
from glmforge.cluster.storage.sources import list_sources
from glmforge.cluster.storage.stage import Staged, Staging
from helpers.ssh_nodes import skip_unless_possible, ssh_nodes

NODES = ("node0", "node1", "node2", "node3")
UNIT = 1 << 16
CACHE = "the node's cache"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ssh, Path, Path]]:
    """How nodes are reached, where they see their disks, and where these really are."""
    skip_unless_possible()
    directory = tmp_path_factory.mktemp("cluster")
    seen, disks = directory / "seen", directory / "disks"
    seen.mkdir()
    for name in NODES:
        (disks / name).mkdir(parents=True)
    with ssh_nodes(directory, [disks / name for name in NODES], seen) as ssh:
        yield Ssh.of_command(ssh), seen, disks


@pytest.fixture
def nodes(servers: tuple[Ssh, Path, Path]) -> tuple[Ssh, Path, Path]:
    for disk in servers[2].iterdir():
        for path in disk.iterdir():
            shutil.rmtree(path)
    return servers


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory with names that a shell would take apart, two folders and files of all sizes."""
    source = tmp_path / "it's shared"
    (source / "more; rm -rf").mkdir(parents=True)
    for at, (name, size) in enumerate(
        {"web.bin": 10 * UNIT + 17, "-n.idx": UNIT, "a 'b\" $c": 5, "empty": 0, "more; rm -rf/é.bin": 3 * UNIT}.items()
    ):
        (source / name).write_bytes(bytes([at]) + os.urandom(size - 1) if size else b"")
        os.utime(source / name, (1e9, 1e9 + at + 0.5))
    return source


def stage(nodes: tuple[Ssh, Path, Path], source: Path, hosts: tuple[str, ...] = NODES, **options: object) -> Staged:
    ssh, seen, _ = nodes
    settings: dict[str, object] = {"ssh": ssh, "peer_ssh": ssh, "unit_bytes": UNIT} | options
    return Staging(list_sources([source]), seen / CACHE, **settings).run(hosts)  # type: ignore[arg-type]


def size_of(source: Path) -> int:
    return sum(path.stat().st_size for path in source.rglob("*") if path.is_file())


def assert_whole(nodes: tuple[Ssh, Path, Path], source: Path, hosts: tuple[str, ...] = NODES) -> None:
    for file in list_sources([source]):
        for host in hosts:
            copy = nodes[2] / host / CACHE / file.directory / file.name
            assert copy.read_bytes() == file.original.read_bytes()
            assert copy.stat().st_mtime_ns == file.mtime_ns
    for host in hosts:
        assert not list((nodes[2] / host).rglob("*.partial"))
        assert len(list((nodes[2] / host / CACHE / ".staged").glob("*.complete.json"))) == 2


def test_the_source_is_read_once_for_all_nodes(nodes: tuple[Ssh, Path, Path], source: Path) -> None:
    done = stage(nodes, source)
    assert done.failed == []
    assert done.source_bytes == done.total_bytes == size_of(source)
    assert done.peer_bytes == (len(NODES) - 1) * size_of(source)
    assert done.relayed_bytes == 0
    assert_whole(nodes, source)
