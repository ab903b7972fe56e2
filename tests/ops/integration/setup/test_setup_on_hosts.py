"""Setup on eight real hosts with ssh servers, each with a home directory and a disk of its own."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from glmforge.cli.app import app
from glmforge_ops.dev import DevCluster, DevOptions, development_cluster
from helpers.dev_cluster import hosts_or_skip
from helpers.snapshots import Seen, snapshot

NUM_HOSTS = 8
FEW = 3  # where more would only take longer


@dataclass
class Hosts:
    """The hosts and a directory for what setup writes here."""

    dev: DevCluster
    here: Path
    ssh_config: Path
    count: int = NUM_HOSTS

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.dev.nodes[: self.count]

    def options(self, *more: str) -> list[str]:
        """The command line of a setup of all hosts."""
        return [
            *("cluster", "setup", "--type", "manual", "--hostfile", str(self.here / "hosts.txt")),
            *("--nodes", str(self.count), "--gpus-per-node", "0", "--nvme-path", str(self.dev.local_path)),
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
    (tmp_path / "hosts.txt").write_text(f"node[1-{NUM_HOSTS}] slots=1\n")
    yield Hosts(cluster, tmp_path, config)
    for node in cluster.nodes:
        for place in (cluster.disk(node), cluster.home(node)):
            for path in place.iterdir():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


@pytest.fixture
def few(hosts: Hosts) -> Hosts:
    """The first of the hosts."""
    (hosts.here / "hosts.txt").write_text(f"node[1-{FEW}] slots=1\n")
    return replace(hosts, count=FEW)


def test_from_nothing_to_nothing_to_change(hosts: Hosts) -> None:
    before = hosts.snapshot()
    planned = hosts.setup("--dry-run")
    assert "node[1-8]: make directory" in planned
    assert "\n  node[1-8]: by this script:\n    #!/bin/sh\n" in planned
    assert hosts.snapshot() == before

    said = hosts.setup()
    assert "8 of 8 nodes answer through the cluster's own key" in said
    after = hosts.snapshot(times=True)
    keys = {path for path, seen in after.items() if b"PRIVATE KEY" in seen.content and "hosts/" not in path}
    assert keys == {str(hosts.here / "cluster/ssh/id_ed25519")}
    assert after[keys.pop()].mode == "-rw-------"
    assert after[str(hosts.here / "cluster/ssh")].mode == "drwx------"
    for node in hosts.dev.nodes:
        assert after[str(hosts.dev.home(node) / ".ssh/authorized_keys")].mode == "-rw-------"
        assert after[str(hosts.dev.disk(node) / "glmforge/data")].mode == "drwxr-x---"
    own = ["ssh", "-F", str(hosts.here / "cluster/ssh/config")]
    done = subprocess.run([*own, "node3", "hostname"], capture_output=True, text=True, timeout=60)
    assert done.stdout == "node3\n", done.stderr

    again = hosts.setup()
    assert again.splitlines()[-1] == "nothing to change"
    assert hosts.snapshot(times=True) == after


def test_checks_pass_with_what_setup_has_made(few: Hosts) -> None:
    """Between nodes as well, which know of each other what setup has laid down; and it says how."""
    check = ["cluster", "check", "--hostfile", str(few.here / "hosts.txt"), "--only", "ssh.nodes"]
    before = CliRunner().invoke(app, [*check, "--ssh", f"ssh -F {few.ssh_config}"])
    told = few.setup().splitlines()[-1]
    own = f"ssh -F {few.here}/cluster/ssh/config"
    assert told == f"Next: glmforge cluster check --ssh '{own}', or ssh.command in cluster.yaml"
    after = CliRunner().invoke(app, [*check, "--ssh", own])
    assert (before.exit_code, after.exit_code) == (0, 0), before.stdout + after.stdout
    plain = CliRunner().invoke(app, [*check, "--ssh", f"ssh -F {few.here}/nowhere"])
    assert plain.exit_code == 1


def test_an_unreachable_host_is_named_and_the_rest_is_done(hosts: Hosts) -> None:
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


def test_a_changed_host_key_is_refused_and_named(few: Hosts) -> None:
    known = few.here / "known_hosts"
    lines = (few.dev.directory / "ssh/known_hosts").read_text().splitlines()
    other = few.host_key("node1").split()[1]
    known.write_text("".join(f"{line}\n" if not line.startswith("node2 ") else f"node2 ssh-ed25519 {other}\n"
                             for line in lines))  # fmt: skip
    text = few.ssh_config.read_text()
    few.ssh_config.write_text(text.replace(f"{few.dev.directory}/ssh/known_hosts", str(known)))
    said = few.setup(status=1)
    errors = [line for line in said.splitlines() if "error:" in line]
    assert any("node2: its host key is not the one that is known" in line for line in errors), errors
    assert not (few.dev.home("node2") / ".ssh").exists()
    assert (few.dev.home("node3") / ".ssh/authorized_keys").exists()
    mended = few.setup("--ssh", f"ssh -F {few.dev.directory}/ssh/config")
    assert "node2: make directory" in mended
    # A machine in another's place, after setup: refused through the cluster's own file, too.
    own = few.here / "cluster/ssh/known_hosts"
    own.write_text(own.read_text().replace(few.host_key("node2").split()[1], other))
    assert "node2" in few.setup("--ssh", f"ssh -F {few.dev.directory}/ssh/config", status=1)


def test_no_host_key_is_taken_unless_somebody_accepts_it(few: Hosts) -> None:
    text = few.ssh_config.read_text()
    few.ssh_config.write_text(text.replace(f"{few.dev.directory}/ssh/known_hosts", "/dev/null"))
    before = few.snapshot()
    said = few.setup(status=1)
    after = few.snapshot()
    assert {path for path in after if path not in before} <= {
        path for path in after if path.startswith(str(few.here / "cluster"))
    }
    assert not (few.here / "cluster/ssh/known_hosts").exists()
    assert said.count("SHA256:") == FEW
    fingerprints = {}
    for node in few.nodes:
        file = few.dev.directory / f"ssh/{node}.host_key.pub"
        done = subprocess.run(["ssh-keygen", "-lf", str(file)], capture_output=True, text=True, check=True)
        fingerprints[node] = done.stdout.split()[1]
        assert f"  {node} {fingerprints[node]} (ed25519)" in said
    accepted = few.here / "fingerprints.txt"
    wrong = fingerprints | {"node2": fingerprints["node3"]}
    accepted.write_text("".join(f"{node} {said}  # by the console\n" for node, said in wrong.items()))
    said = few.setup("--accept-host-keys", str(accepted), status=1)
    assert f"node2: it shows {fingerprints['node2']}, which is not what is accepted" in said
    assert not (few.dev.home("node2") / ".ssh").exists()
    assert (few.dev.home("node3") / ".ssh/authorized_keys").exists()
    accepted.write_text("".join(f"{node} {said}\n" for node, said in fingerprints.items()))
    said = few.setup("--accept-host-keys", str(accepted))
    assert "node2: make directory" in said
    assert "nothing to change" in few.setup().splitlines()[-1]  # now they are known


def test_killed_halfway_it_can_be_run_again(few: Hosts) -> None:
    """By its ssh, when it is about to change the second node; where its node's script stops halfway, too."""
    program = few.here.parent / f"{few.here.name}-ssh"
    program.write_text(
        '#!/bin/sh\ncase "$*" in *"-- node2 "*"sh -s change"*) kill -9 "$VICTIM"; head -c 1000 | ssh "$@" ;;\n'
        '*) exec ssh "$@" ;; esac\n'
    )
    program.chmod(0o755)
    command = [sys.executable, "-m", "glmforge", *few.options("--ssh", f"{program} -F {few.ssh_config}")]
    killed = subprocess.run(["sh", "-c", 'export VICTIM=$$; exec "$@"', "sh", *command], stdout=subprocess.DEVNULL)
    assert killed.returncode == -9
    assert not (few.dev.disk("node2") / "glmforge").exists()
    few.setup()
    assert (few.dev.disk("node2") / "glmforge/data").is_dir()
    assert few.setup().splitlines()[-1] == "nothing to change"


