"""Rewards composed of terms: their sum, and what becomes of a sample whose term fails."""

import importlib.util

import pytest
from pydantic import ValidationError

from glmforge.config.rewards import RewardsConfig, RewardTerm
from glmforge.errors import GlmforgeError
from glmforge.rl.prompts import Prompt, Prompts
from glmforge.rl.rewards import Rewards, ScoredText, Verdict
from glmforge.verify import reasoning_gym, sandbox

needs_sandbox = pytest.mark.skipif(not sandbox._has_sandbox(), reason="bubblewrap is not here, or may not run")


def term(kind, **fields):
    return RewardTerm(kind=kind, **fields)


def config(*terms, **fields):
    return RewardsConfig(terms=list(terms), memory_bytes=1 << 30, **fields)


def prompt(question="What is 3 + 4?", verifier={"kind": "number", "answer": "7"}, thinking=True):  # noqa: B006
    return Prompt("p", ({"role": "user", "content": question},), None, verifier, "sums", 1, thinking, (1, 2))


def sample(reply, num_tokens=10, is_cut=False, max_new_tokens=100, **fields):
    return ScoredText(prompt(**fields), reply, num_tokens, is_cut, max_new_tokens)


RIGHT = "\n<think>3 and 4.</think>\nIt is \\boxed{7}."
ALL = (
    term("verifier", weight=2.0),
    term("format", weight=0.5),
    term("language", weight=0.25),
    term("repetition", weight=0.125),
    term("length", soft_tokens=20),
    term("python", function="helpers.verifiers:count_words", options={"worth": 0.5}, name="words", weight=0.01),
    term("reward_model", name="taste", weight=-1.0),
)


def test_the_reward_is_the_weighted_sum():
    samples = [
        sample(RIGHT),
        sample("It is \\boxed{8}.", num_tokens=90, thinking=False),
        sample("七八九" * 60 + "\\boxed{7}", num_tokens=100, is_cut=True, thinking=False),
    ]
    with Rewards(config(*ALL), 2) as rewards:
        verdicts = rewards.score(samples, {"taste": [0.25, -3.0, 0.0]})
        assert not rewards.failures
    expected = [
        dict(verifier=1, format=1, language=1, repetition=1, length=0, words=0.5 * 6 + 1, taste=0.25),
        dict(verifier=0, format=1, language=1, repetition=1, length=-0.5, words=0.5 * 3 + 1, taste=-3),
        dict(verifier=1, format=0, language=0, repetition=0, length=-1, words=0.5 * 1 + 1, taste=0),
    ]
    assert [verdict.terms for verdict in verdicts] == expected
    weights = {one.label: one.weight for one in ALL}
    for verdict, terms in zip(verdicts, expected, strict=True):
        assert verdict.total == pytest.approx(sum(weights[name] * value for name, value in terms.items()), abs=1e-12)
        assert verdict.failed == ""


@pytest.mark.parametrize(
    ("function", "failed"),
    [
        ("leave_on", "bad: crash"),
        ("devour_on", "bad: crash"),
        ("hang_on", "bad: timeout"),
        ("fail_on", "bad: error: ValueError: two lines"),
        ("nan_on", "bad: not a number: nan"),
        ("none_on", "bad: not a number: None"),
    ],
)
def test_a_verifier_that_fails_costs_its_sample_and_no_other(function, failed):
    """No reward, rather than one of 0 or that of the other terms: such a sample is not trained on."""
    terms = term("verifier"), term("python", function=f"helpers.bad_rewards:{function}", name="bad")
    limits = {"timeout_s": 6.0, "program_s": 1.0} if function == "hang_on" else {"timeout_s": 120.0}
    with Rewards(config(*terms, **limits), 2) as rewards:
        first, bad, last = rewards.score([sample(RIGHT), sample(RIGHT + " bad"), sample("8")])
        assert first == Verdict(2.0, {"verifier": 1.0, "bad": 1.0})
        assert last == Verdict(1.0, {"verifier": 0.0, "bad": 1.0})
        assert bad == Verdict(None, {"verifier": 1.0}, failed)
        assert sum(rewards.failures.values()) == 1


