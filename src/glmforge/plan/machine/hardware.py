"""What known accelerators can do at most: the figures that utilisation, step time and memory are measured against.

All are the makers' own, per device, for dense matrices: data sheets like to print the double, which only matrices with
half their elements zero can reach. Exports are taken at what was announced for them (A800 and H800 differ from A100
and H100 in NVLink only). Memory and bandwidth count 1 GB as 10^9 bytes; the driver often shows a few percent more.

A device is found by the name that `torch.cuda.get_device_name()` gives it, the whole name: a laptop's RTX 4090 is no
RTX 4090, and a MIG slice no H100. What is not in the table is not known, and nothing is guessed for it. A planner is
also accepts short names such as "h100-80gb" (`ALIASES`), or a description in YAML
(`glmforge.plan.machine.description`).
"""

import re
from typing import NamedTuple

from glmforge.plan.machine.measured import MEASURED_POINTS, MeasuredPoints

_TERA = 10**12
_GIGA = 10**9


class Accelerator(NamedTuple):
    """Peak figures of one device."""

    name: str
    bf16_flops: float
    """Dense bf16 FLOP/s, accumulated in fp32."""
    fp8_flops: float | None
    """Dense fp8 FLOP/s; None where the device has no fp8."""
    fp32_flops: float
    """fp32 FLOP/s without tensor cores: what an fp32 matmul does unless TF32 is allowed."""
    memory_bytes: int
    memory_bandwidth: float
    """Bytes per second."""
    nvlink_bandwidth: float | None
    """Bytes per second to the other devices of a node, each way: half of what is advertised. None: not to all."""
    source: str
    device_names: tuple[str, ...] = ()
    """Regular expressions for the whole device name, NVIDIA in front taken off, as older drivers leave it out."""
    power: float | None = None
    """Watts at full load: the board's limit. None: not known."""
    num_processors: int | None = None
    """Streaming multiprocessors, over which the tiles of a matmul are dealt; None: a matmul is not cut into tiles."""
    points: MeasuredPoints | None = None
    """What was measured of it; predictions start from these points rather than from the peaks."""


def _row(
    name: str,
    bf16: float,
    fp8: float | None,
    fp32: float,
    memory: int,
    bandwidth: float,
    nvlink: int | None,
    power: float,
    num_processors: int,
    source: str,
    *device_names: str,
) -> Accelerator:
    """A row from TFLOP/s, GB, GB/s and W; NVLink both ways together, as data sheets have it."""
    return Accelerator(
        name,
        bf16 * _TERA,
        None if fp8 is None else fp8 * _TERA,
        fp32 * _TERA,
        memory * _GIGA,
        bandwidth * _GIGA,
        None if nvlink is None else nvlink * _GIGA / 2,
        source,
        device_names,
        power,
        num_processors,
        MEASURED_POINTS.get(name),
    )


