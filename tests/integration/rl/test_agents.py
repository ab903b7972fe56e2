"""The runs of examples/rl/calculator, each cut to a few steps: an environment, and a program on the OpenAI client."""

import runpy
import sys
from pathlib import Path

import pytest

from glmforge.config import load_config
from glmforge.observe.record_files import read_jsonl
from glmforge.observe.run import RunDirectory
from glmforge.recipes.train import train
from glmforge.rl.written import read_samples

EXAMPLE = Path(__file__).parents[3] / "examples" / "rl" / "calculator"
DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("products")
    runpy.run_path(str(EXAMPLE / "make_data.py"))["make_data"](directory)
    held_out = (directory / "held-out.jsonl").read_text().splitlines()
    (directory / "held-out.jsonl").write_text("\n".join(held_out[:10]))
    return directory


def run(data: Path, name: str, steps: int, *changes: str) -> Path:
    given = [f"data.tokenizer={data / 'tokenizer'}", f"output_dir={data / name}", f"phases.0.steps={steps}"]
    given += ["optim.warmup_steps=1", "observe.log_every=1", "observe.tensorboard=false", *changes]
    train(load_config(EXAMPLE / f"{name}.yaml", given))
    return data / name


@pytest.fixture(scope="module")
def policy(data: Path) -> Path:
    """It has learnt to call the function, and little else."""
    calling = [line for line in (data / "demonstrations.jsonl").read_text().splitlines() if "tool_calls" in line]
    (data / "calling.jsonl").write_text("\n".join(calling))
    return run(data, "sft", 60, f"data.sources.0.path={data / 'calling.jsonl'}")


AGENTS = {"rl": (), "rl_program": (f"rl.agent.program=[{sys.executable}, {EXAMPLE / 'agent.py'}]",)}


@pytest.mark.parametrize("name", AGENTS)
def test_agents_call_and_are_trained_on_what_they_sampled(
    data: Path, policy: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    changes = [f"init_from={policy}", f"data.sources.0.path={data / 'prompts.jsonl'}", "phases.0.batch_size=16"]
    if name == "rl":
        changes += [f"data.held_out.0.path={data / 'held-out.jsonl'}", "observe.evaluate_every=2"]
    directory = run(data, name, 2, *changes, *AGENTS[name])
    last = read_jsonl(RunDirectory(directory).metrics)[-1]
    assert last["gap_max"] < 1e-4  # fp32: engine and trainer differ by rounding, in all turns
    assert last["failed_answers"] == 0
    said = [one for step in (1, 2) for one in read_samples(RunDirectory(directory).rollouts, step)]
    assert len(said) == 32
    called = [one["reply"] for one in said if "</tool_call><|observation|>\n<tool_response>\n" in one["reply"]]
    assert called, "some conversations have results of calls"
    assert all(one.count("<|assistant|>\n<think></think>") == one.count("<tool_response>") for one in called)
    if name == "rl":
        steps = [(one["step"], one["benchmark"]) for one in read_jsonl(directory / "benchmarks.jsonl")]
        assert steps == [(0, "products"), (2, "products")]


def test_the_document_shows_the_environment_as_it_is() -> None:
    pages = (page.read_text("utf-8") for page in DOCS.glob("*.md"))
    (page,) = (text for text in pages if "class Products(Environment)" in text)
    (shown,) = (part.partition("```")[0] for part in page.split("```python\n") if "class Products(" in part)
    written = (EXAMPLE / "acting.py").read_text()
    assert shown.strip() == written.partition('"""\n\n')[2].strip()
    assert len(shown.splitlines()) <= 30
    assert "program: [python, examples/rl/calculator/agent.py]" in page
