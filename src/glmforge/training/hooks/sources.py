"""Tokens and loss of each source of data, added up from the next-token objective's metrics.

Shape: S sources.
"""

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from glmforge.training.order import Priority
from glmforge.training.records import LAYER_RECORDS, is_one_of
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer

logger = logging.getLogger(__name__)

_SUMS = ("total", "tokens", "nll")
"""Label tokens since the run began; then label tokens and summed loss of the steps taken since the last record."""


class SourcesHook(Hook):
    """Records `source_*` and `trained_tokens`, where the objective counts by source, and says when a batch has nothing
    to learn. Tokens of each source survive a resume by the sources' names."""

    name = "sources"
    priority = Priority.COLLECT

    def __init__(self) -> None:
        self._names: Sequence[str] = ()
        self._sums_3S: Tensor | None = None
        self._loaded: dict[str, dict[str, float]] = {}
        self._has_told = False

    @property
    def state_key(self) -> str:
        return "metrics"

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        if "source_tokens" in result.metrics:
            self._add([source.name for source in trainer.config.data.sources], result)
            if not result.metrics["source_tokens"].any():
                self._tell_empty(trainer)

    def on_record(self, trainer: Trainer, result: StepResult) -> None:
        sums = self._named_sums()
        if "source_tokens" in result.metrics:
            trainer.record(trained_tokens=int(result.metrics["source_tokens"].sum()))
        if sums:
            trainer.record(
                source_tokens={name: int(tokens) for name, tokens in sums["total"].items()},
                source_loss={name: sums["nll"][name] / tokens for name, tokens in sums["tokens"].items()} or None,
            )
        if is_one_of(trainer, LAYER_RECORDS):
            trainer.record(**trainer.source.metrics())
        if self._sums_3S is not None:
            self._sums_3S[1:] = 0

    def state_dict(self) -> dict[str, Any]:
        return {"sources": self._named_sums()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """An empty state starts over."""
        self._loaded, self._sums_3S = state.get("sources", {}), None

    def _add(self, names: Sequence[str], result: StepResult) -> None:
        """A step's tokens and, if it was taken, its loss."""
        tokens_S, nll_S = result.metrics["source_tokens"], result.metrics["source_nll"]
        if self._sums_3S is None:
            self._names = names
            loaded = [[self._loaded.get(sums, {}).get(name, 0.0) for name in names] for sums in _SUMS]
            self._sums_3S = torch.tensor(loaded, dtype=torch.float64)
        self._sums_3S[0] += tokens_S
        if result.finite:
            self._sums_3S[1:] += torch.stack((tokens_S, nll_S))

    def _tell_empty(self, trainer: Trainer) -> None:
        """Say it of the first such batch: its loss of 0 looks like success."""
        if self._has_told:
            return
        self._has_told = True
        said = "the batch has no trainable tokens, its loss is 0; check the data, or raise batch_size"
        trainer.event("no trainable tokens", said)
        if trainer.world.is_main:
            logger.warning("step %d: %s", trainer.state.step, said)

    def _named_sums(self) -> dict[str, dict[str, float]]:
        """The sums by name, of sources that have any; those no longer configured keep their tokens."""
        if self._sums_3S is None:
            return self._loaded
        total, tokens, nll = (dict(zip(self._names, sums, strict=True)) for sums in self._sums_3S.tolist())
        gone = {name: n for name, n in self._loaded.get("total", {}).items() if name not in total}
        return {
            "total": gone | {name: n for name, n in total.items() if n},
            "tokens": {name: n for name, n in tokens.items() if n},
            "nll": {name: nll[name] for name, n in tokens.items() if n},
        }
