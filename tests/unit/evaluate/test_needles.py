"""Needle tests: a model that copies retrieves, one with random weights does not, and layouts agree."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from glmforge.checkpoint.convert import export_hf, load_hf_into
from glmforge.config.layout import resolve_layout
from glmforge.config.needles import NeedleTestsConfig
from glmforge.config.parallel import ParallelConfig
from glmforge.data.needles.build import NeedleKey, NeedleTests
from glmforge.data.needles.haystack import PlainHaystack
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.evaluate.needles import score_needles
from glmforge.evaluate.needles_generated import generate_needles, generate_replies
from glmforge.generate.answer import Update
from glmforge.generate.engine import Engine
from glmforge.model import GlmMoe
from glmforge.observe.metrics import Record
from glmforge.parallel.build import build_model
from glmforge.parallel.model import ParallelModel
from glmforge.parallel.world import World, join_world
from helpers.copying import copying_config, copying_model
from helpers.distributed import run_ranks
from helpers.models import randomize_, run_config, tiny_config
from helpers.tiny_data import VOCAB_SIZE, TinyData

WORLD = World.single("cpu")
LENGTHS = [256, 200]
FindNeedles = Callable[[ParallelModel, NeedleTests, list[int]], list[Record]]
OF_LAYOUTS: dict[str, Any] = {"tasks": ["single", "multi_value"], "num_examples": 3}
GENERATED: dict[str, Any] = OF_LAYOUTS | {"num_examples": 1}
"""Fewer: an answer is a step of the engine for each of its tokens."""
COPYING = copying_config(VOCAB_SIZE, max(LENGTHS))


def needles_of(tokenizer_dir: Path, **settings: Any) -> NeedleTests:
    tokenizer = Tokenizer.load(tokenizer_dir)
    given: dict[str, Any] = {"lengths": LENGTHS, "depths": [0.0, 1.0], "num_needles": 2, "num_examples": 1} | settings
    return NeedleTests(NeedleTestsConfig(**given), tokenizer, PlainHaystack(tokenizer))


def single(model: GlmMoe) -> ParallelModel:
    return ParallelModel(model.config, WORLD, ParallelConfig(), [model])


def random_model(**changes: object) -> ParallelModel:
    model = GlmMoe(tiny_config(**changes))
    randomize_(model)
    return single(model)


def without_seconds(records: list[Record]) -> list[Record]:
    return [{name: value for name, value in record.items() if name != "needle_seconds"} for record in records]


@pytest.mark.parametrize("find", [score_needles, generate_needles])
def test_a_model_that_copies_retrieves_and_another_does_not(tiny_data: TinyData, find: FindNeedles) -> None:
    tests = needles_of(tiny_data.tokenizer, depths=[0.0, 0.5, 1.0], num_examples=2)
    records = find(single(copying_model(COPYING)), tests, LENGTHS)
    assert [(one["needle_length"], one["needle_depth"]) for one in records] == [
        (length, depth) for length in sorted(LENGTHS) for depth in (0.0, 0.5, 1.0)
    ]
    # A number in which two digits come twice, such as 9721997, is ambiguous for a model that knows two tokens.
    assert sum(one["needle_accuracy"] for one in records) / len(records) > 0.7
    assert {one["needle_accuracy"] for one in find(random_model(), tests, LENGTHS)} == {0.0}


@torch.no_grad()
def test_scores_equal_the_definition(tiny_data: TinyData) -> None:
    """Every answer by itself, one text at a time. What is copied of several values is right now and then."""
    model = single(copying_model(COPYING))
    tests = needles_of(tiny_data.tokenizer, **OF_LAYOUTS)
    (part,) = model.parts
    expected: dict[tuple[str, int, float], list[tuple[bool, float, int]]] = {}
    for index in range(len(tests)):
        test = tests[index]
        logits = part(torch.tensor(test.ids)[None]).main.log_softmax(-1)
        for answer in test.answers:
            right = [logits[at - 1].argmax() == test.ids[at] for at in range(answer.start, answer.stop)]
            nll = -sum(float(logits[at - 1, test.ids[at]]) for at in range(answer.start, answer.stop))
            cell = (test.key.task, test.key.length, answer.depth)
            expected.setdefault(cell, []).append((all(right), nll, len(right)))
    records = score_needles(model, tests, LENGTHS)
    assert len(records) == len(expected) == 8
    assert any(0 < record["needle_accuracy"] < 1 for record in records)
    for record in records:
        found = expected[record["needle_task"], record["needle_length"], record["needle_depth"]]
        assert record["needle_answers"] == len(found)
        assert record["needle_accuracy"] == sum(right for right, _, _ in found) / len(found)
        # Sums of fp32 losses in another order.
        mean = sum(nll for _, nll, _ in found) / sum(num for _, _, num in found)
        assert record["needle_nll"] == pytest.approx(mean, rel=1e-5)
        assert record["needle_method"] == "scored"


def rank_find(
    find: FindNeedles, settings: dict[str, Any], parallel: dict[str, Any], tokenizer_dir: Path, model_dir: Path
) -> list[Record]:
    config = run_config(model=COPYING.model_dump(), parallel=parallel)
    with join_world(resolve_layout(config, torch.distributed.get_world_size()), timeout_s=60) as world:
        model = build_model(config, world)
        load_hf_into(model_dir, model.state_dict(), config.model)
        return find(model, needles_of(tokenizer_dir, **settings), LENGTHS)


@pytest.fixture(scope="module")
def copying_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("copying") / "model"
    model = copying_model(COPYING)
    export_hf(model.state_dict(), COPYING, directory, dtype=torch.float32)
    return directory


@pytest.mark.parametrize("parallel", [{"tp": 2}, {"cp": 2}, {"pp": 2, "micro_batch_size": 2}], ids=str)
def test_layouts_give_the_same_scores(tiny_data: TinyData, copying_dir: Path, parallel: dict[str, Any]) -> None:
    tests = needles_of(tiny_data.tokenizer, **OF_LAYOUTS)
    expected = without_seconds(score_needles(single(copying_model(COPYING)), tests, LENGTHS))
    assert len({record["needle_accuracy"] for record in expected}) > 2, "some answers right, some wrong"
    for records in run_ranks(rank_find, 2, score_needles, OF_LAYOUTS, parallel, tiny_data.tokenizer, copying_dir):
        for record, theirs in zip(without_seconds(records), expected, strict=True):
            # fp32 sums in another order.
            assert record == theirs | {"needle_nll": pytest.approx(theirs["needle_nll"], rel=1e-5, abs=1e-5)}


@pytest.mark.parametrize("parallel", [{"pp": 2, "micro_batch_size": 2}], ids=str)
def test_layouts_generate_the_same_answers(tiny_data: TinyData, copying_dir: Path, parallel: dict[str, Any]) -> None:
    tests = needles_of(tiny_data.tokenizer, **GENERATED)
    expected = without_seconds(generate_needles(single(copying_model(COPYING)), tests, LENGTHS))
    assert len({record["needle_accuracy"] for record in expected}) > 1, "some answers right, some wrong"
    for records in run_ranks(rank_find, 2, generate_needles, GENERATED, parallel, tiny_data.tokenizer, copying_dir):
        assert without_seconds(records) == expected


def test_replies_in_a_file_are_resumed(tiny_data: TinyData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tests, model, out = needles_of(tiny_data.tokenizer, **GENERATED), single(copying_model(COPYING)), tmp_path / "r"
    expected = without_seconds(generate_needles(model, tests, LENGTHS))
    step, num_steps = Engine.step, []

    def interrupted(engine: Engine) -> list[Update]:
        num_steps.append(engine)
        if len(num_steps) == 120:
            raise KeyboardInterrupt
        return step(engine)

    monkeypatch.setattr(Engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt, match=r"[1-9]\d* prompts? answered; run it again to resume"):
        generate_replies(model, tests, LENGTHS, out, source="m")
    assert not out.exists()
    records = generate_replies(model, tests, LENGTHS, out, source="m")
    assert without_seconds(records) == expected
    assert num_steps[-1].metrics.num_requests < len(tests)
    replies = [json.loads(line) for line in out.read_text().splitlines()]
    assert [one["line"] for one in replies] == list(range(len(tests)))
    right = [all(answer in one["samples"][0]["text"] for answer in one["answers"]) for one in replies]
    assert any(right)
    assert {key: replies[0][key] for key in NeedleKey._fields} == tests.keys[0]._asdict()


def test_the_model_is_as_before(tiny_data: TinyData) -> None:
    model = random_model()
    model.train()
    model.set_capacity_factor(1.25)
    score_needles(model, needles_of(tiny_data.tokenizer), LENGTHS[:1])
    generate_needles(model, needles_of(tiny_data.tokenizer), LENGTHS[:1])
    assert all(part.training for part in model.parts)
    assert {moe.experts.capacity_factor for moe in model.moe_layers().values()} == {1.25}
