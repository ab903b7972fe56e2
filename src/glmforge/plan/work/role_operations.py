"""What a role of a stage makes of a model's operations: frozen weights, adapters, forward passes alone.

A frozen map passes its outputs' gradient on to its inputs and computes none of its own, so that its backward pass is as
long as its forward one. Adapters are two small maps beside it; with them a layer's own inputs are taken to need a
gradient even in the first layer, of which implementations may save a part. What rules of `optim` freeze is counted map
by map and layer by layer (`glmforge.plan.stages.gradients`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from glmforge.config.adapters import PACKED, Kind, is_meant
from glmforge.config.lora import LoraConfig
from glmforge.config.parameters import HEAD
from glmforge.config.role import Role
from glmforge.plan.stages.gradients import Gradients, Part
from glmforge.plan.work.operations import BF16, NOTHING, Matmul, Operation, Work, linear

MAPS = {
    "q, k, v projections": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "output projection": ("self_attn.o_proj",),
    "dense MLP: gate and up": ("mlp.gate_proj", "mlp.up_proj"),
    "dense MLP: down": ("mlp.down_proj",),
    "experts: gate and up": ("mlp.experts.gate_proj", "mlp.experts.up_proj"),
    "experts: down": ("mlp.experts.down_proj",),
    "shared expert: gate and up": ("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"),
    "shared expert: down": ("mlp.shared_experts.down_proj",),
}
"""The linear maps of each operation of a layer, as `glmforge.config.adapters` names them."""


_WEIGHTS = MAPS | {
    "experts: gate and up": ("mlp.experts.gate_up_proj",),
    "router": ("mlp.gate",),
    "MTP: eh_proj": ("eh_proj",),
    "embedding": ("model.embed_tokens",),
    "head": (HEAD.removesuffix(".weight"),),
}
"""The weights of each operation that has matrices, as the table of parameters names them, in the order of its
matmuls."""


def trained_by(role: Role, operations: Iterable[Operation], *, adapted: bool = True) -> Iterator[Operation]:
    """The operations of a forward and backward pass as a role that trains runs them, with its adapters or without."""
    for operation in operations:
        yield operation if role.trains_all else frozen(operation)
        if role.lora and adapted:
            yield from adapters(operation, role.lora)


def forward_alone(role: Role, operations: Iterable[Operation]) -> Iterator[Operation]:
    """The operations of a role's forward passes besides that of training, all of them."""
    if role.forwards:
        for operation in trained_by(role, operations):
            yield replace(operation, backward=NOTHING, times=operation.times * role.forwards)


def under_rules(gradients: Gradients, layer: int, operations: Iterable[Operation]) -> Iterator[Operation]:
    """The operations of a layer, or of what stands before or after the layers, where rules freeze some weights.

    Norms and other small operations keep their backward pass wherever the layer has one.
    """
    for operation in operations:
        parts = [Part(layer, name) for name in _WEIGHTS.get(operation.name, ())]
        if parts:
            of_weights = [gradients.of_weight(part) for part in parts]
            yield with_gradients(operation, of_weights, of_input=gradients.of_input(parts[0]))
        else:
            last = Part(layer, "self_attn.o_proj" if operation.kind == "attention" else "shared_head.norm")
            yield operation if gradients.of_input(last) else replace(operation, backward=NOTHING)


def frozen(operation: Operation) -> Operation:
    """Without the gradients of its weights."""
    return with_gradients(operation, [False], of_input=True)


def with_gradients(operation: Operation, of_weights: Sequence[bool], *, of_input: bool) -> Operation:
    """With the gradients of its input and of those weights; one flag is of all weights. An embedding has no gradient of
    an input; what has no weights keeps its backward pass."""
    if operation.name == "embedding":
        return operation if of_weights[0] else replace(operation, backward=NOTHING)
    of_weight = [matmul for matmul in operation.backward.matmuls if matmul.contracts_rows]
    if not of_weight:
        return operation
    flags = [*of_weights] * len(of_weight) if len(of_weights) == 1 else of_weights
    left_out = [matmul for matmul, wanted in zip(of_weight, flags, strict=True) if not wanted]
    kept = [matmul for matmul in operation.backward.matmuls if of_input and not matmul.contracts_rows]
    kept += [matmul for matmul, wanted in zip(of_weight, flags, strict=True) if wanted]
    if not kept:
        return replace(operation, backward=NOTHING)
    # Gradients that are not wanted are not written, and for them the inputs, or the weights, are not read.
    saved = sum(matmul.itemsize * matmul.groups * matmul.m * matmul.n for matmul in left_out)
    if len(left_out) == len(of_weight):
        saved += BF16 * of_weight[0].n * of_weight[0].k
    if not of_input:
        saved += sum(matmul.itemsize * matmul.groups * matmul.m * matmul.n for matmul in of_weight)
        saved += BF16 * of_weight[0].n * of_weight[0].k
    return replace(operation, backward=Work(max(0, operation.backward.bytes - saved), tuple(kept)))


def adapters(operation: Operation, lora: LoraConfig) -> Iterator[Operation]:
    """Those of the operation's maps: A and B, each a map. A pattern that means some of the layers counts for all."""
    names = MAPS.get(operation.name, ())
    packed = f"{names[0].rpartition('.')[0]}.{PACKED}" if "experts: gate" in operation.name else ""
    if packed and _adapts(lora, packed):
        names = (packed,)
    for index, name in enumerate(names):
        if _adapts(lora, name):
            rows, width, outputs, groups = _map(operation.forward, index, len(names))
            for inner, outer in ((width, lora.rank), (lora.rank, outputs)):
                yield replace(linear("adapters", rows, inner, [outer], groups), times=operation.times)


def _adapts(lora: LoraConfig, name: str) -> bool:
    """Whether a map of this name within its layer gets an adapter in some layer."""
    kind: Kind = "experts" if ".experts." in name else "linear"
    return any(is_meant(target, f"model.layers.*.{name}", kind) for target in lora.targets)


def _map(work: Work, index: int, number: int) -> tuple[int, int, int, int]:
    """Rows, inputs, outputs and groups of one of an operation's maps, which may be a single matmul."""
    matmul: Matmul = work.matmuls[index if len(work.matmuls) == number else 0]
    outputs = matmul.n if len(work.matmuls) == number else matmul.n // number
    return matmul.m, matmul.k, outputs, matmul.groups
