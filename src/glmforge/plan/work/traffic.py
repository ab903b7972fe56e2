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
from glmforge.config.parameter_groups import is_frozen
from glmforge.config.parameters import Parameter
from glmforge.config.role import MODEL, Role
from glmforge.config.schema import RunConfig
from glmforge.plan.layout import StageContent, stages_of_pp_rank
from glmforge.plan.machine.collectives import Group, LinkBytes, link_bytes
from glmforge.plan.machine.hardware import Accelerator
from glmforge.plan.machine.measured import CollectiveKind
from glmforge.plan.stages.stage import PRETRAINING, TrainingStage, laid_out
from glmforge.plan.work.operations import BF16, FP32, Share
from glmforge.plan.work.step import held_parameters, micro_batch_share
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

    @property
    def kind(self) -> CollectiveKind:
        """As what the bytes are sent; reductions take the links as gathers do."""
        kinds: dict[str, CollectiveKind] = {"pp": "send", "dp_replicate": "all_reduce"}
        return "all_to_all" if self.is_exchange else kinds.get(self.axis, "all_gather")

    @property
    def group(self) -> Group:
        return Group(self.num_ranks, self.ranks_per_node)

    @property
    def sent(self) -> LinkBytes:
        """What the rank sends over NVLink and over the network; half of a pipeline's messages are received."""
        return link_bytes(self.kind, self.bytes / (2 if self.kind == "send" else 1), self.group)

    def seconds(self, accelerator: Accelerator) -> float | None:
        """At the rates of NVLink and network at once; None if the device's NVLink is needed and not known."""
        inside, outside = self.sent
        if inside and accelerator.nvlink_bandwidth is None:
            return None
        return max(inside / (accelerator.nvlink_bandwidth or 1), outside / NETWORK_BYTES)


def step_traffic(
    config: RunConfig, layout: Layout, pp_rank: int = 0, stage: TrainingStage = PRETRAINING
) -> list[Traffic]:
    """The axes along which a rank of `pp_rank` communicates anything in a step of the first phase."""
    sizes: Counter[str] = Counter()
    for role in stage.roles:
        for axis, size in _role_traffic(*laid_out(role, config, layout), pp_rank, role):
            sizes[axis] += size
    exchanges = {"ep"} | ({"cp"} if config.parallel.context_method == "ulysses" else set())
    return [
        Traffic(axis, layout.size(axis), ranks_per_node(layout, axis), size, axis in exchanges)
        for axis, size in sizes.items()
        if layout.size(axis) > 1 and size
    ]


def _role_traffic(config: RunConfig, layout: Layout, pp_rank: int, role: Role) -> Iterator[tuple[str, int]]:
    share = micro_batch_share(config, layout)
    micro_batches = layout.num_micro_batches(config.phases[0])
    # In a pipeline weights stay gathered for all micro-batches unless configured otherwise.
    gathers = 1 if layout.pp > 1 and not config.parallel.reshards_after_forward else micro_batches
    for content in stages_of_pp_rank(config, layout, pp_rank):
        rows = held_parameters(config, content, role)
        for axis, size in activation_bytes(config, layout, share, content, role):
            yield axis, size * micro_batches
        for axis, size in gathered_bytes(config, layout, rows, role):
            yield axis, size * gathers
        yield from reduced_bytes(config, layout, rows, micro_batches, role)


def activation_bytes(
    config: RunConfig, layout: Layout, share: Share, content: StageContent, role: Role = MODEL
) -> Iterator[tuple[str, int]]:
    """Activations and their gradients of one micro-batch, in all the passes that a role makes."""
    if role.is_trained:
        yield from _training_pass(config, layout, share, content, role)
    if role.forwards:
        for axis, size in _forward_pass(config, layout, share, content, role):
            yield axis, size * role.forwards


