"""How long a matmul takes on a device, by its shape: from the rates of measured products.

What a shape leaves of an endless product's rate follows from how kernels work: tiles cut at its borders, a last wave
of tiles that does not fill the device, and the start of each tile (`shape_share`). A measured product says what that
model is off by for such a shape, and the nearest measured shapes count most (distances are those of the logarithms of
m, n, k and the number of groups, and weigh as 1 / distance^2). At a measured shape the prediction is the measurement;
with a single one the device reaches the same of the model everywhere. A device of which nothing was measured is taken
to reach what H100 and H200 do.
"""

import math
from functools import lru_cache

from glmforge.plan.machine.ceilings import ceilings
from glmforge.plan.machine.hardware import Accelerator
from glmforge.plan.machine.measured import DType, MatmulPoint
from glmforge.plan.time.overheads import FITTED, Overheads
from glmforge.plan.time.reached import FP32_MATMUL, SYMMETRIC, SYMMETRIC_TILES, Implementation
from glmforge.plan.work.operations import FP32, Matmul

_TILE_ROWS, _TILE_COLUMNS = 128, 256
_PROLOGUE = 200
"""Depth of a product that takes as long as filling and emptying a tile's pipeline."""
_SQUARE = Matmul(8192, 8192, 8192)
FP8_REACHED = 0.734
"""Of the fp8 peak by the best of many shapes on an H200 (ml-engineering, 1,453 TFLOP/s)."""
_FP8_CASTS = 3
"""Bytes moved to make an element of an fp8 operand: bf16 read, fp8 written."""


def matmul_seconds(
    matmul: Matmul,
    accelerator: Accelerator,
    implementation: Implementation = "compiled",
    *,
    fp8: bool = False,
    overheads: Overheads = FITTED,
) -> float:
    """Of one product: at the rate of its shape, or as long as its bytes take, and what each of its groups adds.

    `fp8`: with its operands cast to fp8.
    """
    return _seconds(matmul, accelerator, matmul.is_symmetric and implementation == "triton", fp8, overheads)


@lru_cache(maxsize=1 << 16)
def _seconds(matmul: Matmul, accelerator: Accelerator, in_half: bool, fp8: bool, overheads: Overheads) -> float:
    bandwidth = ceilings(accelerator).bandwidth
    if matmul.itemsize == FP32:
        if _points(accelerator, "fp32", grouped=matmul.groups > 1):
            return max(matmul.flops / _rate(matmul, accelerator, "fp32", overheads), matmul.bytes / bandwidth)
        return matmul.flops / (FP32_MATMUL.forward * accelerator.fp32_flops) + matmul.bytes / bandwidth
    half = SYMMETRIC_TILES / SYMMETRIC.forward if in_half else 1.0
    seconds = max(half * matmul.flops / _rate(matmul, accelerator, "bf16", overheads), matmul.bytes / bandwidth)
    groups = _counted_groups(matmul, accelerator)
    seconds += groups * overheads.expert
    if not fp8 or accelerator.fp8_flops is None:
        return seconds
    # Kernels choose what is faster.
    operands = matmul.m * matmul.k + (1 if matmul.contracts_rows else matmul.groups) * matmul.n * matmul.k
    in_fp8 = matmul.flops / _rate(matmul, accelerator, "fp8", overheads) + _FP8_CASTS * operands / bandwidth
    return min(seconds, in_fp8 + groups * (overheads.expert + overheads.fp8_expert))


def _counted_groups(matmul: Matmul, accelerator: Accelerator) -> int:
    """Groups that take time of their own: none of a single one, or where grouped products were measured with it."""
    measured = _points(accelerator, "bf16", grouped=True)
    return matmul.groups if matmul.groups > 1 and accelerator.num_processors and not measured else 0


def shape_share(matmul: Matmul, num_processors: int | None) -> float:
    """What of the rate of an endless product a shape leaves; all of it where products are not cut into tiles."""
    if num_processors is None:
        return 1.0
    rows, columns, depth = float(matmul.m), matmul.n, float(matmul.k)
    if matmul.contracts_rows:
        rows, depth = rows * matmul.groups, depth / matmul.groups
    tiles_down = matmul.groups * math.ceil(rows / matmul.groups / _TILE_ROWS)
    tiles_across = math.ceil(columns / _TILE_COLUMNS)
    cut = rows * columns / (tiles_down * _TILE_ROWS * tiles_across * _TILE_COLUMNS)
    waves = tiles_down * tiles_across / num_processors
    return cut * waves / math.ceil(waves) * depth / (depth + _PROLOGUE)


def _rate(matmul: Matmul, accelerator: Accelerator, dtype: DType, overheads: Overheads) -> float:
    """FLOP/s of a shape where memory is no limit."""
    is_grouped = matmul.groups > 1
    grouped = overheads.grouped
    points = _points(accelerator, dtype, grouped=is_grouped)
    if points:
        grouped = 1.0
    else:
        points = _points(accelerator, dtype, grouped=False)
        grouped = grouped if is_grouped else 1.0
    share = shape_share(matmul, accelerator.num_processors)
    if not points:
        peak = FP8_REACHED * (accelerator.fp8_flops or 0.0) if dtype == "fp8" else ceilings(accelerator).bf16_flops
        return grouped * peak * share / shape_share(_SQUARE, accelerator.num_processors)
    return grouped * share * _endless_rate(points, matmul, accelerator.num_processors)


def _points(accelerator: Accelerator, dtype: DType, *, grouped: bool) -> tuple[MatmulPoint, ...]:
    points = accelerator.points.matmuls if accelerator.points else ()
    return tuple(point for point in points if point.dtype == dtype and (point.groups > 1) == grouped)


def _endless_rate(points: tuple[MatmulPoint, ...], matmul: Matmul, num_processors: int | None) -> float:
    """FLOP/s of an endless product as the measured ones near this shape have it: their weighted geometric mean."""
    weights = logarithms = 0.0
    for point in points:
        rate = point.flops_per_second / _share_of(point, num_processors)
        distance = sum(
            math.log(here / there) ** 2
            for here, there in zip(
                (matmul.m, matmul.n, matmul.k, matmul.groups),
                (point.m, point.n, point.k, point.groups),
                strict=True,
            )
        )
        if distance == 0:
            return rate
        weights += 1 / distance
        logarithms += math.log(rate) / distance
    return math.exp(logarithms / weights)


@lru_cache(maxsize=4096)
def _share_of(point: MatmulPoint, num_processors: int | None) -> float:
    return shape_share(Matmul(point.m, point.n, point.k, point.groups), num_processors)
