"""Answers of a policy, sampled and rewarded as in a run of stage rl, but not trained on.

`try_out` shows before a run what its rewards make of the first answers. `write_conversations` keeps answers for
supervised fine-tuning: with those alone that all verifiers accept, this is rejection sampling. `write_prompts` keeps
prompts of a difficulty, for a curriculum.
"""

import json
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glmforge.adapt.begin import begin_adapters
from glmforge.backend.native import NativeBackend
from glmforge.checkpoint.find import find_checkpoint
from glmforge.checkpoint.initial_weights import check_initial_weights, load_initial_weights
from glmforge.config.adapters import is_adapter
from glmforge.config.rl import AdvantageConfig, RlConfig
from glmforge.config.rl_schedule import ScheduleConfig
from glmforge.config.schema import RunConfig
from glmforge.data.files import discard_partial, disk_errors, open_partial, publish, refuse_unwritable
from glmforge.data.tokens.special import CONTROL_TOKENS
from glmforge.errors import ConfigError, GlmforgeError
from glmforge.parallel.world import default_device, join_world
from glmforge.recipes.fit import layout_at_hand
from glmforge.recipes.rl import RlRecipe
from glmforge.rl.advantages import has_spread
from glmforge.rl.models import rewards_of
from glmforge.rl.prompts import Prompt
from glmforge.rl.samples import Answer, by_group
from glmforge.rl.scored import reply_text
from glmforge.runtime.launch import LaunchEnvironment
from glmforge.verify.reply import MalformedReply, parse_reply, reply_message


@dataclass(frozen=True)
class Group:
    """A prompt and its answers, with what they say."""

    prompt: Prompt
    answers: Sequence[Answer]
    replies: Sequence[str]

    @property
    def has_spread(self) -> bool:
        """Whether there is something to learn from it."""
        return has_spread(rewards_of(self.answers))


@dataclass
class Counts:
    """What was sampled."""

    num_tokens: int = 0
    seconds: float = 0.0
    verdicts: Counter[str] = field(default_factory=Counter)

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds if self.seconds else 0.0


class AnsweringPolicy:
    """Samples and rewards answers to the prompts of a run. All ranks make and use it together."""

    def __init__(self, config: RunConfig, recipe: RlRecipe, num_samples: int) -> None:
        rollout = recipe.settings.rollout.model_copy(update={"group_size": num_samples, "replay": False})
        unneeded: dict[str, Any] = {"kl": None, "critic": None, "engine": None}
        unneeded |= {"advantage": AdvantageConfig(), "schedule": ScheduleConfig()}
        recipe.settings = recipe.settings.model_copy(update={"rollout": rollout, **unneeded})
        backend = recipe.backend(recipe.config, recipe.world)
        assert isinstance(backend, NativeBackend), "the stage's backend"
        _load(config, backend, recipe)
        self.recipe, self.counts = recipe, Counts()
        self._source = recipe.source(recipe.config, backend)

    @property
    def is_main(self) -> bool:
        return self.recipe.world.is_main

    def ask(self, numbers: Sequence[int]) -> list[Group]:
        """The answers to these prompts of the run's order, on all ranks. Collective."""
        answers, seconds = self._source.answers_to(numbers)
        self.counts.seconds += seconds
        self.counts.num_tokens += sum(len(one.tokens_N) for one in answers)
        return [
            Group(self.recipe.prompt(number), some, [reply_text(one, self.recipe.tokenizer) for one in some])
            for number, some in by_group(answers).items()
        ]

    def ask_all(self, advance: Callable[[int, int], None]) -> Iterator[Group]:
        """The answers to every prompt; `advance` is called with how many are done, and how many there are."""
        total = len(self.recipe.prompts)
        at_once = self.recipe.settings.rollout.max_sequences * LaunchEnvironment.read().world_size
        for first in range(0, total, at_once):
            yield from self.ask(range(first, min(first + at_once, total)))
            advance(min(first + at_once, total), total)


def try_out(config: RunConfig, num_prompts: int, num_samples: int) -> tuple[list[Group], Counts]:
    """The first prompts of a run, answered with its initial weights. Writes nothing. Collective."""
    with opened(config, num_samples) as policy:
        number = min(num_prompts, len(policy.recipe.prompts))
        return policy.ask(range(number)), policy.counts


