"""Rollouts in one process: what is sampled, kept, dropped, continued, and resumed."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from glmforge.backend.native import NativeBackend
from glmforge.parallel.world import World
from glmforge.rl.rollout import MAX_WAIT
from glmforge.rl.samples import Answer, from_bytes
from glmforge.rl.source import RolloutSource
from glmforge.training.source import StepInput
from glmforge.training.trainer import Trainer
from helpers.critic import critic_config
from helpers.rollouts import config_of, score, settings_of, source_of


def new_source(settings: dict[str, Any], *, steps: int = 6, **other: Any) -> RolloutSource:
    config = config_of({}, steps=steps, optimizer="adamw")
    return source_of(config, settings_of(**settings), World.single(), **other)


def trained(source: RolloutSource, num_steps: int) -> list[StepInput]:
    """The inputs of so many steps, each trained on."""
    trainer, given = Trainer(source.config, source.backend, source), []
    for _ in range(num_steps):
        one = source.next()
        assert one is not None
        given.append(one)
        trainer.step(one)
    return given


def same(one: StepInput, other: StepInput) -> bool:
    names = one.batch.per_token.keys() == other.batch.per_token.keys()
    tensors = [(one.batch.ids_BS, other.batch.ids_BS), (one.batch.labels_BS, other.batch.labels_BS)]
    tensors += [(one.batch.per_token[name], other.batch.per_token[name]) for name in one.batch.per_token]
    return names and all(torch.equal(a, b) for a, b in tensors) and (one.lr, one.position) == (other.lr, other.position)


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "several steps": {"steps_per_rollout": 3},
    "partial": {"rollout": {"partial": True, "over_sampling": 2.0, "max_sequences": 7}},
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("stop", [1, 2])
def test_a_resumed_run_goes_on_with_the_same_answers(name: str, stop: int) -> None:
    whole = trained(new_source(SETTINGS[name]), 4)
    first = new_source(SETTINGS[name])
    trained(first, stop)
    second = new_source(SETTINGS[name])
    for own, theirs in zip(
        second.backend.state_tensors().values(), first.backend.state_tensors().values(), strict=True
    ):
        own.copy_(theirs)
    second.load_state_files([first.state_files()])
    second.load_state_dict(first.state_dict(), first.position)
    for one, other in zip(trained(second, 4 - stop), whole[stop:], strict=True):
        assert same(one, other)


def all_different(answers: Sequence[Answer], scores: Sequence[float] | None = None) -> list[Answer]:
    return [one.changed(reward=float(one.sample)) for one in answers]


def test_every_prompt_is_trained_on_once_or_dropped() -> None:
    """Also those that were over-sampled, or stopped in the middle."""
    seen: list[Answer] = []
    source = new_source(SETTINGS["partial"], score=all_different, write=lambda step, answers: seen.extend(answers))
    trained(source, 5)
    keys = [one.key for one in seen]
    assert len(keys) == len(set(keys)) == 5 * 16
    left = [*source._waiting, *source._unfinished]
    everything = sorted({one.prompt for one in [*seen, *left]})
    assert everything == list(range(source._next_prompt))
    assert any(len(set(one.versions_N.tolist())) > 1 for one in seen), "some answer went on under other weights"
    for one in seen:
        assert len(one.tokens_N) == len(one.logprobs_N) == len(one.versions_N) <= 10
        assert one.experts is not None
        assert len(one.experts) == one.num_tokens - 1
        assert (np.diff(one.versions_N) >= 0).all()


def equal_for_even_prompts(answers: Sequence[Answer], scores: Sequence[float] | None = None) -> list[Answer]:
    return [one.changed(reward=1.0) if one.prompt % 2 == 0 else one for one in score(answers)]


def test_groups_without_a_spread_are_dropped_and_others_sampled() -> None:
    seen: list[Answer] = []
    source = new_source({}, score=equal_for_even_prompts, write=lambda step, answers: seen.extend(answers))
    trained(source, 2)
    assert {one.prompt for one in seen} == {1, 3, 5, 7, 9, 11, 13, 15}
    assert source.metrics()["equal_share"] == pytest.approx(0.5, abs=0.1)
    kept = new_source({"rollout": {"drop_equal": False}}, score=equal_for_even_prompts)
    (one,) = trained(kept, 1)
    assert kept._next_prompt == 4
    assert (one.batch.per_token["advantage"] == 0).any()


@pytest.mark.parametrize("settings", [{}, {"steps_per_rollout": 2}, {"advantage": {"kind": "gae"}, "critic": {}}])
def test_a_step_without_anything_to_learn_from_leaves_the_weights_as_they_are(settings: dict[str, Any]) -> None:
    def equal_later(answers: Sequence[Answer], scores: Sequence[float] | None = None) -> list[Answer]:
        return [one.changed(reward=-1.0) if one.prompt >= 8 else one for one in all_different(answers)]

    models = {}
    if "critic" in settings:
        config = critic_config(config_of({}, optimizer="adamw"))
        models["critic"] = NativeBackend.build(config, World.single()).model
    source = new_source({"rollout": {"max_rounds": 2}} | settings, score=equal_later, **models)
    trained(source, 2)  # Adam has momentum
    assert source.metrics()["skipped_steps"] == 0
    before = {name: weights.clone() for name, weights in source.backend.weights().items()}
    one, _ = trained(source, 2)
    assert (one.lr, (one.batch.labels_BS >= 0).any()) == (0.0, False)
    assert source.metrics()["skipped_steps"] == 1
    assert all(torch.equal(weights, before[name]) for name, weights in source.backend.weights().items())
    assert source.position.samples == {"rl": 4 * 16}


def test_with_too_few_groups_a_step_is_taken_on_those_found() -> None:
    def some_differ(answers: Sequence[Answer], scores: Sequence[float] | None = None) -> list[Answer]:
        return [one if one.prompt in (1, 6) else one.changed(reward=-1.0) for one in all_different(answers)]

    seen: list[Answer] = []
    source = new_source(
        {"rollout": {"max_rounds": 2}}, score=some_differ, write=lambda step, answers: seen.extend(answers)
    )
    (given,) = trained(source, 1)
    assert {one.prompt for one in seen} == {1, 6}
    assert given.lr > 0
    found = source.metrics()
    assert (found["missing_groups"], found["skipped_steps"], found["equal_share"]) == (2, 0, 5 / 7)
    assert found["reward"] == pytest.approx(1.5)
    assert found["reward_sampled"] == pytest.approx((2 * 1.5 - 5) / 7), "of four groups, and three more"


def test_no_unfinished_answer_waits_for_ever() -> None:
    """With one place at a time the engine finishes what it begins with."""
    oldest: list[int] = []
    source = new_source(
        {"rollout": {"partial": True, "over_sampling": 4.0, "max_sequences": 2}},
        steps=12,
        score=all_different,
        write=lambda step, answers: oldest.append(max(step - 1 - one.begun for one in answers)),
    )
    for _ in range(12):
        trained(source, 1)
        waiting = [source._num_steps - one.begun for one in source._unfinished]
        assert max(waiting, default=0) <= MAX_WAIT
    assert max(oldest) > 0, "some went on later"


def test_an_old_group_is_waited_for() -> None:
    """Groups of fresh prompts would be enough."""
    source = new_source({}, score=all_different)
    sampler, prompts = source.sampler, source.prompts
    with source.backend.evaluating():
        begun = sampler.sample([prompts[0]], version=0, enough=1)
        cut = [one.changed(tokens_N=one.tokens_N[:1], logprobs_N=one.logprobs_N[:1], versions_N=one.versions_N[:1],
                           experts=None, finished="") for one in begun]  # fmt: skip
        asked = [prompts[number] for number in range(1, 4)]
        for begun_before, is_awaited in ((1, True), (0, False)):
            found = sampler.sample(asked, cut, version=5, enough=0, begun_before=begun_before)
            assert all(one.finished for one in found if one.prompt == 0) is is_awaited


def test_the_cache_has_the_size_of_what_is_sampled() -> None:
    sizes: list[int] = []
    source = new_source({"rollout": {"cache_bytes": 1 << 28}})
    runner = source.sampler.runner
    allocate = runner.allocate
    runner.allocate = lambda pages, size: (sizes.append(pages), allocate(pages, size))[1]  # type: ignore[method-assign]
    source.next()
    assert sizes[0] == 4 + 16 * 1 + 1, "a page of each prompt, and of each of 16 answers"


@pytest.mark.parametrize("kind", ["dr_grpo", "reinforce++"])
def test_an_answer_whose_verifier_failed_is_not_trained_on(kind: str) -> None:
    def failing(answers: Sequence[Answer], scores: Sequence[float] | None = None) -> list[Answer]:
        return [
            one.changed(reward=None, failed="timeout") if one.sample == 0 and one.prompt == 1 else one
            for one in score(answers)
        ]

    seen: list[Answer] = []
    source = new_source({"advantage": {"kind": kind}}, score=failing, write=lambda step, answers: seen.extend(answers))
    (given,) = trained(source, 1)
    assert (1, 0) not in [one.key for one in seen]
    assert len(seen) == 15
    assert source.metrics()["failed_answers"] == 1
    (advantages,) = {one.key: one.advantages_N for one in seen if one.key == (1, 1)}.values()
    rewards = [one.reward for one in seen if one.prompt == 1]
    if kind == "dr_grpo":
        assert advantages[0] == pytest.approx(rewards[0] - sum(rewards) / 3, abs=1e-6)
    assert math.isfinite(given.lr)


def test_state_is_kept_as_files_that_hold_answers() -> None:
    source = new_source({"steps_per_rollout": 3})
    trained(source, 1)
    files = source.state_files()
    assert sorted(files) == ["step-0.npz", "step-1.npz", "unfinished.npz", "waiting.npz"]
    assert [len(from_bytes(files[f"step-{number}.npz"])) for number in (0, 1)] == [16, 16]
    assert from_bytes(files["step-0.npz"])[0].old_N is not None


def test_many_steps_of_a_rollout_keep_their_order() -> None:
    source = new_source({"steps_per_rollout": 12}, steps=13)
    trained(source, 1)
    other = new_source({"steps_per_rollout": 12}, steps=13)
    other.load_state_files([source.state_files()])
    assert [some[0].prompt for some in other._steps] == [some[0].prompt for some in source._steps]