ACCELERATORS = (
    _row("A100 SXM 40GB", 312, None, 19.5, 40, 1555, 600, 400, 108, "A100 data sheet", r"A100-SXM4-40GB"),
    _row("A100 SXM 80GB", 312, None, 19.5, 80, 2039, 600, 400, 108, "A100 data sheet", r"A100-SXM4-80GB"),
    _row("A100 PCIe 40GB", 312, None, 19.5, 40, 1555, None, 250, 108, "A100 data sheet", r"A100-PCI[Ee]-40GB"),
    _row(
        "A100 PCIe 80GB",
        312,
        None,
        19.5,
        80,
        1935,
        None,
        300,
        108,
        "A100 data sheet",
        r"A100 80GB PCIe",
        r"A100-PCI[Ee]-80GB",
    ),
    _row("A800 SXM 80GB", 312, None, 19.5, 80, 2039, 400, 400, 108, "A800 as A100", r"A800-SXM4-80GB"),
    _row("A800 PCIe 80GB", 312, None, 19.5, 80, 1935, None, 300, 108, "A800 as A100", r"A800 80GB PCIe"),
    _row("H100 SXM", 989.4, 1978.9, 66.9, 80, 3350, 900, 700, 132, "H100 white paper", r"H100 80GB HBM3"),
    _row("H100 PCIe", 756, 1513, 51.2, 80, 2000, None, 350, 114, "H100 data sheet", r"H100 PCIe"),
    _row("H100 NVL", 835.5, 1670.5, 60, 94, 3900, None, 400, 132, "H100 data sheet", r"H100 NVL"),
    _row("H800 SXM", 989.4, 1978.9, 66.9, 80, 3350, 400, 700, 132, "H800 as H100", r"H800"),
    _row("H800 PCIe", 756, 1513, 51.2, 80, 2000, None, 350, 114, "H800 as H100", r"H800 PCIe"),
    _row("H20 96GB", 148, 296, 44, 96, 4000, 900, 400, 78, "H20 announcement", r"H20"),
    _row("H20 141GB", 148, 296, 44, 141, 4800, 900, 400, 78, "H20 announcement", r"H20-3e"),
    _row("H200 SXM", 989.4, 1978.9, 66.9, 141, 4800, 900, 700, 132, "H200 data sheet", r"H200"),
    _row("H200 NVL", 835.5, 1670.5, 60, 141, 4800, None, 600, 132, "H200 data sheet", r"H200 NVL"),
    _row("GH200 96GB", 989.4, 1978.9, 66.9, 96, 4000, 900, 700, 132, "GH200 data sheet", r"GH200 480GB"),
    _row("B200", 2250, 4500, 75, 180, 7700, 1800, 1000, 148, "HGX B200 data sheet", r"B200"),
    _row("GB200", 2500, 5000, 80, 186, 8000, 1800, 1200, 152, "GB200 NVL72 data sheet", r"GB200"),
    _row("L40S", 362, 733, 91.6, 48, 864, None, 350, 142, "L40S data sheet", r"L40S"),
    _row("RTX 4090", 165.2, 330.3, 82.6, 24, 1008, None, 450, 128, "Ada white paper", r"GeForce RTX 4090"),
    _row(
        "MI300X",
        1307.4,
        2614.9,
        163.4,
        192,
        5300,
        896,
        750,
        304,
        "MI300X data sheet",
        r"AMD Instinct MI300X( OAM| VF)?",
    ),
)


def find_accelerator(device_name: str) -> Accelerator | None:
    """The row of a device by its name, as `torch.cuda.get_device_name()` gives it; None if it is not in the table."""
    name = " ".join(device_name.split()).removeprefix("NVIDIA ")
    matches = (row for row in ACCELERATORS if any(re.fullmatch(pattern, name) for pattern in row.device_names))
    return next(matches, None)


ALIASES = {
    "a100-40gb": "A100 SXM 40GB",
    "a100-80gb": "A100 SXM 80GB",
    "a100": "A100 SXM 80GB",
    "a800": "A800 SXM 80GB",
    "a800-80gb": "A800 SXM 80GB",
    "h100": "H100 SXM",
    "h100-80gb": "H100 SXM",
    "h100-94gb": "H100 NVL",
    "h800": "H800 SXM",
    "h800-80gb": "H800 SXM",
    "h20": "H20 96GB",
    "h20-96gb": "H20 96GB",
    "h20-141gb": "H20 141GB",
    "h200": "H200 SXM",
    "h200-141gb": "H200 SXM",
    "gh200": "GH200 96GB",
    "rtx4090": "RTX 4090",
}
"""Short names for which there is more than one row, or none of that name; of a kind the one with NVLink."""


def accelerator_named(name: str) -> Accelerator | None:
    """The row that a person means: its name or an alias in any spelling of letters and signs, or the driver's name."""
    rows = {_letters(row.name): row for row in ACCELERATORS}
    aliases = {_letters(alias): rows[_letters(row)] for alias, row in ALIASES.items()}
    return find_accelerator(name) or rows.get(_letters(name)) or aliases.get(_letters(name))


def _letters(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
