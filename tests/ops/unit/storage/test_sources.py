"""Which files are staged, where they go, and what is refused."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from glmforge.errors import HostError
from glmforge.runtime.place import place_name
from glmforge_ops.storage.sources import list_sources


def names(*sources: Path) -> list[str]:
    return sorted(f"{file.directory}/{file.name}" for file in list_sources(sources))


def test_folders_have_places_of_their_own_and_models_stay_together(tmp_path: Path) -> None:
    for name in ("data/a.bin", "data/more/b.bin", "model/config.json", "model/parts/c.safetensors", "data/.hidden"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    data, model = tmp_path / "data", tmp_path / "model"
    assert names(data, model) == sorted(
        [
            f"{place_name(data)}/a.bin",
            f"{place_name(data / 'more')}/b.bin",
            f"{place_name(model)}/config.json",
            f"{place_name(model)}/parts/c.safetensors",
        ]
    )


def test_a_shard_is_named_by_its_prefix(tmp_path: Path) -> None:
    for name in ("web.bin", "web.idx", "web.json", "web.bin.partial", "website.bin"):
        (tmp_path / name).write_text("x")
    place = place_name(tmp_path)
    assert names(tmp_path / "web") == [f"{place}/web.bin", f"{place}/web.idx", f"{place}/web.json"]


def test_the_same_file_is_staged_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    assert len(list_sources([tmp_path, tmp_path / "a"])) == 1


def lone_link(path: Path) -> None:
    path.symlink_to("nothing")


def listen(path: Path) -> None:
    server, here = socket.socket(socket.AF_UNIX), Path.cwd()
    os.chdir(path.parent)  # names of sockets are short
    server.bind(path.name)
    os.chdir(here)


@pytest.mark.parametrize(
    ("name", "make", "said"),
    [
        ("fifo", os.mkfifo, "not a regular file"),
        ("socket", listen, "not a regular file"),
        ("nowhere", lone_link, "cannot be read"),
        ("a\nb", Path.touch, "invalid file name"),
        ("\x1b[2J", Path.touch, "invalid file name"),
        ("\udcff", Path.touch, "invalid file name"),
        ("a.partial", Path.touch, "is not complete"),
    ],
)
def test_what_is_no_plain_file_is_refused_by_name(
    tmp_path: Path, name: str, make: Callable[[Path], None], said: str
) -> None:
    (tmp_path / "good").write_text("x")
    make(tmp_path / name)
    with pytest.raises(HostError, match=said) as refusal:
        list_sources([tmp_path])
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize("name", ["a\nb", "\udcff", "a\\b"])
def test_folders_of_a_model_are_refused_by_name_too(tmp_path: Path, name: str) -> None:
    """They stand in the list of checksums, as names of files do."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).mkdir()
    (tmp_path / name / "weights").write_text("x")
    with pytest.raises(HostError, match="invalid file name"):
        list_sources([tmp_path])


@pytest.mark.parametrize("name", ["-rf", "a b", "it's", '"', "$(touch x)", "é", "*"])
def test_odd_names_are_only_names(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("x")
    assert [file.name for file in list_sources([tmp_path])] == [name]


def test_links_to_files_are_followed(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--x/snapshots/1", tmp_path / "models--x/blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "abc").write_text("weights")
    (snapshot / "config.json").symlink_to("../../blobs/abc")
    (snapshot / "same").symlink_to("config.json")
    assert [(file.name, file.size) for file in list_sources([snapshot])] == [("config.json", 7), ("same", 7)]


@pytest.mark.parametrize(("name", "said"), [("missing", "no such file"), ("", "holds no files")])
def test_sources_without_files(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(HostError, match=said):
        list_sources([tmp_path / name])
