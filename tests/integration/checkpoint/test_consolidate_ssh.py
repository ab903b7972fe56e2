"""Consolidation over real ssh and rsync: killed, interrupted, cut off, without space; and it still is whole."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from glmforge.checkpoint import StoredTensors, load_checkpoint, verify_checkpoint
from glmforge.checkpoint.format.store import checkpoint_path
from glmforge.checkpoint.node_local import consolidate as room
from glmforge.checkpoint.node_local.consolidate import Consolidated
from glmforge.checkpoint.node_local.transfer import SshHost, Transfers
from glmforge.errors import CheckpointError, HostError
from glmforge.runtime.ssh import Ssh
from helpers.checkpoints import assert_holds_step, blank_tensors, make_tensors
from helpers.distributed import run_ranks
from helpers.node_disks import LOCAL, NODES, write_node_disks
from helpers.ssh_nodes import skip_unless_possible, ssh_nodes

STEP = 20
LIMIT_S = 240


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    skip_unless_possible()
    directory = tmp_path_factory.mktemp("template")
    write_node_disks(directory, STEP)
    return directory


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, template: Path) -> Iterator[tuple[str, Path, Path]]:
    """The ssh command, where the nodes see their disks, and where these really are."""
    directory = tmp_path_factory.mktemp("ssh")
    seen, disks = directory / "seen", directory / "disks"
    seen.mkdir()
    shutil.copytree(template, disks)
    with ssh_nodes(directory, [disks / name for name in NODES], seen) as ssh:
        yield ssh, seen / LOCAL, disks


@pytest.fixture
def ready(nodes: tuple[str, Path, Path], template: Path) -> tuple[str, Path, Path]:
    refill(nodes[2], template)
    return nodes


def refill(disks: Path, template: Path) -> None:
    for name in NODES:
        shutil.rmtree(disks / name / LOCAL.parent, ignore_errors=True)
        shutil.copytree(template / name, disks / name, dirs_exist_ok=True)


def collect(root: Path, ssh: str, local_root: Path, **options: Any) -> Consolidated:
    transfers = Transfers()
    hosts = [SshHost(name, transfers, Ssh.of_command(ssh)) for name in NODES]
    done = room.consolidate(root, local_root, hosts, transfers, **options)
    assert done is not None
    return done


def assert_published(root: Path, disks: Path) -> None:
    path = checkpoint_path(root, STEP)
    assert verify_checkpoint(path) == []
    tensors = blank_tensors()
    load_checkpoint(path, tensors)
    assert_holds_step(tensors, STEP)
    stored = StoredTensors(path)
    assert all(torch.equal(stored[name], tensor) for name, tensor in make_tensors(STEP).items())
    assert {p.name for p in root.iterdir()} == {path.name}
    assert [list((disks / name / LOCAL).iterdir()) for name in NODES] == [[], []]


def test_pieces_come_over_ssh(tmp_path: Path, ready) -> None:
    ssh, local_root, disks = ready
    done = collect(tmp_path / "run", ssh, local_root)
    assert done.fetched_bytes >= done.num_bytes * 0.9  # but for meta.json, which is written anew, and the manifest
    assert done.removed_from == NODES
    assert_published(tmp_path / "run", disks)


def test_beginnings_and_damages_in_the_staging_directory_are_repaired(tmp_path: Path, ready) -> None:
    ssh, local_root, disks = ready
    staging = tmp_path / "run" / ".consolidate"
    staging.mkdir(parents=True)
    files = sorted(file for name in NODES for file in (disks / name / LOCAL / f"step-{STEP:08d}").glob("__*"))
    contents = [file.read_bytes() for file in files]
    (staging / files[0].name).write_bytes(contents[0][: len(contents[0]) // 2])
    (staging / files[1].name).write_bytes(bytes(len(contents[1])))
    (staging / files[2].name).write_bytes(contents[2] + b"more")
    (staging / files[3].name).write_bytes(contents[3])
    (staging / "__9_0.distcp").write_bytes(b"of another save")
    done = collect(tmp_path / "run", ssh, local_root)
    assert done.fetched_bytes <= done.num_bytes - len(contents[3])
    assert_published(tmp_path / "run", disks)


def die_in_transfer(patch: Callable[[Any, str, Any], None]) -> dict[str, Any]:
    return {"report": lambda host, done, total: os._exit(9) if done else None}


def die_instead_of(owner: Any, name: str, call: int = 1) -> Callable[[Callable], dict[str, Any]]:
    def prepare(patch: Callable) -> dict[str, Any]:
        original, calls = getattr(owner, name), [0]

        def replacement(*args: Any, **kwargs: Any) -> Any:
            calls[0] += 1
            if calls[0] == call:
                os._exit(9)
            return original(*args, **kwargs)

        patch(owner, name, replacement)
        return {}

    return prepare


STAGES: dict[str, Callable] = {
    "after the inventory": die_instead_of(room, "_collect"),
    "in a transfer": die_in_transfer,
    "when all is there": die_instead_of(room, "_finish"),
    "before the manifest": die_instead_of(room, "write_manifest"),
    "before it has its name": die_instead_of(room, "publish"),
    "before it is read back": die_instead_of(room, "verify_checkpoint"),
    "before cleaning up": die_instead_of(SshHost, "remove"),
    "while cleaning up": die_instead_of(SshHost, "remove", call=2),
}


def kill_at_stages(directory: Path, ssh: str, local_root: Path, disks: Path, template: Path) -> list[str]:
    for number, (stage, prepare) in enumerate(STAGES.items()):
        refill(disks, template)
        root = directory / str(number)
        child = os.fork()
        if child == 0:
            collect(root, ssh, local_root, **prepare(setattr))
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9, stage
        published = checkpoint_path(root, STEP)
        assert not published.exists() or verify_checkpoint(published) == [], stage
        collect(root, ssh, local_root, step=STEP)
        assert_published(root, disks)
    return list(STAGES)


def test_a_host_without_local_checkpoints_or_without_rsync_is_named(tmp_path: Path, ready) -> None:
    ssh, local_root, _ = ready
    with pytest.raises(CheckpointError, match=r"no parts of checkpoints on any host \(node0, node1\)"):
        collect(tmp_path / "run", ssh, local_root / "nowhere")
    program = tmp_path / "ssh"  # its rsync is not there
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *"rsync --server"*) set -- false ;; *) set -- {ssh} "$@" ;; esac\nexec "$@"\n'
    )
    program.chmod(0o755)
    with pytest.raises(HostError, match=r"node\d: .*rsync"):
        collect(tmp_path / "run", str(program), local_root)


@pytest.mark.chaos
def test_killed_at_any_stage_it_can_be_run_again(tmp_path: Path, ready, template: Path) -> None:
    (done,) = run_ranks(kill_at_stages, 1, tmp_path, *ready, template, init_group=False)
    assert done == list(STAGES)


def test_a_full_disk_is_named_with_its_host(tmp_path: Path, ready, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh, local_root, disks = ready
    root = tmp_path / "small"
    root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12k", "none", root], check=True)
    try:
        with pytest.raises(CheckpointError, match=r"no space left on device: the checkpoint needs .* more"):
            collect(root, ssh, local_root)
        monkeypatch.setattr(room, "_check_space", lambda *args: None)
        with pytest.raises(HostError, match=r"^node\d: rsync: .*No space left on device") as full:
            collect(root, ssh, local_root)
        assert "\n" not in str(full.value)
        assert not checkpoint_path(root, STEP).exists()
    finally:
        subprocess.run(["umount", "-l", root], check=True)
    collect(tmp_path / "large", ssh, local_root)
    assert_published(tmp_path / "large", disks)


def glmforge(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "glmforge", "checkpoint", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def test_the_command(tmp_path: Path, ready) -> None:
    ssh, local_root, disks = ready
    run, hostfile = tmp_path / "test", tmp_path / "hosts"
    hostfile.write_text("node0 slots=2\nnode1 slots=2  # the other one\n")
    options = ["--local-dir", local_root.parent, "--hostfile", hostfile, "--ssh", ssh]
    out, err = glmforge("consolidate", run, "--hosts", "node0,node9", *options[:2], *options[4:]).communicate(
        timeout=LIMIT_S
    )
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("glmforge: node9: ssh cannot connect (")
    process = glmforge("consolidate", run, *options)
    out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, err.strip()) == (0, "")
    assert f"step-{STEP:08d}: " in out
    assert "removed from node0, node1" in out
    assert_published(run / "checkpoints", disks)


def test_ctrl_c_is_one_line_and_ends_what_it_started(tmp_path: Path, template: Path) -> None:
    """With an ssh that never answers and says who it is."""
    fake, told = tmp_path / "ssh", tmp_path / "pid"
    fake.write_text(f"#!/bin/sh\necho $$ > {told}.new; mv {told}.new {told}; exec sleep 600\n")
    fake.chmod(0o755)
    options = ["--local-dir", "/scratch", "--hosts", "node0", "--ssh", fake]
    # A process inherits that SIGINT is ignored, as it is where the tests run in the background of a shell.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = glmforge("consolidate", tmp_path / "run", *options, start_new_session=True)
    signal.signal(signal.SIGINT, before)
    while not told.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)  # the command needs the processor, too
    os.kill(process.pid, signal.SIGINT)  # to the command alone, as from a script
    _, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, err) == (
        130,
        "glmforge: interrupted; complete files are kept; run it again to resume\n",
    )
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), 0)
