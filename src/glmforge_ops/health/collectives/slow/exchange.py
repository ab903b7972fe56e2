"""What a rank does in a round of the search: exchange data with one partner after another, and time it.

Partners first send each other one number. Only when both are there does the clock start, so that a rank which comes
late from a slow exchange makes no other exchange look slow. The first exchange of data is not timed, as it may have to
connect; if it took long, one more has to do.
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

_LONG_S = 0.5
"""An exchange that takes this long is not repeated: the scatter of so long a time is small."""
_POLL_S = 0.0005


class Exchanged(NamedTuple):
    """What a rank reports of a round.

    Attributes:
        bandwidth: GB/s that it received from each partner; None where it had none, or did not come to it.
        failed: the number of the exchange that was not finished; -1 if the group could not connect; None if all were.
        why: what the library said.
    """

    bandwidth: list[float | None]
    failed: int | None = None
    why: str = ""


def exchange_all(
    partners: Sequence[int | None],
    group: dist.ProcessGroup,
    device: torch.device,
    *,
    num_bytes: int,
    iterations: int,
    timeout_s: float,
    progress: Callable[[], None] = lambda: None,
) -> Exchanged:
    """Exchange `num_bytes` with each of the ranks `partners` in turn; the first that fails ends it.

    The ranks of a group call this together, each with partners that name each other at the same place.
    """
    link = _Link(group, device, timeout_s, num_bytes)
    bandwidth: list[float | None] = [None] * len(partners)
    for place, partner in enumerate(partners):
        if partner is None:
            continue
        try:
            seconds = link.seconds_with(partner, iterations)
        except RuntimeError as error:  # gloo's and NCCL's
            return Exchanged(bandwidth, place, " ".join(str(error).split())[:300])
        bandwidth[place] = num_bytes / seconds / 1e9
        progress()
    return Exchanged(bandwidth)


class _Link:
    """Buffers for exchanges within a group."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device, timeout_s: float, num_bytes: int) -> None:
        self._group, self._device, self._timeout_s = group, device, timeout_s
        # A collective that hangs blocks its stream: the next round has another.
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._given = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        self._got = torch.zeros_like(self._given)
        self._word = torch.zeros(1, dtype=torch.float64, device=device)
        self._answer = torch.zeros_like(self._word)

    def seconds_with(self, partner: int, iterations: int) -> float:
        """Of the fastest exchange with a rank; not less than the clock can tell."""
        self._agree(partner, 0.0)
        first = self._timed(partner)
        times = [first] if self._agree(partner, first) > _LONG_S else []
        times += [self._timed(partner) for _ in range(1 if times else iterations)]
        return max(min(times), 1e-9)

    def _timed(self, partner: int) -> float:
        start = time.perf_counter()
        self._exchange(partner, self._given, self._got)
        return time.perf_counter() - start

    def _agree(self, partner: int, value: float) -> float:
        """The larger of both sides' values, known to both."""
        self._word.fill_(value)
        self._exchange(partner, self._word, self._answer)
        return max(value, float(self._answer.item()))

    def _exchange(self, partner: int, given: Tensor, got: Tensor) -> None:
        """Returns when both directions are done. Raises RuntimeError after the time limit."""
        with torch.cuda.stream(self._stream):
            sent = dist.P2POp(dist.isend, given, partner, self._group)
            received = dist.P2POp(dist.irecv, got, partner, self._group)
            for work in dist.batch_isend_irecv([sent, received]):
                work.wait()
            if self._stream is not None:
                self._wait_for_device(self._stream)

    def _wait_for_device(self, stream: torch.cuda.Stream) -> None:
        until = time.monotonic() + self._timeout_s
        done = stream.record_event()
        while not done.query():
            if time.monotonic() > until:
                raise RuntimeError(f"no answer within {self._timeout_s:g} s")
            time.sleep(_POLL_S)
