"""Which changes of a run's settings save most memory, by the closed forms: what to try when a layout does not fit.

Only settings that leave alone what is computed are tried, one at a time: what the backward pass computes again, the
size of micro-batches, what is kept gathered or sent to the host, and the axes of the layout on as many ranks.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import ValidationError

from glmforge.config.layout import Layout, resolve_layout
from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError
from glmforge.observe.units import gigabytes
from glmforge.plan.memory.estimate import MemoryModel
from glmforge.plan.stages.stage import stage_of

_WORTH_SAYING = 0.02
"""Share of the peak. What saves less is within the error of the closed forms."""


class Change(NamedTuple):
    """A setting of `parallel`, and the bytes that the fullest rank needs with it."""

    key: str
    value: object
    peak: int

    @property
    def setting(self) -> str:
        """As the command line takes it."""
        value = str(self.value).lower() if isinstance(self.value, bool) else self.value
        return f"parallel.{self.key}={value}"

    @property
    def words(self) -> str:
        return f"{gigabytes(self.peak)} with {self.setting}"


def helpful_changes(config: RunConfig, world_size: int, *, offload: bool = True, number: int = 3) -> list[Change]:
    """The changes of the first phase's layout that save most, the best first; each setting once.

    `offload`: whether to look at those that move memory from a GPU to its host.
    """
    layout = resolve_layout(config, world_size)
    model = MemoryModel(config, stage_of(config))
    before = model.estimate(config, layout).peak
    best: dict[str, Change] = {}
    for key, value in _candidates(config, layout, offload=offload):
        peak = _peak_with(model, config, world_size, key, value)
        if peak is not None and before - peak > _WORTH_SAYING * before:
            change = Change(key, value, peak)
            best[key] = min(change, best.get(key, change), key=lambda one: one.peak)
    return sorted(best.values(), key=lambda change: change.peak)[:number]


def words_of(changes: list[Change]) -> str:
    """What each of them leaves to be needed."""
    return ", ".join(change.words for change in changes) or "no single parallel setting helps; use more ranks"


def _candidates(config: RunConfig, layout: Layout, *, offload: bool) -> Iterator[tuple[str, object]]:
    """Keys of `parallel` with other values, whether they work or not."""
    parallel, phase = config.parallel, config.phases[0]
    yield from (("recompute", value) for value in ("selective", "full") if value != parallel.recompute)
    if layout.rank_batch_size(phase) > layout.num_micro_batches(phase):
        yield "micro_batch_size", 1
    if not parallel.reshards_after_forward:
        yield "reshard_after_forward", True
    if parallel.reduce_gradients == "last_micro_batch":
        yield "reduce_gradients", "every_micro_batch"
    if parallel.pp > 1 and parallel.pipeline_schedule in ("gpipe", "looped_bfs"):
        yield "pipeline_schedule", "1f1b" if parallel.pipeline_schedule == "gpipe" else "interleaved_1f1b"
    if layout.dp_replicate > 1:
        yield "dp_replicate", 1
    yield from ((axis, 2 * layout.size(axis)) for axis in ("pp", "cp", "tp", "ep"))
    if offload:
        yield "activation_offload", True
        yield "cpu_offload", True


def _peak_with(model: MemoryModel, config: RunConfig, world_size: int, key: str, value: object) -> int | None:
    """Bytes of the fullest rank with another value; None where that does not work."""
    tree: dict[str, Any] = config.model_dump()
    tree["parallel"] |= {key: value}
    try:
        changed = RunConfig.model_validate(tree)
        return model.estimate(changed, resolve_layout(changed, world_size)).peak
    except (ValidationError, ConfigError):
        return None
