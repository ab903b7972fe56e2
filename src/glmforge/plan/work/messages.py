"""The collectives of a step one by one, of pre-training: their kinds, sizes and numbers.

Bytes alone (`glmforge.plan.work.traffic`) do not tell how long the ranks of a small model wait, for every message costs
something. FSDP gathers and reduces a layer at a time: its experts apart where they lie on other ranks than the layer,
its router apart because that is fp32; and together what belongs to no layer.

Shapes: T tokens of a micro-batch on this rank, D hidden_size.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from glmforge.config.layout import Layout
from glmforge.config.parameters import Parameter
from glmforge.config.schema import RunConfig
from glmforge.plan.layout import StageContent, stages_of_pp_rank
from glmforge.plan.machine.measured import CollectiveKind
from glmforge.plan.work.operations import BF16, FP32, INT64, Share
from glmforge.plan.work.step import held_parameters, micro_batch_share
from glmforge.plan.work.traffic import shard_axis
from glmforge.plan.work.update_operations import shard_elements, used_elements


class Message(NamedTuple):
    """`times` collectives in a step, of this many bytes each (of the larger of a rank's input and output)."""

    axis: str
    kind: CollectiveKind
    bytes: int
    times: int


def step_messages(config: RunConfig, layout: Layout, pp_rank: int = 0) -> list[Message]:
    """Of a step of the first phase on a rank of `pp_rank`, those of one size combined."""
    share = micro_batch_share(config, layout)
    micro_batches = layout.num_micro_batches(config.phases[0])
    found: Counter[tuple[str, CollectiveKind, int]] = Counter()
    for stage in stages_of_pp_rank(config, layout, pp_rank):
        for axis, kind, size, times in _activations(config, layout, share, stage):
            found[axis, kind, size] += times * micro_batches
        for axis, kind, size, times in weight_messages(config, layout, stage):
            found[axis, kind, size] += times
    messages = (Message(*what, times) for what, times in found.items())
    return [message for message in messages if message.times and message.bytes and layout.size(message.axis) > 1]


def _activations(config: RunConfig, layout: Layout, share: Share, stage: StageContent) -> Iterator[Message]:
    """Of one micro-batch."""
    model, parallel = config.model, config.parallel
    num_mtp = stage.num_mtp if config.phases[0].mtp_loss_weight else 0
    num_moe = stage.num_moe + num_mtp
    num_layers, forwards = stage.num_dense + num_moe, 2 if parallel.recompute == "full" else 1
    x = BF16 * share.tokens * model.hidden_size
    # A layer gathers and scatters around attention and around its MLP; so do the embedding and the head, once.
    ends = (stage.has_embedding + stage.has_head) * (1 + num_mtp)
    for kind in ("all_gather", "reduce_scatter"):
        yield Message("tp", kind, x, 2 * num_layers * (forwards + 1) + ends)
    rows = BF16 * share.own * model.num_experts_per_tok * model.hidden_size
    yield Message("ep", "all_to_all", rows, 2 * num_moe * (forwards + 1))
    yield Message("ep", "all_to_all", 2 * INT64 * layout.ep, num_moe)  # numbers of rows, which are kept
    kv = BF16 * share.tokens * 2 * model.num_key_value_heads * model.head_dim // layout.tp
    if parallel.context_method == "gather":
        yield Message("cp", "all_gather", kv * layout.cp, 2 * num_layers)
        yield Message("cp", "reduce_scatter", kv * layout.cp, num_layers)
    else:
        q = BF16 * share.tokens * model.num_attention_heads * model.head_dim // layout.tp
        yield Message("cp", "all_to_all", (2 * q + kv) // 4, 8 * num_layers)
    boundaries = (not stage.has_embedding) + (not stage.has_head)
    # The embeddings that MTP asks for go along.
    tensors = 1 + model.num_nextn_predict_layers
    yield Message("pp", "send", BF16 * share.normed * model.hidden_size, 2 * boundaries * tensors)


def weight_messages(config: RunConfig, layout: Layout, stage: StageContent) -> Iterator[Message]:
    """FSDP's gathers and reductions, and the sums over replicas, of a step; those along axes of one rank too."""
    parallel, micro_batches = config.parallel, layout.num_micro_batches(config.phases[0])
    gathers = 1 if layout.pp > 1 and not parallel.reshards_after_forward else micro_batches
    reductions = micro_batches if parallel.reduce_gradients == "every_micro_batch" and layout.pp == 1 else 1
    units: dict[tuple[int | None, str, bool], list[Parameter]] = defaultdict(list)
    for row in held_parameters(config, stage):
        if row.trained:
            units[row.layer, shard_axis(row, layout), "mlp.gate." in row.name].append(row)
    for (layer, axis, is_router), rows in units.items():
        elements = sum(used_elements(row, layout) for row in rows)
        again = 2 if parallel.reshards_after_forward and layer is not None else 1
        yield Message(axis, "all_gather", (FP32 if is_router else BF16) * elements, gathers * again)
        yield Message(axis, "reduce_scatter", FP32 * elements, reductions)
        shards = FP32 * sum(shard_elements(row, layout) for row in rows)
        yield Message("dp_replicate", "all_reduce", int(shards), 1)
