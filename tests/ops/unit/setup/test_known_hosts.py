"""Host keys and the cluster's own key, with ssh-keygen itself; `ssh` and `ssh-keyscan` are the test's own."""

import subprocess
from pathlib import Path

import pytest

from glmforge.errors import HostError
from glmforge.runtime.ssh import Ssh
from glmforge_ops.setup.known_hosts import HostKey, Place, find_trust, own_key, places_of


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys of three machines, a, b and c, which ssh-keyscan shows; c's has another one, too."""
    made = []
    for number in range(4):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / str(number))], check=True)
        made.append(" ".join((tmp_path / f"{number}.pub").read_text().split()[:2]))
    shows = {"a": made[:1], "b": made[1:2], "c": made[2:]}
    lines = "".join(f"{host}) {' '.join(f'echo {host} {key};' for key in some)} ;;\n" for host, some in shows.items())
    scan = tmp_path / "bin/ssh-keyscan"
    scan.parent.mkdir()
    scan.write_text(f'#!/bin/sh\nfor host; do :; done\necho "# $host:22"\ncase $host in\n{lines}esac\n')
    scan.chmod(0o755)
    monkeypatch.setenv("PATH", f"{scan.parent}:/usr/bin:/bin")
    return made


def place(host: str, *files: Path) -> Place:
    return Place(host, host, 22, files=tuple(map(str, files)))


def test_a_known_key_is_taken_over_also_under_a_hashed_name(tmp_path: Path, keys: list[str]) -> None:
    user, own = tmp_path / "user", tmp_path / "own"
    user.write_text(f"a {keys[0]}\nb {keys[1]}\n@revoked c {keys[2]}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(user)], check=True, capture_output=True)
    own.write_text(f"b {keys[3]}\n")  # what the cluster's own file says counts
    trust = find_trust([place("a", user), place("b", user), place("c", user)], own, {}, None)
    assert trust.text == f"b {keys[3]}\na {keys[0]}\n"
    assert list(trust.refused) == ["c"]


def test_only_the_accepted_key_of_that_host_is_taken(tmp_path: Path, keys: list[str]) -> None:
    accepted = {"b": {HostKey("b", keys[0]).fingerprint}, "c": {HostKey("c", keys[3]).fingerprint}}
    trust = find_trust([place(host) for host in "abcd"], tmp_path / "own", accepted, lambda new: False)
    assert trust.text == f"c {keys[3]}\n"
    assert [key.host for key in trust.new] == ["a"]
    assert {host: reason.partition(",")[0].partition(";")[0] for host, reason in trust.refused.items()} == {
        "a": "its host key is not known",
        "b": f"it shows {HostKey('b', keys[1]).fingerprint}",
        "d": "it shows no host key",
    }


def test_a_key_that_is_confirmed_is_taken(tmp_path: Path, keys: list[str]) -> None:
    asked: list[HostKey] = []
    trust = find_trust([place("a"), place("b")], tmp_path / "own", {}, lambda new: bool(asked.extend(new)) or True)
    assert trust.text == f"a {keys[0]}\nb {keys[1]}\n"
    assert (trust.new, trust.refused) == ([], {})
    done = subprocess.run(["ssh-keygen", "-lf", str(tmp_path / "0.pub")], capture_output=True, text=True, check=True)
    assert asked[0].shown == f"a {done.stdout.split()[1]} (ed25519)"


def test_where_ssh_leads(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host a\n  HostName 10.0.0.1\n  Port 2222\n  User trainer\nHost b\n  HostKeyAlias Second\n")
    a, b = places_of(Ssh(("ssh", "-F", str(config))), ["a", "b"])
    assert (a.address, a.port, a.name, a.user, a.alias) == ("10.0.0.1", 2222, "[10.0.0.1]:2222", "trainer", "")
    assert (b.port, b.name, b.user, b.alias) == (22, "second", "", "second")


def test_a_pair_of_keys_is_made_once_and_a_bad_one_is_named(tmp_path: Path) -> None:
    assert own_key(tmp_path, make=False) is None
    line = own_key(tmp_path, make=True, comment="glmforge-h200")
    assert line is not None
    assert line == f"restrict,pty {(tmp_path / 'id_ed25519.pub').read_text().strip()}"
    assert line.endswith(" glmforge-h200")
    (tmp_path / "id_ed25519.pub").unlink()  # a setup was killed when it had made one of the two
    assert own_key(tmp_path, make=True) == line
    (tmp_path / "id_ed25519").chmod(0o644)
    with pytest.raises(HostError, match=r"id_ed25519: 'ssh-keygen' fails: .*; remove it with its \.pub"):
        own_key(tmp_path, make=True)
