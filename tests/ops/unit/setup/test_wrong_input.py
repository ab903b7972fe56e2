"""What cannot be set up is refused in one line that names the thing and the mend."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from glmforge.cli.app import app
from glmforge.config.cluster import ClusterConfig
from glmforge.errors import GlmforgeError, HostError
from glmforge.runtime.hostfile import HostLine
from glmforge_ops.setup.journal import Journal
from glmforge_ops.setup.known_hosts import read_accepted
from glmforge_ops.setup.wanted import Wanted

HOSTS = [HostLine("node1"), HostLine("node2")]


def said(*options: str) -> str:
    """What a setup says before it ends; nothing is connected to."""
    result = CliRunner().invoke(app, ["cluster", "setup", "--dry-run", "--offline", *options])
    assert result.exit_code != 0
    if isinstance(result.exception, GlmforgeError):
        assert "\n" not in str(result.exception)
        return str(result.exception)
    return " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node1 slots=8\nnode1 slots=8\n", "hosts:2: node1 stands in line 1 already; name each host once"),
        ("node1 slots=many\n", "hosts:1: slots=many is not understood; write 'NAME slots=8'"),
        ("node[3-1]\n", "hosts:1: [3-1] is not a range of numbers; write it as in node[001-128,200]"),
        ("$(reboot)\n", "hosts:1: $(reboot) is not the name of a host"),
        ("-oProxyCommand=reboot\n", "hosts:1: -oProxyCommand=reboot is not the name of a host"),
        ("# nobody\n", "names no host; give a file with one host per line"),
        ("node1 slots=4\nnode[2-3] slots=8\n", "node1 has slots=4, but --gpus-per-node is 8; make them equal"),
        ("node1\nnode2\n", "--nodes 3, but there are 2: node1, node2; correct --nodes or the hosts"),
    ],
)
def test_hostfile(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "hosts").write_text(text)
    assert expected in said("--type", "manual", "--hostfile", str(tmp_path / "hosts"), "--nodes", "3")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--type", "pbs"], "'pbs' is not one of 'slurm', 'mpi', 'manual'"),
        (["--nvme-path", "local/nvme"], "--nvme-path local/nvme: is not absolute; give the path from / on"),
        (["--nvme-path", "/local/../nvme"], "goes up by '..'; give the path that it leads to"),
        (["--nvme-path", "/"], "--nvme-path /: is the root of everything; give a directory"),
        (["--nvme-path", "/a\nb"], "holds a character that cannot be printed; choose another path"),
        (["--out", '/a"b'], "ssh's configuration cannot hold \" and %; choose another path"),
        (["--out", "/etc/hostname"], "--out /etc/hostname: is not a directory; choose another path"),
        (["--type", "mpi", "--out", "/a b"], "mpirun takes a path with spaces apart; choose another path"),
        (["--master-addr", "no-such-host.invalid"], "is none of the nodes and its name is not known here"),
        (["--master-addr", "$(reboot)"], "$(reboot) is not the name of a host"),
        (["--master-port", "99999"], "less than or equal to 65535"),
        (["--gpus-per-node", "65"], "less than or equal to 64"),
        (["--hostfile", "hosts.txt"], "give --hosts or --hostfile, not both"),
        (["--accept-host-keys", "a", "--confirm-host-keys"], "not both"),
        (["--ssh", "'"], "not a command"),
    ],
)
def test_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], expected: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert expected in said("--type", "manual", "--hosts", "node[1-2]", *options)
    assert not list(tmp_path.iterdir())


def test_a_type_that_no_command_line_lets_through(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="--type lsf: is not known; give slurm, mpi or manual"):
        Wanted.of("lsf", ClusterConfig(), HOSTS, tmp_path, None)


def test_confirming_needs_somebody_to_ask() -> None:
    result = CliRunner().invoke(app, ["cluster", "setup", "--hosts", "node1", "--confirm-host-keys"])
    assert "needs a terminal" in result.output


def test_offline_is_for_plans_only() -> None:
    result = CliRunner().invoke(app, ["cluster", "setup", "--hosts", "node1", "--offline"])
    assert "is for --dry-run only" in result.output


def test_undo_without_a_setup(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["cluster", "setup", "--undo", "--out", str(tmp_path)])
    assert "holds no journal of a setup; give --out as setup had it" in str(result.exception)


@pytest.mark.parametrize(
    "text", ["", "node1\n", "node1 MD5:aa:bb\n", "node1 SHA256:short\n", "$(a) SHA256:" + "a" * 43]
)
def test_fingerprints_that_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "accepted").write_text(text)
    with pytest.raises(HostError, match=r"fingerprint|is not the name of a host"):
        read_accepted(tmp_path / "accepted")


def test_two_setups_at_once(tmp_path: Path) -> None:
    with (
        Journal.opened(tmp_path / "cluster"),
        pytest.raises(HostError, match="another setup of this cluster is running; wait for it"),
        Journal.opened(tmp_path / "cluster"),
    ):
        pass
    assert not (tmp_path / "cluster").exists()


@pytest.mark.parametrize(
    "line", ["[]", "{", '{"change": {"kind": "device", "path": "/a"}, "before": {}}', '{"change": 1}']
)
def test_a_journal_that_is_none(tmp_path: Path, line: str) -> None:
    (tmp_path / "journal.jsonl").write_text(line + "\n")
    with pytest.raises(HostError, match=r"journal.jsonl:1:"):
        Journal(tmp_path)


def test_no_private_key_in_the_journal(tmp_path: Path) -> None:
    out = tmp_path / "cluster"
    result = CliRunner().invoke(
        app,
        ["cluster", "setup", "--type", "manual", "--hosts", "127.0.0.2", "--gpus-per-node", "0", "--out", str(out),
         "--ssh", "false"],
    )  # fmt: skip
    assert result.exit_code == 1, result.output
    assert "ssh's configuration gives no address" in str(result.exception)
    assert not out.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_directory_that_only_root_can_make(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir(mode=0o500)
    options = ["--hosts", "localhost", "--nvme-path", str(tmp_path / "disk"), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, ["cluster", "setup", "--type", "manual", "--dry-run", *options])
    assert "have root run: install -d" in result.output
