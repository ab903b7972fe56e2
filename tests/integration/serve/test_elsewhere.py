"""`glmforge serve` for other engines: what it plans, what it writes, what it refuses."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from glmforge.cli.app import app

H100 = ["--gpu", "h100-80gb", "--gpus", "8"]


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["serve", *arguments])
    return result.exit_code, result.output + ("" if result.exception is None else str(result.exception))


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp"])
@pytest.mark.parametrize("scenario", ["high-throughput", "balanced", "low-latency", "memory-constrained"])
def test_a_dry_run_shows_settings_memory_speed_and_command(engine: str, scenario: str) -> None:
    code, text = run("glm45_air_106b", "--engine", engine, "--scenario", scenario, *H100, "--dry-run")
    assert code == 0
    for words in (scenario, "GB in bf16", "tokens/s of all copies", "--host 127.0.0.1", "--port 8000"):
        assert words in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["glm45_355b", "--engine", "vllm", *H100, "--dry-run"], "what fits: 16 GPUs, or weights in fp8"),
        (["glm45_air_106b", "--engine", "vllm", "--gpu", "x100", "--dry-run"], "'x100' is unknown"),
        (["glm45_air_106b", "--engine", "vllm", *H100, "--weights", "int3"], "unknown format 'int3'"),
        (["glm45_air_106b", "--engine", "sglang", *H100], "sglang: not installed beside this Python"),
        (["no-such-model", "--engine", "vllm", *H100, "--dry-run"], "no-such-model"),
        (["glm45_air_106b", "--engine", "vllm", "--scenario", "fast"], "fast"),
    ],
)
def test_refusals(arguments: list[str], words: str) -> None:
    code, text = run(*arguments)
    assert code != 0
    assert words in text


def test_deployment_files_of_our_own_engine(served_model: Path, tmp_path: Path) -> None:
    code, text = run(str(served_model), "--write-deployment", str(tmp_path / "out"), "--port", "8123")
    assert code == 0
    assert text.split() == [
        str(tmp_path / "out" / name) for name in ("tiny.service", "Dockerfile", "compose.yaml", "prometheus.yml")
    ]
    assert '"serve", "/model", "--name", "tiny"' in (tmp_path / "out" / "Dockerfile").read_text()
    code, text = run(str(served_model), "--write-deployment", str(tmp_path / "out"))
    assert code != 0
    assert "exists already" in text


def test_settings_follow_the_scenario_unless_they_are_given(served_model: Path) -> None:
    code, text = run(str(served_model), "--scenario", "low-latency", "--max-sequences", "3", "--dry-run")
    assert code == 0
    assert "max_sequences: 3\n" in text
    assert "max_step_tokens: 128\n" in text
    assert "drafter: None" not in text
