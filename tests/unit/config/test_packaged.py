"""Configurations and examples that come with the package."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from glmforge.cli.app import app
from glmforge.config import load_config
from glmforge.config.packaged import copy_packaged, packaged
from glmforge.errors import ConfigError

ROOT = Path(__file__).parents[3]
RUNS = [each.name for each in packaged() if not each.name.startswith("examples/")]


def test_all_of_the_source_tree_are_there() -> None:
    assert sorted(path.stem for path in (ROOT / "configs").glob("*.yaml")) == RUNS
    examples = {f"examples/{path.name}" for path in (ROOT / "examples").iterdir() if path.is_dir()}
    assert {each.name for each in packaged()} - set(RUNS) == examples
    assert all(each.about for each in packaged())


@pytest.mark.parametrize("name", RUNS)
def test_a_copy_is_the_same_run(name: str, tmp_path: Path) -> None:
    target = tmp_path / "own.yaml"
    copies = copy_packaged(name, target)
    assert copies[0] == target
    assert load_config(target) == load_config(ROOT / "configs" / f"{name}.yaml")


def test_into_a_folder(tmp_path: Path) -> None:
    assert copy_packaged("small_1b", tmp_path) == [tmp_path / "small_1b.yaml"]
    new = tmp_path / "new"
    assert [path.name for path in copy_packaged("midtrain_32k", new)] == [
        "midtrain_32k.yaml",
        "midtrain_code.yaml",
        "pretrain_glm45_air_106b.yaml",
        "pretrain_glm45_355b.yaml",
    ]
    copied = copy_packaged("examples/two_nodes", tmp_path / "two")
    assert {path.name for path in copied} >= {"README.md", "launch.sh"}
    assert copied[0].parent == tmp_path / "two"
    assert (tmp_path / "two/launch.sh").stat().st_mode == (ROOT / "examples/two_nodes/launch.sh").stat().st_mode


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "midtrain_code.yaml").write_text("own")
    with pytest.raises(ConfigError, match=r"midtrain_code.yaml: already exists; remove it, or choose another"):
        copy_packaged("midtrain_32k", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["midtrain_code.yaml"]
    (tmp_path / "small_1b.yaml").symlink_to("/nowhere/at/all")
    with pytest.raises(ConfigError, match="already exists; remove it, or choose another"):
        copy_packaged("small_1b", tmp_path)


@pytest.mark.parametrize("name", ["small1b", "../pyproject", "examples/..", "", "/etc/passwd", "small_1b\n"])
def test_an_unknown_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such configuration or example") as error:
        copy_packaged(name, tmp_path)
    assert "\n" not in str(error.value)


def test_commands(tmp_path: Path) -> None:
    runner = CliRunner()
    listed = json.loads(runner.invoke(app, ["configs", "list", "--json"]).stdout)
    assert {"small_1b", "examples/slurm"} <= {each["name"] for each in listed}
    assert "small_1b" in runner.invoke(app, ["configs", "list"]).stdout
    done = runner.invoke(app, ["configs", "copy", "small_1b", str(tmp_path)])
    assert done.stdout == f"{tmp_path / 'small_1b.yaml'}\n"
