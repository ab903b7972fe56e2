"""What implementations make of an operation: bytes that they move, shares of rates that they reach, what comes next.

Three implementations are distinguished: "eager" torch, the "compiled" parts of layers (`parallel.compile`), and
"triton",
the compiled step with the kernels of `glmforge.kernels.triton`. `LEVERS` says what comes after those and what of an
operation's time should remain then.
"""

from typing import Literal, NamedTuple, get_args

Implementation = Literal["eager", "compiled", "triton"]
AttentionKernel = Literal["flash2", "flash3"]
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
GATHERED = ("sort and permute", "combine", "embedding")

ATTENTION = Reached(
    0.36, 0.30, "of the peak: FlashAttention 2 on H100, published at 0.37 forward without a mask (arXiv 2407.08608)"
)

ATTENTION_FLASH3 = Reached(
    0.62, 0.50, "of the peak: FlashAttention 3 with a causal mask on H100, long sequences (arXiv 2407.08608)"
)
ATTENTION_AMPERE = Reached(0.62, 0.55, "of the peak: FlashAttention 2 on A100 (arXiv 2307.08691)")

SYMMETRIC = Reached(0.8, 0.8, "of a dense matmul's rate: Triton's kernel for symmetric products beside cuBLAS")
SYMMETRIC_TILES = 0.55
"""Of the tiles of a symmetric product those on and above the diagonal, for 1,408 to 4,096 rows."""

BESIDE_COMMUNICATION = Reached(
    0.85, 0.85, "of the rate alone: collectives take about 20 of a Hopper's 132 processors, as DeepEP's and NCCL's do"
)
"""What computation reaches while something is communicated beside it."""

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
