"""A run of reinforcement learning that is killed goes on as if nothing had been."""

import gzip
import json
import random
from collections import Counter
from pathlib import Path

import pytest

from glmforge.config import dump_config
from helpers.job import start_job
from helpers.rl_runs import answers, began_at, finish, kill, moments_hook, records, rl_config, write_prompts
from helpers.tiny_data import TinyData


def test_a_killed_run_ends_as_one_left_alone(tiny_data: TinyData, base: Path, tmp_path: Path) -> None:
    prompts, generator = write_prompts(tmp_path / "prompts.jsonl"), random.Random(1)
    paths = {}
    for name in ("killed", "whole"):
        paths[name] = tmp_path / f"{name}.yaml"
        paths[name].write_text(dump_config(rl_config(tiny_data, tmp_path / name, prompts, 14, init_from=str(base))))
    finish(paths["whole"], tmp_path / "notes-whole", 0)
    for launch, moment in enumerate(("step", "rollout", "saving", "scoring")):
        job = start_job(paths["killed"], 1, tmp_path / "notes", launch, hook_of=moments_hook)
        assert kill(job, moment, tmp_path / "killed", generator), job.tail()
        job.wait()
    finish(paths["killed"], tmp_path / "notes", 4)
    began = began_at(tmp_path / "notes")
    assert began[0] == 0
    assert began == sorted(set(began)), "each launch goes on from what the one before has saved"
    assert records(tmp_path / "killed") == records(tmp_path / "whole")
    assert answers(tmp_path / "killed") == answers(tmp_path / "whole")


def test_a_run_goes_on_with_the_same_answers_on_fewer_ranks(tiny_data: TinyData, base: Path, tmp_path: Path) -> None:
    """Two steps on two ranks, the other four on one; the rollout of four steps was made on two."""
    prompts, path = write_prompts(tmp_path / "prompts.jsonl"), tmp_path / "run.yaml"
    config = rl_config(tiny_data, tmp_path / "run", prompts, init_from=str(base))
    rl = config.rl.model_copy(update={"steps_per_rollout": 4})  # type: ignore[attr-defined]
    path.write_text(dump_config(config.model_copy(update={"rl": rl})))
    finish(path, tmp_path / "notes", 0, world_size=2)
    whole = by_step(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "whole")
    finish(path, tmp_path / "notes", 1, world_size=2, stop_after=2)
    finish(path, tmp_path / "notes", 2, world_size=1)
    found = by_step(tmp_path / "run")
    assert sorted(found) == [1, 2, 3, 4, 5, 6]
    for step in (1, 2, 3, 4):  # later ones are sampled with weights that differ by rounding
        assert found[step] == whole[step]
    keys = Counter((group, sample) for of_step in found.values() for group, sample, _ in of_step)
    assert set(keys.values()) == {1}
    assert len(keys) == 6 * 16
    losses = [[record["policy"] for record in records(tmp_path / name)] for name in ("run", "whole")]
    assert losses[0][:2] == losses[1][:2]
    assert losses[0][2:4] == pytest.approx(losses[1][2:4], rel=1e-3, abs=1e-5)  # sums in another order


def by_step(run: Path) -> dict[int, list[tuple[int, int, str]]]:
    """Step -> its answers."""
    lines = [
        json.loads(line) for content in answers(run).values() for line in gzip.decompress(content).decode().splitlines()
    ]
    found: dict[int, list[tuple[int, int, str]]] = {}
    for one in lines:
        found.setdefault(one["step"], []).append((one["group"], one["sample"], one["reply"]))
    return {step: sorted(some) for step, some in found.items()}
