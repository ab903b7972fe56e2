"""What a role of a stage makes of a model's operations: frozen weights, adapters, forward passes alone.

A frozen map passes its outputs' gradient on to its inputs and computes none of its own, so that its backward pass is as
long as its forward one. Adapters are two small maps beside it. A layer's own inputs need a gradient even in the first
layer, of which implementations may save a part; that is not counted.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from glmforge.config.adapters import PACKED, Kind, is_meant
from glmforge.config.lora import LoraConfig
from glmforge.plan.stages.stage import Role
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
            yield replace(operation, backward=NOTHING, times=operation.times * role.forwards, model_passes=1)


def frozen(operation: Operation) -> Operation:
    """Without the gradients of its weights; an embedding has no other."""
    if operation.name == "embedding":
        return replace(operation, backward=NOTHING)
    gradients = [matmul for matmul in operation.backward.matmuls if matmul.contracts_rows]
    if not gradients:
        return operation
    kept = tuple(matmul for matmul in operation.backward.matmuls if not matmul.contracts_rows)
    # The inputs are not read again, and no gradients are written.
    inputs = BF16 * gradients[0].n * gradients[0].k
    written = sum(matmul.itemsize * matmul.groups * matmul.m * matmul.n for matmul in gradients)
    work = replace(operation.backward, bytes=operation.backward.bytes - inputs - written, matmuls=kept)
    return replace(operation, backward=work, model_passes=2)


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
