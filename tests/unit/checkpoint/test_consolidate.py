"""Pieces on two nodes become one checkpoint, or stay what they are."""

import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest
import torch

from glmforge.checkpoint import load_checkpoint, read_meta, verify_checkpoint
from glmforge.checkpoint.format.store import checkpoint_path
from glmforge.checkpoint.node_local import consolidate as room
from glmforge.checkpoint.node_local.transfer import SshHost, Transfers
from glmforge.errors import CheckpointError, HostError
from glmforge.runtime.lease import HeldError, Lease
from glmforge.runtime.ssh import Ssh
from helpers.checkpoints import assert_holds_step, blank_tensors, save_steps
from helpers.distributed import run_ranks
from helpers.node_disks import LOCAL, NODES, collect, make_nodes, write_node_disks


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("template")
    write_node_disks(directory, 10, 20, ephemeral=True)
    return directory


@pytest.fixture
def disks(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "disks"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "run" / "checkpoints"


def local(disks: Path, node: int, step: int) -> Path:
    return checkpoint_path(disks / NODES[node] / LOCAL, step)


def assert_published(root: Path, step: int) -> None:
    path = checkpoint_path(root, step)
    assert verify_checkpoint(path) == []
    tensors = blank_tensors()
    load_checkpoint(path, tensors)
    assert_holds_step(tensors, step)
    assert {p.name for p in root.iterdir()} == {path.name}


def assert_nothing_lost(root: Path, disks: Path) -> None:
    assert not list(root.glob("step-*"))
    assert all(local(disks, node, 20).is_dir() for node in (0, 1))


def test_pieces_of_two_nodes_become_one_checkpoint(root: Path, disks: Path) -> None:
    seen: dict[str, list[tuple[int, int]]] = {name: [] for name in NODES}
    done = collect(root, disks, report=lambda host, now, total: seen[host].append((now, total)))
    assert done is not None
    assert done.path == checkpoint_path(root, 20)
    assert_published(root, 20)
    assert not read_meta(done.path).ephemeral  # what was collected by hand stays
    assert done.removed_from == NODES
    assert not any(local(disks, node, 20).exists() for node in (0, 1))
    assert all(local(disks, node, 10).exists() for node in (0, 1))
    for reports in seen.values():
        assert reports[0][0] == 0
        assert reports[-1][0] == reports[-1][1] > 0
    assert done.fetched_bytes == sum(reports[-1][1] for reports in seen.values())


def test_a_newer_one_that_is_not_whole_is_passed_over(
    root: Path, disks: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(local(disks, 1, 20))
    assert collect(root, disks).path.name == "step-00000010"
    assert "step 20 is incomplete: the part of rank 2, 3" in caplog.text
    assert "using step 10" in caplog.text
    assert local(disks, 0, 20).exists()


def test_again_there_is_nothing_to_do(root: Path, disks: Path) -> None:
    collect(root, disks)
    hidden = local(disks, 1, 20).with_name(".step-00000020.deleted-consolidate-0")
    hidden.mkdir()  # the removal was interrupted
    assert collect(root, disks) is None  # step 10 is older
    assert not hidden.exists()
    assert_published(root, 20)
    again = collect(root, disks, step=20)
    assert (again.fetched_bytes, again.removed_from) == (0, ())


def test_a_node_that_is_named_twice_counts_once(root: Path, disks: Path) -> None:
    transfers = Transfers()
    nodes = [*make_nodes(disks, transfers), *make_nodes(disks, transfers)]
    collect(root, disks, nodes)
    assert_published(root, 20)
    assert [bool(node.fetched) for node in nodes] == [True, True, False, False]


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def shard(disks: Path, node: int, step: int = 20) -> Path:
    """A file with tensors of the node's."""
    return max(local(disks, node, step).glob("__*.distcp"), key=lambda file: file.stat().st_size)


def refuse_flipped(disks: Path) -> str:
    flip_a_bit(shard(disks, 1))
    return rf"^node1: scratch/test/step-00000020/{shard(disks, 1).name}: SHA-256 differs.*--step"


def refuse_lacking_file(disks: Path) -> str:
    name = shard(disks, 1).name
    shard(disks, 1).unlink()
    return rf"^node1: .*/{name}: missing"


def refuse_lacking_rank(disks: Path) -> str:
    (local(disks, 0, 20) / "part-00001.json").unlink()
    return "^step 20 is incomplete: the part of rank 1 is"


def refuse_damaged_part(disks: Path) -> str:
    (local(disks, 1, 20) / "part-00003.json").write_text("{")
    return r"the part of rank 3 is on none .*: node1: scratch/test/step-00000020/part-00003\.json: is not a rank's part"


def refuse_other_save(disks: Path) -> str:
    part = local(disks, 1, 20) / "part-00002.json"
    text = part.read_text()
    save = text.split('"save": "')[1].split('"')[0]
    part.write_text(text.replace(save, "another"))
    return "step 20 is incomplete: the part of rank 2 is"


def refuse_escape(disks: Path) -> str:
    part = local(disks, 1, 20) / "part-00003.json"
    part.write_text(part.read_text().replace('"__3_0.distcp"', '"../../__3_0.distcp"'))
    return r"rank 3 is on none .*: node1: scratch/test/step-00000020/part-00003\.json: is not a rank.s part"


@pytest.mark.parametrize(
    "damage",
    [refuse_flipped, refuse_lacking_file, refuse_lacking_rank, refuse_damaged_part, refuse_other_save, refuse_escape],
)
def test_what_is_not_whole_is_refused_in_one_line(root: Path, disks: Path, damage) -> None:
    message = damage(disks)
    with pytest.raises((CheckpointError, HostError), match=message) as refused:
        collect(root, disks, step=20)
    assert "\n" not in str(refused.value)
    assert_nothing_lost(root, disks)


def test_a_newest_one_that_is_damaged_is_passed_over(root: Path, disks: Path, caplog) -> None:
    refuse_flipped(disks)
    assert collect(root, disks).path.name == "step-00000010"
    assert_published(root, 10)
    assert re.search(r"step 20 was not collected \(node1: .*\); trying an older one", caplog.text)
    assert all(local(disks, node, 20).exists() for node in (0, 1))


def test_where_every_step_is_damaged_the_newest_says_why(root: Path, disks: Path) -> None:
    for step in (10, 20):
        flip_a_bit(shard(disks, 1, step))
    with pytest.raises(CheckpointError, match=r"^node1: scratch/test/step-00000020/.*SHA-256 differs"):
        collect(root, disks)
    assert_nothing_lost(root, disks)


def test_nothing_anywhere_is_an_error(root: Path, disks: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no parts of checkpoints on any host \(node0, node1\)"):
        collect(root, disks / "elsewhere")
    with pytest.raises(CheckpointError, match=r"step 30 is on none of the hosts \(node0, node1\)"):
        collect(root, disks, step=30)


def test_another_save_of_the_step_is_not_replaced(root: Path, disks: Path) -> None:
    save_steps(root, 20)
    with pytest.raises(CheckpointError, match="step-00000020 already exists from another save; move it"):
        collect(root, disks)
    assert all(local(disks, node, 20).exists() for node in (0, 1))


def test_a_published_one_that_was_damaged_since_is_collected_anew(root: Path, disks: Path) -> None:
    published = collect(root, disks, keep_local=True).path
    flip_a_bit(next(published.glob("__0_*")))
    collect(root, disks)
    assert_published(root, 20)


def test_a_damaged_one_keeps_the_local_copies(root: Path, disks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish = room.publish

    def publish_damaged(partial: Path, final: Path) -> None:
        publish(partial, final)
        flip_a_bit(next(final.glob("__0_*")))

    monkeypatch.setattr(room, "publish", publish_damaged)
    with pytest.raises(CheckpointError, match=r"step-00000020 is damaged, local copies are kept: .*SHA-256 differs"):
        collect(root, disks)
    assert all(local(disks, node, 20).exists() for node in (0, 1))


def test_no_space_is_told_before_anything_is_fetched(root: Path, disks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(disks)
    monkeypatch.setattr(room.shutil, "disk_usage", lambda path: usage._replace(free=100))
    nodes = make_nodes(disks, Transfers())
    with pytest.raises(CheckpointError, match=r"no space left on device: the checkpoint needs .* more"):
        collect(root, disks, nodes)
    assert not any(node.fetched for node in nodes)
    assert_nothing_lost(root, disks)


def test_what_arrived_before_is_not_fetched_again(root: Path, disks: Path) -> None:
    damaged = shard(disks, 1)
    whole = damaged.read_bytes()
    flip_a_bit(damaged)
    with pytest.raises(CheckpointError, match=damaged.name):
        collect(root, disks, step=20)
    damaged.write_bytes(whole)
    nodes = make_nodes(disks, Transfers())
    done = collect(root, disks, nodes)
    # The failure of node1 may have cut node0 short; of its own files node1 lacks just that one.
    assert nodes[1].fetched == [damaged.name]
    assert done.fetched_bytes < done.num_bytes
    assert_published(root, 20)


def test_two_at_once_are_refused(root: Path, disks: Path) -> None:
    with (
        Lease(root.parent, "glmforge train"),
        pytest.raises(HeldError, match=r"in use by .glmforge train. on .* \(process"),
    ):
        collect(root, disks)
    collect(root, disks)
    assert_published(root, 20)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, without the key."""


def test_ctrl_c_keeps_what_there_is(root: Path, disks: Path) -> None:
    def interrupt(host: str, done: int, total: int) -> None:
        if done:
            raise Interrupted

    with pytest.raises(Interrupted):
        collect(root, disks, report=interrupt)
    assert_nothing_lost(root, disks)
    collect(root, disks)
    assert_published(root, 20)


CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
MAX_CHANGES = 200


def is_change(event: str, args: tuple, below: Path) -> bool:
    # Removals name files relative to an open directory.
    return event in CHANGES or (event == "open" and bool(args[2] & WRITING) and str(args[0]).startswith(str(below)))


def collect_and_die(root: Path, disks: Path, n: int) -> bool:
    """Whether a child that is killed before its n-th change of the file system comes to the end."""
    child = os.fork()
    if child == 0:
        seen = 0

        def hook(event: str, args: tuple) -> None:
            nonlocal seen
            if is_change(event, args, root.parent.parent):
                if seen == n:
                    os.kill(os.getpid(), signal.SIGKILL)
                seen += 1

        sys.addaudithook(hook)
        collect(root, disks)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return not os.WIFSIGNALED(status)


def kill_at_every_change(directory: Path, template: Path) -> int:
    torch.set_num_threads(1)
    for n in range(MAX_CHANGES):
        disks, root = directory / str(n) / "disks", directory / str(n) / "run" / "checkpoints"
        shutil.copytree(template, disks)
        survived = collect_and_die(root, disks, n)
        published = checkpoint_path(root, 20)
        if published.exists():
            assert verify_checkpoint(published) == []
        else:
            assert all(local(disks, node, 20).is_dir() for node in (0, 1))
        collect(root, disks)  # the next life
        assert_published(root, 20)
        left = {path.name for node in (0, 1) for path in local(disks, node, 20).parent.iterdir()}
        assert left == {"step-00000010"}
        shutil.rmtree(directory / str(n))
        if survived:
            return n
    raise AssertionError(f"no end after {MAX_CHANGES} changes")


def test_killed_at_any_moment_it_can_be_run_again(tmp_path: Path, template: Path) -> None:
    (num_changes,) = run_ranks(kill_at_every_change, 1, tmp_path, template, init_group=False)
    # Four shards, two files of metadata, manifest, two directories on each side, each of them made and removed.
    print("CHANGES", num_changes)
    assert num_changes > 25


def test_without_ssh_it_says_so(root: Path, tmp_path: Path) -> None:
    transfers = Transfers()
    with pytest.raises(HostError, match=r"^node1: command not found: 'no-such-ssh'; install it, or"):
        room.consolidate(root, tmp_path, [SshHost("node1", transfers, Ssh(("no-such-ssh",)))], transfers)