def _training_pass(
    config: RunConfig, layout: Layout, share: Share, content: StageContent, role: Role
) -> Iterator[tuple[str, int]]:
    """Activations and their gradients, of one micro-batch."""
    model, recompute = config.model, config.parallel.recompute
    num_mtp = content.num_mtp if config.phases[0].mtp_loss_weight and role.has_vocabulary else 0
    num_moe = content.num_moe + num_mtp
    num_layers = content.num_dense + num_moe
    x = BF16 * share.tokens * model.hidden_size
    forwards = 2 if recompute == "full" else 1  # "selective" keeps what came over the network
    # Every layer gathers and scatters twice: around attention, and around the dense MLP or the shared expert.
    # A recomputation ends before it has done so after a dense layer's last map.
    yield "tp", num_layers * 2 * 2 * x * (forwards + 1) - content.num_dense * x * (forwards - 1)
    # The embedding is summed over parts of the vocabulary, the head reads all tokens.
    yield "tp", (content.has_embedding + (content.has_head and role.has_logits(model))) * (1 + num_mtp) * 2 * x
    rows = BF16 * share.own * model.num_experts_per_tok * model.hidden_size
    yield "ep", num_moe * 2 * rows * (forwards + 1)
    gathered, exchanged = _context(config, layout, share)
    # Keys and values are gathered forward and once more backward, and their gradients scattered.
    yield "cp", num_layers * (3 * gathered + 2 * exchanged)
    carried = 1 + model.num_nextn_predict_layers * role.has_vocabulary
    yield "pp", _boundaries(content) * 2 * BF16 * share.normed * model.hidden_size * carried


def _forward_pass(
    config: RunConfig, layout: Layout, share: Share, content: StageContent, role: Role
) -> Iterator[tuple[str, int]]:
    """Activations of one micro-batch in a forward pass alone."""
    model = config.model
    num_layers = content.num_dense + content.num_moe
    x = BF16 * share.tokens * model.hidden_size
    yield "tp", num_layers * 2 * 2 * x
    yield "tp", (content.has_embedding + (content.has_head and role.has_logits(model))) * x
    yield "ep", content.num_moe * 2 * BF16 * share.own * model.num_experts_per_tok * model.hidden_size
    yield "cp", num_layers * sum(_context(config, layout, share))
    yield "pp", _boundaries(content) * BF16 * share.normed * model.hidden_size


def _boundaries(content: StageContent) -> int:
    """Other stages that a stage of the pipeline stands next to."""
    return (not content.has_embedding) + (not content.has_head)


def _context(config: RunConfig, layout: Layout, share: Share) -> tuple[int, int]:
    """Of one layer forward: keys and values gathered, and what ulysses exchanges instead."""
    model = config.model
    q = BF16 * share.tokens * model.num_attention_heads * model.head_dim // layout.tp
    kv = BF16 * share.tokens * 2 * model.num_key_value_heads * model.head_dim // layout.tp
    if config.parallel.context_method == "ulysses":
        return 0, 2 * q + kv
    return kv * layout.cp, 0


def gathered_bytes(
    config: RunConfig, layout: Layout, rows: Iterable[Parameter], role: Role = MODEL
) -> Iterator[tuple[str, int]]:
    """FSDP's gathers of `rows` for one micro-batch, in all the passes that a role makes.

    What belongs to no layer stays gathered between forward and backward.
    """
    backward = int(role.is_trained and config.parallel.reshards_after_forward)
    for row in rows:
        # Routers multiply in fp32, and FSDP casts what it gathers before it sends it.
        size = FP32 if "mlp.gate." in row.name else BF16
        gathers = role.forwards + role.is_trained + backward * (row.layer is not None)
        yield shard_axis(row, layout), size * used_elements(row, layout) * gathers


def reduced_bytes(
    config: RunConfig, layout: Layout, rows: Iterable[Parameter], micro_batches: int, role: Role = MODEL
) -> Iterator[tuple[str, int]]:
    """FSDP's reductions of the gradients of `rows` in a step, in fp32; what a role or a rule freezes has none.

    Copies of the model sum their shards once, after the last micro-batch.
    """
    times = micro_batches if config.parallel.reduce_gradients == "every_micro_batch" and layout.pp == 1 else 1
    for row in rows:
        if role.trains(row) and not is_frozen(row.name, config.optim):
            yield shard_axis(row, layout), FP32 * used_elements(row, layout) * times
            yield "dp_replicate", int(FP32 * shard_elements(row, layout))


def shard_axis(row: Parameter, layout: Layout) -> str:
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
