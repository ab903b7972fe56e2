"""What we expect of each operation on a GPU, written down before anything of this project has run on one.

The model is simple on purpose, so that a measurement can contradict it:

- A matmul takes its FLOPs at the rate of the measured 8,192^3 product, less what its shape wastes (`matmul_seconds`).
- Everything else takes the bytes it moves at a share of the measured copy's rate. What it moves is its least bytes
  times a factor that says how many passes over memory an implementation makes (`FACTORS`, each with its reason).
- Operations follow one another: nothing overlaps, and the device never waits for the host.

Three implementations are told apart: "eager" torch, the "compiled" parts of layers (`parallel.compile`), and "triton",
the compiled step with the kernels of `glmforge.kernels.triton`. `LEVERS` says what comes after those and what of an
operation's time should remain then.
"""

import math
from typing import Literal, NamedTuple, get_args

from glmforge.plan.machine.ceilings import ceilings
from glmforge.plan.machine.hardware import Accelerator
from glmforge.plan.time.roofline import work_limit
from glmforge.plan.work.operations import FP32, Direction, Matmul, Operation, Work

Implementation = Literal["eager", "compiled", "triton"]
IMPLEMENTATIONS: tuple[Implementation, ...] = get_args(Implementation)


class Factor(NamedTuple):
    """Bytes moved, as multiples of the least."""

    forward: float
    backward: float
    reason: str


class Reached(NamedTuple):
    """What of a rate is reached."""

    forward: float
    backward: float
    reason: str


class Lever(NamedTuple):
    """What would make an operation faster next, and what then remains of its time with Triton's kernels."""

    words: str
    remains: float
    reason: str


_FUSED = "one kernel each way"
FACTORS: dict[str, dict[Implementation, Factor]] = {
    "embedding": {"eager": Factor(3.7, 2.7, "counted: fp32 rows, mask and cast apart; a dense gradient")},
    "residual and norm": {
        "eager": Factor(5.3, 13.3, "counted: every fp32 step of the norm is a pass of its own"),
        "compiled": Factor(
            1.25, 1.6, "fused, but for the residual after the MLP; the weight's gradient is a second pass"
        ),
        "triton": Factor(1.05, 1.1, _FUSED),
    },
    "final norm": {
        "eager": Factor(9.0, 17.0, "counted"),
        "compiled": Factor(1.1, 1.5, "as in a layer"),
        "triton": Factor(1.05, 1.2, _FUSED),
    },
    "MTP: norms": {
        "eager": Factor(9.0, 17.0, "as the final norm"),
        "compiled": Factor(1.2, 1.6, "fused, but for the concatenation"),
        "triton": Factor(1.2, 1.4, "the concatenation remains"),
    },
    "RoPE": {
        "eager": Factor(3.5, 5.5, "counted: products, a sum and concatenations"),
        "compiled": Factor(1.1, 1.2, "fused"),
        "triton": Factor(1.05, 1.1, _FUSED),
    },
    "q/k norm and RoPE": {
        "eager": Factor(12.6, 19.7, "counted: two fp32 norms as well"),
        "compiled": Factor(1.2, 1.7, "fused; the weights' gradients are a second pass"),
        "triton": Factor(1.05, 1.2, _FUSED),
    },
    "sort and permute": {
        "eager": Factor(1.8, 2.8, "counted: integers sorted, K rows gathered, then summed; outside the compiled parts"),
        "triton": Factor(1.1, 1.1, "counts instead of a sort; one kernel each way"),
    },
    "combine": {
        "eager": Factor(11.9, 10.5, "counted: an fp32 sum for each choice of a token; outside the compiled parts"),
        "triton": Factor(1.1, 1.1, _FUSED),
    },
    "experts: SwiGLU": {
        "eager": Factor(1.7, 2.6, "counted: silu apart from the product; gate and up joined in the backward pass"),
        "compiled": Factor(1.0, 1.0, "fused"),
    },
    "SwiGLU": {
        "eager": Factor(1.7, 1.8, "counted: silu apart from the product"),
        "compiled": Factor(1.0, 1.0, "fused"),
    },
    "cross-entropy": {
        "eager": Factor(12.2, 0.0, "counted: fp32 copies of the logits; each chunk adds to the head's fp32 gradient"),
        "triton": Factor(5.2, 0.0, "two passes over bf16 logits; the gradient's sums remain"),
    },
    "gradient accumulation": {"eager": Factor(1.0, 1.8, "cast and sum are two passes")},
    "Muon: momentum and weights": {"eager": Factor(2.2, 0.0, "two interpolations, cast, copy, decay and sum apart")},
}
"""By operation; an implementation that is not given moves what the one before it does, and an operation that is not
given its least bytes. "counted" factors are those of the operators that torch runs, as the tests count them."""

STREAMING = Reached(0.92, 0.92, "of the copy's rate: elementwise kernels come close to it")
GATHERING = Reached(0.75, 0.75, "of the copy's rate: rows of some KiB from scattered places")
_GATHERED = ("sort and permute", "combine", "embedding")

ATTENTION = Reached(
    0.36, 0.30, "of the peak: FlashAttention 2 on H100, published at 0.37 forward without a mask (arXiv 2407.08608)"
)

