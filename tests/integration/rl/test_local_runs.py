"""The three runs of examples/rl, each cut to a few steps, on their own data."""

import json
import runpy
from pathlib import Path

import pytest

from glmforge.config import load_config
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.observe.record_files import read_jsonl
from glmforge.observe.run import RunDirectory
from glmforge.recipes.train import train

EXAMPLE = Path(__file__).parents[3] / "examples" / "rl"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sums")
    runpy.run_path(str(EXAMPLE / "make_data.py"))["make_data"](directory)
    return directory


def prompts(file: Path) -> set[str]:
    return {json.loads(line)["prompt"] for line in file.read_text("utf-8").splitlines()}


def test_every_digit_is_a_token_and_held_out_sums_are_in_no_other_file(data: Path) -> None:
    tokenizer = Tokenizer.load(data / "tokenizer")
    assert len(tokenizer.encode("123+456=#### 579")) == 8 + 2 + 3  # the mark and the space are one token each
    held_out = prompts(data / "prompts-held-out.jsonl")
    assert len(held_out) == 500
    for name in ("short", "few", "prompts"):
        assert not held_out & prompts(data / f"{name}.jsonl")
    assert not prompts(data / "few.jsonl") & prompts(data / "prompts.jsonl")


def test_the_runs_follow_each_other(data: Path, tmp_path: Path) -> None:
    runs = {"base": ["short"], "sft": ["few", "short"], "rl": ["prompts"]}
    held_out = {"sft": "few-held-out", "rl": "prompts-held-out"}
    before: Path | None = None
    for name, sources in runs.items():
        changes = [f"data.sources.{place}.path={data / f'{one}.jsonl'}" for place, one in enumerate(sources)]
        if before is not None:
            changes += [f"init_from={before}", f"data.held_out.0.path={data / f'{held_out[name]}.jsonl'}"]
            changes += ["observe.evaluate_every=2"]
        if name == "rl":
            changes += ["phases.0.batch_size=32", "rl.held_out_samples=2"]
        before = tmp_path / name
        quick = ["phases.0.steps=2", "optim.warmup_steps=1", "observe.log_every=1", "observe.tensorboard=false"]
        changes += [*quick, f"data.tokenizer={data / 'tokenizer'}", f"output_dir={before}"]
        config = load_config(EXAMPLE / f"{name}.yaml", changes)
        assert train(config).step == 2
    assert train(config).step == 2  # run again, it has nothing to do, and does not ask its first weights again
    assert before is not None
    names = ("step", "benchmark", "benchmark_items")
    asked = [tuple(one[name] for name in names) for one in read_jsonl(before / "benchmarks.jsonl")]
    assert asked == [(step, f"sums{kind}", 500) for step in (0, 2) for kind in ("", " sampled", " pass@2")]
    last = read_jsonl(RunDirectory(before).metrics)[-1]
    assert last["failed_answers"] == 0
    assert last["gap_max"] < 1e-4  # fp32: engine and trainer differ by rounding
