"""The file that `glmforge init` writes: it loads, and fits tokenizer, text and machine."""

import shutil
from pathlib import Path

import pytest

from glmforge.config import load_config
from glmforge.data.tokens.shards import TokenShard, shard_paths
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import ConfigError, DataError
from glmforge.recipes import new_run as module
from glmforge.recipes.new_run import MAX_EPOCHS, MIN_STEPS, NewRunOptions, new_run
from helpers.tiny_data import TinyData


def options(data: TinyData, **changes: object) -> NewRunOptions:
    return NewRunOptions(Path("mine.yaml"), data.tokenizer, [data.train], **changes)  # type: ignore[arg-type]


def copy_shard(source: Path, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    for old, new in zip(shard_paths(source), shard_paths(target), strict=True):
        shutil.copy(old, new)
    return target


def test_the_model_has_the_tokenizer_s_vocabulary_and_special_ids(tiny_data: TinyData) -> None:
    made = new_run(options(tiny_data))
    tokenizer = Tokenizer.load(tiny_data.tokenizer)
    assert made.config.model.vocab_size == tokenizer.vocab_size
    assert made.config.model.eos_token_id == list(tokenizer.stop_ids)
    assert made.config.model.pad_token_id == tokenizer.end_of_text_id
    assert made.config == load_config(made.text)
    assert made.config.name == "mine"


def test_without_a_time_a_small_text_is_gone_through_a_few_times(tiny_data: TinyData) -> None:
    made = new_run(options(tiny_data))
    assert MAX_EPOCHS - 0.1 < made.num_epochs < MAX_EPOCHS + 0.1 or made.config.num_steps == MIN_STEPS


@pytest.mark.parametrize(("minutes", "seconds", "steps"), [(10, 6.0, 100), (1, 30.0, MIN_STEPS)])
def test_a_time_is_filled_with_steps_as_long_as_the_text_lasts(
    tiny_data: TinyData, monkeypatch: pytest.MonkeyPatch, minutes: float, seconds: float, steps: int
) -> None:
    monkeypatch.setattr(module, "measure_step_seconds", lambda config: seconds)
    monkeypatch.setattr(module, "MAX_EPOCHS", 1000)
    assert new_run(options(tiny_data, minutes=minutes)).config.num_steps == steps


def test_the_faster_arithmetic_is_taken(tiny_data: TinyData, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"fp32": 2.0, "bf16": 1.0}
    monkeypatch.setattr(module, "measure_step_seconds", lambda config: seconds[config.precision.compute])
    assert new_run(options(tiny_data, minutes=5)).config.precision.compute == "bf16"
    seconds["bf16"] = 3.0
    assert new_run(options(tiny_data, minutes=5)).config.precision.compute == "fp32"


def test_held_out_text_beside_the_source_is_found(tiny_data: TinyData, tmp_path: Path) -> None:
    source = copy_shard(tiny_data.train, tmp_path / "books")
    assert "held_out:" not in new_run(NewRunOptions(Path("a.yaml"), tiny_data.tokenizer, [source])).text
    beside = copy_shard(tiny_data.held_out, tmp_path / "books-held-out")
    made = new_run(NewRunOptions(Path("a.yaml"), tiny_data.tokenizer, [source]))
    assert [held.path for held in made.config.data.held_out] == [beside]
    assert made.config.observe.evaluate_every


@pytest.mark.parametrize("name", ["with space", "a: b", "#hash", "{x, y}", "'quoted\"", "null", "学 text", "- a"])
def test_any_name_and_path_comes_back_as_it_was(tiny_data: TinyData, tmp_path: Path, name: str) -> None:
    source = copy_shard(tiny_data.train, tmp_path / name / "part")
    other = copy_shard(tiny_data.train, tmp_path / "other" / "part")
    made = new_run(NewRunOptions(Path("mine.yml"), tiny_data.tokenizer, [source, other]))
    assert [s.path for s in made.config.data.sources] == [source, other]
    assert [s.name for s in made.config.data.sources] == [f"{name}_part", "other_part"]


def test_what_cannot_be_is_refused(tiny_data: TinyData, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pass only one of them"):
        new_run(options(tiny_data, minutes=1, tokens=1e6))
    with pytest.raises(ConfigError, match=r"glm45_air_106b needs many GPUs; .*choose one of demo, small_1b, tiny"):
        new_run(options(tiny_data, model="glm45_air_106b"))
    with pytest.raises(DataError, match="nothere"):
        new_run(NewRunOptions(Path("a.yaml"), tiny_data.tokenizer, [tmp_path / "nothere"]))
    with pytest.raises(DataError, match="nothere"):
        new_run(options(tiny_data, held_out=[tmp_path / "nothere"]))
    for name in ("a\nb.yaml", "a b.yaml", ".yaml", "é.yaml"):
        with pytest.raises(ConfigError, match="names the run"):
            new_run(NewRunOptions(Path(name), tiny_data.tokenizer, [tiny_data.train]))


def test_the_number_of_tokens_can_be_said(tiny_data: TinyData) -> None:
    made = new_run(options(tiny_data, tokens=1e6))
    assert 1e6 <= made.config.num_tokens < 1e6 + made.config.phases[0].tokens_per_step
    assert made.num_epochs == made.config.num_tokens / TokenShard(tiny_data.train).num_tokens
