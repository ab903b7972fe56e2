"""The README's walk from somebody's own text to a chat with a model of it, command by command as it stands there."""

import itertools
import re
import shlex
from pathlib import Path

import pytest

from glmforge.cli.app import main
from glmforge.config import load_config
from glmforge.recipes.demo.standard_library import standard_library_documents

README = Path(__file__).parents[2] / "README.md"
MAX_STEPS = 4  # of the hundreds that five minutes hold: what is tested is that the commands join up


def readme_commands() -> list[list[str]]:
    block = re.search(r"## Train your own\n.*?```\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    assert block is not None
    lines = [shlex.split(line, comments=True) for line in block[1].splitlines()]
    return [words for words in lines if words[0] == "glmforge"]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somebody's directory with a corpus, and steps that need not be measured."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, document in enumerate(itertools.islice(standard_library_documents(), 150)):
        (corpus / f"{number}.txt").write_text(document.text, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("glmforge.recipes.new_run.measure_step_seconds", lambda config: 1.0)
    return tmp_path


def run(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if words[1] == "train":
        steps = [f"phases.0.steps={MAX_STEPS}", "optim.warmup_steps=1", "checkpoint.every_steps=2"]
        words = [*words, *steps, "observe.evaluate_every=2", "observe.evaluate_tokens=512"]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code, f"{shlex.join(words)}: {ended.value.code}"


def test_every_command_of_the_walk_follows_from_the_one_before(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = readme_commands()
    assert [words[1] for words in commands] == ["data", "data", "init", "train", "chat"]
    for words in commands:
        capsys.readouterr()
        run(words, monkeypatch)
    assert capsys.readouterr().out.startswith("Once upon a time")
    config = load_config(directory / "my_run.yaml")
    assert config.model.vocab_size == 4096
    assert [source.path for source in config.data.held_out] == [Path("data/train-held-out")]
    assert (directory / "runs/my_run/evaluation.jsonl").is_file()
