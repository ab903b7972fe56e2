"""What a rank sends and receives in a step, axis by axis, and how long the links take for it at the least.

Bytes are counted as `glmforge.parallel.communication` counts them: of a collective the larger of input and output. Left
out are what is small (counts of rows, norms, losses) and what Muon exchanges.

Nodes are taken to be `NODE_RANKS` consecutive ranks. Inside, NVLink counts; the network between nodes is an assumption,
for no device table knows it.

Shapes: T tokens of a micro-batch on this rank, D hidden_size.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from glmforge.config.layout import Layout
from glmforge.config.parameters import Parameter, parameter_table
from glmforge.config.schema import RunConfig
from glmforge.plan.layout import StageContent, stages_of_pp_rank
from glmforge.plan.machine.hardware import Accelerator
from glmforge.plan.work.operations import BF16, FP32, Share
from glmforge.plan.work.step import micro_batch_share, used_parameters
from glmforge.plan.work.update_operations import shard_elements, used_elements

NODE_RANKS = 8
NETWORK_BYTES = 50e9
"""Per second, each way: a 400 Gb/s adapter for each GPU, as in the makers' reference systems of H100 and H200."""


class Traffic(NamedTuple):
    """Bytes of a step on one axis. `is_exchange`: each pair of ranks has its own bytes, as in an all-to-all."""

    axis: str
    num_ranks: int
    ranks_per_node: int
    bytes: int
    is_exchange: bool

    def seconds(self, accelerator: Accelerator) -> float | None:
        """At the rates of the links, NVLink and network at once; None if the device's NVLink is needed and not known.

        An exchange sends to the ranks of other nodes over the network what is theirs. What all ranks are to have, or
        add to, passes each node once, over the adapters of all its ranks of the group.
        """
        ranks, near = self.num_ranks, self.ranks_per_node
        inside, outside = (ranks - 1) / ranks * (near > 1), (ranks - 1) / ranks / near * (near < ranks)
        if self.is_exchange:
            inside, outside = (near - 1) / ranks, (ranks - near) / ranks
        if self.axis == "pp":  # half is sent and half received, at the same time
            inside, outside = 0.5 * (near == ranks), 0.5 * (near < ranks)
        if self.axis == "dp_replicate":  # an all-reduce scatters, and gathers
            inside, outside = 2 * inside, 2 * outside
        if not inside:
            return outside * self.bytes / NETWORK_BYTES
        if accelerator.nvlink_bandwidth is None:
            return None
        return self.bytes * max(inside / accelerator.nvlink_bandwidth, outside / NETWORK_BYTES)


def step_traffic(config: RunConfig, layout: Layout, pp_rank: int = 0) -> list[Traffic]:
    """The axes along which a rank of `pp_rank` communicates anything in a step of the first phase."""
    share = micro_batch_share(config, layout)
    micro_batches = layout.num_micro_batches(config.phases[0])
    sizes: Counter[str] = Counter()
    for stage in stages_of_pp_rank(config, layout, pp_rank):
        rows = trained_parameters(config, stage)
        for axis, size in activation_bytes(config, layout, share, stage):
            sizes[axis] += size * micro_batches
        # In a pipeline weights stay gathered for all micro-batches unless told otherwise.
        gathers = 1 if layout.pp > 1 and not config.parallel.reshards_after_forward else micro_batches
        for axis, size in gathered_bytes(config, layout, rows):
            sizes[axis] += size * gathers
        for axis, size in reduced_bytes(config, layout, rows, micro_batches):
            sizes[axis] += size
    exchanges = {"ep"} | ({"cp"} if config.parallel.context_method == "ulysses" else set())
    return [
        Traffic(axis, layout.size(axis), ranks_per_node(layout, axis), size, axis in exchanges)
        for axis, size in sizes.items()
        if layout.size(axis) > 1 and size
    ]