@needs_sandbox
def test_programs_run_in_the_sandbox_and_slow_ones_are_wrong():
    tests = {"kind": "code", "tests": [{"stdin": "3", "stdout": "6"}]}
    replies = ["print(2 * int(input()))", "while True: pass", "import os; os.kill(os.getppid(), 9)"]
    with Rewards(config(term("verifier"), timeout_s=120.0, program_s=2.0), 2) as rewards:
        samples = [sample(f"```python\n{reply}\n```", verifier=tests) for reply in replies]
        assert [verdict.total for verdict in rewards.score(samples)] == [1.0, 0.0, 0.0]
        assert not rewards.failures


@needs_sandbox
@pytest.mark.skipif(not importlib.util.find_spec("reasoning_gym"), reason="needs glmforge[reasoning-gym]")
def test_a_reply_that_a_scorer_executes_does_not_leave_the_sandbox(tmp_path):
    verifier = next(reasoning_gym.records("countdown", 1, 0))["verifier"]
    mark = tmp_path / "mark"
    replies = [verifier["entry"]["answer"], f"__import__('os').system('touch {mark}') or 7"]
    for unsafe in (False, True):  # where it is allowed to, it does: the attack is real
        with Rewards(config(term("verifier"), timeout_s=120.0, unsafe_code=unsafe), 1) as rewards:
            samples = [sample(f"<think>.</think><answer>{reply}</answer>", verifier=verifier) for reply in replies]
            right, attack = rewards.score(samples)
        assert right.total == 1.0
        assert attack.total < 0.1
        assert mark.exists() is unsafe


def test_scores_from_outside_must_be_there():
    with Rewards(config(term("verifier"), term("reward_model")), 1) as rewards:
        assert [one.label for one in rewards.given_from_outside] == ["reward_model"]
        for given in (None, {"reward_model": [1.0]}, {"other": [1.0, 2.0]}):
            with pytest.raises(GlmforgeError, match="'reward_model' needs a score for each of 2"):
                rewards.score([sample(RIGHT)] * 2, given)
        _, second = rewards.score([sample(RIGHT)] * 2, {"reward_model": [1.0, float("nan")]})
        assert second.total is None
        assert "not a number" in second.failed


def test_prompts_that_cannot_be_scored_are_refused_first(monkeypatch):
    none, code = prompt(verifier=None), prompt(verifier={"kind": "code", "tests": ["pass"]})
    monkeypatch.setattr("glmforge.verify.sandbox._has_sandbox", lambda: False)
    with Rewards(config(term("verifier")), 1) as rewards:
        rewards.check(Prompts((prompt(),)))
        with pytest.raises(GlmforgeError, match="needs a verifier in every prompt"):
            rewards.check(Prompts((prompt(), none)))
        with pytest.raises(GlmforgeError, match="bubblewrap"):
            rewards.check(Prompts((prompt(), code)))
        (verdict,) = rewards.score([sample(RIGHT, verifier=None)])
        assert verdict.total is None
    with Rewards(config(term("format")), 1) as rewards:
        rewards.check(Prompts((none, code)))


@pytest.mark.parametrize(
    ("terms", "fields", "words"),
    [
        ([], {}, "at least 1"),
        ([{"kind": "verifier"}, {"kind": "verifier"}], {}, "two terms are called 'verifier'"),
        ([{"kind": "length"}], {}, "needs it"),
        ([{"kind": "length", "soft_tokens": 0}], {}, "greater than 0"),
        ([{"kind": "python"}], {}, "needs it"),
        ([{"kind": "python", "function": "module"}], {}, "pattern"),
        ([{"kind": "format", "function": "a:b"}], {}, "only terms of kind 'python'"),
        ([{"kind": "verifier", "soft_tokens": 5}], {}, "only terms of kind 'length'"),
        ([{"kind": "verifier", "weight": float("nan")}], {}, "finite"),
        ([{"kind": "taste"}], {}, "'verifier', 'format'"),
        ([{"kind": "judge"}], {}, "needs it"),
        (
            [{"kind": "format", "judge": {"url": "http://h/v1", "model": "m", "rubric": "r"}}],
            {},
            "only terms of kind 'j",
        ),
        ([{"kind": "verifier"}], {"timeout_s": 12.0}, "at least 5 s more than program_s"),
    ],
)
def test_wrong_configurations(terms, fields, words):
    with pytest.raises(ValidationError, match=words):
        RewardsConfig.model_validate({"terms": terms, **fields})
    assert [one.kind for one in RewardsConfig().terms] == ["verifier"]
