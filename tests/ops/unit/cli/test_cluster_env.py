"""`glmforge cluster env` as it is typed."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from glmforge.cli.app import app
from glmforge.errors import GlmforgeError
from glmforge_ops.environment.script import Wanted, as_script

runner = CliRunner()


def test_a_script_goes_to_standard_output() -> None:
    shown = runner.invoke(
        app, ["cluster", "env", "--network", "roce", "--interface", "eth1,eth2", "--device", "mlx5_0"]
    )
    assert shown.exit_code == 0
    assert shown.stdout == as_script(Wanted("roce", ("eth1", "eth2"), ("mlx5_0",)))


@pytest.mark.parametrize("shell", ["bash", "slurm"])
def test_a_file_can_be_run(shell: str, tmp_path: Path) -> None:
    out = tmp_path / "env.sh"
    done = runner.invoke(app, ["cluster", "env", "--network", "tcp", "--shell", shell, "--out", str(out)])
    assert done.exit_code == 0
    assert out.read_text() == as_script(Wanted("tcp"), shell)  # type: ignore[arg-type]
    assert os.access(out, os.X_OK)
    again = runner.invoke(app, ["cluster", "env", "--network", "roce", "--out", str(out)])
    assert isinstance(again.exception, GlmforgeError)
    assert "--force" in str(again.exception)
    assert out.read_text() == as_script(Wanted("tcp"), shell)  # type: ignore[arg-type]
    assert runner.invoke(app, ["cluster", "env", "--network", "roce", "--out", str(out), "--force"]).exit_code == 0
    assert out.read_text() == as_script(Wanted("roce"))


@pytest.mark.parametrize(
    ("content", "arguments", "status"),
    [
        ("export NCCL_DEBUG=WARN\n", [], 0),
        ("export NCCL_DEBUG=TRACE\n", [], 0),
        ("export NCCL_DEBUG=TRACE\n", ["--strict"], 1),
        ("export NCCL_TIMEOUT=1\n", [], 1),
    ],
)
def test_errors_fail_and_warnings_only_if_strict(
    content: str, arguments: list[str], status: int, tmp_path: Path
) -> None:
    script = tmp_path / "a.sh"
    script.write_text(content)
    shown = runner.invoke(app, ["cluster", "env", "--lint", *arguments, str(script)])
    assert shown.exit_code == status
    assert len(shown.stdout.splitlines()) == 2 * ("WARN" not in content)


def test_a_finding_has_its_line_and_what_to_write_instead(tmp_path: Path) -> None:
    script = tmp_path / "a.sh"
    script.write_text("#!/bin/bash\nexport NCCL_TREE_THRESHOLD=0\n")
    shown = runner.invoke(app, ["cluster", "env", "--lint", str(script)])
    assert shown.stdout.splitlines() == [
        f"{script}:2: error: NCCL_TREE_THRESHOLD=0: no longer read",
        "    instead: NCCL 2.5 chooses algorithms by size itself: leave it out",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--network", "ethernet"], "unknown network 'ethernet': one of infiniband, roce, tcp, auto"),
        (["--shell", "fish"], "unknown form 'fish': one of bash, slurm"),
        (["--interface", "eth0,"], "invalid interface name"),
        (["--lint"], "--lint needs files"),
        (["--strict"], "files and --strict are for --lint"),
        (["train.sh"], "files and --strict are for --lint"),
        (["--lint", "none.sh"], "none.sh: cannot be read"),
    ],
)
def test_wrong_input_is_one_line(arguments: list[str], message: str) -> None:
    failed = runner.invoke(app, ["cluster", "env", *arguments])
    assert isinstance(failed.exception, GlmforgeError)
    assert message in str(failed.exception)
    assert "\n" not in str(failed.exception)