def activation_bytes(config: RunConfig, layout: Layout, share: Share, stage: StageContent) -> Iterator[tuple[str, int]]:
    """Of one micro-batch."""
    model, recompute = config.model, config.parallel.recompute
    num_mtp = stage.num_mtp if config.phases[0].mtp_loss_weight else 0
    num_moe = stage.num_moe + num_mtp
    num_layers = stage.num_dense + num_moe
    x = BF16 * share.tokens * model.hidden_size
    forwards = 2 if recompute == "full" else 1  # "selective" keeps what came over the network
    # Every layer gathers and scatters twice: around attention, and around the dense MLP or the shared expert.
    # A recomputation ends before it has done so after a dense layer's last map.
    yield "tp", num_layers * 2 * 2 * x * (forwards + 1) - stage.num_dense * x * (forwards - 1)
    # The embedding is summed over parts of the vocabulary, the head reads all tokens.
    yield "tp", (stage.has_embedding + stage.has_head) * (1 + num_mtp) * 2 * x
    rows = BF16 * share.own * model.num_experts_per_tok * model.hidden_size
    yield "ep", num_moe * 2 * rows * (forwards + 1)
    yield "cp", num_layers * _context(config, layout, share)
    boundaries = (not stage.has_embedding) + (not stage.has_head)
    yield "pp", boundaries * 2 * BF16 * share.normed * model.hidden_size * (1 + model.num_nextn_predict_layers)


def _context(config: RunConfig, layout: Layout, share: Share) -> int:
    """Of one layer. Keys and values are gathered forward and once more backward, and their gradients scattered."""
    model = config.model
    q = BF16 * share.tokens * model.num_attention_heads * model.head_dim // layout.tp
    kv = BF16 * share.tokens * 2 * model.num_key_value_heads * model.head_dim // layout.tp
    if config.parallel.context_method == "ulysses":
        return 2 * (2 * q + kv)
    return 3 * kv * layout.cp


def gathered_bytes(config: RunConfig, layout: Layout, rows: Iterable[Parameter]) -> Iterator[tuple[str, int]]:
    """FSDP's gathers of `rows` for one forward and backward pass. What belongs to no layer stays gathered between."""
    gathers = 2 if config.parallel.reshards_after_forward else 1
    for row in rows:
        size = (FP32 if "mlp.gate." in row.name else BF16) * used_elements(row, layout)
        yield _shard_axis(row, layout), size * (gathers if row.layer is not None else 1)


def reduced_bytes(
    config: RunConfig, layout: Layout, rows: Iterable[Parameter], micro_batches: int
) -> Iterator[tuple[str, int]]:
    """FSDP's reductions of the gradients of `rows` in a step, in fp32."""
    times = micro_batches if config.parallel.reduce_gradients == "every_micro_batch" and layout.pp == 1 else 1
    for row in rows:
        yield _shard_axis(row, layout), FP32 * used_elements(row, layout) * times
        yield "dp_replicate", int(FP32 * shard_elements(row, layout)) * times


def trained_parameters(config: RunConfig, stage: StageContent) -> list[Parameter]:
    """The parameters that a stage of the pipeline holds."""
    return [row for row in used_parameters(parameter_table(config.model), config, stage) if row.trained]


def _shard_axis(row: Parameter, layout: Layout) -> str:
    """Experts are sharded with their layer unless they lie on other ranks than it."""
    return "efsdp" if row.expert and layout.ep * layout.tp > 1 else "fsdp"


def ranks_per_node(layout: Layout, axis: str, node_ranks: int = NODE_RANKS) -> int:
    """How many ranks of a group of the axis lie in one node of `node_ranks`."""
    strides = {
        "tp": 1,
        "ep": 1,
        "cp": layout.tp,
        "fsdp": layout.tp,
        "efsdp": layout.ep,
        "dp_replicate": layout.dp_shard * layout.cp * layout.tp,
        "pp": layout.stage_ranks,
    }
    return max(1, min(layout.size(axis), node_ranks // strides[axis]))
