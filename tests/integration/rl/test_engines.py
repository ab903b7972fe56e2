"""Servers as the engine of a run: `glmforge serve` in processes of its own, with the weights that it is sent."""

import os
import random
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import psutil
import pytest
from safetensors.torch import load_file, save

from glmforge.config import dump_config
from glmforge.config.schema import RunConfig
from glmforge.deploy.export import export_run
from glmforge.observe.record_files import read_jsonl
from glmforge.recipes.train import train
from glmforge.rl.engines.base import EngineError
from glmforge.rl.engines.served import GlmforgeEngine
from helpers.command import commands_in
from helpers.distributed import free_port, run_ranks
from helpers.rl_engines import COMMAND, KEY, Policy, facts, on_ranks, one_policy, peak_on_rank
from helpers.rl_runs import rl_config, write_prompts
from helpers.serving import start_server
from helpers.tiny_data import TinyData


@pytest.fixture
def started() -> dict[str, Any]:
    """A server that the run starts."""
    return {"urls": [f"http://127.0.0.1:{free_port()}"], "command": COMMAND}


@pytest.fixture
def policy(tiny_data: TinyData, tmp_path: Path, started: dict[str, Any]) -> Iterator[Policy]:
    with one_policy(tmp_path, tiny_data.tokenizer, started) as made:
        yield made


def server_pid(policy: Policy) -> int:
    process = policy.fleet.processes[0].process
    assert process is not None
    return process.pid


def test_updates_arrive_and_answers_are_those_of_the_engine_in_process(policy: Policy, tmp_path: Path) -> None:
    seen = []
    for version in range(3):
        remote, native = policy.answers(policy.remote, version), policy.answers(policy.native, version)
        assert facts(remote) == facts(native)
        for one, other in zip(remote, native, strict=True):
            assert np.array_equal(one.versions_N, np.full(len(one.tokens_N), version))
            # The same kernels on the same fp32 weights; JSON keeps every digit.
            np.testing.assert_allclose(one.logprobs_N, other.logprobs_N, atol=1e-6)
        seen.append(facts(remote))
        policy.perturb(version)
    assert seen[0] != seen[1] != seen[2]
    files = sorted((tmp_path / "engine" / "weights").glob("*.safetensors"))
    assert len(files) > 1  # no rank had to hold all of it
    before = {name: tensor for file in files for name, tensor in load_file(file).items()}
    held = policy.backend.model.state_dict()["model.norm.weight"]
    assert not before["model.norm.weight"].equal(held)  # updates do not reach the file that a server was started from


def test_a_server_that_is_killed_is_replaced_and_answers_are_the_same(policy: Policy) -> None:
    generator, restarts = random.Random(0), 0
    for version in range(3):
        killer = threading.Timer(generator.random() * 0.5, lambda: os.kill(server_pid(policy), signal.SIGKILL))
        if version:
            killer.start()
        remote = policy.answers(policy.remote, version, 12)
        if version:
            killer.join()
        assert facts(remote) == facts(policy.answers(policy.native, version, 12))
        restarts = int(policy.remote.metrics()["engine_restarts"])
        policy.perturb(version)
    policy.answers(policy.remote, 3)  # notices a death after the last answer, too
    assert 1 <= restarts <= policy.remote.metrics()["engine_restarts"] <= 2


def test_a_server_started_separately_that_dies_ends_the_run_in_one_line(
    policy: Policy, tiny_data: TinyData, tmp_path: Path, started: dict[str, Any]
) -> None:
    policy.answers(policy.remote, 0)
    with one_policy(tmp_path / "other", tiny_data.tokenizer, {"urls": started["urls"]}) as other:
        assert facts(other.answers(other.remote, 7))
        with pytest.raises(EngineError, match=r"^http://127.0.0.1:\d+: another run has sent it weights; use sep"):
            policy.answers(policy.remote, 1)
        os.kill(server_pid(policy), signal.SIGKILL)
        with pytest.raises(
            EngineError, match=r"^http://127.0.0.1:\d+/\S+: does not answer .*; start the server again"
        ) as raised:
            other.answers(other.remote, 7)
        assert "\n" not in str(raised.value)


