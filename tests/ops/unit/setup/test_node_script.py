"""The script that prepares a node, run here: `getent` and `df` are the test's own, so that home and disk are its."""

import os
import subprocess
from pathlib import Path

import pytest

from glmforge.config.cluster import ClusterConfig
from glmforge.runtime.hostfile import HostLine
from glmforge_ops.setup.files import Kind, Wanted, node_script
from helpers.snapshots import snapshot

KEY = "restrict,pty ssh-ed25519 AAAA glmforge"


class Node:
    """A node with a home, a disk and programs of its own; `run` gives what its script prints."""

    def __init__(self, root: Path) -> None:
        self.root, self.home, self.disk, self.programs = root, root / "home", root / "a disk", root / "bin"
        for directory in (self.home, self.disk, self.programs):
            directory.mkdir(mode=0o755)
        self.program("getent", f'case $1 in passwd) echo "x:x:0:0::{self.home}:/bin/sh" ;; *) [ "$2" = node1 ] ;; esac')
        self.program("df", "echo Type; echo xfs")
        self.program("python", "exit 0")
        self.program("nvidia-smi", "echo NVIDIA H200; echo NVIDIA H200")

    def program(self, name: str, script: str) -> None:
        (self.programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.programs / name).chmod(0o755)

    def script(self, kind: Kind = "manual", key: str = KEY) -> str:
        cluster = ClusterConfig(
            nodes=["node1"], gpus_per_node=2, local_path=self.disk, python=str(self.programs / "python")
        )
        return node_script(Wanted.of(kind, cluster, [HostLine("node1")], self.root / "out", 1), "node1", key)

    def run(self, mode: str = "change", script: str | None = None, **environment: str) -> list[str]:
        done = subprocess.run(
            ["sh", "-s", mode],
            input=(script or self.script()).encode(),
            env={"PATH": f"{self.programs}:{os.environ['PATH']}"} | environment,
            capture_output=True,
        )
        assert done.stderr == b""
        return done.stdout.decode().splitlines()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_from_nothing_to_done_and_then_nothing(node: Node) -> None:
    before = snapshot([node.root])
    planned = node.run("look")
    assert snapshot([node.root]) == before
    assert len(planned) == 7
    assert planned[0] == f"change: make directory {node.disk}/glmforge (0750)"
    assert planned[-1] == f"change: add the cluster's key to {node.home}/.ssh/authorized_keys"
    assert node.run() == planned
    assert (node.home / ".ssh/authorized_keys").read_text() == KEY + "\n"
    assert (node.home / ".ssh/authorized_keys").stat().st_mode & 0o777 == 0o600
    assert (node.home / ".ssh").stat().st_mode & 0o777 == 0o700
    assert (node.disk / "glmforge/tmp").stat().st_mode & 0o777 == 0o750
    after = snapshot([node.root], times=True)
    assert node.run("look") == node.run() == []
    assert snapshot([node.root], times=True) == after


def test_lines_of_others_stay_as_they_are(node: Node) -> None:
    (node.home / ".ssh").mkdir(mode=0o755)
    (node.home / ".ssh/authorized_keys").symlink_to("elsewhere")
    file = node.home / ".ssh/elsewhere"
    file.write_bytes(b"# " + KEY.encode() + b" of old\nno line break at the end \xe9")
    file.chmod(0o640)
    node.run()
    node.run()
    before, key = KEY.encode(), KEY.encode()
    assert file.read_bytes() == b"# " + before + b" of old\nno line break at the end \xe9\n" + key + b"\n"
    assert file.stat().st_mode & 0o777 == 0o640
    assert (node.home / ".ssh/authorized_keys").is_symlink()


def test_half_a_script_does_nothing(node: Node) -> None:
    before, script = snapshot([node.root]), node.script()
    done = subprocess.run(["sh"], input=script[: script.index("  check_software\n")].encode(), capture_output=True)
    assert b"change" not in done.stdout
    assert snapshot([node.root]) == before


def test_this_machine_needs_no_key(node: Node) -> None:
    assert len(node.run(script=node.script(key=""))) == 5
    assert not (node.home / ".ssh").exists()


def _absent_disk(node: Node) -> None:
    node.disk.rmdir()


def _file_for_disk(node: Node) -> None:
    node.disk.rmdir()
    node.disk.write_text("")


def _open_home(node: Node) -> None:
    node.home.chmod(0o777)


def _unknown_master(node: Node) -> None:
    node.program("getent", f"echo x:x:0:0::{node.home}:; [ $1 = passwd ]")


def _key_file_in_the_way(node: Node) -> None:
    (node.home / ".ssh").write_text("")


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (_absent_disk, "a disk is not there; mount the disk, or correct --nvme-path"),
        (_file_for_disk, "a disk is a file; give --nvme-path the directory where the disk is mounted"),
        (lambda node: node.program("df", "echo nfs4"), "is on nfs4, not a disk of its own; correct --nvme-path"),
        (_open_home, "home, so sshd refuses the key; chmod go-w"),
        (_key_file_in_the_way, ".ssh is not a directory; move it away"),
        (_unknown_master, "does not know the master, node1; add it to DNS or /etc/hosts there"),
    ],
)
def test_each_error_alone_and_nothing_is_changed(node: Node, fault, expected: str) -> None:
    fault(node)
    before = snapshot([node.home])
    (error,) = [line for line in node.run() if line.startswith("error: ")]
    assert expected in error
    assert snapshot([node.home]) == before


@pytest.mark.parametrize(
    ("program", "script", "expected"),
    [
        ("python", 'case "$*" in *torch*) exit 1 ;; esac', "python has no torch; install it there, or give 'python'"),
        ("nvidia-smi", "echo one", "has 1 GPUs, not 2; look at nvidia-smi and dmesg there"),
        ("nvidia-smi", "echo Driver mismatch; exit 9", "nvidia-smi fails: Driver mismatch; look at the driver there"),
        ("mpirun", "", ""),
    ],
)
def test_warnings_keep_nothing_from_being_set_up(node: Node, program: str, script: str, expected: str) -> None:
    node.program(program, script)
    said = node.run(script=node.script("mpi"))
    assert any(line.startswith("warning: ") and expected in line for line in said) == bool(expected)
    assert (node.disk / "glmforge/data").is_dir()


def test_the_home_of_a_development_clusters_user_is_left_alone(node: Node) -> None:
    (said,) = node.run(GLMFORGE_DEV_OWN_HOME="1")
    assert said.startswith("error: is of a development cluster and has your own home directory; use")
    assert not (node.home / ".ssh").exists()
