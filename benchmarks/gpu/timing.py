"""How long something takes on a device: events of the device, after a warm-up, medians, inputs that no cache holds.

The device works through its queue while the host goes on, so host clocks measure only launches; the CPU, in a dry run,
is measured by the host's clock. Inputs that fit into the L2 cache would be found there by the second call: calls
rotate among several sets of inputs that together are larger than it.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ENOUGH_SECONDS, MOST_CALLS, FEWEST_CALLS, WARM_UP_CALLS = 0.4, 200, 6, 3
_SHORT = 2e-4  # a call shorter than this is measured in bunches: an event costs some microseconds itself


@dataclass(frozen=True)
class Timing:
    """Seconds of one call. `noise` is how far the medians of the two halves of the calls are apart, of the median."""

    median: float
    fastest: float
    noise: float
    num_calls: int

    def as_json(self) -> dict[str, Any]:
        return {
            "seconds": self.median,
            "fastest_s": self.fastest,
            "noise": round(self.noise, 4),
            "calls": self.num_calls,
        }


def measure(function: Callable[..., Any], inputs: Sequence[tuple[Any, ...]], *, dry: bool = False) -> Timing:
    """Time `function(*inputs[i])`, i going round. What it returns is dropped at once."""
    turns = itertools.cycle(inputs)
    device = _device(inputs)
    bunch, wanted = (1, 2) if dry else _warm_up(function, turns, device, max(WARM_UP_CALLS, len(inputs)))
    seconds = _seconds(function, turns, device, wanted, bunch)
    median = statistics.median(seconds)
    half = len(seconds) // 2
    noise = abs(statistics.median(seconds[:half]) - statistics.median(seconds[half:])) / median
    return Timing(median, min(seconds), noise, wanted * bunch)


def _warm_up(function: Callable[..., Any], turns: Iterator[Any], device: torch.device, number: int) -> tuple[int, int]:
    """Call it so often; then how many calls to time together, and how many times."""
    for _ in range(number):
        function(*next(turns))
    (once,) = _seconds(function, turns, device, 1, 1)
    bunch = 1 if once > _SHORT else min(50, int(_SHORT * 5 / max(once, 1e-7)))
    return bunch, max(FEWEST_CALLS, min(MOST_CALLS, int(ENOUGH_SECONDS / max(once * bunch, 1e-7))))


def _seconds(
    function: Callable[..., Any], turns: Iterator[Any], device: torch.device, number: int, bunch: int
) -> list[float]:
    """Seconds of a call in each of `number` bunches, one after another without a wait, as a training step has them."""
    if device.type != "cuda":
        return [_host_seconds(function, turns, bunch) / bunch for _ in range(number)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(number + 1)]
    torch.cuda.synchronize(device)
    events[0].record()
    for event in events[1:]:
        for _ in range(bunch):
            function(*next(turns))
        event.record()
    events[-1].synchronize()
    return [before.elapsed_time(after) / 1e3 / bunch for before, after in itertools.pairwise(events)]


def _host_seconds(function: Callable[..., Any], turns: Iterator[Any], number: int) -> float:
    start = time.perf_counter()
    for _ in range(number):
        function(*next(turns))
    return time.perf_counter() - start


def _device(inputs: Sequence[tuple[Any, ...]]) -> torch.device:
    tensors = (x for x in inputs[0] if isinstance(x, Tensor))
    return next((x.device for x in tensors), torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def num_sets(bytes_of_one: int, l2_bytes: int) -> int:
    """How many sets of inputs are needed so that none is still in the cache when its turn comes again."""
    return max(2, min(8, -(-4 * l2_bytes // max(1, bytes_of_one))))
