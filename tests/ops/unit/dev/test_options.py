from pathlib import Path
from typing import Any

import pytest

from glmforge.errors import ConfigError, GlmforgeError, HostError
from glmforge_ops.dev import modes, packages
from glmforge_ops.dev.modes import choose_mode
from glmforge_ops.dev.options import DevOptions, check_rate
from glmforge_ops.dev.packages import ensure, needed
from glmforge_ops.dev.places import Places

PLACES = Places(Path("/clusters/one"))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"nodes": 0}, "nodes 0: set it to 1 to 200"),
        ({"nodes": 500}, "nodes 500: set it to 1 to 200"),
        ({"gpus": -1}, "gpus -1: set it to 0 to 64"),
        ({"slurmd_timeout_s": 1}, "slurmd_timeout_s 1: set it to 3"),
        ({"link_rate": "fast"}, "link rate 'fast': write a whole number and kbit, mbit or gbit"),
        ({"slurm": False, "accounting": True}, "leave one of the two out"),
        ({"prolog": Path("/nowhere")}, "prolog /nowhere: is no executable file"),
        ({"health_check": Path("/etc/passwd")}, "health_check /etc/passwd: is no executable file"),
        ({"prolog": Path("/bin/sh\nSlurmUser=root")}, "letters, digits"),
    ],
)
def test_options_that_cannot_be(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as raised:
        DevOptions(**given)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "rate", ["", "0mbit", "100", "100mbit; reboot", "-1kbit", "1.5gbit", "100 mbit", "9" * 9 + "kbit"]
)
def test_rates_that_are_none(rate: str) -> None:
    with pytest.raises(ConfigError, match="link rate"):
        check_rate(rate)


@pytest.mark.parametrize(
    ("options", "refusal", "mode"),
    [
        (DevOptions(), None, "namespaces"),
        (DevOptions(), "you are not root", "plain"),
        (DevOptions(mode="plain"), None, "plain"),
        (DevOptions(mode="namespaces"), None, "namespaces"),
    ],
)
def test_how_a_cluster_can_be_had(
    options: DevOptions, refusal: str | None, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modes, "namespaces_refusal", lambda: refusal)
    chosen, why_plain = choose_mode(PLACES, options)
    assert chosen == mode
    assert bool(why_plain) is (mode == "plain")


@pytest.mark.parametrize(
    "options", [DevOptions(mode="namespaces"), DevOptions(bare=True), DevOptions(link_rate="1gbit")]
)
def test_what_only_namespaces_give_is_refused_without(options: DevOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes, "namespaces_refusal", lambda: "you are not root")
    with pytest.raises(HostError, match="must be a host in namespaces of its own, but you are not root"):
        choose_mode(PLACES, options)


def test_bare_nodes_would_not_see_a_cluster_in_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes, "namespaces_refusal", lambda: None)
    monkeypatch.setenv("HOME", "/clusters")
    with pytest.raises(ConfigError, match="do not see this home directory; set another --directory"):
        choose_mode(PLACES, DevOptions(bare=True))


@pytest.mark.parametrize(("user", "expected"), [(1000, "install them as root: apt-get install"), (0, "in Debian they")])
def test_programs_that_are_missing(user: int, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "find", lambda program: None)
    monkeypatch.setattr("os.geteuid", lambda: user)
    with pytest.raises(GlmforgeError, match=expected) as raised:
        ensure(needed(slurm=True, accounting=True, namespaces=True, ssh=True), print)
    for package in ("slurmctld", "slurmd", "munge", "mariadb-server-core", "openssh-server", "iproute2"):
        assert package in str(raised.value)
    assert "\n" not in str(raised.value)


def test_what_is_there_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "find", lambda program: f"/usr/bin/{program}")
    said: list[str] = []
    ensure(needed(slurm=True, accounting=False, namespaces=True, ssh=True), said.append)
    assert said == []
