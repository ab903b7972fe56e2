"""`glmforge serve` for other engines: what it plans, what it writes, what it refuses."""

import shlex
import shutil
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


def test_deployment_files_repeat_the_options(served_model: Path, tmp_path: Path) -> None:
    """All that are not as by default; what the command reads is mounted, and the key is the container's secret."""
    keys, adapter = tmp_path / "keys", tmp_path / "poems"
    options = ["--max-sequences", "3", "--drafter", "ngram", "--allow-host", "a.example", "--allow-host", "b.example"]
    options += ["--tokenizer", str(served_model), "--adapter", f"poems={adapter}", "--api-key-file", str(keys)]
    options += ["--timeout", "12.5", "--scenario", "low-latency", "--requests-per-minute", "9"]
    code, _ = run(str(served_model), "--write-deployment", str(tmp_path / "out"), *options)
    assert code == 0
    unit = (tmp_path / "out" / "tiny.service").read_text()
    for words in ("--max-sequences 3", "--drafter ngram", "--allow-host a.example --allow-host b.example"):
        assert words in unit
    for words in (f"--adapter poems={adapter}", f"--api-key-file {keys}", "--timeout 12.5", "--scenario low-latency"):
        assert words in unit
    assert "--write-deployment" not in unit
    image, compose = ((tmp_path / "out" / name).read_text() for name in ("Dockerfile", "compose.yaml"))
    for words in ('"--adapter", "poems=/mounted/1"', '"--requests-per-minute", "9"', '"--tokenizer", "/mounted/0"'):
        assert words in image
    assert image.count("--api-key-file") == 1
    assert str(keys) not in image
    assert f'"{adapter}:/mounted/1:ro"' in compose
    command = shlex.split(unit.partition("ExecStart=")[2].partition("\n")[0])
    code, text = run(*command[command.index("serve") + 1 :], "--dry-run")
    assert code == 0
    assert "max_sequences: 3\n" in text


def test_settings_follow_the_scenario_unless_they_are_given(served_model: Path) -> None:
    code, text = run(str(served_model), "--scenario", "low-latency", "--max-sequences", "3", "--dry-run")
    assert code == 0
    assert "max_sequences: 3\n" in text
    assert "max_step_tokens: 128\n" in text
    assert "drafter: None" not in text


def test_a_dry_run_reads_no_weights(served_model: Path, tmp_path: Path) -> None:
    """Headers are enough: the files' data may be missing."""
    shutil.copytree(served_model, tmp_path / "model")
    for file in (tmp_path / "model").glob("*.safetensors"):
        content, size = file.read_bytes(), file.stat().st_size
        with file.open("wb") as stream:
            stream.write(content[: 8 + int.from_bytes(content[:8], "little")])
            stream.truncate(size)
    code, text = run(str(tmp_path / "model"), "--dry-run")
    assert code == 0
    assert "weights: 0.00 GiB\n" in text
    assert "max_sequences: 64\n" in text
    code, text = run(str(tmp_path / "nothing"), "--dry-run")
    assert code != 0
    assert "nothing" in text
