"""Which pipeline stage gets which layers, and which rank gets which stages.

Stages are contiguous: the first begins with the embedding, the last ends with the final norm, the MTP layers and the
head. Their work differs (a dense layer costs less than a MoE layer, the head and the MTP layers as much as several), so
trunk layers are spread such that the most expensive stage costs as little as possible.
"""

import itertools
from functools import cache, lru_cache

from glmforge.config.model import ModelConfig
from glmforge.config.parallel import ParallelConfig
from glmforge.errors import ConfigError

SINGLE_STAGE_SCHEDULES = ("gpipe", "1f1b")
V_SCHEDULES = ("zbv", "dualpipev")
"""Two stages per rank, placed as a V: rank r has stages r and 2 P - 1 - r, the first rank also the last stage."""


def stages_per_rank(parallel: ParallelConfig) -> int:
    """Model parts on one pipeline rank; `ConfigError` where the schedule does not allow the number requested."""
    schedule, wanted = parallel.pipeline_schedule, parallel.pipeline_stages_per_rank
    if parallel.pp == 1:
        return 1
    if schedule in SINGLE_STAGE_SCHEDULES and wanted not in (None, 1):
        raise ConfigError(f"parallel.pipeline_stages_per_rank: {schedule} has one stage per rank; set it to 1")
    if schedule in V_SCHEDULES and wanted not in (None, 2):
        raise ConfigError(f"parallel.pipeline_stages_per_rank: {schedule} has two stages per rank; set it to 2")
    return wanted or (1 if schedule in SINGLE_STAGE_SCHEDULES else 2)


def stages_of_rank(schedule: str, pp_rank: int, pp: int, per_rank: int) -> list[int]:
    """The stages that a pipeline rank runs: looped (r, r + P, ...), or the two arms of a V."""
    if schedule in V_SCHEDULES:
        return [pp_rank, 2 * pp - 1 - pp_rank]
    return [pp_rank + turn * pp for turn in range(per_rank)]


def layer_costs(model: ModelConfig) -> tuple[list[int], int]:
    """Matrix elements that a token passes in each trunk layer, and in MTP layers and head together."""
    attention = model.hidden_size * model.head_dim * 2 * (model.num_attention_heads + model.num_key_value_heads)
    expert = 3 * model.hidden_size * model.moe_intermediate_size
    moe = attention + model.n_routed_experts * model.hidden_size
    moe += (model.num_experts_per_tok + model.n_shared_experts) * expert
    dense = attention + 3 * model.hidden_size * model.intermediate_size
    head = model.vocab_size * model.hidden_size
    mtp = moe + 2 * model.hidden_size**2 + head
    layers = [dense if i < model.first_k_dense_replace else moe for i in range(model.num_hidden_layers)]
    return layers, head + model.num_nextn_predict_layers * mtp


def balanced_split(model: ModelConfig, num_stages: int) -> tuple[int, ...]:
    """Trunk layers of each stage: the largest cost of a stage is minimal, the others are as equal as that allows."""
    costs, tail = layer_costs(model)
    return _balanced(tuple(costs), tail, num_stages)


@lru_cache(maxsize=256)
def _balanced(costs: tuple[int, ...], tail: int, num_stages: int) -> tuple[int, ...]:
    num_layers = len(costs)
    prefix = [0, *itertools.accumulate(costs)]

    def stage_cost(start: int, stop: int) -> int:
        return prefix[stop] - prefix[start] + (tail if stop == num_layers else 0)

    def stops(start: int, stages: int) -> range:
        # Only the last stage may be left without a layer of the trunk: it has the head.
        return range(start + 1, num_layers - max(0, stages - 2) + 1)

    @cache
    def highest_cost(start: int, stages: int) -> int:
        if stages == 1:
            return stage_cost(start, num_layers)
        return min(max(prefix[stop] - prefix[start], highest_cost(stop, stages - 1)) for stop in stops(start, stages))

    limit = highest_cost(0, num_stages)

    @cache
    def evenest(start: int, stages: int) -> tuple[int, tuple[int, ...]]:
        """(sum of squared costs, layers per stage) with no stage above the limit."""
        if stages == 1:
            return stage_cost(start, num_layers) ** 2, (num_layers - start,)
        options = []
        for stop in stops(start, stages):
            cost = prefix[stop] - prefix[start]
            if cost <= limit and highest_cost(stop, stages - 1) <= limit:
                squares, split = evenest(stop, stages - 1)
                options.append((cost**2 + squares, (stop - start, *split)))
        return min(options)

    return evenest(0, num_stages)[1]
