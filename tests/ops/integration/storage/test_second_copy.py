"""Second copies of a run's checkpoints: over real ssh and on this machine, interrupted, damaged, rotated, resumed."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from glmforge.checkpoint import StoredTensors, load_checkpoint, verify_checkpoint
from glmforge.checkpoint.format.store import checkpoint_path, delete_checkpoint
from glmforge.config.load import load_config
from glmforge.errors import CheckpointError, HostError
from glmforge.recipes.train import train
from glmforge.runtime.lease import HeldError
from glmforge.runtime.ssh import Ssh
from glmforge_ops.storage.second_copy import Copied, Destination, copy_checkpoints, copy_newest, parse_destination
from helpers.checkpoints import assert_holds_step, blank_tensors, save_steps
from helpers.ssh_nodes import skip_unless_possible, ssh_nodes
from helpers.tiny_data import TinyData

NAME = "a run's"


@pytest.fixture(scope="module")
def backup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ssh, Path, Path]]:
    """How a machine is reached, where it sees its disk, and where that really is."""
    skip_unless_possible()
    directory = tmp_path_factory.mktemp("backup")
    seen, disk = directory / "seen", directory / "backup"
    seen.mkdir()
    disk.mkdir()
    with ssh_nodes(directory, [disk], seen) as ssh:
        yield Ssh.of_command(ssh), seen, disk


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / NAME
    save_steps(run / "checkpoints", 10)
    (run / "config.yaml").write_text("name: test\n")
    (run / "tokenizer").mkdir()
    (run / "tokenizer/vocab.json").write_text("{}")
    return run


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "second"


def copy(run: Path, place: Path, **options: object) -> Copied | None:
    return copy_newest(run, Destination("localhost", place), Ssh(), **options)  # type: ignore[arg-type]


def assert_whole(run: Path, step: int) -> None:
    path = checkpoint_path(run / "checkpoints", step)
    assert verify_checkpoint(path) == []
    tensors = blank_tensors()
    load_checkpoint(path, tensors)
    assert_holds_step(tensors, step)


def names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def test_over_ssh(run: Path, backup: tuple[Ssh, Path, Path]) -> None:
    ssh, seen, disk = backup
    destination = parse_destination(f"backup:{seen}/the archive")
    done = copy_newest(run, destination, ssh)
    assert done is not None
    there = disk / "the archive" / NAME
    assert_whole(there, 10)
    assert (there / "tokenizer/vocab.json").read_text() == "{}"
    before = [path.stat().st_ino for path in sorted((there / "checkpoints").rglob("*"))]
    assert copy_newest(run, destination, ssh) is not None
    assert [path.stat().st_ino for path in sorted((there / "checkpoints").rglob("*"))] == before


def test_rotation_keeps_the_newest(run: Path, place: Path) -> None:
    for step in (20, 30, 40):
        copy(run, place, keep=2)
        save_steps(run / "checkpoints", step)
    done = copy(run, place, keep=2)
    assert done is not None
    assert done.removed == ("step-00000020",)
    assert names(place / NAME) == ["step-00000030", "step-00000040"]


def test_the_copy_that_was_read_back_stays_though_newer_ones_are_there(run: Path, place: Path) -> None:
    """A run that was set back: its newest checkpoint is older than those of the course that it has left."""
    save_steps(run / "checkpoints", 30)
    copy(run, place, keep=1)
    delete_checkpoint(checkpoint_path(run / "checkpoints", 30))
    copy(run, place, keep=1)
    assert names(place / NAME) == ["step-00000010", "step-00000030"]


def test_a_broken_copy_neither_counts_nor_is_removed(run: Path, place: Path) -> None:
    copy(run, place)
    (place / NAME / "checkpoints/step-00000010/manifest.json").unlink()
    for step in (20, 30):
        save_steps(run / "checkpoints", step)
        copy(run, place, keep=1)
    assert names(place / NAME) == ["step-00000010", "step-00000030"]


def test_a_damaged_copy_is_made_anew(run: Path, place: Path) -> None:
    copy(run, place)
    file = max((place / NAME / "checkpoints/step-00000010").iterdir(), key=lambda path: path.stat().st_size)
    file.write_bytes(bytes(file.stat().st_size))
    copy(run, place)
    assert_whole(place / NAME, 10)
    broken, whole = names(place / NAME)
    assert broken.startswith(".broken-step-00000010-")
    assert whole == "step-00000010"


def test_another_checkpoint_of_the_same_step_takes_its_place(run: Path, place: Path) -> None:
    copy(run, place)
    shutil.rmtree(run / "checkpoints")
    save_steps(run / "checkpoints", 10)
    copy(run, place)
    of_run, of_copy = (root / "checkpoints/step-00000010/manifest.json" for root in (run, place / NAME))
    assert of_run.read_bytes() == of_copy.read_bytes()


def test_a_damaged_original_is_not_copied(run: Path, place: Path) -> None:
    file = max((run / "checkpoints/step-00000010").iterdir(), key=lambda path: path.stat().st_size)
    content = file.read_bytes()
    file.write_bytes(bytes(len(content)))
    with pytest.raises(HostError, match=rf"the copy differs from the manifest \(\./{file.name}: FAILED\)"):
        copy(run, place)
    assert not any(name.startswith("step") for name in names(place / NAME))
    file.write_bytes(content)
    copy(run, place)
    assert_whole(place / NAME, 10)


@pytest.fixture
def rsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory whose `then`, a script, runs once after rsync has copied the checkpoint, and may fail it."""
    real, programs = shutil.which("rsync"), tmp_path / "programs"
    programs.mkdir()
    script = programs / "rsync"
    script.write_text(
        f'#!/bin/sh\n{real} "$@" || exit\ncase "$*" in *.copying-*) ;; *) exit 0 ;; esac\n'
        f"[ -e {programs}/then ] || exit 0\nmv {programs}/then {programs}/now && sh {programs}/now\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return programs


def test_interrupted_it_leaves_nothing_under_the_name_and_continues(run: Path, place: Path, rsync: Path) -> None:
    arrived = f"'{place}'/\"{NAME}\"/checkpoints/.copying-*/*"
    (rsync / "then").write_text(f"cd {arrived} && for f in *.*; do : >$f; done; exit 20\n")
    with pytest.raises(HostError):
        copy(run, place)
    assert names(place / NAME) == [".copying-step-00000010"]
    copy(run, place)
    assert_whole(place / NAME, 10)
    assert names(place / NAME) == ["step-00000010"]


def test_what_the_run_deletes_meanwhile_gives_way_to_the_next(run: Path, place: Path, rsync: Path) -> None:
    later = run.with_name("later")
    save_steps(later / "checkpoints", 20)
    checkpoints = f'"{run}/checkpoints"'
    (rsync / "then").write_text(f"mv {later}/checkpoints/* {checkpoints}/; rm -r {checkpoints}/*10; exit 23\n")
    done = copy(run, place)
    assert done is not None
    assert done.name == "step-00000020"
    assert_whole(place / NAME, 20)
    assert names(place / NAME) == ["step-00000020"]


def test_follow_copies_every_checkpoint_once_and_outlives_failures(
    run: Path, place: Path, rsync: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another copy to the same place is refused meanwhile."""
    copied: list[str] = []
    steps = iter([20, 30, None])

    def copy_run(every_s: float | None) -> None:
        there = Destination("localhost", place)
        copy_checkpoints(
            run, there, Ssh(), keep=9, report=lambda done: copied.append(done.name), every_s=every_s, wait=wait
        )

    def wait(seconds: float) -> None:
        step = next(steps)
        if step is None:
            with pytest.raises(HeldError, match="in use by 'glmforge checkpoint copy"):
                copy_run(None)
            raise KeyboardInterrupt
        if step == 20:
            (rsync / "then").write_text("exit 12\n")
        save_steps(run / "checkpoints", step)

    with pytest.raises(KeyboardInterrupt):
        copy_run(1.0)
    assert copied == ["step-00000010", "step-00000030"]
    assert "trying again in 1 s" in caplog.text
    copy_run(None)
    assert copied[-1] == "step-00000030"


def test_a_run_goes_on_from_its_copy(tiny_data: TinyData, tmp_path: Path, place: Path) -> None:
    config = tiny_data.run_config(
        tmp_path / "tiny",
        phases=[{"name": "main", "steps": 4, "seq_len": 16, "batch_size": 2}],
        checkpoint={"every_steps": 2, "keep_last": 5},
    )
    train(config)
    expected = StoredTensors(checkpoint_path(tmp_path / "tiny/checkpoints", 4))
    tensors = {name: expected[name] for name in expected}
    delete_checkpoint(checkpoint_path(tmp_path / "tiny/checkpoints", 4))
    done = copy(tmp_path / "tiny", place)
    assert done is not None
    assert done.name == "step-00000002"
    train(load_config(place / "tiny").model_copy(update={"output_dir": place / "tiny"}))
    resumed = StoredTensors(checkpoint_path(place / "tiny/checkpoints", 4))
    assert all(torch.equal(resumed[name], tensor) for name, tensor in tensors.items())
    assert '"resumed"' in (place / "tiny/events.jsonl").read_text()


@pytest.mark.parametrize("given", ["a:b", "a:b/checkpoints/.."])
def test_a_run_by_a_relative_path(run: Path, place: Path, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """rsync would look for one with a colon on another machine."""
    monkeypatch.chdir(run.rename(run.with_name("a:b")).parent)
    copy(Path(given), place)
    assert_whole(place / "a:b", 10)


def test_ssh_that_is_not_there(run: Path, place: Path) -> None:
    with pytest.raises(HostError, match="'no-such-ssh' cannot be started"):
        copy_newest(run, Destination("backup", place), Ssh(("no-such-ssh",)))


@pytest.mark.parametrize(
    "text", ["", "host:relative", "-oProxyCommand=x:/a", "a b:/c", "h$(x):/c", "h[1-2]:/c", "h:/a\nb", "fe80::1:/a"]
)
def test_invalid_destinations(text: str) -> None:
    with pytest.raises(HostError, match="--to") as raised:
        parse_destination(text)
    assert str(raised.value).isprintable()


@pytest.mark.parametrize("text", ["/a:b/c", "./host:x", "node_1:/a b", "me@node:/a", "[fe80::1%eth0]:/a"])
def test_destinations(text: str) -> None:
    assert str(parse_destination(text)).endswith(text.removeprefix("./"))


def test_without_checkpoints(tmp_path: Path, place: Path) -> None:
    with pytest.raises(CheckpointError, match="give the directory of a run"):
        copy(tmp_path, place)


def test_a_place_that_cannot_be_written(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(json.dumps({}))
    with pytest.raises(HostError, match="Not a directory"):
        copy(run, tmp_path / "file")
