"""Commands of other engines say what was planned, each in its own words."""

import shlex

import pytest

from glmforge.config.load import load_model_config
from glmforge.deploy.engines import OTHERS, EngineName, as_shell, engine_command, refuse_missing
from glmforge.errors import GlmforgeError
from glmforge.plan.machine.machine import find_machine
from glmforge.plan.serving.formats import find_format
from glmforge.plan.serving.scenario import ServingPlan, find_goal, plan_serving


def planned(scenario: str, num_gpus: int = 8, *, by_layers: bool = False) -> ServingPlan:
    model, machine = load_model_config("glm45_355b"), find_machine("h200-141gb")
    weights = find_format("q8_0" if by_layers else "fp8")
    return plan_serving(
        find_goal(scenario), model, machine, num_gpus, weights, context=65_536, length=4_096, by_layers=by_layers
    )


def options(engine: EngineName, plan: ServingPlan) -> dict[str, str]:
    words = engine_command(engine, "/models/glm", "glm", plan, host="127.0.0.1", port=8001)
    found = {}
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            found[word] = "" if following.startswith("--") else following
    return found


def test_vllm() -> None:
    plan = planned("low-latency")
    given = options("vllm", plan)
    assert given["--tensor-parallel-size"] == str(plan.deployment.num_gpus)
    assert given["--max-num-seqs"] == "8"
    assert given["--max-model-len"] == "65536"
    assert given["--speculative-config"] == '{"method": "mtp", "num_speculative_tokens": 1}'
    assert "--kv-cache-dtype" not in given
    assert options("vllm", planned("high-throughput"))["--kv-cache-dtype"] == "fp8"
    assert "--data-parallel-size" not in given


def test_copies_and_nodes() -> None:
    plan = planned("memory-constrained", 32)
    assert plan.num_copies == 1
    wide = options("sglang", planned("low-latency", 32))
    assert wide["--nnodes"] == str(int(wide["--tp-size"]) // 8)
    assert ("--distributed-executor-backend" in options("vllm", planned("low-latency", 32))) is ("--nnodes" in wide)


def test_sglang_drafts_with_the_models_own_layer() -> None:
    given = options("sglang", planned("low-latency"))
    assert given["--speculative-algorithm"] == "EAGLE"
    assert given["--speculative-num-draft-tokens"] == "2"
    assert "--speculative-algorithm" not in options("sglang", planned("memory-constrained"))


def test_every_slot_of_llama_cpp_has_room_for_the_longest_sequence() -> None:
    plan = planned("balanced", by_layers=True)
    given = options("llama.cpp", plan)
    slots = int(given["--parallel"])
    assert int(given["--ctx-size"]) == slots * plan.context
    assert slots * plan.context * plan.deployment.cache_bytes_per_token <= plan.deployment.cache_room


@pytest.mark.parametrize("engine", OTHERS)
def test_a_shell_reads_what_is_shown(engine: EngineName) -> None:
    command = engine_command(engine, "/models/my glm", "glm", planned("low-latency"), host="::1", port=1)
    shown = as_shell(command, {"KEY": "a b"})
    assert shlex.split(shown.replace("\\\n", " ")) == ["KEY=a b", *command]
    assert max(map(len, shown.splitlines())) < 120


@pytest.mark.parametrize(
    ("engine", "words"), [("llama.cpp", "llama-server: not on PATH"), ("sglang", "sglang: not in")]
)
def test_a_missing_engine_is_named(engine: EngineName, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(GlmforgeError, match=words):
        refuse_missing(engine)
