"""Conversations with the engine of a small model: what is recorded is what is trained on."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from glmforge.config.optimizers import OPTIMIZERS
from glmforge.data.stream.batch import IGNORED_LABEL
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import GlmforgeError
from glmforge.observe.alive import quiet
from glmforge.parallel.world import World
from glmforge.rl.models import with_advantages
from glmforge.rl.rollout import Asked
from glmforge.rl.samples import Answer, by_group, from_bytes, to_bytes
from glmforge.rl.scored import AnswerScorer
from glmforge.rl.source import RolloutSource
from glmforge.training.trainer import Trainer
from helpers.agents import STOP_IDS, agents_of
from helpers.sgd import SGD
from helpers.tiny_data import TinyData

Make = Callable[..., RolloutSource]
ASKED = [Asked(0, [1]), Asked(1, [1])]


@pytest.fixture
def make(tiny_data: TinyData, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setitem(OPTIMIZERS, "sgd", SGD)
    return lambda agent=None, **changes: agents_of(World.single(), tiny_data.tokenizer, {}, agent, **changes)


def sampled(source: RolloutSource) -> list[Answer]:
    with source.backend.evaluating():
        return source.sampler.sample(ASKED, version=0)


def of_environment(**options: Any) -> dict[str, Any]:
    return {"environment": "helpers.agents:Rounds", "options": options}


def test_log_probabilities_and_experts_of_all_turns_are_the_trainers(make: Make, tiny_data: TinyData) -> None:
    source = make()
    answers = sampled(source)
    assert [one.key for one in answers] == [(number, sample) for number in (0, 1) for sample in range(4)]
    long = [one for one in answers if one.finished == "stop" and one.reward]
    assert len(long) > 2, "some conversations have all turns"
    tokenizer = Tokenizer.load(tiny_data.tokenizer)
    rows, batch = source.models.batch(
        [one.changed(advantages_N=np.ones(len(one.tokens_N), np.float32)) for one in answers]
    )
    with source.backend.evaluating():
        found = source.models._logprobs(source.backend.model, batch, rows, quiet)
    assert sum(int((row != IGNORED_LABEL).sum()) for row in batch.labels_BS) == sum(
        int(one.own_N.sum()) for one in answers
    )
    for one in answers:
        own_N = one.own_N
        assert one.experts is not None
        assert one.experts.shape == (one.num_tokens - 1, 3, 2)
        # fp32: prefill and decoding sum in another order
        assert np.abs(found[one.key] - one.logprobs_N)[own_N].max() < 1e-4
        assert not found[one.key][~own_N].any()
        assert not one.logprobs_N[~own_N].any()
    for one in long:
        said = tokenizer.decode(one.tokens_N[~one.own_N].tolist())
        assert said.count("2 more/nothink<|assistant|>\n<think></think>") == 1
        assert said.count("1 more/nothink<|assistant|>\n<think></think>") == 1
        assert all(int(token) in STOP_IDS for token in one.tokens_N[:-1][one.own_N[:-1] & ~one.own_N[1:]])


def test_sampling_again_gives_the_same_conversations(make: Make) -> None:
    source = make()
    for one, other in zip(sampled(source), sampled(source), strict=True):
        assert one.tokens_N.tolist() == other.tokens_N.tolist()
        assert one.logprobs_N == pytest.approx(other.logprobs_N, abs=1e-5)


@pytest.mark.parametrize(
    ("fault", "reward", "failed"),
    [("malformed", 0.0, ""), ("raises", None, "environment: RuntimeError: what is it?")],
)
def test_an_environment_that_fails_is_no_reward_and_a_malformed_reply_is_0(
    make: Make, fault: str, reward: float | None, failed: str
) -> None:
    answers = sampled(make(of_environment(fault=fault)))
    first, second = by_group(answers).values()
    ended = {(one.reward, one.failed) for one in second}
    assert (reward, failed) in ended
    assert ended <= {(reward, failed), (0.0, "")}, "an empty reply is malformed"
    assert not any(one.failed for one in first)
    assert any(one.reward for one in first)
    assert len(with_advantages(second, "grpo")) == 4 - sum(bool(one.failed) for one in second)


def test_a_conversation_without_room_is_cut_behind_a_reply(make: Make) -> None:
    for one in sampled(make(of_environment(fault="long"))):
        assert one.own_N.all(), "what does not fit is not there"
        assert one.reward == 0
        assert one.is_cut or len(one.tokens_N) == 1


def test_an_opening_that_is_too_long_is_one_line(make: Make) -> None:
    with pytest.raises(GlmforgeError, match=r"prompt 0: opens with \d+ tokens.*raise phases.0.seq_len"):
        sampled(make(rollout={"max_new_tokens": 150}))


def test_two_steps_are_trained_and_kept_in_checkpoints(make: Make) -> None:
    source = make()
    trainer = Trainer(source.config, source.backend, source)
    trainer.fit()
    assert source.position.samples["rl"] == 32
    answers = sampled(source)
    again = from_bytes(to_bytes([one.changed(episode=3) for one in answers]))
    assert {one.owner for one in again} == {(0, 3), (1, 3)}
    assert [one.own_N.tolist() for one in again] == [one.own_N.tolist() for one in answers]


PROGRAM = """
import json, os, sys, urllib.request
record = json.load(sys.stdin)
def say(text):
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 8, "thinking": {"type": "disabled"}}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode())) as answer:
        return json.load(answer)["choices"][0]["message"]
