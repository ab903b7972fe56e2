"""The example's corpus, killed at ten random moments, and on real clusters: always the same bytes. A huge line."""

import importlib.util
import json
import os
import random
import resource
from pathlib import Path

import pytest

from helpers.corpus import texts_of
from helpers.corpus_runs import finished_tasks, published, run_to_its_end, run_until_killed
from helpers.dev_cluster import slurm_cluster

EXAMPLES = Path(__file__).parents[2] / "examples"


def make_raw_corpus(directory: Path) -> None:
    """The raw data of examples/corpus in `directory`."""
    spec = importlib.util.spec_from_file_location("make_raw", EXAMPLES / "corpus" / "make_raw.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.make_raw(directory)


def pipeline_on(raw: Path) -> Path:
    """The example's pipeline file, reading `raw`; it lies beside it."""
    text = (EXAMPLES / "corpus" / "pipeline.yaml").read_text(encoding="utf-8")
    assert "runs/corpus/raw" in text
    path = raw.with_name(raw.name + "-pipeline.yaml")
    path.write_text(text.replace("runs/corpus/raw", str(raw)), encoding="utf-8")
    return path


pytestmark = pytest.mark.chaos

NUM_BLOWS = 10
SEED = 20260101


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("raw")
    make_raw_corpus(directory)
    return directory


@pytest.fixture(scope="module")
def pipeline(raw: Path) -> Path:
    return pipeline_on(raw)


@pytest.fixture(scope="module")
def whole(pipeline: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happens to."""
    output = tmp_path_factory.mktemp("whole")
    run_to_its_end(pipeline, [], output)
    return output


def test_ten_kills(pipeline, whole, tmp_path):
    random_ = random.Random(SEED)
    total, blows = finished_tasks(whole), 0
    while blows < NUM_BLOWS:
        # On a busy machine a blow falls late: those that follow share what is left.
        left = (total - finished_tasks(tmp_path)) // (NUM_BLOWS - blows + 1)
        assert run_until_killed(pipeline, [], tmp_path, random_.randrange(1, max(2, left)), random_)
        blows += 1
        print(f"blow {blows}: {finished_tasks(tmp_path)} of {total} tasks were done")
    run_to_its_end(pipeline, [], tmp_path)
    assert published(tmp_path) == published(whole)


@pytest.mark.parametrize("workers", [1, 4])
def test_other_numbers_of_workers(pipeline, whole, tmp_path, workers):
    run_to_its_end(pipeline, [f"executors.local.workers={workers}"], tmp_path)
    assert published(tmp_path) == published(whole)


def test_on_a_slurm_cluster_of_two_nodes(pipeline, whole, tmp_path, monkeypatch):
    with slurm_cluster() as cluster:
        for name in [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_"))]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
        overrides = ["executors.slurm.partition=main", "executors.slurm.cpus_per_task=2"]
        overrides += ["executors.slurm.sbatch_args={mem-per-cpu: 100M}", "executors.slurm.time='30'"]
        run_to_its_end(pipeline, [*overrides, "--executor", "slurm"], tmp_path / "out")
        jobs = cluster.run("scontrol", "show", "job", "-o").split()
    assert {word for word in jobs if word.startswith("NodeList=node")} == {"NodeList=node1", "NodeList=node2"}
    assert published(tmp_path / "out") == published(whole)


def test_on_a_ray_cluster(pipeline, whole, tmp_path):
    run_to_its_end(pipeline, ["executors.ray.mem_per_cpu_gb=0.5", "--executor", "ray"], tmp_path)
    assert published(tmp_path) == published(whole)


def test_a_line_of_a_gigabyte(tmp_path):
    """It is put aside in bounded memory, and what stands before and behind it is read."""
    path = tmp_path / "long.jsonl"
    with path.open("wb") as file:
        file.write(b'{"text": "before"}\n{"text": "')
        for _ in range(1024):
            file.write(b"long " * (1 << 18))
        file.write(b'"}\n{"text": "behind"}\n')
    assert path.stat().st_size > 1 << 30
    pipeline = tmp_path / "pipeline.yaml"
    pipeline.write_text(f"output: o\nstages: [extract: {{inputs: [{{source: s, path: {path}}}]}}]\n")
    run_to_its_end(pipeline, ["executors.local.workers=1"], tmp_path / "out")
    report = json.loads((tmp_path / "out" / "report.json").read_bytes())
    assert report["stages"][0]["statistics"]["quarantined"] == {"too long": 1}
    assert texts_of((tmp_path / "out" / "documents").iterdir()) == ["before", "behind"]
    # The largest of all children so far, in KiB: runs of the example with all its filters among them.
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 1_500_000
