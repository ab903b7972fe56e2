"""Stage `rl`: a policy learns from rewards of its own answers.

Prompts are `data.sources`, files of records; held-out ones `data.held_out`, tested at `observe.evaluate_every`.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from glmforge.backend.base import Backend
from glmforge.backend.native import NativeBackend
from glmforge.checkpoint.initial_weights import load_initial_weights
from glmforge.config.rl import RlConfig
from glmforge.config.rl_models import models_beside
from glmforge.config.schema import RunConfig
from glmforge.data.tokens.model_ids import with_ids_of
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.endpoint import url_fault
from glmforge.errors import ConfigError
from glmforge.objectives.value import ValueObjective
from glmforge.observe.run import RunDirectory
from glmforge.parallel.build import build_model
from glmforge.parallel.model import ParallelModel
from glmforge.parallel.world import World
from glmforge.recipes.recipe import Recipe
from glmforge.recipes.same_run import check_same_data
from glmforge.rl.agents.environment import environment_of
from glmforge.rl.agents.sampler import ENVIRONMENT, AgentSampler
from glmforge.rl.ahead import AheadSource
from glmforge.rl.held_out import HeldOut, MakeSampler
from glmforge.rl.prompts import Prompt, Prompts, make_prompts, read_prompts
from glmforge.rl.remote import Fleet, RemoteSampler
from glmforge.rl.rewards import Rewards
from glmforge.rl.rollout import Asked
from glmforge.rl.samples import Answer
from glmforge.rl.scored import AnswerScorer
from glmforge.rl.source import METRICS, RolloutSource
from glmforge.rl.written import SampleFiles
from glmforge.training.hooks import BenchmarksHook
from glmforge.training.hooks.policy_gap import PolicyGapHook
from glmforge.training.trainer import ExtraModel, Hook


class RlRecipe(Recipe):
    """See above."""

    metric_rows = METRICS

    def __init__(self, config: RunConfig, world: World) -> None:
        self.settings, self.world = config.stage_settings(RlConfig), world
        check_settings(config, self.settings)
        self.tokenizer = Tokenizer.load(config.data.tokenizer)
        if self.tokenizer.vocab_size > config.model.vocab_size:
            raise ConfigError(
                f"model.vocab_size: {config.model.vocab_size:,} is less than the tokenizer's "
                f"{self.tokenizer.vocab_size:,} tokens; use the model's own tokenizer"
            )
        self.config = config.model_copy(update={"model": with_ids_of(config.model, self.tokenizer)})
        self.held_out = {one.name: self._read([one.path]) for one in config.data.held_out}
        self.prompts = self._read([one.path for one in config.data.sources])
        for held_out in self.held_out.values():
            self.prompts = self.prompts.without(held_out)
        self.fingerprint = {"prompts": _digest(self.prompts), "tokenizer": self.tokenizer.fingerprint}
        check_same_data(lambda: {"data.sources": self.fingerprint["prompts"]})
        self.rewards = Rewards(self.settings.rewards)
        has_environment = self.settings.agent is not None and self.settings.agent.environment is not None
        for prompts in (self.prompts, *self.held_out.values()):
            if prompts.verifier_kinds != {""} or not has_environment:  # which may give all rewards itself
                self.rewards.check(prompts)
        self._critic: NativeBackend | None = None

    def source(self, config: RunConfig, backend: Backend) -> RolloutSource:
        assert isinstance(backend, NativeBackend), "rollouts read the native backend's model"
        settings = self.settings
        beside = models_beside(config)
        frozen = {role: self._frozen(beside[role]) for role in ("reference", "reward") if role in beside}
        if "critic" in beside:
            self._critic = NativeBackend.build(beside["critic"], self.world)
        speaks = all(self.world.axis_rank(axis) == 0 for axis in ("tp", "pp", "cp"))
        written = SampleFiles(
            RunDirectory(config.output_dir).rollouts,
            self.world.data_rank if speaks else None,
            self.world.layout.data_ranks,
            self.prompt,
            self.tokenizer,
            settings.keep_samples,
        )
        kind = RolloutSource if settings.schedule.kind == "synchronous" else AheadSource
        return kind(
            config,
            settings,
            backend,
            _Order(self),
            AnswerScorer(self.rewards, self.tokenizer, self.prompt, settings.rollout.max_new_tokens),
            vocab_size=self.tokenizer.vocab_size,
            source_of=lambda number: self.prompt(number).source,
            reference=frozen.get("reference"),
            critic=None if self._critic is None else self._critic.model,
            reward_model=frozen.get("reward"),
            sampler=self._agents(self.prompt)(settings.rollout, backend.model) or self._remote_sampler(config, backend),
            write=written,
        )

    def _remote_sampler(self, config: RunConfig, backend: NativeBackend) -> RemoteSampler | None:
        if (engine := self.settings.engine) is None:
            return None
        key = "" if engine.api_key_env is None else os.environ.get(engine.api_key_env, "")
        if engine.api_key_env is not None and not key:
            raise ConfigError(f"rl.engine.api_key_env: {engine.api_key_env} is not set; set it, or leave this out")
        fleet = Fleet(engine, config, backend.model, self.tokenizer.vocab_size, key)
        return RemoteSampler(
            self.settings.rollout,
            fleet,
            stop_ids=config.model.eos_token_id,
            vocab_size=self.tokenizer.vocab_size,
            seed=config.seed,
        )

    def extra_models(self, config: RunConfig, world: World) -> Mapping[str, ExtraModel]:
        critic = self.settings.critic
        if critic is None or self._critic is None:
            return {}
        objective = ValueObjective(critic.clip)
        return {
            "critic": ExtraModel(
                config=models_beside(config)["critic"],
                backend=self._critic,
                objective=objective,
                lr_scale=critic.lr_scale,
            )
        }

    def hooks(self) -> Iterable[Hook]:
        observe, rollout = self.config.observe, self.settings.rollout
        if self.settings.max_gap is not None:
            yield PolicyGapHook(self.settings.max_gap)
        if observe.evaluate_every is not None:
            prompts = [prompt for some in self.held_out.values() for prompt in some.prompts]
            numbers = iter(range(len(prompts)))
            sets = {
                name: [Asked(next(numbers), prompt.ids) for prompt in some.prompts]
                for name, some in self.held_out.items()
            }
            asker = HeldOut(
                rollout,
                sets,
                AnswerScorer(self.rewards, self.tokenizer, prompts.__getitem__, rollout.max_new_tokens),
                num_samples=self.settings.held_out_samples,
                is_right=self.is_right,
                make_sampler=self._agents(prompts.__getitem__),
                stop_ids=self.config.model.eos_token_id,
                vocab_size=self.tokenizer.vocab_size,
                seed=self.config.seed,
            )
            yield BenchmarksHook(observe.evaluate_every, asker, from_given_weights=True)

    def is_right(self, one: Answer) -> bool:
        """Whether all verifiers and refusal terms say so; without any, whether the reward is positive. An environment
        says so by 1."""
        if ENVIRONMENT in one.terms:
            return one.terms[ENVIRONMENT] >= 1
        kinds, terms = ("verifier", "refusal"), self.settings.rewards.terms
        verified = [one.terms.get(term.label, 0.0) for term in terms if term.kind in kinds]
        return all(value >= 1 for value in verified) if verified else (one.reward or 0.0) > 0

    def prompt(self, number: int) -> Prompt:
        """The prompt with this number in the run's order, which has no end."""
        return self.prompts.at(number, self.config.seed)

    def _agents(self, prompt_of: Callable[[int], Prompt]) -> MakeSampler:
        """Makes samplers of conversations with prompts of these numbers; of single answers None."""
        agent, model = self.settings.agent, self.config.model
        about: dict[str, Any] = {"tokenizer": self.tokenizer, "stop_ids": model.eos_token_id, "seed": self.config.seed}
        about["seq_len"] = min(self.config.phases[0].seq_len, model.max_position_embeddings)
        about["record_of"] = lambda number: prompt_of(number).record()
        about["environment"] = None if agent is None or agent.program else environment_of(agent)
        return lambda config, model: None if agent is None else AgentSampler(config, agent, model, **about)

    def _read(self, paths: list[Path]) -> Prompts:
        rollout, phase = self.settings.rollout, self.config.phases[0]
        room = min(phase.seq_len, self.config.model.max_position_embeddings) - rollout.max_new_tokens
        longest = min(rollout.max_prompt_tokens, room)
        return make_prompts(read_prompts(paths), self.tokenizer, thinking=rollout.thinking, max_tokens=longest)

    def _frozen(self, config: RunConfig) -> ParallelModel:
        """A model for forward passes alone, with its weights."""
        assert config.init_from is not None, "the stage starts from weights"
        model = build_model(config, self.world)
        load_initial_weights(config.init_from, model.state_dict(), config.model, self.tokenizer.fingerprint)
        model.eval()
        return model


