"""Problems as prompts of reinforcement learning: the demonstration's first reply earns the whole reward."""

import importlib.util
import json

import pytest

from glmforge.data.tokens.bpe import train_tokenizer
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import DataError
from glmforge.extras import MissingPackageError
from glmforge.rl.prompts import make_prompts, read_prompts
from glmforge.verify.reward import reward
from glmforge_corpus.synthesise.generate import FAMILIES, make_problem
from glmforge_corpus.synthesise.reasoning_gym import make_reasoning_gym

has_gym = importlib.util.find_spec("reasoning_gym") is not None


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    questions = [make_problem(0, family, 1, index).draft.question for family in FAMILIES for index in range(3)]
    train_tokenizer(questions, 400, directory)
    return Tokenizer.load(directory)


def test_the_first_reply_of_every_family_earns_its_reward(tokenizer):
    records = [make_problem(3, family, level, 0).record() for family in FAMILIES for level in (1, 3, 4, 5)]
    prompts = make_prompts([(f"made:{n}", record) for n, record in enumerate(records)], tokenizer)
    assert [prompt.id for prompt in prompts.prompts] == [record["id"] for record in records]
    for prompt, record in zip(prompts.prompts, records, strict=True):
        asked = len(prompt.messages)
        assert prompt.messages[-1]["role"] == "user"
        messages = record["messages"][: asked + 1]
        text = tokenizer.decode(tokenizer.apply_chat_template(messages, record.get("tools")))
        reply = text.rpartition("<|assistant|>")[2]
        assert reward(prompt.verifier, reply) == 1.0, (record["id"], reply)


@pytest.mark.skipif(not has_gym, reason="needs glmforge[reasoning-gym]")
def test_a_directory_of_reasoning_gym(tokenizer, tmp_path):
    families = ["basic_arithmetic", "countdown"]
    report = make_reasoning_gym(families, 5, tmp_path, seed=3)
    assert report["written"] == 5
    path = tmp_path / "messages" / "00000.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["verifier"]["dataset"] for line in lines] == ["basic_arithmetic"] * 3 + ["countdown"] * 2
    prompts = make_prompts(read_prompts([tmp_path / "messages"]), tokenizer)
    for prompt in prompts.prompts:
        answer = prompt.verifier["entry"]["answer"]
        assert reward(prompt.verifier, f"<think>.</think><answer>{answer}</answer>", unsafe_code=True) == 1.0
    path.unlink()
    assert make_reasoning_gym(families, 5, tmp_path, seed=3) == report
    assert not path.exists(), "done before"
    with pytest.raises(DataError, match="--redo"):
        make_reasoning_gym(families, 5, tmp_path, seed=4)
    make_reasoning_gym(families, 5, tmp_path, seed=4, redo=True)
    assert path.exists()


@pytest.mark.skipif(has_gym, reason="for machines without reasoning-gym")
def test_the_extra_is_named(tmp_path):
    with pytest.raises(MissingPackageError, match="reasoning"):
        make_reasoning_gym(["countdown"], 1, tmp_path)
