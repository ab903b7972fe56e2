"""Setup on eight real hosts with ssh servers, each with a home directory and a disk of its own."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from glmforge.cli.app import app
from glmforge.cluster.dev import DevCluster, DevOptions, development_cluster
from helpers.dev_cluster import hosts_or_skip
from helpers.snapshots import Seen, snapshot

NUM_HOSTS = 8


@dataclass
class Hosts:
    """The hosts and a directory for what setup writes here."""

    dev: DevCluster
    here: Path
    ssh_config: Path

    def options(self, *more: str) -> list[str]:
        """The command line of a setup of all hosts."""
        return [
            *("cluster", "setup", "--type", "manual", "--hostfile", str(self.here / "hosts.txt")),
            *("--nodes", str(NUM_HOSTS), "--gpus-per-node", "0", "--nvme-path", str(self.dev.local_path)),
            *("--out", str(self.here / "cluster"), "--ssh", f"ssh -F {self.ssh_config}", *more),
        ]

    def setup(self, *more: str, status: int = 0) -> str:
        """What setup prints; it must end with `status`."""
        result = CliRunner().invoke(app, self.options(*more))
        assert result.exit_code == status, (result.output, result.exception)
        return result.stdout

    def snapshot(self, times: bool = False) -> dict[str, Seen]:
        places = [place for node in self.dev.nodes for place in (self.dev.disk(node), self.dev.home(node))]
        return snapshot([*places, self.here], times)

    def host_key(self, node: str) -> str:
        """Of its ssh server, as the server itself knows it."""
        return (self.dev.directory / f"ssh/{node}.host_key.pub").read_text()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    hosts_or_skip()
    directory = tmp_path_factory.mktemp("hosts")
    options = DevOptions(nodes=NUM_HOSTS, slurm=False, bare=True, gpus=0)
    with development_cluster(directory / "dev", options) as cluster:
        yield cluster


@pytest.fixture
def hosts(cluster: DevCluster, tmp_path: Path) -> Iterator[Hosts]:
    """The hosts as they come from the factory, also after a test that failed."""
    config = tmp_path / "ssh_config"
    # Every test makes some hundred connections; this key exchange takes a sixth of the default one's time.
    config.write_text("KexAlgorithms curve25519-sha256\n" + (cluster.directory / "ssh/config").read_text())
    (tmp_path / "hosts.txt").write_text("node[1-8] slots=1\n")
    yield Hosts(cluster, tmp_path, config)
    for node in cluster.nodes:
        for place in (cluster.disk(node), cluster.home(node)):
            for path in place.iterdir():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def test_from_nothing_to_nothing_to_change_and_back(hosts: Hosts) -> None:
    before = hosts.snapshot()
    planned = hosts.setup("--dry-run")
    assert "node[1-8]: make directory" in planned
    assert hosts.snapshot() == before

    said = hosts.setup()
    assert "8 of 8 nodes answer; 8 reach the next one" in said
    after = hosts.snapshot(times=True)
    keys = {path for path, seen in after.items() if b"PRIVATE KEY" in seen.content and "hosts/" not in path}
    assert keys == {str(hosts.here / "cluster/ssh/id_ed25519")}
    assert after[keys.pop()].mode == "-rw-------"
    assert after[str(hosts.here / "cluster/ssh")].mode == "drwx------"
    assert b"node" not in after[str(hosts.here / "cluster/ssh/known_hosts")].content  # hashed
    for node in hosts.dev.nodes:
        assert after[str(hosts.dev.home(node) / ".ssh/authorized_keys")].mode == "-rw-------"
        assert after[str(hosts.dev.disk(node) / "glmforge/data")].mode == "drwxr-x---"
    own = ["ssh", "-F", str(hosts.here / "cluster/ssh/config")]
    done = subprocess.run([*own, "node3", "hostname"], capture_output=True, text=True, timeout=60)
    assert done.stdout == "node3\n", done.stderr
    assert subprocess.run([*own, "-o", "IdentityFile=none", "node3", "true"], capture_output=True).returncode == 0

    again = hosts.setup()
    assert "nothing to change" in again.splitlines()[-1]
    assert hosts.snapshot(times=True) == after
    assert "nothing to change" in hosts.setup("--dry-run")
    assert hosts.snapshot(times=True) == after

    hosts.setup("--undo")
    assert hosts.snapshot() == before


def test_lines_of_others_stay_as_they_are(hosts: Hosts) -> None:
    plain, linked = (hosts.dev.home(node) / ".ssh" for node in ("node1", "node2"))
    plain.mkdir(mode=0o700)
    (plain / "authorized_keys").write_bytes(b"ssh-ed25519 AAAA first\nssh-ed25519 BBBB no line break at the end \xe9")
    (plain / "authorized_keys").chmod(0o640)
    linked.mkdir(mode=0o755)
    (linked / "elsewhere").write_text("# nothing yet\n")
    (linked / "elsewhere").chmod(0o600)
    (linked / "authorized_keys").symlink_to("elsewhere")
    before = hosts.snapshot()
    hosts.setup()
    hosts.setup()
    lines = (plain / "authorized_keys").read_bytes().split(b"\n")
    assert lines[:2] == before[str(plain / "authorized_keys")].content.split(b"\n")
    assert lines[2].startswith(b"restrict,pty ssh-ed25519 ")
    assert lines[3:] == [b""]
    assert (plain / "authorized_keys").stat().st_mode & 0o777 == 0o640
    assert (linked / "authorized_keys").is_symlink()
    hosts.setup("--undo")
    assert hosts.snapshot() == before


def test_a_line_that_came_later_survives_undo(hosts: Hosts) -> None:
    hosts.setup()
    file = hosts.dev.home("node4") / ".ssh/authorized_keys"
    with file.open("a") as stream:
        stream.write("ssh-ed25519 CCCC later\n")
    said = hosts.setup("--undo", status=1)
    assert file.read_text() == "ssh-ed25519 CCCC later\n"
    (error,) = [line for line in said.splitlines() if "error" in line]
    assert error.startswith("  error: node4: ")
    assert error.endswith("/.ssh is not empty: it holds authorized_keys; move that away, then undo again")


def test_an_unreachable_host_is_named_and_the_rest_is_done(hosts: Hosts) -> None:
    before = hosts.snapshot()
    hosts.dev.cut("node3")
    try:
        said = hosts.setup("--ssh", f"ssh -o ConnectTimeout=3 -F {hosts.ssh_config}", status=1)
    finally:
        hosts.dev.heal("node3")
    errors = [line for line in said.splitlines() if "error:" in line]
    assert all("node3" in line for line in errors), errors
    assert (hosts.dev.disk("node4") / "glmforge").is_dir()
    assert not (hosts.dev.disk("node3") / "glmforge").exists()
    rest = hosts.setup()
    assert "node3: make directory" in rest
    assert "node4" not in rest
    assert "nothing to change" in hosts.setup().splitlines()[-1]

    hosts.dev.cut("node5")
    try:
        said = hosts.setup("--undo", "--ssh", f"ssh -o ConnectTimeout=3 -F {hosts.ssh_config}", status=1)
        assert "node5" in said
        assert (hosts.here / "cluster/ssh/known_hosts").exists()  # still needed
    finally:
        hosts.dev.heal("node5")
    hosts.setup("--undo")
    assert hosts.snapshot() == before


def test_a_changed_host_key_is_refused_and_named(hosts: Hosts) -> None:
    known = hosts.here / "known_hosts"
    lines = (hosts.dev.directory / "ssh/known_hosts").read_text().splitlines()
    other = hosts.host_key("node1").split()[1]
    known.write_text("".join(f"{line}\n" if not line.startswith("node5 ") else f"node5 ssh-ed25519 {other}\n"
                             for line in lines))  # fmt: skip
    text = hosts.ssh_config.read_text()
    hosts.ssh_config.write_text(text.replace(f"{hosts.dev.directory}/ssh/known_hosts", str(known)))
    said = hosts.setup(status=1)
    errors = [line for line in said.splitlines() if "error:" in line]
    assert "node5: its host key is not the one that is known" in said, errors
    assert not (hosts.dev.home("node5") / ".ssh").exists()
    assert (hosts.dev.home("node6") / ".ssh/authorized_keys").exists()
    mended = hosts.setup("--ssh", f"ssh -F {hosts.dev.directory}/ssh/config")
    assert "node5: make directory" in mended
    # A machine in another's place, after setup: refused through the cluster's own file, too.
    own = hosts.here / "cluster/ssh/known_hosts"
    own.write_text(own.read_text().replace(hosts.host_key("node5").split()[1], other))
    assert "node5" in hosts.setup("--ssh", f"ssh -F {hosts.dev.directory}/ssh/config", status=1)


def test_no_host_key_is_taken_unless_somebody_accepts_it(hosts: Hosts) -> None:
    text = hosts.ssh_config.read_text()
    hosts.ssh_config.write_text(text.replace(f"{hosts.dev.directory}/ssh/known_hosts", "/dev/null"))
    before = hosts.snapshot()
    said = hosts.setup(status=1)
    after = hosts.snapshot()
    assert {path for path in after if path not in before} <= {
        path for path in after if path.startswith(str(hosts.here / "cluster"))
    }
    assert not (hosts.here / "cluster/ssh/known_hosts").exists()
    assert said.count("SHA256:") == NUM_HOSTS
    fingerprints = {}
    for node in hosts.dev.nodes:
        file = hosts.dev.directory / f"ssh/{node}.host_key.pub"
        done = subprocess.run(["ssh-keygen", "-lf", str(file)], capture_output=True, text=True, check=True)
        fingerprints[node] = done.stdout.split()[1]
        assert f"  {node} {fingerprints[node]} (ed25519)" in said
    accepted = hosts.here / "fingerprints.txt"
    wrong = fingerprints | {"node2": fingerprints["node3"]}
    accepted.write_text("".join(f"{node} {said}  # by the console\n" for node, said in wrong.items()))
    said = hosts.setup("--accept-host-keys", str(accepted), status=1)
    assert f"node2: it shows {fingerprints['node2']}, which is not what is accepted" in said
    assert not (hosts.dev.home("node2") / ".ssh").exists()
    assert (hosts.dev.home("node3") / ".ssh/authorized_keys").exists()
    accepted.write_text("".join(f"{node} {said}\n" for node, said in fingerprints.items()))
    said = hosts.setup("--accept-host-keys", str(accepted))
    assert "node2: make directory" in said
    assert "nothing to change" in hosts.setup().splitlines()[-1]  # now they are known


@pytest.mark.parametrize("then", ["again", "undo"])
def test_killed_halfway_it_can_be_run_again_or_undone(hosts: Hosts, then: str) -> None:
    before = hosts.snapshot()
    program = hosts.here.parent / f"{hosts.here.name}-ssh"
    program.write_text(
        '#!/bin/sh\ncase "$*" in *-G*) exec ssh "$@" ;; esac\n'
        'input=$(mktemp)\ncat >"$input"\n'
        'if grep -q \'"apply"\' "$input"; then case "$*" in *"-- node5 "*) kill -9 "$VICTIM"; esac; fi\n'
        'ssh "$@" <"$input"\nstatus=$?\nrm -f "$input"\nexit "$status"\n'
    )
    program.chmod(0o755)
    command = [sys.executable, "-m", "glmforge", *hosts.options("--ssh", f"{program} -F {hosts.ssh_config}")]
    done = subprocess.run(["sh", "-c", 'export VICTIM=$$; exec "$@"', "sh", *command], capture_output=True, text=True)
    program.unlink()
    assert done.returncode == -9, done.stderr
    assert not (hosts.here / "cluster/launch.sh").exists()
    if then == "again":
        hosts.setup()
        assert "nothing to change" in hosts.setup().splitlines()[-1]
    hosts.setup("--undo")
    assert hosts.snapshot() == before


def test_what_somebody_changed_since_is_named_and_stays(hosts: Hosts) -> None:
    hosts.setup()
    script, data = hosts.here / "cluster/launch.sh", hosts.dev.disk("node7") / "glmforge/data/shard.bin"
    script.write_text("# mine now\n")
    data.write_bytes(b"precious")
    said = hosts.setup(status=1)
    assert f"{script} has been changed, or is not setup's" in said
    assert script.read_text() == "# mine now\n"
    said = hosts.setup("--undo", status=1)
    assert f"{script} has been changed since" in said
    assert "node7" in said
    assert "it holds shard.bin" in said
    assert (script.read_text(), data.read_bytes()) == ("# mine now\n", b"precious")
    assert not (hosts.dev.disk("node6") / "glmforge").exists()
    assert not (hosts.here / "cluster/on_node.sh").exists()


def test_wrong_paths_on_nodes_are_named(hosts: Hosts) -> None:
    for node, make in (("node1", lambda path: path.write_text("")), ("node2", lambda path: None)):
        make(hosts.dev.disk(node) / "disk")
    for node in hosts.dev.nodes[2:]:
        (hosts.dev.disk(node) / "disk").mkdir()
    path = hosts.dev.local_path / "disk"
    said = hosts.setup("--dry-run", "--nvme-path", str(path), status=1)
    assert f"node1: {path} is a file; give --nvme-path the directory where the disk is mounted" in said
    assert f"node2: {path} is not there; mount the disk, or correct --nvme-path" in said
    assert f"node[3-8]: make directory {path}/glmforge" in said