def test_a_command_that_fails_ends_the_run_and_says_why(policy: Policy) -> None:
    policy.fleet.processes[0].command = ["sh", "-c", "echo no such card >&2; exit 3"]
    with pytest.raises(EngineError, match=r"its server ended with status 3: no such card$"):
        policy.answers(policy.remote, 0)
    policy.fleet.processes[0].command = ["/no/such/program"]
    with pytest.raises(EngineError, match=r"rl\.engine\.command: /no/such/program: cannot be started: No such file"):
        policy.answers(policy.remote, 0)


def test_weights_are_taken_whole_from_those_who_may_send_them(policy: Policy) -> None:
    policy.answers(policy.remote, 5)
    url, headers = policy.fleet.engines[0].url, {"Authorization": f"Bearer {KEY}"}

    def ask(path: str, **given: Any) -> tuple[int, str]:
        reply = httpx2.post(url + path, headers=headers, timeout=30, **given)
        return reply.status_code, reply.text

    assert httpx2.post(f"{url}/weights/begin", json={}).status_code == 401
    assert ask("/weights/commit", json={"version": 6})[0] == 409
    assert ask("/weights/bucket", content=b"")[0] == 409
    tensors = httpx2.post(f"{url}/weights/begin", headers=headers, json={}).json()["tensors"]
    assert tensors["model.norm.weight"] == ["F32", [48]]
    assert tensors["model.layers.1.mlp.experts.7.gate_proj.weight"] == ["F32", [32, 48]]
    norm = policy.backend.model.state_dict()["model.norm.weight"].detach()
    for content in (b"x" * 20, save({"model.norm": norm}), save({"model.norm.weight": norm[1:].clone()})):
        assert ask("/weights/bucket", content=content)[0] == 400
    assert ask("/weights/bucket", content=save({"model.norm.weight": norm.clone()}))[0] == 200
    status, text = ask("/weights/commit", json={"version": 6})
    assert (status, f"{len(tensors) - 1} tensors are missing" in text) == (409, True)
    assert ask("/resume", json={})[0] == 409  # half an update is not sampled with
    assert facts(policy.answers(policy.remote, 6)) == facts(policy.answers(policy.native, 6))


