"""What cannot be set up is refused in one line that names the thing and the fix."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from glmforge.cli.app import app
from glmforge.errors import GlmforgeError, HostError
from glmforge_ops.setup.known_hosts import read_accepted


def said(*options: str) -> str:
    """What a setup says before it ends; nothing is connected to."""
    result = CliRunner().invoke(app, ["cluster", "setup", "--dry-run", "--offline", *options])
    assert result.exit_code != 0
    if isinstance(result.exception, GlmforgeError):
        assert "\n" not in str(result.exception)
        return str(result.exception)
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node1 slots=8\nnode1 slots=8\n", "hosts:2: node1 stands in line 1 already; name each host once"),
        ("node1 slots=4\nnode[2-3] slots=8\n", "node1 has slots=4, but --gpus-per-node is 8; make them equal"),
        ("node1\nnode2\n", "--nodes 3, but there are 2 nodes; correct --nodes or the hosts"),
    ],
)
def test_hostfile(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "hosts").write_text(text)
    assert expected in said("--type", "manual", "--hostfile", str(tmp_path / "hosts"), "--nodes", "3")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--type", "pbs"], "'pbs' is not one of 'slurm', 'mpi', 'manual'"),
        (
            ["--nvme-path", "local/nvme"],
            "local_path: 'local/nvme' is not absolute; every node must find it",
        ),
        (["--nvme-path", "/a/../b"], "local_path: '/a/../b' must be a directory below /, without '..'"),
        (["--out", '/a"b'], "ssh's configuration cannot hold \" and %, nor mpirun spaces; choose another path"),
        (["--out", "/etc/hostname"], "--out /etc/hostname: is not a directory; choose another path"),
        (["--type", "mpi", "--out", "/a b"], "nor mpirun spaces; choose another path"),
        (["--hostfile", "hosts.txt"], "give --hosts or --hostfile, not both"),
        (["--accept-host-keys", "a", "--confirm-host-keys"], "not both"),
        (["--ssh", "'"], "not a command"),
    ],
)
def test_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], expected: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert expected in said("--type", "manual", "--hosts", "node[1-2]", *options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("option", "expected"), [("--confirm-host-keys", "needs a terminal"), ("--offline", "is for --dry-run only")]
)
def test_options_that_need_something(option: str, expected: str) -> None:
    assert expected in CliRunner().invoke(app, ["cluster", "setup", "--hosts", "node1", option]).output


@pytest.mark.parametrize("text", ["", "node1\n", "node1 SHA256:short\n", "$(a) SHA256:" + "a" * 43])
def test_fingerprints_that_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "accepted").write_text(text)
    with pytest.raises(HostError, match=r"fingerprint|is not the name of a host"):
        read_accepted(tmp_path / "accepted")


def test_a_host_that_sshs_configuration_does_not_know_is_named_and_nothing_is_made(tmp_path: Path) -> None:
    out = tmp_path / "cluster"
    options = ["--type", "manual", "--hosts", "127.0.0.2", "--out", str(out), "--ssh", "false"]
    result = CliRunner().invoke(app, ["cluster", "setup", *options])
    assert "127.0.0.2: ssh's configuration gives no address for it; try 'ssh -G 127.0.0.2'" in str(result.exception)
    assert not out.exists()
