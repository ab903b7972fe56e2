"""The operating system refuses a write: the error says what, where and how to go on; nothing else is lost."""

import resource
import signal
import subprocess
from pathlib import Path

import pytest
import torch

from glmforge.checkpoint import load_latest, save_checkpoint
from glmforge.checkpoint.save import save_local
from glmforge.errors import CheckpointError
from helpers.checkpoints import assert_holds_step, blank_tensors, make_meta, make_tensors, save_steps
from helpers.distributed import run_ranks

LARGE = {"model.weight": torch.zeros(1_000_000)}
LONG = "x" * (16 << 20)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(mount)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount command")
    if done.returncode != 0:
        pytest.skip(f"mounting a tmpfs is not allowed here: {done.stderr.strip()}")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def test_full_disk(small_disk):
    (good,) = save_steps(small_disk, 10)
    with pytest.raises(CheckpointError) as caught:
        save_checkpoint(small_disk, 20, LARGE, make_meta(20))
    message = str(caught.value)
    assert message.startswith(f"{small_disk}/step-00000020 was not saved: no space left on device writing ")
    assert "free space there or set another output_dir (the checkpoint takes 3.81 MiB: at least " in message
    assert message.endswith("MiB more). The last complete checkpoint is step-00000010")
    assert [path.name for path in small_disk.iterdir()] == [good.name]
    tensors = blank_tensors()
    load_latest(small_disk, tensors)
    assert_holds_step(tensors, 10)
    save_steps(small_disk, 30)  # what the failed one took is free again


@pytest.mark.parametrize(
    ("large", "field"),
    [
        ({"mixtures": {"seen": [], "buffer": LONG}}, "'mixtures.buffer': return large state of the batch source from"),
        ({"hooks": {"spikes": {"losses": LONG}}}, "'hooks.spikes': store less in that hook's state_dict()"),
        ({"tokenizer_fingerprint": LONG}, "'tokenizer_fingerprint': make it smaller"),
    ],
    ids=["source", "hook", "other"],
)
@pytest.mark.parametrize("write", [save_checkpoint, save_local])
def test_a_meta_that_could_not_be_read_again(tmp_path, write, large, field):
    (good,) = save_steps(tmp_path, 10)
    with pytest.raises(CheckpointError, match=r"step-00000020 was not saved: meta\.json would have 16,7") as caught:
        write(tmp_path, 20, make_tensors(20), make_meta(20, **large))
    assert f"more than the 16,777,216 that can be read back; most of it is in field {field}" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == [good.name]
    assert load_latest(tmp_path, blank_tensors())[0] == good


def save_over_the_limit(root: Path) -> tuple[str, list[str], int]:
    """The same everywhere: a limit on the size of files, beyond which a write fails as on a full disk."""
    save_steps(root, 10)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that write() fails instead of ending the process
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    try:
        save_checkpoint(root, 20, LARGE, make_meta(20))
    except CheckpointError as error:
        message = str(error)
    names = [path.name for path in root.iterdir()]
    tensors = blank_tensors()
    _, meta = load_latest(root, tensors)
    assert_holds_step(tensors, 10)
    return message, names, meta.step


def test_file_size_limit(tmp_path):
    ((message, names, step),) = run_ranks(save_over_the_limit, 1, tmp_path, init_group=False)
    assert "file too large writing" in message
    assert "raise the limit on file sizes (ulimit -f) or set another output_dir" in message
    assert message.endswith("The last complete checkpoint is step-00000010")
    assert names == ["step-00000010"]
    assert step == 10


@pytest.mark.parametrize("file", [".metadata", "meta.json", "manifest.json"])
def test_refused_late(tmp_path, monkeypatch, file):
    """The shards are written, and only then the disk is full."""
    (good,) = save_steps(tmp_path, 10)
    real_open = Path.open

    def refuse(self, mode="r", *args, **kwargs):
        if self.name.removesuffix(".tmp") == file and "w" in mode:
            raise OSError(28, "No space left on device", str(self))
        return real_open(self, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(CheckpointError, match=r"no space left on device (using|writing) .*free space there"):
        save_steps(tmp_path, 20)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == [good.name]


@pytest.mark.parametrize(
    ("raised", "seen", "match"),
    [(KeyboardInterrupt, KeyboardInterrupt, None), (TypeError, RuntimeError, "TypeError")],
)
def test_what_is_no_failure_of_the_disk_stays_what_it_is(tmp_path, monkeypatch, raised, seen, match):
    def fail(*args, **kwargs):
        raise raised

    monkeypatch.setattr("torch.distributed.checkpoint.filesystem._write_item", fail)
    with pytest.raises(seen, match=match):
        save_steps(tmp_path, 1)
    assert not list(tmp_path.glob("step-*"))
