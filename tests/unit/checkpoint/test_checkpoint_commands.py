"""The commands that make something of checkpoints, as a user types them."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from glmforge.checkpoint import read_meta, save_checkpoint
from glmforge.cli.checkpoint import app
from glmforge.config import dump_config
from glmforge.config.schema import RunConfig
from glmforge.errors import CheckpointError
from helpers.checkpoints import make_meta, make_tensors, save_steps
from helpers.models import tiny_config
from helpers.node_disks import LOCAL, NODES, write_node_disks


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("disks")
    write_node_disks(directory, 10, ephemeral=True)
    return directory


def row_of(output: str, step: str) -> list[str]:
    """The cells of the row of `step` or tensor, in the table of an output."""
    (line,) = [line for line in output.splitlines() if line.startswith(f" {step} ")]
    return re.split(r"\s{2,}", line.strip())


def test_show_knows_the_tiers_of_a_run(tmp_path: Path) -> None:
    save_steps(tmp_path, 1)
    save_checkpoint(tmp_path, 2, make_tensors(2), make_meta(2, ephemeral=True))
    shown = run("show", tmp_path).output
    assert (row_of(shown, "step-00000001")[2], row_of(shown, "step-00000002")[2]) == ("permanent", "ephemeral")
    facts = run("show", tmp_path / "step-00000002").output.splitlines()
    assert ["tier", "ephemeral"] in [line.split() for line in facts]


def test_show_and_verify_a_nodes_own_disk(disks: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(disks / NODES[1] / LOCAL, tmp_path / "node"))
    shown = row_of(run("show", root).output, "step-00000010")
    assert shown[1:5] == ["a part", "ephemeral", "2-3", "0-1"]
    assert row_of(run("show", root / "step-00000010").output, "step-00000010") == shown
    assert run("verify", root).output == f"{root}/step-00000010: whole\n"
    shard = next((root / "step-00000010").glob("__2_*"))
    shard.write_bytes(shard.read_bytes()[:-1])
    assert row_of(run("show", root).output, "step-00000010")[1] == "broken"
    result = run("verify", root)
    assert result.exit_code == 1
    assert f"  {shard}: 1 bytes shorter than part-00002.json says" in result.output


def test_consolidate_this_machine(disks: Path, tmp_path: Path) -> None:
    """One machine with the pieces of all ranks: no host is named."""
    local = tmp_path / "scratch" / "run"
    for node in NODES:
        shutil.copytree(disks / node / LOCAL, local, dirs_exist_ok=True)
    result = run("consolidate", tmp_path / "run", "--local-dir", tmp_path / "scratch")
    assert result.exit_code == 0, result.output
    assert "run/checkpoints/step-00000010: " in result.output
    assert "removed from localhost" in result.output
    assert list(local.iterdir()) == []
    again = run("consolidate", tmp_path / "run", "--local-dir", tmp_path / "scratch")
    assert "already has a newer checkpoint" in again.output


def test_consolidate_takes_directory_and_name_from_the_run(disks: Path, tmp_path: Path) -> None:
    config = run_config(tmp_path, checkpoint={"local_dir": str(tmp_path / "scratch"), "every_steps": 5})
    (tmp_path / "somewhere").mkdir()
    (tmp_path / "somewhere" / "config.yaml").write_text(dump_config(config))
    for node in NODES:
        shutil.copytree(disks / node / LOCAL, tmp_path / "scratch" / config.name, dirs_exist_ok=True)
    assert "local copies kept" in run("consolidate", tmp_path / "somewhere", "--keep-local").output
    assert isinstance(run("consolidate", tmp_path / "none").exception, CheckpointError)
    assert run("consolidate", tmp_path, "--hosts", "a", "--hostfile", "b").exit_code == 2


def run_config(tmp_path: Path, **sections: Any) -> RunConfig:
    base: dict[str, Any] = {
        "name": "named",
        "output_dir": str(tmp_path / "out"),
        "model": tiny_config().model_dump(),
        "data": {"tokenizer": "tokenizer", "sources": [{"name": "web", "path": "web"}]},
        "phases": [{"name": "main", "steps": 10, "seq_len": 32, "batch_size": 8}],
    }
    return RunConfig.model_validate(base | sections)


def test_diff_says_equal_or_different_by_its_exit_status(tmp_path: Path) -> None:
    a, same = (save_steps(tmp_path / name, 1)[0] for name in ("a", "same"))
    changed = {"model.weight": make_tensors(2)["model.weight"], "model.[x]": make_tensors(1)["optim.step"]}
    b = save_checkpoint(tmp_path / "b", 1, make_tensors(1) | changed, make_meta(1, tokens_consumed=7))
    assert run("diff", a, same).exit_code == 0
    assert "equal: 7 tensors bit-identical, 0 different" in run("diff", a, same).output
    result = run("diff", a, b)
    assert result.exit_code == 1
    for expected in ("only in b: model.[x]", "tokens_consumed was 1024 and is 7", "different: 6 tensors bit-identical"):
        assert expected in result.output
    assert row_of(result.output, "model.weight")[0] == "model.weight"
    assert "model.weight" not in run("diff", a, b, "--top", 0).output
    found = json.loads(run("diff", a, b, "--json").stdout)
    assert (found["equal"], found["only_in_b"]) == (False, ["model.[x]"])
    assert [tensor["name"] for tensor in found["tensors"]] == ["model.weight"]
    assert run("diff", a, b, "--only", "optim.").exit_code == 1  # the position differs
    assert isinstance(run("diff", a, tmp_path).exception, CheckpointError)


def test_reset_optimizer_with_another_configuration(tmp_path: Path) -> None:
    from glmforge.model.transformer import GlmMoe

    config = run_config(tmp_path)
    weights = {f"model.{name}": tensor for name, tensor in GlmMoe.create(config.model).state_dict().items()}
    meta = make_meta(3, config=config.model_dump(mode="json"))
    save_checkpoint(tmp_path / "old" / "checkpoints", 3, weights, meta)
    (tmp_path / "new.yaml").write_text(dump_config(run_config(tmp_path, optim={"matrix_optimizer": "adamw"})))
    result = run("reset-optimizer", tmp_path / "old", tmp_path / "new", "--config", tmp_path / "new.yaml")
    assert result.exit_code == 0, result.output
    assert "optim.matrix_optimizer was muon and is adamw" in result.output
    path = tmp_path / "new" / "checkpoints" / "step-00000003"
    assert f"{path}: weights of {tmp_path}/old, fresh optimizer" in result.output
    assert read_meta(path).config["optim"]["matrix_optimizer"] == "adamw"
    zero = run("reset-optimizer", path, tmp_path / "zero", "--position", "zero")
    assert "step-00000000" in zero.output
