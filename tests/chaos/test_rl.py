"""Twenty kills of a run of reinforcement learning, in rollouts, scoring, steps and saves: none lost or doubled."""

import random
from collections import Counter
from pathlib import Path

import pytest

from glmforge.config import dump_config
from glmforge.recipes.train import train
from helpers.job import start_job
from helpers.rl_runs import MOMENTS, answers, began_at, finish, kill, moments_hook, records, rl_config, write_prompts
from helpers.tiny_data import TinyData

pytestmark = pytest.mark.chaos

NUM_KILLS, NUM_STEPS = 20, 80


@pytest.mark.parametrize("seed", [1])
def test_a_run_survives_twenty_kills(tiny_data: TinyData, tmp_path: Path, seed: int) -> None:
    base, generator = tmp_path / "base", random.Random(seed)
    phases = [{"name": "main", "steps": 2, "seq_len": 32, "batch_size": 2}]
    train(tiny_data.run_config(base, phases=phases, checkpoint={"every_steps": 1}))
    prompts, paths = write_prompts(tmp_path / "prompts.jsonl"), {}
    for name in ("killed", "whole"):
        paths[name] = tmp_path / f"{name}.yaml"
        config = rl_config(tiny_data, tmp_path / name, prompts, NUM_STEPS, init_from=str(base))
        paths[name].write_text(dump_config(config))
    finish(paths["whole"], tmp_path / "notes-whole", 0)
    moments = list(MOMENTS) * (NUM_KILLS // len(MOMENTS))
    generator.shuffle(moments)
    killed = Counter[str]()
    for launch, moment in enumerate(moments):
        job = start_job(paths["killed"], 1, tmp_path / "notes", launch, hook_of=moments_hook)
        killed[moment] += kill(job, moment, tmp_path / "killed", generator)
        assert job.wait() != [1], job.tail()
    finish(paths["killed"], tmp_path / "notes", NUM_KILLS)
    began = began_at(tmp_path / "notes")
    print(killed, began)
    assert began == sorted(set(began)), "each launch goes on from what the one before has saved"
    assert killed.total() == NUM_KILLS, "the run ended before; give it more steps"
    assert records(tmp_path / "killed") == records(tmp_path / "whole")
    assert answers(tmp_path / "killed") == answers(tmp_path / "whole")
