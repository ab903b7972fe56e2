"""A mistake on the command line is one line that names the command, the mistake and where to read on."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from glmforge.cli.app import app


def groups_and_commands(group: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = [path]
    for name, command in group.commands.items():
        found += groups_and_commands(command, (*path, name)) if hasattr(command, "commands") else [(*path, name)]
    return found


ROOT = typer.main.get_command(app)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command line says; it must be one line on stderr, with exit status 2."""

    def said(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            ROOT.main(list(words), prog_name="glmforge")
        out, err = capsys.readouterr()
        assert (ended.value.code, out, err.count("\n")) == (2, "", 1), (words, out, err)
        return err.rstrip("\n")

    return said


def test_every_command_of_every_package_names_an_option_that_it_does_not_have(said: Callable[..., str]) -> None:
    commands = groups_and_commands(ROOT)
    assert {("launch",), ("data",), ("cluster", "dev", "up")} <= set(commands)
    for command in commands:
        words = (*command, "benchmarks") if command == ("evaluate",) else command  # what it is without a name
        name = " ".join(("glmforge", *words))
        assert said(*command, "--zzzz") == f"{name}: no such option --zzzz; see '{name} --help'"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("launch --launch", "launch: no such option --launch (did you mean --launcher?); see 'glmforge launch --help'"),
        ("launch --name", "launch: option '--name' requires an argument; see 'glmforge launch --help'"),
        ("plan", "plan: missing argument 'config'; see 'glmforge plan --help'"),
        ("configs list more", "configs list: got unexpected extra argument(s) (more); see 'glmforge configs list"),
        ("train a --from x", "train: invalid value for '--from': 'x' should be a valid integer, unable to parse"),
        ("cluster setup --type pbs", "cluster setup: invalid value for '--type': 'pbs' is not one of 'slurm', 'mpi'"),
        ("cluster check --hosts a --hostfile b", "cluster check: give --hosts or --hostfile, not both; see"),
        ("cluster dev donw", "cluster dev: no such command 'donw' (did you mean 'down'?); see 'glmforge cluster dev -"),
    ],
)  # fmt: skip
def test_each_kind_of_mistake(words: str, expected: str, said: Callable[..., str]) -> None:
    assert said(*words.split()).startswith(f"glmforge {expected}")


def test_as_a_module_it_has_the_same_name() -> None:
    done = subprocess.run([sys.executable, "-m", "glmforge", "--zzzz"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (
        2, "", "glmforge: no such option --zzzz; see 'glmforge --help'\n"
    )  # fmt: skip


def test_a_group_without_a_command_shows_its_help() -> None:
    result = CliRunner().invoke(app, ["cluster"])
    assert "Usage: glmforge cluster [OPTIONS] COMMAND" in result.output
    assert "cluster --help'" not in result.output
