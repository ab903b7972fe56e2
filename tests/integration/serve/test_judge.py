"""Our own server as the judge of replies: a model of random weights, whose answers a schema makes scores."""

from collections.abc import Callable
from pathlib import Path

import pytest

from glmforge.config.judge import JudgeConfig
from glmforge.rl.judge import Judge
from glmforge.runtime.waiting import result_of
from helpers.serving import NAME, Server

SCHEMA = {"enum": [f"{score}" for score in range(11)]}
SCORED = {"type": "json_schema", "json_schema": {"name": "score", "schema": SCHEMA}}


def test_scores_of_a_served_model(
    start: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("a-judge-key\n")
    keys.chmod(0o600)
    monkeypatch.setenv("JUDGE_KEY", "a-judge-key")
    server = start("--api-key-file", str(keys))
    options = {"response_format": SCORED, "chat_template_kwargs": {"enable_thinking": False}, "max_tokens": 64}
    given = {"url": f"{server.url}/v1", "model": NAME, "rubric": "Short is 10.", "api_key_env": "JUDGE_KEY"}
    judge = Judge(JudgeConfig.model_validate(given | {"options": options, "attempts": 1}))
    try:
        asked = [judge.submit([{"role": "user", "content": "Hi"}], reply) for reply in ("a", "b b", "c", "a")]
        outcomes = [result_of(one) for one in asked]
        assert [one.failed for one in outcomes] == [""] * 4
        assert all(one.value in [score / 10 for score in range(11)] for one in outcomes)
        assert outcomes[0] == outcomes[3]
        server.started.process.kill()
        server.started.process.wait()
        assert "no verdict" in result_of(judge.submit([], "d")).failed
        assert result_of(judge.submit([{"role": "user", "content": "Hi"}], "a")) == outcomes[0], "it is remembered"
    finally:
        judge.close()