def test_an_update_that_does_not_arrive_ends_the_run(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    policy.answers(policy.remote, 0)
    engine, put = policy.fleet.engines[0], GlmforgeEngine.put

    def spoiled(self: GlmforgeEngine, bucket: bytes) -> Any:
        return put(self, bucket[:-1] + bytes([bucket[-1] ^ 1]))

    monkeypatch.setattr(GlmforgeEngine, "put", spoiled)
    with pytest.raises(EngineError, match=rf"^{engine.url}: \S+ is not what was sent \(checksums differ\)$"):
        policy.answers(policy.remote, 1)
    monkeypatch.undo()
    assert facts(policy.answers(policy.remote, 1)) == facts(policy.answers(policy.native, 1))


def test_a_run_whose_server_dies_ends_with_one_line_and_without_success(
    tiny_data: TinyData, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLMFORGE_API_KEYS", KEY)
    model = tmp_path / "model"
    export_run(base, model, dtype="fp32", with_mtp=False)
    engine = {"kind": "glmforge", "urls": ["http://127.0.0.1:1"], "api_key_env": "GLMFORGE_API_KEYS"}
    config = rl_config(
        tiny_data, tmp_path / "run", write_prompts(tmp_path / "p.jsonl"), 500, init_from=str(base)
    ).model_dump()
    config["rl"] |= {"engine": engine, "rollout": config["rl"]["rollout"] | {"partial": False}}
    with commands_in(tmp_path) as commands:
        server = start_server(commands, model, "--allow-weight-updates")
        engine["urls"] = [server.url]
        (tmp_path / "run.yaml").write_text(dump_config(RunConfig.model_validate(config)))
        run = commands.start("train", str(tmp_path / "run.yaml"), environment={"PYTHONPATH": "src:tests"})
        run.wait_for_steps(tmp_path / "run", 3)
        os.kill(server.pid, signal.SIGKILL)
        assert run.wait() == 1
    last = run.output.strip().splitlines()[-1]
    assert re.match(
        rf"glmforge: {server.url}/\S+: does not answer \(\w+\); start the server again and run the same ", last
    )
    assert "Traceback" not in run.output


def test_its_server_ends_with_a_run_that_is_killed(
    tiny_data: TinyData, base: Path, tmp_path: Path, started: dict[str, Any]
) -> None:
    engine = started | {"kind": "glmforge", "dtype": "fp32", "api_key_env": "GLMFORGE_API_KEYS"}
    config = rl_config(
        tiny_data, tmp_path / "run", write_prompts(tmp_path / "p.jsonl"), 500, init_from=str(base)
    ).model_dump()
    config["rl"] |= {"engine": engine, "rollout": config["rl"]["rollout"] | {"partial": False}}
    (tmp_path / "run.yaml").write_text(dump_config(RunConfig.model_validate(config)))
    environment = {"PYTHONPATH": "src:tests", "GLMFORGE_API_KEYS": KEY}
    with commands_in(tmp_path) as commands:
        run = commands.start("train", str(tmp_path / "run.yaml"), environment=environment)
        run.wait_for_steps(tmp_path / "run", 1)
        (server,) = [child for child in psutil.Process(run.process.pid).children() if "serve" in child.cmdline()]
        os.kill(run.process.pid, signal.SIGKILL)
        server.wait(60)


def test_without_the_option_nobody_can_send_weights(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy.fleet.processes[0].command = COMMAND[:-1]
    with pytest.raises(EngineError, match=r"/weights: status 404"):
        policy.answers(policy.remote, 0)
    monkeypatch.delenv("GLMFORGE_API_KEYS", raising=False)
    with commands_in(tmp_path) as commands:
        refused = commands.start("serve", str(tmp_path / "engine" / "weights"), "--allow-weight-updates")
        assert refused.wait() == 1
        assert "--allow-weight-updates: needs API keys" in refused.output


LAYOUTS: list[tuple[int, dict[str, Any]]] = [
    (2, {"tp": 2}),
    (2, {"pp": 2}),
    (4, {"dp_replicate": 2, "dp_shard": 2, "ep": 2}),
]


@pytest.mark.parametrize(("num_ranks", "parallel"), LAYOUTS)
def test_weights_come_from_shards_and_shares_are_asked_by_one_rank(
    num_ranks: int, parallel: dict[str, Any], tiny_data: TinyData, tmp_path: Path, started: dict[str, Any]
) -> None:
    results = run_ranks(on_ranks, num_ranks, tmp_path, tiny_data.tokenizer, parallel, started)
    for step in range(2):
        answers = [one for is_first, found in results for one in found[step][0] if is_first]
        own = [one for is_first, found in results for one in found[step][1] if is_first]
        assert sorted(answers) == sorted(own)
        assert len(answers) == 24
    assert all(not found[0][0] for is_first, found in results if not is_first)
    assert results[0][1][0] != results[0][1][1]


def test_no_rank_needs_the_memory_of_the_model(tiny_data: TinyData, tmp_path: Path, started: dict[str, Any]) -> None:
    results = run_ranks(peak_on_rank, 2, tmp_path, tiny_data.tokenizer, started | {"bucket_bytes": 1 << 20})
    num_bytes = sum(own for own, _ in results)
    assert num_bytes > 190 << 20
    assert all(peak < num_bytes / 4 for _, peak in results)


def test_a_run_learns_from_a_servers_answers(
    tiny_data: TinyData, base: Path, tmp_path: Path, started: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["src", "tests", os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("GLMFORGE_API_KEYS", KEY)
    prompts = write_prompts(tmp_path / "prompts.jsonl", 12)

    def run(name: str, **rl: Any) -> list[dict[str, Any]]:
        config = rl_config(tiny_data, tmp_path / name, prompts, 4, init_from=str(base)).model_dump()
        config["rl"] |= rl | {"rollout": config["rl"]["rollout"] | {"partial": False}}
        train(RunConfig.model_validate(config))
        return list(read_jsonl(tmp_path / name / "metrics.jsonl"))

    remote = run("remote", engine=started | {"kind": "glmforge", "dtype": "fp32", "api_key_env": "GLMFORGE_API_KEYS"})
    native = run("native")
    for one, other in zip(remote, native, strict=True):
        for name in ("reward", "policy", "kl", "grad_norm"):  # of the same answers, so the same bits
            assert one.get(name) == other.get(name)
    assert remote[0]["gap_max"] < 1e-4  # fp32: both are the same function; later answers may have waited
    for one in remote[::2]:  # there are two steps to a rollout
        assert one["engine_restarts"] == 0
        assert one["transfer_seconds"] > 0
    with pytest.raises(httpx2.TransportError):  # the server ended with the run
        httpx2.get(started["urls"][0])
