"""The same pipeline on a real Slurm cluster of two nodes, on a real Ray cluster, and in processes: the same bytes."""

import json
import os
from pathlib import Path

import pytest
import ray

from glmforge.errors import DataError
from glmforge_corpus.pipeline.clean import Clean
from glmforge_corpus.pipeline.pipeline import Pipeline
from glmforge_corpus.pipeline.run import run_pipeline
from glmforge_corpus.pipeline.settings import ExecutorSettings
from helpers.corpus import Deadly, Numbers, Shout
from helpers.dev_cluster import slurm_cluster

TESTS = Path(__file__).parents[3]
EXECUTORS = {
    "local": {"workers": 1},
    "slurm": {"partition": "main", "time": "10", "cpus_per_task": 2, "sbatch_args": {"mem-per-cpu": "100M"}},
    "ray": {"mem_per_cpu_gb": 0.1},
}


def _pipeline(output: Path, **numbers) -> Pipeline:
    stages = (Numbers(shards=4, **numbers), Clean(blocks=(Shout(refuse=("3",)),)))
    return Pipeline.model_validate({"output": output, "executors": EXECUTORS, "stages": stages}, strict=False)


def _published(output: Path) -> dict[str, bytes]:
    files = [*(output / "documents").iterdir(), output / "quarantine.jsonl"]
    return {path.name: path.read_bytes() for path in files}


@pytest.fixture
def local(tmp_path: Path) -> dict[str, bytes]:
    run_pipeline(_pipeline(tmp_path / "local"))
    return _published(tmp_path / "local")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A Slurm cluster that this process's commands and their jobs find."""
    with slurm_cluster() as running:
        for name in [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_"))]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("SLURM_CONF", running.environment["SLURM_CONF"])
        monkeypatch.setenv("PYTHONPATH", str(TESTS))
        yield running


def test_on_slurm(tmp_path, local, cluster):
    broken = tmp_path / "broken"
    broken.touch()
    failing = _pipeline(tmp_path / "out", fail_task=1, fail_while=str(broken))
    with pytest.raises(DataError, match=r"Slurm job \d+ ended with 1 of 4 tasks unfinished, the first of them 1: see"):
        run_pipeline(failing, "slurm")
    broken.unlink()
    run_pipeline(failing, "slurm")
    assert _published(tmp_path / "out") == local
    launched = sorted((tmp_path / "out" / ".work" / "logs").glob("*/ranks_to_run.json"))
    assert [path.read_text() for path in launched] == ["[0, 1, 2, 3]", "[0]", "[0, 1, 2, 3]"]
    used = {word for word in cluster.run("scontrol", "show", "job", "-o").split() if word.startswith("NodeList=node")}
    assert used == {"NodeList=node1", "NodeList=node2"}


def test_on_ray(tmp_path, local, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    run_pipeline(_pipeline(tmp_path / "out"), "ray")
    assert _published(tmp_path / "out") == local


def _with_a_deadly_file(directory: Path) -> tuple[Path, dict[str, bytes]]:
    """Files of which one kills the process that reads it, and what the others make in processes of this machine."""
    (directory / "raw").mkdir()
    for name in ("a", "b", "c", "deadly"):
        (directory / "raw" / f"{name}.txt").write_text(f"the text of {name}\n")
    run_pipeline(_deadly(directory / "local-deadly", directory / "raw"))
    return directory / "raw", _documents(directory / "local-deadly")


def _deadly(output: Path, raw: Path) -> Pipeline:
    stage = Deadly.model_validate({"inputs": ({"source": "s", "path": raw},), "shard_bytes": 40}, strict=False)
    executors = EXECUTORS | {"local": {"workers": 2}}
    return Pipeline.model_validate({"output": output, "executors": executors, "stages": (stage,)}, strict=False)


def _documents(output: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (output / "documents").iterdir()}


@pytest.mark.chaos
@pytest.mark.parametrize("executor", ["slurm", "ray"])
def test_a_file_that_kills_its_process_is_put_aside(tmp_path, executor, request, monkeypatch):
    if executor == "slurm":
        request.getfixturevalue("cluster")
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    raw, expected = _with_a_deadly_file(tmp_path)
    run_pipeline(_deadly(tmp_path / "out", raw), executor)
    assert _documents(tmp_path / "out") == expected
    (line,) = map(json.loads, (tmp_path / "out" / "quarantine.jsonl").read_text().splitlines())
    assert (line["where"], line["reason"]) == ("s/deadly.txt", "killed its worker")


def test_a_ray_cluster_that_is_not_there(tmp_path, monkeypatch):
    def nobody_answers(**options):
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr(ray, "init", nobody_answers)
    pipeline = _pipeline(tmp_path / "out").model_copy(
        update={"executors": ExecutorSettings.model_validate({"ray": {"address": "auto"}})}
    )
    with pytest.raises(DataError, match=r"executors.ray: no Ray cluster at address 'auto'"):
        run_pipeline(pipeline, "ray")


def test_a_partition_that_is_none(tmp_path, cluster):
    executors = EXECUTORS | {"slurm": {"partition": "nowhere"}}
    pipeline = Pipeline.model_validate(
        {"output": tmp_path / "o", "executors": executors, "stages": (Numbers(),)}, strict=False
    )
    with pytest.raises(DataError, match=r"executors.slurm: sbatch rejected the job"):
        run_pipeline(pipeline, "slurm")
