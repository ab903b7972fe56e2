"""Files staged to nodes over real ssh: read once, whole everywhere, whatever happens on the way."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from glmforge.data.copies import Copy, copy_missing
from glmforge.data.files import alone_in
from glmforge.errors import HostError
from glmforge.runtime.place import place_for
from glmforge.runtime.ssh import Ssh
from glmforge_ops.hosts.remote_program import BOOT
from glmforge_ops.storage.sources import list_sources
from glmforge_ops.storage.stage import Staging
from glmforge_ops.storage.staged import Staged
from glmforge_ops.storage.swarm import Swarm
from helpers.ssh_nodes import skip_unless_possible, ssh_nodes

NODES = ("node0", "node1", "node2")
SMALL = "small"  # a disk of 4 MiB
UNIT = 1 << 16
CACHE = "the node's cache"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ssh, Path, Path]]:
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
def nodes(servers: tuple[Ssh, Path, Path]) -> tuple[Ssh, Path, Path]:
    for disk in servers[2].iterdir():
        for path in disk.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return servers


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory with names that a shell would take apart, two folders and files of all sizes."""
    source = tmp_path / "it's shared"
    (source / "more; rm -rf").mkdir(parents=True)
    for at, (name, size) in enumerate(
        {"web.bin": 4 * UNIT + 17, "-n.idx": UNIT, "a 'b\" $c": 5, "empty": 0, "more; rm -rf/é.bin": UNIT}.items()
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


def test_what_is_there_is_not_sent_again(nodes: tuple[Ssh, Path, Path], source: Path) -> None:
    stage(nodes, source, NODES[:2])
    done = stage(nodes, source, NODES[:3])
    assert (done.failed, done.source_bytes) == ([], 0)
    assert [node.had_bytes for node in done.nodes.values()] == [size_of(source), size_of(source), 0]
    assert_whole(nodes, source, NODES[:3])


def test_damage_at_rest_is_found_and_mended_from_another_node(nodes: tuple[Ssh, Path, Path], source: Path) -> None:
    stage(nodes, source, NODES[:2])
    copy = find_copy(nodes, NODES[1], source)
    status, content = copy.stat(), bytearray(copy.read_bytes())
    content[2 * UNIT + 5] ^= 1
    copy.write_bytes(content)
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
    done = stage(nodes, source, NODES[:2])
    assert (done.failed, done.source_bytes, done.peer_bytes) == ([], 0, UNIT)
    assert_whole(nodes, source, NODES[:2])


def find_copy(nodes: tuple[Ssh, Path, Path], host: str, source: Path) -> Path:
    return next((nodes[2] / host / CACHE).rglob("web.bin"))


def test_a_changed_source_is_staged_anew(nodes: tuple[Ssh, Path, Path], source: Path) -> None:
    stage(nodes, source, NODES[:2])
    (source / "web.bin").write_bytes(os.urandom(2 * UNIT))
    done = stage(nodes, source, NODES[:2])
    assert (done.failed, done.source_bytes) == ([], 2 * UNIT)
    assert_whole(nodes, source, NODES[:2])


@pytest.mark.parametrize("how", ["not to", "cannot"])
def test_where_nodes_do_not_reach_each_other_this_machine_passes_units_on(
    nodes: tuple[Ssh, Path, Path], source: Path, how: str, tmp_path: Path
) -> None:
    peer_ssh = None if how == "not to" else Ssh.of_command(f"ssh -F {tmp_path}/nothing-there")
    done = stage(nodes, source, NODES[:3], peer_ssh=peer_ssh)
    assert done.failed == []
    assert done.source_bytes == size_of(source)
    assert done.relayed_bytes == 2 * size_of(source)
    assert ("nothing-there" in " ".join(node.note for node in done.nodes.values())) == (how == "cannot")
    assert_whole(nodes, source, NODES[:3])


def test_bytes_that_change_on_the_way_are_fetched_again(
    nodes: tuple[Ssh, Path, Path], source: Path, tmp_path: Path
) -> None:
    """Nodes call each other through a program that changes the last of many bytes, the first three times."""
    ssh = nodes[0]
    flip = tmp_path / "flip"
    flip.write_text(
        f'#!/bin/bash\n{" ".join(ssh.command)} "$@" | python3 -c \'\n'
        "import os, sys\n"
        "seen = 0\n"
        "while piece := os.read(0, 1 << 20):\n"
        "    seen += len(piece)\n"
        f"    if seen > {UNIT} and len(os.listdir(sys.argv[1])) < 3:\n"
        '        open(sys.argv[1] + f"/{os.getpid()}", "x")\n'
        "        piece, seen = piece[:-1] + bytes([piece[-1] ^ 1]), -1 << 60\n"
        "    os.write(1, piece)\n"
        f"' {tmp_path}/flips\n"
    )
    flip.chmod(0o755)
    (tmp_path / "flips").mkdir()
    done = stage(nodes, source, peer_ssh=Ssh.of_command(str(flip)))
    assert list((tmp_path / "flips").iterdir())
    assert done.failed == []
    assert_whole(nodes, source)


def test_an_unreachable_node_is_named_and_the_others_are_done(nodes: tuple[Ssh, Path, Path], source: Path) -> None:
    done = stage(nodes, source, (NODES[0], "nowhere.invalid", NODES[1]))
    assert [(node.host, "its name is not known" in node.problem) for node in done.failed] == [("nowhere.invalid", True)]
    assert_whole(nodes, source, NODES[:2])


def test_a_lock_that_another_process_holds_is_respected(nodes: tuple[Ssh, Path, Path], source: Path) -> None:
    cache = nodes[2] / NODES[0] / CACHE
    with alone_in(cache):
        done = stage(nodes, source, NODES[:2])
    assert [(node.host, "another process copies" in node.problem) for node in done.failed] == [(NODES[0], True)]
    assert sorted(path.name for path in cache.iterdir()) == [".lock", ".staged"]
    assert_whole(nodes, source, NODES[1:2])


def test_a_run_finds_the_copies_good(nodes: tuple[Ssh, Path, Path], source: Path) -> None:
    stage(nodes, source, NODES[:1])
    cache = nodes[2] / NODES[0] / CACHE
    original, copy = source / "web.bin", place_for(source, cache) / "web.bin"
    before = copy.stat()
    copy_missing([Copy(original, copy, None)], cache, setting="data.cache_dir", what="shards")
    assert copy.stat().st_ino == before.st_ino


def test_a_disk_that_is_too_small_is_told_before_anything_is_sent(nodes: tuple[Ssh, Path, Path], source: Path) -> None:
    (nodes[2] / SMALL / "fill").write_bytes(bytes((4 << 20) - (256 << 10)))
    done = stage(nodes, source, (SMALL, NODES[0]))
    assert [(node.host, "GB are free" in node.problem) for node in done.failed] == [(SMALL, True)]
    assert not list((nodes[2] / SMALL).rglob("*.partial"))
    assert_whole(nodes, source, NODES[:1])


def test_a_disk_that_fills_up_half_way_stops_its_node_only(
    nodes: tuple[Ssh, Path, Path], source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filler = nodes[2] / SMALL / "fill"
    strike_at_first_unit(monkeypatch, SMALL, lambda: fill_up(filler))
    done = stage(nodes, source, (SMALL, *NODES[:2]))
    assert [(node.host, "No space left" in node.problem) for node in done.failed] == [(SMALL, True)]
    assert_whole(nodes, source, NODES[:2])
    filler.unlink()
    assert stage(nodes, source, (SMALL, *NODES[:2])).failed == []
    assert_whole(nodes, source, (SMALL,))


def test_a_node_that_dies_half_way_costs_only_itself(
    nodes: tuple[Ssh, Path, Path], source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    struck = strike_at_first_unit(monkeypatch, NODES[0], lambda: kill_processes_of(nodes, NODES[0]))
    done = stage(nodes, source)
    assert struck
    assert [node.host for node in done.failed] == [NODES[0]]
    assert_whole(nodes, source, NODES[1:])
    again = stage(nodes, source)
    assert (again.failed, again.source_bytes) == ([], 0)
    assert_whole(nodes, source)


def test_a_source_that_changes_meanwhile_is_an_error(
    nodes: tuple[Ssh, Path, Path], source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strike_at_first_unit(monkeypatch, NODES[0], lambda: (source / "web.bin").write_bytes(bytes(4 * UNIT + 17)))
    with pytest.raises(HostError, match=r"web\.bin: changed while it was staged"):
        stage(nodes, source, NODES[:1])
    assert not list(nodes[2].rglob("*.complete.json"))


def strike_at_first_unit(monkeypatch: pytest.MonkeyPatch, host: str, strike: Callable[[], None]) -> list[str]:
    """Do something when the node has got its first unit; the list then holds its name."""
    original, struck = Swarm.done, []

    def done(swarm: Swarm, node: str, digest: str) -> None:
        original(swarm, node, digest)
        if node == host and not struck:
            struck.append(node)
            strike()

    monkeypatch.setattr(Swarm, "done", done)
    return struck


def fill_up(file: Path) -> None:
    with suppress(OSError), file.open("wb", buffering=0) as stream:
        while True:
            stream.write(bytes(1 << 12))


def kill_processes_of(nodes: tuple[Ssh, Path, Path], host: str) -> None:
    """What runs our program and sees the host's disk."""
    disk = (nodes[2] / host).stat().st_ino
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            ours = BOOT.encode() in (process / "cmdline").read_bytes()
            if ours and (process / "root" / str(nodes[1])[1:]).stat().st_ino == disk:
                os.kill(int(process.name), signal.SIGKILL)


def start_command(nodes: tuple[Ssh, Path, Path], source: Path) -> "subprocess.Popen[str]":
    arguments = ["cluster", "stage", str(source), "--to", str(nodes[1] / CACHE), "--hosts", ",".join(NODES)]
    arguments += ["--ssh", " ".join(nodes[0].command), "--unit-mib", "1", "--json"]
    return subprocess.Popen(
        [sys.executable, "-m", "glmforge", *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def test_killed_and_run_again_it_goes_on(nodes: tuple[Ssh, Path, Path], source: Path) -> None:
    (source / "large.bin").write_bytes(os.urandom(40 << 20))
    first = start_command(nodes, source)
    while not has_some_of(nodes, "large.bin") and first.poll() is None:
        time.sleep(0.01)
    first.kill()
    first.communicate()
    assert not list((nodes[2]).rglob("*.complete.json"))
    told = run_until_locks_are_free(nodes, source)
    assert told["source_bytes"] <= size_of(source) - (1 << 20)
    assert_whole(nodes, source)


def run_until_locks_are_free(nodes: tuple[Ssh, Path, Path], source: Path) -> dict[str, Any]:
    """The command again. The process on a node may not have heard yet that nobody listens any more; it will."""
    while True:
        command = start_command(nodes, source)
        told: dict[str, Any] = json.loads(command.communicate()[0])
        problems = [node["problem"] for node in told["nodes"].values() if node["problem"]]
        assert all("another process copies" in problem for problem in problems)
        if not problems:
            return told


def has_some_of(nodes: tuple[Ssh, Path, Path], name: str) -> bool:
    return any(name.encode() in journal.read_bytes() for journal in nodes[2].rglob("*.jsonl"))


@pytest.mark.chaos
def test_killed_at_random_points_until_it_is_done(nodes: tuple[Ssh, Path, Path], source: Path) -> None:
    """The command, or what runs on a node, is killed ten times at any moment; never is half a file under its name."""
    (source / "large.bin").write_bytes(os.urandom(100 << 20))
    chance = random.Random(0)
    for _ in range(10):
        command = start_command(nodes, source)
        time.sleep(chance.uniform(0.5, 15.0))
        if chance.random() < 0.5:
            command.kill()
        else:
            kill_processes_of(nodes, chance.choice(NODES))
        command.communicate()
        for file in list_sources([source]):
            for host in NODES:
                copy = nodes[2] / host / CACHE / file.directory / file.name
                assert not copy.exists() or copy.read_bytes() == file.original.read_bytes()
    run_until_locks_are_free(nodes, source)
    assert_whole(nodes, source)
