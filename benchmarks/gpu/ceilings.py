"""What the device reaches at most, measured once, and how far a figure is from it.

Two numbers bound every kernel: the floating-point operations it must do over the rate of a large bf16 matrix product,
and the bytes it must at least move (each input read once, each output written once) over the rate of a large copy. The
larger of the two times is its floor. Random data: products of zeros run faster than those of anything else.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from gpu.device import clocks
from gpu.timing import measure


@dataclass(frozen=True)
class Ceilings:
    """Bytes (read and written) and bf16 operations per second that a plain copy and a plain product reach."""

    device: str
    bandwidth: float
    matmul_flops: float
    noise: float
    clocks: dict[str, str] | None

    def roofline(self, seconds: float, flops: float, num_bytes: float) -> dict[str, Any]:
        """FLOPs, bytes, the floor they set and what of it was reached (1 is the ceiling)."""
        by_compute, by_memory = flops / self.matmul_flops, num_bytes / self.bandwidth
        floor = max(by_compute, by_memory)
        return {
            "flops": flops,
            "bytes": num_bytes,
            "bound": "compute" if by_compute > by_memory else "memory",
            "floor_s": floor,
            "share": round(floor / seconds, 4),
            "flops_per_s": flops / seconds,
            "bytes_per_s": num_bytes / seconds,
        }


def ceilings(device: torch.device, folder: Path, *, dry: bool) -> Ceilings:
    """Those that another part left in `folder`, if it is the same device; else measured now and left there."""
    file = folder / "gpu_ceilings.json"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    if file.exists():
        known = Ceilings(**json.loads(file.read_text("utf-8")))
        if known.device == name:
            return known
    found = _measured(device, name, dry=dry)
    file.write_text(json.dumps(asdict(found), indent=1) + "\n", "utf-8")
    return found


def _measured(device: torch.device, name: str, *, dry: bool) -> Ceilings:
    num_bytes, width = (1 << 20, 128) if dry else (2 << 30, 8192)
    source = torch.randint(0, 255, (num_bytes,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = measure(lambda to, x: to.copy_(x), [(target, source)], dry=dry)
    del source, target
    matrices = [tuple(torch.randn(2, width, width, device=device, dtype=torch.bfloat16).unbind(0)) for _ in range(2)]
    product = measure(torch.matmul, matrices, dry=dry)
    rates = 2 * num_bytes / copy.median, 2 * width**3 / product.median
    return Ceilings(name, *rates, round(max(copy.noise, product.noise), 4), clocks())
