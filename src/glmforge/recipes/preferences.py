"""The stages that learn from pairs of answers: `reward` trains a model that scores them, `dpo` the policy itself.

Both read preference files, packed in pairs of rows, in one phase; they differ in their objective, and `dpo` has a
reference (`glmforge.recipes.reference`).
"""

import logging
import math
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from glmforge.backend.base import Backend
from glmforge.checkpoint.collective import broadcast
from glmforge.config.chat import ChatConfig
from glmforge.config.data import SourceConfig
from glmforge.config.layout import resolve_layout
from glmforge.config.preferences import DpoConfig, RewardConfig
from glmforge.config.schema import RunConfig
from glmforge.data.preferences.pairs import ensure_pairs, load_pairs, pairs_path
from glmforge.data.preferences.stream import PairCurriculum, PairStream
from glmforge.data.tokens.model_ids import with_ids_of
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import ConfigError
from glmforge.evaluate.preferences import HELD_OUT_METRICS, HeldOutPairs, evaluate_pairs
from glmforge.objectives.dpo import DpoObjective
from glmforge.objectives.pairs import AnswerObjective
from glmforge.objectives.reward import RewardObjective
from glmforge.parallel.world import World
from glmforge.recipes.curriculum_source import CurriculumSource
from glmforge.recipes.recipe import Recipe
from glmforge.recipes.reference import Reference
from glmforge.recipes.run_data import check_paths, once_per_node
from glmforge.recipes.same_run import check_same_data
from glmforge.training.hooks import EvaluationHook
from glmforge.training.source import StepInput
from glmforge.training.trainer import Hook

logger = logging.getLogger(__name__)

_ROWS_OF_EVALUATION = 8


class PreferenceSource(CurriculumSource):
    """Batches of pairs of rows; the reference, if there is one, is there before the first."""

    reference: Reference | None = None

    def next(self) -> StepInput | None:
        if self.reference is not None:
            self.reference.ensure(at_start=self.position.tokens == 0, alive=self.alive)
        return super().next()


