"""A checkpoint from outside that somebody has planted a command in: no command of ours runs it, each refuses it.

The plants are live: what torch itself would have run is run once, to see that.
"""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader
from typer.testing import CliRunner

import glmforge
from glmforge.cli.app import app
from glmforge.config import dump_config
from glmforge.errors import GlmforgeError
from glmforge.recipes.train import train
from helpers.planted import PLANTS, in_place_of_a_tensor, in_the_header_of_a_part, metadata_of
from helpers.tiny_data import TinyData

Plant = Callable[[Path, Path], None]


@pytest.fixture(scope="module")
def trained(tiny_data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("planted") / "run"
    train(tiny_data.run_config(directory, phases=[{"name": "main", "steps": 2, "seq_len": 32, "batch_size": 8}]))
    return directory


@pytest.fixture(params=PLANTS, ids=lambda plant: plant.__name__)
def planted(trained: Path, tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, Path]:
    """The run's only checkpoint, and the file that the command would make."""
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    (checkpoint,) = (run / "checkpoints").iterdir()
    request.param(checkpoint, tmp_path / "marker")
    return checkpoint, tmp_path / "marker"


def test_no_command_runs_it(planted: tuple[Path, Path], trained: Path, tiny_data: TinyData, tmp_path: Path) -> None:
    checkpoint, marker = planted
    run = checkpoint.parent.parent
    (sound,) = (trained / "checkpoints").iterdir()
    config = tmp_path / "config.yaml"
    steps = {"name": "main", "steps": 4, "seq_len": 32, "batch_size": 8}
    config.write_text(dump_config(tiny_data.run_config(run, phases=[steps])))
    refusing = [
        ["checkpoint", "verify", checkpoint],
        ["checkpoint", "diff", checkpoint, sound],
        ["checkpoint", "diff", sound, checkpoint],
        ["checkpoint", "reset-optimizer", run, tmp_path / "fresh"],
        ["export", run, tmp_path / "export"],
        ["export", checkpoint, tmp_path / "export"],
        ["chat", run, "--prompt", "a"],
        ["train", config],
    ]
    for command in refusing:
        result = CliRunner().invoke(app, list(map(str, command)))
        assert result.exit_code != 0, command
        assert isinstance(result.exception, GlmforgeError | SystemExit), (command, result.exception)
        if isinstance(result.exception, GlmforgeError):
            assert checkpoint.name in str(result.exception)
            assert "\n" not in str(result.exception)
        assert not marker.exists(), command
    for command in (["checkpoint", "show", run], ["checkpoint", "show", checkpoint]):
        CliRunner().invoke(app, list(map(str, command)))
    with pytest.raises(GlmforgeError, match=checkpoint.name):
        glmforge.load_pretrained(run)
    assert not marker.exists()
    assert not (tmp_path / "export").exists()
    assert not (tmp_path / "fresh" / "checkpoints").exists()


def test_consolidate_does_not_run_it(planted: tuple[Path, Path], tmp_path: Path) -> None:
    """The ranks' parts, with records that fit, on a node's own disk."""
    from glmforge.checkpoint.format.manifest import read_manifest
    from glmforge.checkpoint.node_local.parts_of_ranks import Part, write_part

    checkpoint, marker = planted
    local = tmp_path / "disk" / "run" / checkpoint.name
    shutil.copytree(checkpoint, local)
    files = dict(read_manifest(local).files)
    (local / "manifest.json").unlink()
    write_part(local, Part(step=2, rank=0, world_size=1, ephemeral=True, files=files))
    target = tmp_path / "collected" / "run"
    target.mkdir(parents=True)
    arguments = ["checkpoint", "consolidate", target, "--local-dir", tmp_path / "disk"]
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert isinstance(result.exception, GlmforgeError), result.output
    assert local.exists()
    for command in (["verify", local.parent], ["show", local.parent], ["verify", target]):
        CliRunner().invoke(app, ["checkpoint", *map(str, command)])
    assert not marker.exists()


@pytest.mark.parametrize("plant", [plant for plant in PLANTS if plant is not in_the_header_of_a_part])
def test_the_plants_are_live(plant: Plant, trained: Path, tmp_path: Path) -> None:
    """torch's own reader runs them; the header of a part it reads with a restricted machine of its own."""
    (checkpoint,) = (Path(shutil.copytree(trained, tmp_path / "run")) / "checkpoints").iterdir()
    name = next(iter(metadata_of(checkpoint).state_dict_metadata))
    plant(checkpoint, tmp_path / "marker")
    if plant is in_place_of_a_tensor:
        state = {name: None}
        torch.distributed.checkpoint.load(state, storage_reader=FileSystemReader(checkpoint), no_dist=True)
    else:
        with suppress(AttributeError):  # afterwards, where the metadata is nothing but the command
            FileSystemReader(checkpoint).read_metadata()
    assert (tmp_path / "marker").exists()
