"""What is written starts the planned command, as nobody, and passes the linters that are at hand."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from glmforge.deploy.deployment_files import write_deployment
from glmforge.deploy.engines import EngineName
from glmforge.errors import GlmforgeError

HADOLINT = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
SYSTEMD = shutil.which("systemd-analyze")


def command(model: Path) -> list[str]:
    return ["/usr/bin/python3", "-m", "glmforge", "serve", str(model), "--host", "127.0.0.1", "--port", "8000"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "my model"
    path.mkdir()
    return path


def write(directory: Path, model: Path, engine: EngineName = "native", *, num_gpus: int = 0, name: str = "glm") -> Path:
    write_deployment(directory, engine, command(model), model, name=name, port=8000, num_gpus=num_gpus)
    return directory


@pytest.mark.parametrize(("engine", "num_gpus"), [("native", 0), ("vllm", 8), ("sglang", 2)])
def test_containers(tmp_path: Path, model: Path, engine: EngineName, num_gpus: int) -> None:
    directory = write(tmp_path / "out", model, engine, num_gpus=num_gpus)
    compose = yaml.safe_load((directory / "compose.yaml").read_text())
    server = compose["services"]["server"]
    assert server["volumes"] == [f"{model}:/model:ro"]
    assert server["read_only"] is True
    assert all(port.startswith("127.0.0.1:") for one in compose["services"].values() for port in one["ports"])
    assert ("deploy" in server) is (num_gpus > 0)
    assert (server.get("env_file") == ".env") is (engine == "vllm") is (directory / ".env.example").exists()
    scraped = yaml.safe_load((directory / "prometheus.yml").read_text())["scrape_configs"][0]
    assert scraped["static_configs"] == [{"targets": ["server:8000"]}]
    key = {"credentials_file": "/run/secrets/api-key"} if engine == "native" else None
    assert scraped.get("authorization") == key
    assert {server.get("secrets") == ["api-key"], "secrets" in compose} == {engine == "native"}
    docker = (directory / "Dockerfile").read_text()
    assert docker.index("USER 10001") < docker.index("CMD [")
    assert re.search(r"^FROM \S+:v?\d+\.\d+\.\d+\S*$", docker, re.MULTILINE)
    started = json.loads(docker.splitlines()[-1].removeprefix("CMD "))
    words = ["python3", "-m", "glmforge", "serve", "/model", "--host", "0.0.0.0", "--port", "8000"]
    assert started == words + (["--api-key-file", "/run/secrets/api-key"] if key else [])


def test_a_unit_quotes_what_systemd_would_expand(tmp_path: Path, model: Path) -> None:
    directory = write(tmp_path / "out", model, "llama.cpp")
    assert [path.name for path in directory.iterdir()] == ["glm.service"]
    unit = (directory / "glm.service").read_text()
    assert f'ExecStart=/usr/bin/python3 -m glmforge serve "{model}" --host 127.0.0.1' in unit
    assert "DynamicUser=yes" in unit


@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not installed")
@pytest.mark.parametrize("engine", ["native", "vllm", "sglang"])
def test_hadolint(tmp_path: Path, model: Path, engine: EngineName) -> None:
    assert HADOLINT is not None
    file = write(tmp_path / "out", model, engine) / "Dockerfile"
    done = subprocess.run([HADOLINT, file], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.skipif(SYSTEMD is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_unit(tmp_path: Path, model: Path) -> None:
    assert SYSTEMD is not None
    unit = write(tmp_path / "out", model) / "glm.service"
    done = subprocess.run([SYSTEMD, "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["Glm", "", "a b", "../up", "a" * 64])
def test_names_that_compose_and_systemd_cannot_have(tmp_path: Path, model: Path, name: str) -> None:
    with pytest.raises(GlmforgeError, match="--name"):
        write(tmp_path / "out", model, name=name)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("letter", [":", '"', "$", "%"])
def test_paths_that_would_be_read_as_something_else(tmp_path: Path, letter: str) -> None:
    with pytest.raises(GlmforgeError, match="move it"):
        write(tmp_path / "out", tmp_path / f"a{letter}b")


def test_nothing_is_overwritten(tmp_path: Path, model: Path) -> None:
    directory = write(tmp_path / "out", model)
    with pytest.raises(GlmforgeError, match="exists already"):
        write(directory, model)
