"""Servers that sample while the run trains: real ones, killed and resumed runs, and the age of what is trained on."""

import gzip
import json
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from glmforge.config import dump_config
from glmforge.config.schema import RunConfig
from glmforge.observe.record_files import read_jsonl
from glmforge.recipes.train import train
from glmforge.rl.rollout import Asked
from glmforge.rl.samples import Answer
from helpers.distributed import free_port
from helpers.job import start_job
from helpers.rl_engines import COMMAND, KEY, one_policy
from helpers.rl_runs import answers, began_at, kill, moments_hook, rl_config, write_prompts
from helpers.rollouts import Prompts
from helpers.tiny_data import TinyData

GROUPS, SIZE = 4, 4
"""Of a step, and answers of each."""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["src", "tests", os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("GLMFORGE_API_KEYS", KEY)


def config_of(data: TinyData, base: Path, folder: Path, name: str, steps: int, **rl: Any) -> RunConfig:
    """A run with a server of its own. Equal rewards are kept, so that a run trains on each of its first prompts."""
    prompts = write_prompts(folder / "prompts.jsonl")
    config = rl_config(data, folder / name, prompts, steps, init_from=str(base)).model_dump()
    engine = {"kind": "glmforge", "urls": [f"http://127.0.0.1:{free_port()}"], "command": COMMAND, "dtype": "fp32"}
    engine["api_key_env"] = "GLMFORGE_API_KEYS"
    rollout = config["rl"]["rollout"] | {"partial": False, "over_sampling": 1.0, "drop_equal": False}
    config["rl"] |= {"engine": engine, "rollout": rollout, "steps_per_rollout": 1, "surrogate": {"ratio_to": "rollout"}}
    config["rl"] |= rl
    return RunConfig.model_validate(config)


def trained_on(run: Path) -> list[dict[str, Any]]:
    """The answers of all steps, in their order."""
    files = [gzip.decompress(content).decode().splitlines() for content in answers(run).values()]
    lines = [json.loads(line) for file in files for line in file]
    return sorted(lines, key=lambda one: (one["step"], one["group"], one["sample"]))


def ages(lines: list[dict[str, Any]]) -> dict[int, set[int]]:
    """Step -> ages of its answers."""
    found: dict[int, set[int]] = {}
    for one in lines:
        found.setdefault(one["step"], set()).add(one["step"] - 1 - one["begun"])
        assert one["begun"] <= min(one["versions"]) <= max(one["versions"]) <= one["step"] - 1
    return found


def assert_each_prompt_once(lines: list[dict[str, Any]], num_steps: int) -> None:
    """No prompt is lost or trained on twice, and a step has as many as it should."""
    expected = Counter((group, sample) for group in range(num_steps * GROUPS) for sample in range(SIZE))
    assert Counter((one["group"], one["sample"]) for one in lines) == expected
    assert Counter(one["step"] for one in lines) == dict.fromkeys(range(1, num_steps + 1), GROUPS * SIZE)


def test_each_token_says_which_weights_it_was_sampled_with(tiny_data: TinyData, tmp_path: Path) -> None:
    engine = {"urls": [f"http://127.0.0.1:{free_port()}"], "command": COMMAND}
    # Experts of tokens before an update were chosen by other weights than those that the cache is computed with again.
    with one_policy(tmp_path, tiny_data.tokenizer, engine, max_new_tokens=40, replay=False) as policy:
        remote, found = policy.remote, list[Answer]()
        asked = [Asked(number, Prompts()[number].ids) for number in range(60)]
        policy.fleet.update(0)
        remote.begin(asked)
        while not found:  # the others are being sampled, or wait
            remote.wait(0.1)
            found += remote.take()
        old = {name: tensor.clone() for name, tensor in policy.backend.model.state_dict().items()}
        policy.perturb(1)
        policy.fleet.update(1)
        while len(found) < len(asked) * SIZE:
            remote.wait(0.1)
            found += remote.take()
        mixed = [one for one in found if len(set(one.versions_N)) == 2]
        assert mixed
        new_gaps = policy.gaps(mixed)
        for name, tensor in policy.backend.model.state_dict().items():
            tensor.detach().copy_(old[name])
        old_gaps = policy.gaps(mixed)
    versions = np.concatenate([one.versions_N for one in mixed])
    assert all((np.diff(one.versions_N) >= 0).all() for one in mixed)
    # fp32: the same function but for rounding; under the other weights log-probabilities are far away.
    assert max(old_gaps[versions == 0].max(), new_gaps[versions == 1].max()) < 1e-4
    assert min(np.median(old_gaps[versions == 1]), np.median(new_gaps[versions == 0])) > 1e-3


def test_one_step_off_samples_with_the_weights_of_the_step_before(
    tiny_data: TinyData, base: Path, tmp_path: Path
) -> None:
    train(config_of(tiny_data, base, tmp_path, "ahead", 5, schedule={"kind": "one_step_off"}))
    lines = trained_on(tmp_path / "ahead")
    assert_each_prompt_once(lines, 5)
    assert ages(lines) == {1: {0}, 2: {1}, 3: {1}, 4: {1}, 5: {1}}
    assert all(one["versions"] == [one["begun"]] * 2 for one in lines)
    # Both steps' answers by the first weights.
    train(config_of(tiny_data, base, tmp_path, "two", 2, steps_per_rollout=2))
    facts = ("step", "group", "sample", "reply", "versions")
    assert [{name: one[name] for name in facts} for one in trained_on(tmp_path / "two")] == [
        {name: one[name] for name in facts} for one in lines if one["step"] <= 2
    ]
    for one in read_jsonl(tmp_path / "ahead" / "metrics.jsonl"):
        assert one["age_max"] == (one["step"] > 1)
        assert one["answer_wait_seconds"] <= one["rollout_seconds"]


SCHEDULES: dict[str, dict[str, Any]] = {
    "default": {},
    "strict order": {"steps_ahead": 3, "window": 0.01, "max_age": 3},
    "any order": {"steps_ahead": 1, "window": 1.0},
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_asynchronous_answers_are_never_too_old(name: str, tiny_data: TinyData, base: Path, tmp_path: Path) -> None:
    config = config_of(
        tiny_data, base, tmp_path, "run", 10, schedule={"kind": "asynchronous", **SCHEDULES[name]}, kl=None
    )
    train(config)
    lines = trained_on(tmp_path / "run")
    assert_each_prompt_once(lines, 10)
    oldest = config.rl.schedule.oldest  # type: ignore[attr-defined]
    assert 1 <= max(max(some) for some in ages(lines).values()) <= oldest
    records = list(read_jsonl(tmp_path / "run" / "metrics.jsonl"))
    assert all(one["age_mean"] <= one["age_max"] <= oldest for one in records)
    assert all(one["missing_groups"] == 0 and one["transfer_bytes_per_second"] > 0 for one in records)


def only_even(record: Mapping[str, Any], reply: str, options: Mapping[str, Any]) -> float:
    """Distinct rewards for half of the prompts, one for the others."""
    return len(set(reply)) / max(1, len(reply)) if record["source"] == "even" else 0.5


def test_groups_without_a_spread_are_replaced(tiny_data: TinyData, base: Path, tmp_path: Path) -> None:
    terms = [{"kind": "python", "function": f"{__name__.removeprefix('tests.')}:only_even"}]
    config = config_of(
        tiny_data, base, tmp_path, "run", 4, schedule={"kind": "asynchronous"}, rewards={"terms": terms}
    ).model_dump()
    config["rl"]["rollout"] |= {"drop_equal": True}
    train(RunConfig.model_validate(config))
    lines = trained_on(tmp_path / "run")
    assert {one["source"] for one in lines} == {"even"}
    assert Counter(one["step"] for one in lines) == dict.fromkeys(range(1, 5), GROUPS * SIZE)
    assert set(Counter((one["group"], one["sample"]) for one in lines).values()) == {1}


def hook_with_key(steps: Path) -> Any:
    """In the process of a rank."""
    os.environ["GLMFORGE_API_KEYS"] = KEY
    return moments_hook(steps)


@pytest.mark.parametrize("kind", ["asynchronous", "one_step_off"])
def test_a_killed_run_loses_no_prompt(kind: str, tiny_data: TinyData, base: Path, tmp_path: Path) -> None:
    config, generator = config_of(tiny_data, base, tmp_path, "run", 12, schedule={"kind": kind}), random.Random(3)
    path = tmp_path / "run.yaml"
    path.write_text(dump_config(config))
    for launch, moment in enumerate(("rollout", "step", "saving")):
        job = start_job(path, 2, tmp_path / "notes", launch, hook_of=hook_with_key)
        assert kill(job, moment, tmp_path / "run", generator), job.tail()
        job.wait()
    last = start_job(path, 1, tmp_path / "notes", 3, hook_of=hook_with_key)
    assert last.wait() == [0], last.tail()
    began = began_at(tmp_path / "notes")
    assert began == sorted(set(began))
    lines = trained_on(tmp_path / "run")
    assert_each_prompt_once(lines, 12)
    assert max(max(some) for some in ages(lines).values()) <= config.rl.schedule.oldest  # type: ignore[attr-defined]


def test_a_killed_server_loses_no_prompt(tiny_data: TinyData, base: Path, tmp_path: Path) -> None:
    config = config_of(tiny_data, base, tmp_path, "run", 12, schedule={"kind": "asynchronous"})
    kills, is_over = list[int](), threading.Event()

    def kill_servers() -> None:
        """After the third, the sixth and the ninth step."""
        for step in (3, 6, 9):
            while not (tmp_path / "run" / "checkpoints" / f"step-{step:08d}").exists():
                if is_over.wait(0.01):
                    return
            for child in psutil.Process().children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if "serve" in child.cmdline():
                        child.send_signal(signal.SIGKILL)
                        kills.append(step)

    killer = threading.Thread(target=kill_servers)
    killer.start()
    try:
        train(config)
    finally:
        is_over.set()
        killer.join()
    lines = trained_on(tmp_path / "run")
    assert_each_prompt_once(lines, 12)
    ages(lines)
    last = list(read_jsonl(tmp_path / "run" / "metrics.jsonl"))[-1]
    assert kills == [3, 6, 9]
    assert last["engine_restarts"] == 3
