"""What we expect of each operation on a GPU, written down before anything of this project has run on one.

The model is simple on purpose, so that a measurement can contradict it:

- A matmul takes its FLOPs at the rate of measured products, less what its shape wastes (`glmforge.plan.time.matmul`).
- Everything else takes the bytes it moves at a share of the measured copy's rate. What it moves is its least bytes
  times a factor that says how many passes over memory an implementation makes (`FACTORS`, each with its reason).
- Operations follow one another with a gap between them (`glmforge.plan.time.overheads`), and nothing overlaps.
"""

from collections.abc import Collection
from statistics import geometric_mean

from glmforge.config.parallel import LowPrecisionMap
from glmforge.plan.machine.ceilings import ceilings
from glmforge.plan.machine.hardware import Accelerator
from glmforge.plan.time.matmul import matmul_seconds
from glmforge.plan.time.overheads import FITTED, Overheads
from glmforge.plan.time.reached import (
    ATTENTION,
    ATTENTION_AMPERE,
    ATTENTION_FLASH3,
    FACTORS,
    GATHERED,
    GATHERING,
    IMPLEMENTATIONS,
    STREAMING,
    AttentionKernel,
    Factor,
    Implementation,
    Reached,
)
from glmforge.plan.time.roofline import work_limit
from glmforge.plan.work.operations import Direction, Operation, Work


def expected_seconds(
    operation: Operation,
    work: Work,
    direction: Direction,
    accelerator: Accelerator,
    implementation: Implementation,
    *,
    attention: AttentionKernel = "flash2",
    fp8_maps: Collection[LowPrecisionMap] = (),
    fp8_weight_gradients: bool = False,
    overheads: Overheads = FITTED,
) -> float:
    """Of one pass of the operation, `work` (see `Operation.passes`).

    `fp8_maps`: the linear maps whose products are computed in fp8 (`precision.low_precision_maps`), gradients of
    weights as well with `fp8_weight_gradients`.
    """
    launches = max(1, len(work.matmuls)) if operation.in_model and (work.bytes or work.flops) else 0
    launched = overheads.launch * launches if accelerator.num_processors else 0.0
    sustained = overheads.sustained if accelerator.num_processors else 1.0
    is_forward = direction == "forward"
    if operation.kind == "attention":
        measured = _attention_rate(accelerator, direction)
        if measured is not None:
            return work.attention_flops / measured / sustained + launched
        reached = attention_reached(accelerator, attention)
        share = reached.forward if is_forward else reached.backward
        seconds = work.attention_flops / (sustained * share * accelerator.bf16_flops)
        return max(seconds, work_limit(work, accelerator)) + launched
    if operation.kind == "matmul":
        in_fp8 = _map_of(operation.name) in fp8_maps
        products = (
            matmul_seconds(
                matmul,
                accelerator,
                implementation,
                # A weight's gradient stays in bf16 (`precision.low_precision`).
                fp8=in_fp8 and (fp8_weight_gradients or not matmul.contracts_rows),
                overheads=overheads,
            )
            for matmul in work.matmuls
        )
        return sum(products) / sustained + launched
    factor = _factor(operation, implementation)
    moved = work.bytes * (factor.forward if is_forward else factor.backward)
    share = (GATHERING if operation.name in GATHERED else STREAMING).forward
    return operation.repeats * moved / (share * ceilings(accelerator).bandwidth) + launched


def _attention_rate(accelerator: Accelerator, direction: Direction) -> float | None:
    """FLOP/s of attention as it was measured on the device; None if it was not."""
    points = accelerator.points.attention if accelerator.points else ()
    rates = [point.flops_per_second for point in points if point.direction == direction]
    return geometric_mean(rates) if rates else None


def attention_reached(accelerator: Accelerator, kernel: AttentionKernel) -> Reached:
    """What of the peak attention reaches; FlashAttention 3 is for Hopper devices, which have fp8 as later ones do."""
    if accelerator.fp8_flops is None:
        return ATTENTION_AMPERE
    return ATTENTION if kernel == "flash2" else ATTENTION_FLASH3


def _map_of(name: str) -> LowPrecisionMap | None:
    """To which of `precision.low_precision_maps` an operation belongs."""
    begins: dict[str, LowPrecisionMap] = {
        "q, k, v projections": "attention",
        "output projection": "attention",
        "dense MLP": "dense_mlp",
        "shared expert": "shared_experts",
        "experts": "experts",
    }
    return next((of for begin, of in begins.items() if name.startswith(begin)), None)


def _factor(operation: Operation, implementation: Implementation) -> Factor:
    known = FACTORS.get(operation.name) or FACTORS.get(operation.name.rpartition(": ")[2], {})
    order = IMPLEMENTATIONS[: IMPLEMENTATIONS.index(implementation) + 1]
    found = [known[name] for name in order if name in known]
    return found[-1] if found else Factor(1.0, 1.0, "the least")
