import subprocess
import sys
from pathlib import Path

import pytest

from glmforge.errors import ConfigError, HostError
from glmforge_ops.dev.options import MAX_NODES
from glmforge_ops.dev.places import LONGEST, Places, default_directory, free_ports


@pytest.mark.parametrize(
    ("directory", "reason"),
    [
        ("relative", "absolute paths"),
        ("/tmp/with space", "absolute paths"),
        ("/tmp/a;reboot", "absolute paths"),
        ("/tmp/a%n", "absolute paths"),
        ("/tmp/a\nSlurmUser=root", "absolute paths"),
        ("/tmp/../etc", "absolute paths"),
        ("/run/user/0/cluster", "would not see it"),
        ("/dev/shm/cluster", "would not see it"),
    ],
)
def test_directories_that_slurm_or_the_hosts_could_not_have(directory: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as raised:
        Places(Path(directory))
    assert "\n" not in str(raised.value)


def test_directories_that_are_too_long_for_slurm() -> None:
    longest = "/" + "a" * (LONGEST - 1)
    places = Places(Path(longest))
    places.check_room_for_sockets()
    assert len(f"{places.spool(f'node{MAX_NODES}')}/node{MAX_NODES}_99999999.{0xFFFFFFFB}") == 107
    with pytest.raises(ConfigError, match="too long paths; set a --directory of at most 65 bytes"):
        Places(Path(longest + "a")).check_room_for_sockets()


@pytest.mark.parametrize("name", ["", "../x", "A", "a b", "-a", "a" * 32, "a\n"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(ConfigError, match="cluster name"):
        default_directory(name)


def test_clusters_of_different_names_lie_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_directory("one") == tmp_path / "glmforge/dev/one"
    assert default_directory("one") != default_directory("two")


def test_all_is_made_below_the_directory_and_removed(tmp_path: Path) -> None:
    places = Places(tmp_path / "new")
    places.make()
    assert places.is_ours()
    assert places.directory.stat().st_mode & 0o77 == 0
    (places.logs / "one.log").write_text("x")
    places.remove(keep_logs=True)
    assert [path.name for path in places.directory.iterdir() if path.is_dir()] == ["log"]
    assert places.is_ours()  # the next `up` may take the place
    places.remove()
    assert not places.directory.exists()


def test_a_directory_with_something_in_it_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    places = Places(tmp_path)
    with pytest.raises(HostError, match="is not empty; name a new or an empty directory"):
        places.make()
    places.remove()
    assert (tmp_path / "thesis.tex").exists()


def test_a_link_in_the_directory_leads_nobody_out(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").write_text("x")
    places = Places(tmp_path / "cluster")
    places.make()
    (places / "state/link").symlink_to(tmp_path / "precious")
    (places / "link").symlink_to(tmp_path / "precious")
    places.remove()
    assert (tmp_path / "precious/file").exists()


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    places = Places(tmp_path / "file/cluster")
    with pytest.raises(HostError, match="Not a directory; set a --directory that you can write to"):
        places.make()


def test_one_at_a_time(tmp_path: Path) -> None:
    """Also between processes, and over the removal of the file by whoever held it."""
    places = Places(tmp_path / "cluster")
    other = (
        "import sys; from pathlib import Path; from glmforge_ops.dev.places import Places\n"
        "with Places(Path(sys.argv[1])).lock(): pass"
    )
    command = [sys.executable, "-c", other, str(places.directory)]
    with places.lock():
        refused = subprocess.run(command, capture_output=True, text=True, check=False)
        with pytest.raises(HostError, match="just changing"), places.lock():
            pass
    assert "another command is just changing this cluster; wait until it ends" in refused.stderr
    assert subprocess.run(command, check=False).returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_ports_are_different() -> None:
    assert len(set(free_ports(20))) == 20
