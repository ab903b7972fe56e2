"""What every part is given: the device, what it may take, and where its figures go."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from gpu.ceilings import Ceilings, ceilings
from gpu.results import Figure, Results


@dataclass
class Bench:
    """One run of a part. `dry`: the same code path on the CPU, in sizes that take seconds."""

    device: torch.device
    dry: bool
    folder: Path
    results: Results
    budget_s: float
    start: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        return self.budget_s - (time.monotonic() - self.start)

    @cached_property
    def ceilings(self) -> Ceilings:
        return ceilings(self.device, self.folder, dry=self.dry)

    @property
    def l2_bytes(self) -> int:
        return torch.cuda.get_device_properties(self.device).L2_cache_size if self.device.type == "cuda" else 1 << 20

    @property
    def free_bytes(self) -> int:
        """Of the device; in a dry run, of a card that everything fits on."""
        return torch.cuda.mem_get_info(self.device)[0] if self.device.type == "cuda" else 80 << 30

    def figure(
        self, name: str, function: Callable[[], Figure], *, expected_s: float = 10, is_ours: bool = True
    ) -> Figure | None:
        """Measure and record, unless it is known already or would not fit into what is left of the part's time."""
        if name not in self.results.figures and not self.dry and self.left_s < expected_s:
            self.results.set(name, status="dropped", reason=f"no time: {self.left_s:.0f} s left, takes {expected_s:g}")
            return None
        return self.results.measure(name, function, is_ours=is_ours)

    def timed(self, seconds: float, flops: float, num_bytes: float) -> dict[str, Any]:
        return {"roofline": self.ceilings.roofline(seconds, flops, num_bytes)}
