"""Options of a development cluster, whether its nodes can be hosts, and the programs that it needs."""

from pathlib import Path
from typing import Any

import pytest

from glmforge.errors import ConfigError, GlmforgeError, HostError
from glmforge_ops.dev import bring_up, hosts, network
from glmforge_ops.dev.bring_up import choose_mode
from glmforge_ops.dev.hosts import ensure, needed
from glmforge_ops.dev.state import ClusterState, DevOptions, Places


def test_options_that_cannot_be_used() -> None:
    with pytest.raises(ConfigError, match="nodes 500: must be between 1 and 200"):
        DevOptions(nodes=500)
    state = ClusterState(places=Places(Path("/clusters/one")), options=DevOptions())
    with pytest.raises(ConfigError, match="link rate '100mbit; reboot': use an integer with kbit, mbit or gbit"):
        network.set_rate(state, "node1", "100mbit; reboot")


@pytest.mark.parametrize(
    ("options", "refusal", "expected"),
    [
        (DevOptions(), None, "namespaces"),
        (DevOptions(), "you are not root", "plain"),
        (DevOptions(mode="plain"), None, "plain"),
        (DevOptions(mode="namespaces"), "you are not root", HostError),
        (DevOptions(bare=True), "you are not root", HostError),
        (DevOptions(bare=True), None, ConfigError),  # the directory is in the home directory
    ],
)
def test_namespaces_or_plain(
    options: DevOptions, refusal: str | None, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bring_up, "namespaces_refusal", lambda: refusal)
    monkeypatch.setenv("HOME", "/clusters")
    state = ClusterState(places=Places(Path("/clusters/one")), options=options)
    if isinstance(expected, str):
        choose_mode(state)
        assert state.mode == expected
    else:
        with pytest.raises(expected, match=r"must be a host in namespaces|do not see this home directory"):
            choose_mode(state)


@pytest.mark.parametrize("user", [0, 1000])
def test_missing_programs_that_cannot_be_installed(user: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "find", lambda program: None if user == 0 or "slurm" in program else program)
    monkeypatch.setattr("os.geteuid", lambda: user)
    with pytest.raises(GlmforgeError, match="install as root") as raised:
        ensure(needed(slurm=True, hosts=True), print)
    assert "apt-get install" in str(raised.value)
    assert "slurmctld" in str(raised.value)
    assert ("openssh-server" in str(raised.value)) is (user == 0)
    assert "\n" not in str(raised.value)


def test_missing_packages_are_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    apt = tmp_path / "apt-get"
    apt.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\ntouch {tmp_path}/sbatch; chmod +x {tmp_path}/sbatch\n')
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(hosts, "find", lambda program: (tmp_path / program).exists() or None)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    lines: list[str] = []
    for _ in range(2):
        ensure({"sbatch": "slurm-client"}, lines.append)
    assert lines == ["installing slurm-client"]
    assert [line.split()[3] for line in (tmp_path / "calls").read_text().splitlines()] == ["update", "install"]
