"""Programs are driven through their standard streams, take turns, and are compared turn by turn."""

import sys
from argparse import Namespace
from pathlib import Path

import generation
import pytest
from generation import OURS, Contestant, Worker, Workload

PROGRAM = """
import sys
sys.path.insert(0, {programs!r})
from protocol import read_settings, serve

settings = read_settings()
print("what a library says on import")

def generate(prompts, new_tokens, answers):
    print("what a library says")
    for number, prompt in enumerate(prompts):
        for place in range(new_tokens - settings.variant.count("short")):
            answers.add(number, prompt[-1] + place * (settings.variant != "other"))

serve(settings, generate, "1.0")
"""
WORKLOAD = Workload(num_requests=3, prompt_tokens=4, new_tokens=2)
HELD_OUT = list(range(100))


@pytest.fixture
def start(tmp_path):
    """Start a program that counts on from each prompt's last token, or does not, by its variant."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(programs=str(Path(generation.__file__).parent / "programs")))
    args = Namespace(model=tmp_path, threads=1)
    workers = []

    def start(name, variant=""):
        workers.append(Worker(name, Contestant(str(script), sys.executable, "hf-{}", variant), "fp32", args))
        return workers[-1]

    yield start
    for worker in workers:
        worker.close()


def test_programs_take_turns_and_are_compared_with_ours(start):
    workers = [start(OURS), start("same"), start("different", "other")]
    turns = generation.take_turns(WORKLOAD, workers, HELD_OUT, Namespace(rounds=2, patience=60, seconds=0))
    summary = generation.summarize(WORKLOAD, turns)
    assert [summary[name]["turns"] for name in summary] == [2, 2, 2]
    assert summary["same"]["differing_tokens"] == 0
    assert summary["different"]["differing_tokens"] == 2 * 3  # the second token of 3 answers, in both timed turns
    assert summary["same"]["ours_over_it"] > 0
    assert 0 <= summary[OURS]["first_token_s"] <= summary[OURS]["last_first_token_s"]


def test_what_is_missing_is_named(tmp_path):
    (tmp_path / "hf-fp32").mkdir()
    absent = {generation.LLAMA_CPP_PYTHON: None, generation.VLLM_PYTHON: sys.executable}
    args = Namespace(programs=[OURS, "llama.cpp", "vllm"], model=tmp_path, dtypes=["fp32"], **absent)
    found, missing = generation.find_programs(args)
    assert list(found) == [OURS, "vllm"]
    assert missing == {"llama.cpp": "needs an interpreter: set GLMFORGE_LLAMA_CPP_PYTHON"}
    args.dtypes = ["bf16"]
    assert generation.find_programs(args)[1][OURS] == "hf-bf16 is missing: run generation_model.py"