class PreferenceRecipe(Recipe):
    """Pairs of answers, with the objective of the run's stage. Collective; raises `GlmforgeError` before anything is
    built."""

    metric_rows = HELD_OUT_METRICS

    def __init__(self, config: RunConfig, world: World) -> None:
        check_paths(config.data)
        self.tokenizer = Tokenizer.load(config.data.tokenizer)
        if self.tokenizer.vocab_size > config.model.vocab_size:
            raise ConfigError(
                f"model.vocab_size: {config.model.vocab_size:,} is less than the {self.tokenizer.vocab_size:,} tokens "
                f"of {config.data.tokenizer}; use the tokenizer of init_from"
            )
        _check_shares(config, world)
        sources, held_out = config.data.sources, config.data.held_out
        files = self._encoded(config, [*sources, *held_out], world)
        seq_len = config.phases[0].seq_len
        loaded = [load_pairs(file, tell=partial(_tell, source.name, world)) for source, file in files]
        self._train = PairStream(loaded[: len(sources)], seq_len, seed=config.seed)
        self._held_out = PairStream(loaded[len(sources) :], seq_len, seed=config.seed) if held_out else None
        identities = [file.suffixes[-2] for _, file in files]
        self._held_out_identities = identities[len(sources) :]
        self._curriculum = PairCurriculum(
            self._train, config.phases[0].name, [source.name for source in sources], identities[: len(sources)]
        )
        self.fingerprint = self._curriculum.fingerprint()
        model = with_ids_of(config.model, self.tokenizer)
        self.config = _with_counted_epochs(config.model_copy(update={"model": model}), self._train.num_samples)

    def objective(self, config: RunConfig, *, with_mtp: bool = True) -> AnswerObjective:
        phase, names = config.phases[0], self._curriculum.names
        if config.stage == "reward":
            return RewardObjective(phase, names, config.stage_settings(RewardConfig))
        num_mtp = config.model.num_nextn_predict_layers
        phase = phase if with_mtp else phase.model_copy(update={"mtp_loss_weight": 0.0})
        return DpoObjective(phase, num_mtp, names, config.stage_settings(DpoConfig))

    def source(self, config: RunConfig, backend: Backend) -> PreferenceSource:
        source = PreferenceSource(config, self._curriculum, backend.world, lambda phase: self.objective(config))
        if config.stage == "dpo":
            streams = {"train": self._train} | ({"held_out": self._held_out} if self._held_out else {})
            pairs = {**self.fingerprint, "held_out": self._held_out_identities}
            source.reference = Reference(config, backend, streams, pairs, self.objective(config, with_mtp=False))
        return source

    def hooks(self) -> Iterable[Hook]:
        every = self.config.observe.evaluate_every
        if every is None or self._held_out is None:
            return
        scale = self.config.stage_settings(DpoConfig).beta if self.config.stage == "dpo" else 1.0
        names = [source.name for source in self.config.data.held_out]
        evaluate = partial(
            evaluate_pairs,
            held_out=HeldOutPairs(self._held_out, names, scale),
            objective=self.objective(self.config, with_mtp=False),
        )
        yield EvaluationHook(every, lambda model, alive: evaluate(model, alive, batch_size=_batch_size(model)))

    def _encoded(
        self, config: RunConfig, sources: Sequence[SourceConfig], world: World
    ) -> list[tuple[SourceConfig, Path]]:
        """Each source's pairs on file, encoded once on each node."""
        found: list[Path] = []

        def encode() -> None:
            for source in sources:
                chat = _chat_settings(source, config.phases[0].seq_len)
                kept = pairs_path(source.path, self.tokenizer, chat, config.data.encoded_dir)
                ensure_pairs(source.path, kept, self.tokenizer, chat)
                found.append(kept)

        once_per_node(encode, world, what="encode preferences")
        names = [source.name for source in sources]
        check_same_data(lambda: {f"data.{n}": str(file) for n, file in zip(names, found, strict=True)})
        return list(zip(sources, broadcast(found, 0), strict=True))


def reward(config: RunConfig, world: World) -> PreferenceRecipe:
    """Of the stage `reward`."""
    return PreferenceRecipe(config, world)


def dpo(config: RunConfig, world: World) -> PreferenceRecipe:
    """Of the stage `dpo`."""
    return PreferenceRecipe(config, world)


def _chat_settings(source: SourceConfig, seq_len: int) -> ChatConfig:
    """With a limit on lengths: rows end with a filling, see `PairStream`."""
    chat = source.chat or ChatConfig()
    longest = min(seq_len - 1, chat.max_tokens or seq_len)
    return chat.model_copy(update={"max_tokens": longest})


def _check_shares(config: RunConfig, world: World) -> None:
    ranks = resolve_layout(config, world.size).data_ranks
    for size in sorted(config.phases[0].batch_sizes):
        if size % (2 * ranks):
            raise ConfigError(
                f"phases.0.batch_size: {size} rows are pairs, so each of {ranks} data ranks needs an even number; "
                f"choose a multiple of {2 * ranks}"
            )


def _with_counted_epochs(config: RunConfig, num_samples: int) -> RunConfig:
    """The run with `tokens` in the place of `epochs`: all rows of all sources."""
    phase = config.phases[0]
    if phase.epochs is None:
        return config
    tokens = max(1, math.ceil(phase.epochs * num_samples * (1 - 1e-9))) * phase.seq_len
    return config.model_copy(update={"phases": [phase.model_copy(update={"epochs": None, "tokens": tokens})]})


def _batch_size(model: Any) -> int:
    return _ROWS_OF_EVALUATION * int(model.world.layout.data_ranks)


def _tell(name: str, world: World, line: str) -> None:
    if world.is_main:
        logger.info("%s: %s", name, line)
