"""`glmforge generate` on a run: a file of prompts, one prompt, and what is refused."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import glmforge
from glmforge.cli.app import app
from glmforge.errors import GlmforgeError
from glmforge.recipes.train import train
from helpers.tiny_data import TinyData


@pytest.fixture(scope="module")
def run(tiny_data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("generate") / "run"
    train(tiny_data.run_config(directory, phases=[{"name": "main", "steps": 2, "seq_len": 32, "batch_size": 2}]))
    return directory


def generate(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["generate", *map(str, arguments)], env={"COLUMNS": "200", "TERM": "dumb"})


def test_a_file(run: Path, tmp_path: Path) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    prompts.write_text('{"prompt": "import"}\nno\n{"prompt": "def", "seed": 3}\n')
    options = ["--max-new-tokens", 5, "--temperature", 0.9, "-n", 2, "--stop-ids", 500, "--logit-bias", "7=-1.5"]
    result = generate(run, prompts, "--out", out, *options)
    assert isinstance(result.exception, GlmforgeError)
    assert "1 line without an answer (2)" in str(result.exception)
    assert "2 answers in" in result.stdout
    first, bad, last = (json.loads(line) for line in out.read_text().splitlines())
    assert "error" in bad
    assert [len(one["samples"]) for one in (first, last)] == [2, 2]
    assert all(sample["finished"] in ("length", "stop") for sample in first["samples"])


def test_one_prompt(run: Path) -> None:
    options = [run, "--prompt", "import", "--max-new-tokens", 5]
    result = generate(*options)
    assert result.exit_code == 0, result.output
    assert len(result.stdout) > 1
    assert generate(*options, "--drafter", "ngram").stdout == result.stdout


def test_log_probabilities_of_one_prompt(run: Path) -> None:
    """A line for each token of the prompt but the first, and of the answer; the likeliest is the token at first."""
    result = generate(run, "--prompt", "import sys", "--max-new-tokens", 3, "--logprobs", 2, "--prompt-logprobs")
    assert result.exit_code == 0, result.output
    num_prompt = len(glmforge.load_tokenizer(run).encode("import sys"))
    lines = [line for line in result.stdout.splitlines() if re.match(r" +-\d+\.\d{3}  ", line)]
    assert len(lines) == num_prompt - 1 + 3
    for line in lines[-3:]:
        logprob, token, first, its_logprob, _, _ = re.split(r" {2,}| (?=-)", line.strip())
        assert (first, its_logprob) == (token, logprob)


@pytest.mark.skipif(importlib.util.find_spec("llguidance") is None, reason="needs the extra grammar")
def test_a_schema_in_a_file_or_as_it_is(run: Path, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"enum": ["yes", "no"]}')
    for schema in (tmp_path / "schema.json", ' {"enum": ["yes", "no"]}'):
        result = generate(run, "--prompt", "import", "--max-new-tokens", 9, "--json-schema", schema)
        assert result.stdout.strip() in ('"yes"', '"no"'), result.output


@pytest.mark.parametrize("gib", ["1e-7", "8e9"])
def test_a_cache_that_cannot_be_names_the_option(run: Path, gib: str) -> None:
    """No room for a page, none for the prompt, and more than there is."""
    result = generate(run, "--prompt", "import " * 30, "--cache-gib", gib)
    assert isinstance(result.exception, GlmforgeError)
    assert "(--cache-gib)" in str(result.exception)


@pytest.mark.parametrize("number", [1, 2])
def test_a_prompt_that_fails_midway(run: Path, tmp_path: Path, number: int) -> None:
    """What it has of the answer, and why there is no more."""
    (tmp_path / "grammar").write_text('start: "abc" <|user|>')
    result = generate(run, "--prompt", "x", "--grammar", tmp_path / "grammar", "-n", number)
    lines = result.stdout.splitlines()
    assert len(lines) == number
    assert "abc" in lines
    assert all("abc".startswith(line) for line in lines)  # samples wait for their grammars, each as long as it takes
    assert isinstance(result.exception, GlmforgeError)
    assert "it allows only excluded tokens" in str(result.exception)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--prompt", "x", "--cache-gib", "0"], "--cache-gib"),
        (["--prompt", "x", "--cache-gib", "nan"], "--cache-gib"),
        (["--prompt", "x", "--experts"], "--experts"),
        ([], "pass a file of prompts or --prompt"),
        (["in.jsonl"], "--out"),
        (["--prompt", "x", "--out", "out.jsonl"], "--out"),
        (["--prompt", "x", "--logit-bias", "7"], "'7' is not TOKEN=NUMBER"),
    ],
)
def test_wrong_options(run: Path, options: list[str], words: str) -> None:
    result = generate(run, *options)
    assert result.exit_code == 2
    assert words in result.stderr
