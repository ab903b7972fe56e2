"""A run of reinforcement learning that is killed goes on as if nothing had been."""

import random
from pathlib import Path

import pytest

from glmforge.config import dump_config
from glmforge.recipes.train import train
from helpers.job import start_job
from helpers.rl_runs import answers, kill, moments_hook, records, rl_config, write_prompts
from helpers.tiny_data import TinyData


@pytest.fixture(scope="module")
def base(tiny_data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose weights the others start from."""
    directory = tmp_path_factory.mktemp("base") / "run"
    phases = [{"name": "main", "steps": 2, "seq_len": 32, "batch_size": 2}]
    train(tiny_data.run_config(directory, phases=phases, checkpoint={"every_steps": 1}))
    return directory


def finish(config: Path, notes: Path, launch: int, world_size: int = 1, stop_after: int | None = None) -> None:
    job = start_job(config, world_size, notes, launch, stop_after=stop_after, hook_of=moments_hook)
    assert job.wait() == [0] * world_size, job.tail()


def test_a_killed_run_ends_as_one_left_alone(tiny_data: TinyData, base: Path, tmp_path: Path) -> None:
    prompts, generator = write_prompts(tmp_path / "prompts.jsonl"), random.Random(1)
    paths = {}
    for name in ("killed", "whole"):
        paths[name] = tmp_path / f"{name}.yaml"
        paths[name].write_text(dump_config(rl_config(tiny_data, tmp_path / name, prompts, init_from=str(base))))
    finish(paths["whole"], tmp_path / "notes-whole", 0)
    for launch, moment in enumerate(("step", "rollout", "saving", "scoring")):
        job = start_job(paths["killed"], 1, tmp_path / "notes", launch, hook_of=moments_hook)
        assert kill(job, moment, 1 + (launch == 0), tmp_path / "killed", generator), job.tail()
        job.wait()
    finish(paths["killed"], tmp_path / "notes", 4)
    assert records(tmp_path / "killed") == records(tmp_path / "whole")
    assert answers(tmp_path / "killed") == answers(tmp_path / "whole")
