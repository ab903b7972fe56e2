"""Measured points of devices and links: what one product, copy or collective took, which predictions start from.

The table below has what was measured on single machines, by this project or by others who say how. A user's own points
(`plan --calibrate`) take their place.
"""

from typing import Literal, NamedTuple

DType = Literal["bf16", "fp8", "fp32"]
CollectiveKind = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send"]


class MatmulPoint(NamedTuple):
    """The rate of one product [m, k] x [k, n]; with `groups`, that many at once, whose m together are that."""

    m: int
    n: int
    k: int
    flops_per_second: float
    dtype: DType = "bf16"
    groups: int = 1


class AttentionPoint(NamedTuple):
    """The rate of one direction of attention, at the lengths of documents that a run has."""

    direction: Literal["forward", "backward"]
    flops_per_second: float


class CollectivePoint(NamedTuple):
    """How long a collective of `bytes` took (of the larger of input and output, on each rank), while `groups` of
    `num_ranks` ranks, `ranks_per_node` of each in one node, did it at the same time."""

    kind: CollectiveKind
    num_ranks: int
    ranks_per_node: int
    bytes: int
    seconds: float
    groups: int = 1


class MeasuredPoints(NamedTuple):
    """What is known of one kind of device. `copy_bandwidth`: bytes per second, read and written, of a large copy."""

    source: str
    matmuls: tuple[MatmulPoint, ...] = ()
    copy_bandwidth: float | None = None
    attention: tuple[AttentionPoint, ...] = ()


_HERE = "one large product and one large copy in plain torch"
_MAMF = "ml-engineering, maximum achievable matmul FLOPS (Stas Bekman): the best of many shapes"
_TERA = 1e12

MEASURED_POINTS: dict[str, MeasuredPoints] = {
    "H100 SXM": MeasuredPoints(_HERE, (MatmulPoint(8192, 8192, 8192, 798e12),), 3.0 * _TERA),
    "H200 SXM": MeasuredPoints(_HERE, (MatmulPoint(8192, 8192, 8192, 788e12),), 4.3 * _TERA),
    "GH200 96GB": MeasuredPoints(_MAMF, (MatmulPoint(11264, 19712, 1536, 821e12),)),
    "A100 SXM 80GB": MeasuredPoints(_MAMF, (MatmulPoint(6912, 16384, 2048, 267.9e12),)),
    "A100 PCIe 80GB": MeasuredPoints(_MAMF, (MatmulPoint(2304, 5120, 1536, 256.4e12),)),
    "MI300X": MeasuredPoints(_MAMF, (MatmulPoint(4096, 10240, 4864, 781.9e12),)),
}
"""By the name of the device in `glmforge.plan.machine.hardware.ACCELERATORS`."""
