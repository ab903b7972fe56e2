"""vLLM's CPU build as the engine of a run. It has an environment of its own, whose Python GLMFORGE_TEST_VLLM names."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from helpers.distributed import free_port
from helpers.models import tiny_config
from helpers.rl_engines import one_policy, vllm_command
from helpers.tiny_data import TinyData

PYTHON = os.environ.get("GLMFORGE_TEST_VLLM")
pytestmark = pytest.mark.skipif(not PYTHON, reason="GLMFORGE_TEST_VLLM does not name a Python that has vLLM")
# Its kernels for processors want multiples of 32.
SIZES: dict[str, Any] = {"hidden_size": 128, "head_dim": 32, "moe_intermediate_size": 64, "intermediate_size": 128}


def test_updates_arrive_and_a_killed_server_gets_them_again(tiny_data: TinyData, tmp_path: Path) -> None:
    engine = {
        "kind": "vllm",
        "urls": [f"http://127.0.0.1:{free_port()}"],
        "command": vllm_command(str(PYTHON), "float32"),
    }
    engine["restart"] = True  # what this build computes after it has reloaded weights is something else
    sections = {"model": tiny_config(**SIZES, num_nextn_predict_layers=0).model_dump()}
    with one_policy(tmp_path, tiny_data.tokenizer, engine, sections=sections) as policy:
        for version in range(3):
            answers = policy.answers(policy.remote, version)
            assert len(answers) == 24
            assert policy.gaps(answers).max() < 1e-4  # fp32: the same function, summed in another order
            assert (tmp_path / "engine" / f"weights-{version}").is_dir()
            policy.perturb(version)
            assert policy.gaps(answers).mean() > 0.05  # as if the weights had not been sent
            if version == 1:
                process = policy.fleet.processes[0].process
                assert process is not None
                os.killpg(process.pid, signal.SIGKILL)
        assert policy.remote.metrics()["engine_restarts"] == 1
        assert len(list((tmp_path / "engine").glob("weights-*"))) == 1