def write_conversations(
    config: RunConfig,
    out: Path,
    num_samples: int,
    *,
    keep_correct: bool,
    overwrite: bool = False,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> Counts:
    """Answer every prompt of a run, and write the answers as conversations, one a line. Collective.

    Written are answers that ended and are in GLM's format, the same one to a prompt once; with `keep_correct` only
    those that all verifiers accept. `verdicts` counts what became of them. Raises `GlmforgeError` if none are left: the
    file is then not written.
    """
    if config.stage == "rl" and config.stage_settings(RlConfig).agent is not None:
        raise ConfigError(
            "rl.agent: conversations of several turns are not written; set rl.agent=null, or use rollouts/"
        )
    refuse_unwritable(out, overwrite)
    with opened(config, num_samples) as policy, _written_by_main(out, policy.is_main) as write:
        counts = policy.counts
        for group in policy.ask_all(advance):
            write(_conversations(group, policy.recipe, counts.verdicts, keep_correct))
        if not counts.verdicts["kept"]:
            raise GlmforgeError(f"{out}: not written: none of the answers was kept ({_reasons(counts.verdicts)})")
    return counts


def write_prompts(
    config: RunConfig,
    out: Path,
    num_samples: int,
    num_right: range,
    *,
    overwrite: bool = False,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> Counts:
    """Answer every prompt of a run, and write those whose number of right answers lies in `num_right`. Collective.

    Records without a `difficulty` get the share of wrong answers as theirs. A prompt whose verifier failed for an
    answer is left out. `verdicts` counts prompts. Raises `GlmforgeError` if none are left: the file is then not
    written.
    """
    refuse_unwritable(out, overwrite)
    with opened(config, num_samples) as policy, _written_by_main(out, policy.is_main) as write:
        verdicts = policy.counts.verdicts
        for group in policy.ask_all(advance):
            right = sum(map(policy.recipe.is_right, group.answers))
            if any(one.failed for one in group.answers):
                verdicts["failed"] += 1
            elif right in num_right:
                verdicts["kept"] += 1
                write(iter([{"difficulty": 1 - right / num_samples} | group.prompt.record()]))
            else:
                verdicts["too hard" if right < num_right.start else "too easy"] += 1
        if not verdicts["kept"]:
            raise GlmforgeError(f"{out}: not written: none of the prompts was kept ({_reasons(verdicts)})")
        return policy.counts


@contextmanager
def opened(config: RunConfig, num_samples: int) -> Iterator[AnsweringPolicy]:
    """Collective. Raises `GlmforgeError` for what the user can fix."""
    if config.stage != "rl":
        raise ConfigError(f"stage: '{config.stage}' has no prompts and rewards; pass a configuration of stage rl")
    if config.init_from is None:
        raise ConfigError("init_from: not set, so there are no weights to sample with; set init_from=DIR")
    check_initial_weights(config.init_from, config.model)
    layout, parallel = layout_at_hand(config, LaunchEnvironment.read(), default_device()), config.parallel
    with join_world(layout, parallel.process_group_timeout_s, wait_s=parallel.join_timeout_s) as world:
        recipe = RlRecipe(config, world)
        with recipe.rewards:
            yield AnsweringPolicy(config, recipe, num_samples)


def with_weights_of(config: RunConfig, run: Path) -> RunConfig:
    """The configuration of a run, to sample with its newest checkpoint or that of RUN@STEP."""
    checkpoint = find_checkpoint(run)
    if config.lora is None:
        return config.model_copy(update={"init_from": checkpoint})
    return config.model_copy(update={"lora": config.lora.model_copy(update={"init_from": checkpoint})})


def _load(config: RunConfig, backend: NativeBackend, recipe: RlRecipe) -> None:
    assert config.init_from is not None, "checked"
    whole = {name: one for name, one in backend.weights().items() if not is_adapter(backend.table[name])}
    fingerprint = recipe.tokenizer.fingerprint
    load_initial_weights(config.init_from, whole, config.model, fingerprint, cache_dir=config.init_cache_dir)
    if config.lora is not None:
        begin_adapters(backend, config.model, config.lora, None)


def _conversations(
    group: Group, recipe: RlRecipe, verdicts: Counter[str], keep_correct: bool
) -> Iterator[dict[str, Any]]:
    prompt, written = group.prompt, set[str]()
    for answer, reply in zip(group.answers, group.replies, strict=True):
        verdict = _verdict(answer, reply, recipe, keep_correct)
        verdict = "twice" if verdict == "kept" and reply in written else verdict
        verdicts[verdict] += 1
        if verdict == "kept":
            written.add(reply)
            tools = {} if prompt.tools is None else {"tools": prompt.tools}
            facts = {"id": f"{prompt.id}-{answer.sample}", "source": prompt.source, "reward": answer.reward}
            yield {"messages": [*prompt.messages, reply_message(reply)], **tools, **facts}


def _verdict(answer: Answer, reply: str, recipe: RlRecipe, keep_correct: bool) -> str:
    if answer.failed:
        return f"failed: {':'.join(answer.failed.split(':')[:2])}"
    if answer.is_cut:
        return "cut"
    tokenizer, inner = recipe.tokenizer, answer.tokens_N[:-1].tolist()
    if any(tokenizer.special_id(token) in inner for token in CONTROL_TOKENS):
        return "malformed"
    try:
        parse_reply(reply)
    except MalformedReply:
        return "malformed"
    return "wrong" if keep_correct and not recipe.is_right(answer) else "kept"


def _reasons(verdicts: Counter[str]) -> str:
    return ", ".join(f"{number:,} {verdict}" for verdict, number in sorted(verdicts.items()) if number)


@contextmanager
def _written_by_main(out: Path, is_main: bool) -> Iterator[Callable[[Iterator[dict[str, Any]]], None]]:
    """Takes lines of a file that gets its name once the block has ended well; on other ranks they are only counted."""
    if not is_main:
        yield lambda records: deque(records, maxlen=0).clear()
        return
    with open_partial(out) as file:

        def write(records: Iterator[dict[str, Any]]) -> None:
            for record in records:
                file.write(json.dumps(record, ensure_ascii=False).encode(errors="replace") + b"\n")

        try:
            with disk_errors(out):
                yield write
                file.flush()
                os.fsync(file.fileno())
            publish(out)
        finally:
            discard_partial(out)
