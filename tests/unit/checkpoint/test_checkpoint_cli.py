import pytest
from typer.testing import CliRunner

from glmforge.checkpoint import save_checkpoint
from glmforge.cli.checkpoint import app
from glmforge.errors import CheckpointError
from helpers.checkpoints import CONFIG, make_meta, make_tensors, save_steps


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})


def test_show_a_checkpoint(tmp_path):
    meta = make_meta(1200, git_revision="abc123", config=CONFIG)
    path = save_checkpoint(tmp_path, 1200, make_tensors(1), meta)
    result = run("show", path)
    assert result.exit_code == 0
    for expected in (
        "1,200",
        "1,228,800",  # tokens
        "main 9,600",  # samples
        "hidden_size 8",
        "main",
        "tokenizer-1",
        "abc123",
        "torch 2.",
        "__0_0.distcp",
        "meta.json",
    ):
        assert expected in result.output


@pytest.mark.parametrize("below", ["", "checkpoints"])
def test_show_a_run_lists_its_checkpoints_with_their_state(tmp_path, below):
    paths = save_steps(tmp_path / "checkpoints", 1, 2)
    (paths[1] / "meta.json").unlink()
    result = run("show", tmp_path / below)
    assert result.exit_code == 0
    rows = {line.split()[0]: line for line in result.output.splitlines() if line.startswith(" step-")}
    assert "whole" in rows["step-00000001"]
    assert "1,024" in rows["step-00000001"]
    assert "broken" in rows["step-00000002"]
    assert f"{paths[1]}/meta.json: missing" in result.output


def test_verify_a_whole_one(tmp_path):
    (path,) = save_steps(tmp_path, 1)
    result = run("verify", path)
    assert (result.exit_code, result.output) == (0, f"{path}: whole\n")


def test_verify_names_problems_and_fails(tmp_path):
    paths = save_steps(tmp_path, 1, 2)
    shard = paths[0] / "__0_0.distcp"
    content = bytearray(shard.read_bytes())
    content[100] ^= 1
    shard.write_bytes(content)
    result = run("verify", tmp_path)
    assert result.exit_code == 1
    assert result.output == (
        f"{paths[1]}: whole\n{paths[0]}: broken\n  {shard}: SHA-256 differs from manifest.json: it is damaged\n"
    )


@pytest.mark.parametrize("command", ["show", "verify"])
def test_a_path_without_checkpoints_is_the_users_error(tmp_path, command):
    result = run(command, tmp_path)
    assert isinstance(result.exception, CheckpointError)
    assert f"{tmp_path}: contains no checkpoints" in str(result.exception)
