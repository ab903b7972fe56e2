"""Every way in which a copy goes wrong is found, named, and answered with the next older checkpoint."""

import re
import shutil

import pytest

from glmforge.checkpoint import latest_checkpoint, load_checkpoint, load_latest, verify_checkpoint
from glmforge.checkpoint.format.store import checkpoint_path
from glmforge.errors import CheckpointError
from helpers.checkpoints import assert_holds_step, blank_tensors, save_steps

FILES = ["__0_0.distcp", ".metadata", "meta.json", "manifest.json"]


def flip_a_bit(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def truncate(file):
    file.write_bytes(file.read_bytes()[:-10])


def extend(file):
    file.write_bytes(file.read_bytes() + b"\0\0\0")


def delete(file):
    file.unlink()


def garble(file):
    file.write_bytes(b"\xff\xfe{{ not what it was")


DAMAGES = [flip_a_bit, truncate, extend, delete, garble]


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    root = tmp_path_factory.mktemp("template")
    save_steps(root, 10, 20)
    return root


@pytest.fixture
def pair(template, tmp_path):
    """An older and the newest checkpoint, copied: forcing every case to the disk anew would take long."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    return checkpoint_path(tmp_path, 10), checkpoint_path(tmp_path, 20)


@pytest.mark.parametrize(
    ("file", "damage"),
    [*((FILES[0], damage) for damage in DAMAGES), *((file, d) for file in FILES[1:] for d in (flip_a_bit, delete))],
)
def test_what_is_damaged_is_named_and_refused_and_the_older_one_taken(pair, caplog, file, damage):
    older, newest = pair
    damage(newest / file)
    assert verify_checkpoint(older) == []
    (problem,) = verify_checkpoint(newest)
    assert str(newest) in problem
    assert file in problem
    tensors = blank_tensors()
    with pytest.raises(CheckpointError, match=f"{re.escape(str(newest))}.* is incomplete"):
        load_checkpoint(newest, tensors)
    assert all((t == -1).all() for t in tensors.values() if t.numel())
    path, meta = load_latest(older.parent, tensors)
    assert (path, meta.step) == (older, 10)
    assert_holds_step(tensors, 10)
    assert f"{newest} is incomplete and is skipped" in caplog.text
    assert file in caplog.text
    if damage is not flip_a_bit or file == "manifest.json":  # sizes show it, without checksums
        assert latest_checkpoint(older.parent) == older


def test_latest_with_checksums_sees_a_flipped_bit(pair, tmp_path):
    older, newest = pair
    flip_a_bit(newest / "__0_0.distcp")
    assert latest_checkpoint(tmp_path) == newest
    assert latest_checkpoint(tmp_path, checksums=True) == older


def test_none_whole_is_an_error_and_not_a_fresh_start(pair, tmp_path):
    for path in pair:
        delete(path / ".metadata")
    for find in (latest_checkpoint, lambda root: load_latest(root, blank_tensors())):
        with pytest.raises(CheckpointError, match=r"no complete checkpoint: .*\.metadata: missing"):
            find(tmp_path)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncate, "10 bytes shorter than manifest.json says"),
        (extend, "3 bytes longer than manifest.json says"),
        (delete, "missing"),
        (flip_a_bit, "SHA-256 differs from manifest.json: it is damaged"),
    ],
)
def test_the_words_for_each_damage(pair, damage, words):
    path, _ = pair
    damage(path / "__0_0.distcp")
    assert verify_checkpoint(path) == [f"{path / '__0_0.distcp'}: {words}"]


def test_a_manifest_of_a_newer_format_asks_for_a_newer_glmforge(pair):
    path, _ = pair
    manifest = path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format_version": 1', '"format_version": 2'))
    assert "use a newer glmforge" in verify_checkpoint(path)[0]