GROUPED = Reached(0.85, 0.80, "of a dense matmul's rate: borders of experts, and tiles chosen without their number")
_TILE_ROWS, _TILE_COLUMNS, _NUM_PROCESSORS = 128, 256, 132
_PROLOGUE = 200
"""Depth of a product that takes as long as filling and emptying a tile's pipeline."""
SYMMETRIC = Reached(0.8, 0.8, "of a dense matmul's rate: Triton's kernel for symmetric products beside cuBLAS")
SYMMETRIC_TILES = 0.55
"""Of the tiles of a symmetric product those on and above the diagonal, for 1,408 to 4,096 rows."""

FP32_MATMUL = Reached(0.7, 0.7, "of the fp32 peak: no tensor cores")

LEVERS = {
    "attention": Lever(
        "FlashAttention 3", 0.58, "published at 0.65 of the peak forward without a mask (arXiv 2407.08608)"
    ),
    "experts: gate and up": Lever("fp8 grouped matmul", 0.7, "twice the rate, less casts and scales"),
    "experts: down": Lever("fp8 grouped matmul", 0.7, "as above"),
    "q, k, v projections": Lever("fp8, one matmul for the three", 0.7, "as above"),
    "output projection": Lever("fp8", 0.7, "as above"),
    "dense MLP: gate and up": Lever("fp8", 0.7, "as above"),
    "dense MLP: down": Lever("fp8", 0.7, "as above"),
    "shared expert: gate and up": Lever("fp8", 0.7, "as above"),
    "shared expert: down": Lever("fp8", 0.7, "as above"),
    "experts: SwiGLU": Lever("in the epilogue of gate and up", 0.5, "gate and up are not read again forward"),
    "sort and permute": Lever("gathered by the matmul itself", 0.3, "no sorted copy of the rows"),
    "cross-entropy": Lever("gradients straight into fp32 tiles", 0.5, "no sum per chunk"),
    "weight casts": Lever("once a step, not for every micro-batch", 0.15, "weights change once a step"),
    "gradient accumulation": Lever("in the epilogue of the gradients' matmuls", 0.4, "as Megatron does"),
    "Muon: momentum and weights": Lever("one kernel", 0.5, "24 of 52 bytes per weight"),
}


def expected_seconds(
    operation: Operation,
    work: Work,
    direction: Direction,
    accelerator: Accelerator,
    implementation: Implementation,
) -> float:
    """Of one pass of the operation, `work` (see `Operation.passes`)."""
    is_forward = direction == "forward"
    if operation.kind == "attention":
        share = ATTENTION.forward if is_forward else ATTENTION.backward
        return max(work.attention_flops / (share * accelerator.bf16_flops), work_limit(work, accelerator))
    if operation.kind == "matmul":
        return sum(matmul_seconds(matmul, accelerator, implementation) for matmul in work.matmuls)
    factor = _factor(operation, implementation)
    moved = work.bytes * (factor.forward if is_forward else factor.backward)
    share = (GATHERING if operation.name in _GATHERED else STREAMING).forward
    return operation.repeats * moved / (share * ceilings(accelerator).bandwidth)


def matmul_seconds(matmul: Matmul, accelerator: Accelerator, implementation: Implementation = "compiled") -> float:
    """At the rate of the measured product, times what the shape uses of it, or as long as its bytes take."""
    reached = ceilings(accelerator)
    if matmul.itemsize == FP32:
        return matmul.flops / (FP32_MATMUL.forward * accelerator.fp32_flops) + matmul.bytes / reached.bandwidth
    square = Matmul(8192, 8192, 8192)
    rate = reached.bf16_flops * _shape_share(matmul) / _shape_share(square)
    if matmul.groups > 1:
        rate *= GROUPED.backward if matmul.contracts_rows else GROUPED.forward
    half = SYMMETRIC_TILES / SYMMETRIC.forward if matmul.is_symmetric and implementation == "triton" else 1.0
    return max(half * matmul.flops / rate, matmul.bytes / reached.bandwidth)


def _factor(operation: Operation, implementation: Implementation) -> Factor:
    known = FACTORS.get(operation.name) or FACTORS.get(operation.name.rpartition(": ")[2], {})
    order = IMPLEMENTATIONS[: IMPLEMENTATIONS.index(implementation) + 1]
    found = [known[name] for name in order if name in known]
    return found[-1] if found else Factor(1.0, 1.0, "the least")


def _shape_share(matmul: Matmul) -> float:
    """What of the rate of an endless product a shape leaves: tiles cut at its borders, a last wave of tiles that does
    not fill the device, and the start of each tile."""
    rows, columns, depth = float(matmul.m), matmul.n, float(matmul.k)
    if matmul.contracts_rows:
        rows, depth = rows * matmul.groups, depth / matmul.groups
    tiles_down = matmul.groups * math.ceil(rows / matmul.groups / _TILE_ROWS)
    tiles_across = math.ceil(columns / _TILE_COLUMNS)
    cut = rows * columns / (tiles_down * _TILE_ROWS * tiles_across * _TILE_COLUMNS)
    waves = tiles_down * tiles_across / _NUM_PROCESSORS
    return cut * waves / math.ceil(waves) * depth / (depth + _PROLOGUE)