class _Order:
    """The prompts of a run by their number."""

    def __init__(self, recipe: RlRecipe) -> None:
        self._recipe = recipe

    def __getitem__(self, number: int) -> Asked:
        return Asked(number, self._recipe.prompt(number).ids)


def check_settings(config: RunConfig, settings: RlConfig) -> None:
    """Raise `ConfigError` for what does not go together."""
    if len(config.phases) > 1:
        raise ConfigError("phases: stage 'rl' has one phase; remove the others")
    phase, rollout = config.phases[0], settings.rollout
    if phase.batch_size % rollout.group_size:
        raise ConfigError(
            f"phases.0.batch_size: {phase.batch_size:,} answers are no multiple of rl.rollout.group_size = "
            f"{rollout.group_size}; change one of them"
        )
    room = min(phase.seq_len, config.model.max_position_embeddings)
    if rollout.max_new_tokens >= room:
        raise ConfigError(
            f"rl.rollout.max_new_tokens: {rollout.max_new_tokens:,} leaves no room for a prompt in {room:,} tokens "
            "(phases.0.seq_len, model.max_position_embeddings); lower it"
        )
    if (engine := settings.engine) is not None:
        for url in engine.urls:
            if fault := url_fault(url, "http://127.0.0.1:8100"):
                raise ConfigError(f"rl.engine.urls: {fault}")
            if engine.command is not None and urlsplit(url).port is None:
                raise ConfigError(f"rl.engine.urls: {url} has no port, which rl.engine.command needs; add one")
    if settings.engine is not None and settings.engine.kind == "glmforge" and config.lora is not None:
        raise ConfigError("rl.engine.kind: 'glmforge' does not take adapters while it serves; use 'vllm', or no engine")
    if settings.critic is not None and config.lora is not None:
        raise ConfigError("rl.critic: cannot be combined with lora; train all weights, or use another advantage.kind")


def _digest(prompts: Prompts) -> str:
    digest = hashlib.sha256()
    for one in prompts.prompts:
        digest.update(f"{one.id}\0{one.ids}\0".encode())
    return digest.hexdigest()