say("first")
say("second")
sys.exit(record["number"])
"""


def test_a_programs_conversations_share_reward_and_advantage(make: Make) -> None:
    source = make({"program": [sys.executable, "-c", PROGRAM]}, rollout={"max_sequences": 2, "group_size": 2})
    done, failed = by_group(sampled(source)).values()
    assert [(one.sample, one.episode) for one in done] == [(0, None), (1, None), (2, 0), (3, 1)]
    assert all(one.failed.startswith("environment: CalledProcessError") and one.reward is None for one in failed)

    class LastOnly(AnswerScorer):
        """Judges the second part alone: by its sample."""

        def _judged(self, answers: Any, scores: Any) -> list[Answer]:
            return [one.changed(reward=float(one.sample), terms={"verifier": 1.0}) for one in answers]

    scorer = LastOnly(None, None, lambda number: None, 1)  # type: ignore[arg-type]
    rewarded = scorer([*done, *failed])
    assert [one.reward for one in rewarded] == [2.0, 3.0, 2.0, 3.0, None, None]
    found = with_advantages(rewarded[:4], "dr_grpo")
    assert [one.advantages_N[0] for one in found if one.advantages_N is not None] == [-0.5, 0.5, -0.5, 0.5]
    assert [one.failed for one in rewarded[4:]] == [one.failed for one in failed]


@pytest.mark.parametrize("kind", ["grpo", "reinforce++"])
def test_what_an_environment_said_changes_no_advantage(make: Make, kind: str) -> None:
    source = make(advantage={"kind": kind, "gamma": 0.9})
    own = np.array([True, True, False, False, True])

    def answer(sample: int, own_N: Any) -> Answer:
        number = len(own_N)
        zeros = np.zeros(number, np.float32)
        return Answer(
            0, sample, np.array([1], np.int32), np.arange(number, dtype=np.int32), zeros, np.zeros(number, np.int32),
            reward=float(sample), trained_N=own_N,
        )  # fmt: skip

    for masks in ([own, own], [np.ones(3, bool), np.ones(3, bool)]):
        answers = with_advantages([answer(sample, own_N) for sample, own_N in enumerate(masks)], kind)
        if kind == "reinforce++":
            rows, batch = source.models.batch(answers)
            answers = source.models._advantages_of_tokens(answers, batch, rows, quiet)
        of_own = [one.advantages_N[one.own_N].tolist() for one in answers if one.advantages_N is not None]
        assert all(not one.advantages_N[~one.own_N].any() for one in answers if one.advantages_N is not None)
        if masks[0] is own:
            expected = of_own
    assert of_own == expected
    assert of_own[0] != of_own[1]
    assert torch.tensor(of_own).shape == (2, 3)
