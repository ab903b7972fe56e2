"""A run of stage sft answers prompts of its held-out conversations at every evaluation."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from glmforge.checkpoint.convert import export_hf
from glmforge.config.parameters import parameter_table
from glmforge.config.schema import RunConfig
from glmforge.data.chat_template.template import render
from glmforge.data.tokens.special import ASSISTANT
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import ConfigError
from glmforge.evaluate import samples
from glmforge.generate.answer import Sample
from glmforge.model import GlmMoe
from glmforge.model.init import initialize
from glmforge.observe.record_files import read_jsonl
from glmforge.recipes.train import train
from glmforge.report.report import write_report
from helpers.distributed import run_ranks
from helpers.models import randomize_, tiny_config
from helpers.tiny_data import TinyData

CALL = {"function": {"name": "sum", "arguments": {"a": 1, "b": "x"}}}
ANSWERS: list[dict[str, Any]] = [
    {"role": "assistant", "content": "<b>Yes</b>"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "assistant", "content": "No.", "reasoning_content": "Is it?"},
]
HELD_OUT = [[{"role": "user", "content": f"Is {number} it?"}, answer] for number, answer in enumerate(ANSWERS)]
HELD_OUT[0] = [*HELD_OUT[1], {"role": "tool", "content": "2"}, ANSWERS[0]]


@pytest.fixture
def config(tiny_data: TinyData, tmp_path: Path) -> RunConfig:
    """Two evaluations; the last held-out conversation leaves no room for an answer."""
    model = GlmMoe(tiny_config())
    randomize_(model)
    export_hf(model.state_dict(), tiny_config(), tmp_path / "published", dtype=torch.float32)
    too_long = [{"role": "user", "content": "How? " * 200}, ANSWERS[0]]
    for name, conversations in (("train", HELD_OUT[1:] * 8), ("chat", [*HELD_OUT, too_long])):
        lines = [json.dumps({"messages": messages}) + "\n" for messages in conversations]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    return tiny_data.run_config(
        tmp_path / "run",
        stage="sft",
        init_from=str(tmp_path / "published"),
        data={
            "tokenizer": str(tiny_data.tokenizer),
            "sources": [{"name": "train", "path": str(tmp_path / "train.jsonl")}],
            "held_out": [
                {"name": "text", "path": str(tiny_data.held_out)},
                {"name": "chat", "path": str(tmp_path / "chat.jsonl"), "chat": {"max_tokens": 5000}},
            ],
        },
        phases=[{"name": "main", "seq_len": 128, "batch_size": 4, "steps": 4}],
        observe={
            "progress": False,
            "tensorboard": False,
            "evaluate_every": 2,
            "evaluate_tokens": 500,
            "samples": {"held_out": 4, "max_new_tokens": 12},
        },
    )


def changed(config: RunConfig, **sections: Any) -> RunConfig:
    return RunConfig.model_validate(config.model_dump(exclude_unset=True) | sections)


def test_the_last_answer_of_held_out_conversations_is_asked_for(config: RunConfig, caplog: Any) -> None:
    train(config)
    root = config.output_dir
    records = read_jsonl(root / "samples.jsonl")
    assert [record["step"] for record in records] == [2, 2, 2, 4, 4, 4]
    assert "1 of 4 prompts of chat are skipped" in caplog.text
    for record, messages in zip(records, HELD_OUT * 2, strict=True):
        thinking = messages[-1] is ANSWERS[2]
        prompt = render(messages[:-1], add_generation_prompt=True, thinking=thinking)
        assert record["source"] == "chat"
        assert record["prompt"] == prompt
        whole = render(messages, thinking=thinking)
        assert record["reference"] == whole[len(prompt) :] != ""
        assert record["new_tokens"] <= 12
    counted = [record for record in read_jsonl(root / "evaluation.jsonl") if "num_answers" in record]
    assert [(record["step"], record["source"], record["num_answers"]) for record in counted] == [
        (2, "chat", 3), (4, "chat", 3)
    ]  # fmt: skip
    for record in counted:
        own = [text for text in records if text["step"] == record["step"]]
        assert record["stopped"] == sum(text["finished"] == "stop" for text in own) / 3
        assert record["well_formed"] == sum(text["malformed"] == "" for text in own) / 3
    for record in read_jsonl(root / "metrics.jsonl"):
        assert 0 < record["trained_tokens"] < 0.7 * 4 * 128, "the others are the user's, the tool's and filling"
        assert record["tokens"] == record["step"] * 4 * 128, "all count as processed"
        assert record["tokens_per_second"] * record["step_seconds"] == pytest.approx(4 * 128)
    page = write_report(root).read_text(encoding="utf-8")
    assert page.count("&lt;b&gt;Yes&lt;/b&gt;") == 1, "the first reference, escaped once"
    assert page.count("At earlier evaluations") == 3
    assert "Stopped" in page


@pytest.mark.parametrize(
    ("change", "stopped", "problem"),
    [
        (lambda tokens, stop, role: [*tokens, stop], 1.0, ""),
        (lambda tokens, stop, role: tokens, 0.0, ""),
        (lambda tokens, stop, role: [*tokens, role, stop], 1.0, f"holds {ASSISTANT}"),
        (lambda tokens, stop, role: [*tokens, *tokens, stop], 1.0, None),
    ],
)
def test_form_and_end_of_answers_are_counted(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, change: Any, stopped: float, problem: str | None
) -> None:
    """Of a model that repeats the references: as they are, unended, with a role token inside, twice over."""
    tokenizer = Tokenizer.load(config.data.tokenizer)
    stop, role = tokenizer.stop_ids[0], tokenizer.special_id(ASSISTANT)
    references = []
    for messages in HELD_OUT:
        thinking = messages[-1] is ANSWERS[2]
        prompt = render(messages[:-1], add_generation_prompt=True, thinking=thinking)
        references.append(tokenizer.encode_with_special_tokens(render(messages, thinking=thinking)[len(prompt) :]))

    def generate(engine: Any, prompts: Any, params: Any, alive: Any) -> list[list[Sample]]:
        answers = [change(reference, stop, role) for reference in references]
        return [[Sample(tokens, "stop" if tokens[-1] == stop else "length")] for tokens in answers]

    monkeypatch.setattr(samples.Engine, "generate", generate)
    phase = config.phases[0].model_dump(exclude_unset=True) | {"steps": 2}
    train(changed(config, phases=[phase]))
    records = read_jsonl(config.output_dir / "samples.jsonl")
    (counted,) = [r for r in read_jsonl(config.output_dir / "evaluation.jsonl") if "num_answers" in r]
    assert counted["stopped"] == stopped
    if problem is not None:
        assert [record["malformed"] for record in records] == [problem] * 3
        assert counted["well_formed"] == float(problem == "")
    else:
        assert [bool(record["malformed"]) for record in records] == [False, False, True], "two thoughts"
        assert counted["well_formed"] == 2 / 3
    if change(references[0], stop, role)[:-1] == references[0]:
        assert [record["completion"] for record in records] == [record["reference"] for record in records]


def test_a_model_learns_to_answer_in_form_and_to_stop(config: RunConfig, tmp_path: Path) -> None:
    """Forty steps on two kinds of question, one of which is answered by a tool call; held-out questions are like
    those of training."""
    untrained = GlmMoe(tiny_config())
    initialize(untrained, parameter_table(tiny_config()), seed=0, std=0.02)
    export_hf(untrained.state_dict(), tiny_config(), tmp_path / "untrained", dtype=torch.float32)
    draw = random.Random(0)
    for name, number in (("train", 400), ("chat", 12)):
        lines = [json.dumps({"messages": _question_and_answer(draw)}) + "\n" for _ in range(number)]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    asked = {"held_out": 12, "max_new_tokens": 64, "temperature": 0}
    observe = config.observe.model_dump(exclude_unset=True) | {"evaluate_every": 40, "samples": asked}
    phase = {"name": "main", "seq_len": 128, "batch_size": 8, "steps": 40}
    train(changed(config, init_from=str(tmp_path / "untrained"), phases=[phase], observe=observe))
    _, loss, counted = read_jsonl(config.output_dir / "evaluation.jsonl")
    assert loss["accuracy"] > 0.95
    assert (counted["num_answers"], counted["stopped"], counted["well_formed"]) == (12, 1.0, 1.0)
    records = read_jsonl(config.output_dir / "samples.jsonl")
    assert {"<tool_call>" in record["completion"] for record in records} == {True, False}
    assert sum(record["completion"] == record["reference"] for record in records) >= 10


def _question_and_answer(draw: random.Random) -> list[dict[str, Any]]:
    a, b = draw.randint(0, 9), draw.randint(0, 9)
    if draw.random() < 0.5:
        call = {"function": {"name": "sum", "arguments": {"a": a, "b": b}}}
        return [{"role": "user", "content": f"call sum {a} {b}"}, ANSWERS[1] | {"tool_calls": [call]}]
    return [{"role": "user", "content": f"say {a}"}, {"role": "assistant", "content": f"It is {a}."}]


def rank_train(config: RunConfig) -> None:
    torch.set_num_threads(1)
    train(config)


def test_every_layout_writes_the_same_answers(config: RunConfig, tmp_path: Path) -> None:
    greedy = {"held_out": 4, "max_new_tokens": 12, "temperature": 0}
    found = []
    for name, num_ranks, parallel in (("one", 1, {}), ("two", 2, {"tp": 2})):
        observe = config.observe.model_dump(exclude_unset=True) | {"samples": greedy}
        own = changed(config, parallel=parallel, output_dir=tmp_path / name, observe=observe)
        run_ranks(rank_train, num_ranks, own, init_group=False)
        names = ("prompt", "completion", "reference", "finished", "malformed")
        found.append([{key: one[key] for key in names} for one in read_jsonl(tmp_path / name / "samples.jsonl")])
    assert found[0] == found[1]


def test_where_nothing_is_conversations_the_run_is_refused(config: RunConfig, tiny_data: TinyData) -> None:
    text = {"name": "text", "path": str(tiny_data.held_out)}
    data = config.data.model_dump(exclude_unset=True) | {"held_out": [text]}
    with pytest.raises(ConfigError, match=r"held_out: data.held_out has no conversation source"):
        train(changed(config, data=data))
    assert not (config.output_dir / "metrics.jsonl").exists()
