import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from glmforge.errors import ConfigError, HostError
from glmforge_ops.dev import DevCluster, DevOptions
from glmforge_ops.dev.state import LONGEST, MAX_NODES, Places, read_state


@pytest.mark.parametrize(
    ("directory", "reason"),
    [
        ("relative", "absolute"),
        ("/tmp/a\nSlurmUser=root", "letters, digits"),
        ("/tmp/../etc", "letters, digits"),
        ("/run/user/0/cluster", "cannot see it"),
    ],
)
def test_directories_that_slurm_or_the_hosts_cannot_use(directory: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as raised:
        Places(Path(directory))
    assert "\n" not in str(raised.value)


def test_a_directory_that_is_too_long_for_sockets_is_refused(tmp_path: Path) -> None:
    places = Places(Path("/" + "a" * (LONGEST - 1)))
    assert len(f"{places.spool(f'node{MAX_NODES}')}/node{MAX_NODES}_99999999.{0xFFFFFFFB}") == 107
    with pytest.raises(ConfigError, match="too long for Slurm's sockets; set a --directory of at most 65 bytes"):
        DevCluster.start(tmp_path / ("a" * LONGEST), DevOptions())
    assert not list(tmp_path.iterdir())


def test_everything_is_made_below_the_directory_and_removed(tmp_path: Path) -> None:
    places = Places(tmp_path / "new")
    (tmp_path / "file").touch()
    with places.lock():
        places.make(("node1",))
        (places.log("node1", "sshd")).touch()
        (places / "state/link").symlink_to(tmp_path)  # leads nobody out
        assert places.directory.stat().st_mode & 0o77 == 0
        places.clear(keep_logs=True)
        assert [path.name for path in places.directory.iterdir() if path.is_dir()] == ["log"]
        assert places.is_ours()  # the next `up` may use it
        places.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_directory_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(HostError, match="is not empty; use a new or an empty directory"), Places(tmp_path).lock():
        pass
    with pytest.raises(HostError, match="Not a directory; set a --directory"), Places(tmp_path / "thesis.tex/c").lock():
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_one_command_at_a_time(tmp_path: Path) -> None:
    places = Places(tmp_path / "cluster")
    other = (
        "import sys; from pathlib import Path; from glmforge_ops.dev.state import Places\n"
        "with Places(Path(sys.argv[1])).lock(): pass"
    )
    command = [sys.executable, "-c", other, str(places.directory)]
    with places.lock():
        refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "locked by another command; wait until it ends" in refused.stderr
    assert subprocess.run(command, check=False).returncode == 0


def test_a_lock_of_a_removed_directory_is_not_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another command removes the directory between our opening of the file and our lock."""
    places = Places(tmp_path / "cluster")
    real, num_locks = fcntl.flock, 0

    def flock(descriptor: int, how: int) -> None:
        nonlocal num_locks
        num_locks += 1
        if num_locks == 1:
            places.remove()
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with places.lock():
        assert places.is_ours()
    assert num_locks == 2


def test_an_invalid_state_file(tmp_path: Path) -> None:
    places = Places(tmp_path / "cluster")
    assert read_state(places) is None
    with places.lock():
        (places / "cluster.json").write_text('{"mode": "magic"')
    with pytest.raises(HostError, match=r"invalid state of a development cluster; run: glmforge cluster dev down$"):
        read_state(places)
    DevCluster.end(places.directory)
    assert not places.directory.exists()
