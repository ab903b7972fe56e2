"""A run of stage rl whose rewards are a refusal term and a judge on a real HTTP server."""

import hashlib
import json
from pathlib import Path

import pytest

from glmforge.observe.record_files import read_jsonl
from glmforge.recipes.train import train
from glmforge.rl.written import read_samples
from helpers.completion_server import completion_server
from helpers.rl_runs import rl_config, write_prompts
from helpers.tiny_data import TinyData

KEY = "sk-nobody-may-see-this"


def score_of(reply: str) -> int:
    """What the judge says of a reply; it cannot judge what would get a 3."""
    return hashlib.sha256(reply.encode()).digest()[0] % 11


def test_a_judged_run(tiny_data: TinyData, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    monkeypatch.setattr("glmforge.rl.judge._FIRST_WAIT_S", 0.01)
    prompts = write_prompts(tmp_path / "prompts.jsonl", 12, harmful=False)
    with completion_server() as server:
        server.key = KEY

        def answer(payload: dict) -> dict:
            reply = json.loads(payload["messages"][1]["content"])["reply"]
            said = "it depends" if score_of(reply) == 3 else f"{score_of(reply)}"
            return {"choices": [{"message": {"content": said}}]}

        server.answer = answer
        judge = {"url": server.url, "model": "glm", "rubric": "Any.", "api_key_env": "JUDGE_KEY", "attempts": 2}
        rewards = {"terms": [{"kind": "refusal"}, {"kind": "judge", "weight": 0.5, "judge": judge}]}
        config = rl_config(tiny_data, tmp_path / "run", prompts, 2, init_from=str(base))
        rl = config.rl.model_dump() | {"rewards": rewards}
        train(rl_config(tiny_data, tmp_path / "run", prompts, 2, init_from=str(base), rl=rl))
        asked = [one["messages"][1]["content"] for _, one, _ in server.asked]
    records = [one for step in (1, 2) for one in read_samples(tmp_path / "run/rollouts", step)]
    judged = [one for one in records if one["reward"] is not None]
    failed = [one for one in records if one["reward"] is None]
    assert judged
    for one in judged:
        said = one["reply"].strip()
        expected = {"refusal": float(bool(said)), "judge": score_of(said) / 10 if said else 0}
        assert one["terms"] == pytest.approx(expected)
        assert one["reward"] == pytest.approx(one["terms"]["refusal"] + 0.5 * one["terms"]["judge"])
    assert all(one["terms"].keys() == {"refusal"} and not one["advantage"] for one in failed)
    metrics = read_jsonl(tmp_path / "run/metrics.jsonl")
    assert sum(one.get("failed_answers", 0) for one in metrics) > 0, "the judge cannot judge some"
    again = [one for one in asked if score_of(json.loads(one)["reply"]) != 3]
    assert len(again) == len(set(again)), "nothing that has a score is judged twice"
    for path in (tmp_path / "run").rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path