def test_what_somebody_changed_since_is_named_and_stays(few: Hosts) -> None:
    few.setup()
    script = few.here / "cluster/launch.sh"
    ours = script.read_text()
    script.write_text("# mine now\n")
    said = few.setup(status=1)
    assert f"error: {script} differs from what setup would write; look at it with --dry-run --force" in said
    assert script.read_text() == "# mine now\n"
    assert "    -# mine now\n" in few.setup("--dry-run", "--force")
    few.setup("--force")
    assert script.read_text() == ours


def test_wrong_paths_on_nodes_are_named(few: Hosts) -> None:
    for node, make in (("node1", lambda path: path.write_text("")), ("node2", lambda path: None)):
        make(few.dev.disk(node) / "disk")
    for node in few.nodes[2:]:
        (few.dev.disk(node) / "disk").mkdir()
    path = few.dev.local_path / "disk"
    said = few.setup("--dry-run", "--nvme-path", str(path), status=1)
    assert f"node1: {path} is a file; give --nvme-path the directory where the disk is mounted" in said
    assert f"node2: {path} is not there; mount the disk, or correct --nvme-path" in said
    assert f"node3: make directory {path}/glmforge" in said


def test_the_launcher_starts_every_node_through_the_clusters_own_key(hosts: Hosts) -> None:
    python = hosts.here / "python"  # tells how it was called, where it is not setup's
    python.write_text(
        '#!/bin/sh\ncase "$*" in *torch.distributed.run*) ;; *) exec python3 "$@" ;; esac\n'
        f'printf "%s\\n" "$MASTER_ADDR" "$PWD" "$@" >{hosts.dev.local_path}/called\n'
    )
    python.chmod(0o755)
    (hosts.here / "cluster.yaml").write_text(f"hostfile: hosts.txt\npython: {python}\n")
    options = hosts.options()
    options[options.index("--hostfile") : options.index("--hostfile") + 2] = [str(hosts.here / "cluster.yaml")]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, (result.output, result.exception)
    command = ["bash", str(hosts.here / "cluster/launch.sh"), "train", "a b", "$(reboot)", "it's"]
    done = subprocess.run(command, cwd=hosts.here, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for number, node in enumerate(hosts.dev.nodes):
        lines = (hosts.dev.disk(node) / "called").read_text().splitlines()
        assert lines[:2] == ["node1", str(hosts.here)]
        assert lines[lines.index("--node-rank") + 1] == str(number)
        assert lines[-6:] == ["-m", "glmforge", "train", "a b", "$(reboot)", "it's"]
