"""The layouts that a search looks at.

All combinations of sizes that divide what they have to divide: axes of the grid, expert parallelism, micro-batches, and
beyond these the schedule and what is computed again. The rules themselves are `glmforge.config.layout`'s, which every
layout given here obeys; what is omitted beforehand is omitted because it could not obey them, or because no machine
has a use for it (a matrix or a sequence in hundreds of parts).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from glmforge.config.layout import Layout, resolve_layout
from glmforge.config.parallel import SPLIT_SCHEDULES, ParallelConfig
from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError

RECOMPUTATIONS = ("none", "selective", "full")
"""From the fastest to the smallest."""
SCHEDULES = ("1f1b", "gpipe", "interleaved_1f1b", *SPLIT_SCHEDULES)
"""Those worth trying. gpipe keeps the activations of all micro-batches and is no faster than 1f1b: it is for fewer
micro-batches than pipeline ranks, which 1f1b refuses. looped_bfs never pays off."""

_MOST = {"pp": 64, "cp": 16, "micro_batch_size": 8}
_MOST_EP = 64
_MOST_COPIES = 8
"""Of the weights, unless a copy fits into a node."""
_LEAST_TOKENS = 256
"""Of a sequence on one of the ranks that share it."""


class Axes(NamedTuple):
    """The sizes of a layout."""

    pp: int
    dp_replicate: int
    dp_shard: int
    cp: int
    tp: int
    ep: int
    micro_batch_size: int


@dataclass(frozen=True)
class Space:
    """The layouts of a run on `world_size` ranks, of which `ranks_per_node` are in a node.

    `config` is the run with all phases that the layout has to work for.
    """

    config: RunConfig
    world_size: int
    ranks_per_node: int

    def axes(self) -> Iterator[Axes]:
        """All sizes, in a fixed order."""
        model, phases = self.config.model, self.config.phases
        batches = {size for phase in phases for size in phase.batch_sizes}
        shortest = min(phase.seq_len for phase in phases)
        for pp in _divisors(self.world_size, min(_MOST["pp"], model.num_hidden_layers)):
            for tp in _divisors(self.world_size // pp, min(self.ranks_per_node, model.num_key_value_heads)):
                if not self._tp_divides(tp):
                    continue
                for cp in _divisors(self.world_size // (pp * tp), _MOST["cp"]):
                    if cp > 1 and (shortest % (2 * cp * tp) or shortest // (cp * tp) < _LEAST_TOKENS):
                        continue
                    data_ranks = self.world_size // (pp * tp * cp)
                    if any(batch % data_ranks for batch in batches):
                        continue
                    shares = [batch // data_ranks for batch in sorted(batches)]
                    yield from self._of_grid(pp, tp, cp, data_ranks, shares)

    def _of_grid(self, pp: int, tp: int, cp: int, data_ranks: int, shares: list[int]) -> Iterator[Axes]:
        for dp_replicate in _divisors(data_ranks, data_ranks):
            dp_shard = data_ranks // dp_replicate
            within = dp_shard * cp * tp
            if dp_replicate > _MOST_COPIES and within > self.ranks_per_node:
                continue
            for ep in _divisors(within, min(_MOST_EP, self.config.model.n_routed_experts)):
                if self.config.model.n_routed_experts % ep:
                    continue
                for size in _divisors(shares[0], _MOST["micro_batch_size"]):
                    if all(share % size == 0 for share in shares):
                        yield Axes(pp, dp_replicate, dp_shard, cp, tp, ep, size)

    def _tp_divides(self, tp: int) -> bool:
        model = self.config.model
        widths = (
            model.num_attention_heads,
            model.num_key_value_heads,
            model.intermediate_size,
            model.n_shared_experts * model.moe_intermediate_size,
            model.vocab_size,
            *(phase.seq_len for phase in self.config.phases),
        )
        return all(width % tp == 0 for width in widths)

    def schedules(self, pp: int) -> tuple[str, ...]:
        """The schedules that a pipeline of this many ranks can have; the run's own, which is not compared, without.

        torch refuses to split the backward passes of compiled layers.
        """
        parallel = self.config.parallel
        if pp == 1:
            return (parallel.pipeline_schedule,)
        return tuple(name for name in SCHEDULES if not (parallel.compile and name in SPLIT_SCHEDULES))

    def resolve(self, axes: Axes, schedule: str, recompute: str, **more: Any) -> tuple[RunConfig, Layout] | None:
        """The run with this layout; None if the rules refuse it. `more` are further fields of `parallel`.

        A split backward pass would compute layers again for each group of weights (see `warnings`): none of those, and
        no gpipe where 1f1b will do.
        """
        if schedule == "gpipe" and self.resolve(axes, "1f1b", recompute, **more) is not None:
            return None
        own = self.config.parallel
        if axes.pp > 1 and schedule in SPLIT_SCHEDULES and recompute != "none":
            return None
        changes: dict[str, Any] = axes._asdict() | {
            "pipeline_schedule": schedule,
            "pipeline_stages_per_rank": None,
            "pipeline_layers": None,
            "reshard_after_forward": None,
            "recompute": recompute,
            "ep_dispatch": own.ep_dispatch if axes.ep > 1 else "all_to_all",
            "async_tp": own.async_tp and axes.tp > 1,
        }
        parallel: ParallelConfig = own.model_copy(update=changes | more)
        config = self.config.model_copy(update={"parallel": parallel})
        try:
            return config, resolve_layout(config, self.world_size)
        except ConfigError:
            return None


def _divisors(number: int, most: int) -> list[int]:
    return [divisor for divisor in range(1, min(number, most) + 1) if number % divisor == 0]
