"""A sharded model behind an engine on rank 0 alone: it leads, the other ranks compute what it tells them.

`ShardedModel` needs all ranks in every step. A server has its requests on one of them, at times that nobody knows.
So rank 0 has the engine, and `LeadingModel` for its runner, which tells the others before each collective call what
they are to do: the tokens of a step, a page to copy, the end. They are told of no requests: what a scheduler, a sampler
or a grammar decides is decided once, and need not come out alike on several ranks.

The ranks of rank 0's tp and pp group have its tokens. Those of other data ranks have none; what they give is their
experts. So ep divides the experts' weights and work, while attention is computed by one data rank.

Between steps the others wait in a broadcast, which takes no processor time. At least every `BEAT_S` seconds they are
told that there is nothing to do, and all meet: no collective call runs into its timeout, and a rank that is gone is
noticed.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from enum import IntEnum

import torch
import torch.distributed as dist
from torch import Tensor

from glmforge.errors import ConfigError, GlmforgeError
from glmforge.generate.sharded import ShardedModel
from glmforge.generate.step import StepTokens, span_tokens
from glmforge.kernels.paged_attention import PagedTokens

BEAT_S = 5.0
_HEAD = 6
"""Numbers of a message: what to do, and what sizes the rest has."""


class RankLostError(GlmforgeError):
    """A step that all ranks compute together has failed; none will succeed any more."""


class _Do(IntEnum):
    WAIT = 0
    ALLOCATE = 1
    RUN = 2
    COPY = 3
    REFRESH = 4
    END = 5


class LeadingModel:
    """The runner of rank 0's engine; the other ranks `follow`. See `leading`.

    Attributes:
        lost: why nothing can be computed any more.
        on_lost: called once with that, in any thread.
    """

    is_collective = shares_requests = False
    adapters = ()

    def __init__(self, sharded: ShardedModel, group: dist.ProcessGroup) -> None:
        self.sharded, self.config, self.device = sharded, sharded.config, sharded.device
        self.experts_TMK: Tensor | None = None
        self.lost: RankLostError | None = None
        self.on_lost: Callable[[RankLostError], None] = lambda error: None
        self._group, self._turn, self._end = group, threading.RLock(), threading.Event()

    def anyone(self, busy: bool) -> bool:
        return busy

    def weights_changed(self) -> None:
        with self._telling(_Do.REFRESH):
            self.sharded.weights_changed()

    def weights_differ(self, *, closely: bool) -> bool:
        return False

    def page_bytes(self, page_size: int) -> int:
        return self.sharded.page_bytes(page_size)

    def allocate(self, num_pages: int, page_size: int) -> None:
        self.sharded.allocate(num_pages, page_size)  # if it fails, it fails alone, and another size may do
        with self._telling(_Do.ALLOCATE, num_pages, page_size):
            pass

    def copy_page(self, source: int, target: int) -> None:
        with self._telling(_Do.COPY, source, target):
            self.sharded.copy_page(source, target)

    def run(self, tokens: StepTokens) -> Tensor:
        paged = tokens.paged
        sizes = (len(tokens.ids_T), *paged.pages_RM.shape, len(tokens.wanted_L), int(tokens.wants_experts))
        with self._telling(_Do.RUN, *sizes):
            self._send(torch.cat([part.reshape(-1).to("cpu", torch.int64) for part in _parts(tokens)]))
            logits_LV = self.sharded.run(tokens)
        self.experts_TMK = self.sharded.experts_TMK
        return logits_LV

    def beat(self) -> None:
        """Let nobody wait for longer than `BEAT_S`, until `end`. Of a thread of its own."""
        while not self._end.wait(BEAT_S):
            with self._turn, suppress(RankLostError):
                if self.lost is not None or self._end.is_set():
                    return
                with self._telling(_Do.WAIT):
                    dist.barrier(self._group)

    def end(self) -> None:
        """Have the others leave. Raises `RankLostError` where one is not there any more."""
        self._end.set()
        with self._telling(_Do.END):
            dist.barrier(self._group)

    @contextmanager
    def _telling(self, what: _Do, *numbers: int) -> Iterator[None]:
        """Tell the others what all do within the block."""
        with self._turn:
            if self.lost is not None:
                raise self.lost
            try:
                self._send(torch.tensor([what, *numbers, *[0] * (_HEAD - 1 - len(numbers))]))
                yield
            except BaseException as error:  # of torch.distributed, or of this rank alone, which the others do not know
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                self.lost = RankLostError(f"a step of all ranks has failed: {reason}")
                self.lost.__cause__ = error
                self.on_lost(self.lost)
                if isinstance(error, Exception):
                    raise self.lost from error
                raise

    def _send(self, numbers: Tensor) -> None:
        dist.broadcast(numbers, 0, group=self._group)


@contextmanager
def leading(sharded: ShardedModel, timeout_s: float) -> Iterator[LeadingModel | None]:
    """On rank 0 what its engine runs; on all others nothing, and the block is to be left at once: they follow then,
    until rank 0 leaves its own. All ranks call this together, in a `session`.

    Args:
        timeout_s: longer than any step takes.

    Raises:
        ConfigError: data ranks that would have no part in the work.
        RuntimeError: of torch.distributed, where a rank was lost.
    """
    if (idle := sharded.num_shares) > sharded.model.world.axis_size("ep"):
        raise ConfigError(
            f"parallel: {idle} data ranks, but a server's requests are on one of them; share the model with tp=N, ep=N "
            "or pp=N of all ranks (--parallel)"
        )
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
    if dist.get_rank() != 0:
        yield None
        _follow(sharded, group)
        return
    leader = LeadingModel(sharded, group)
    threading.Thread(target=leader.beat, name="beat", daemon=True).start()
    try:
        yield leader
    finally:
        if leader.lost is None:
            leader.end()
    if leader.lost is not None:
        raise leader.lost


def _follow(sharded: ShardedModel, group: dist.ProcessGroup) -> None:
    """Do what rank 0 says, up to the end."""
    nothing = span_tokens([], 1, sharded.device)
    while True:
        what, *numbers = _received(_HEAD, group).tolist()
        if what == _Do.RUN:
            tokens = _tokens(_received(_num_parts(numbers), group), numbers, sharded.device)
            sharded.run(tokens if sharded.share == 0 else nothing)
        elif what == _Do.ALLOCATE:
            sharded.allocate(*numbers[:2])
        elif what == _Do.COPY:
            sharded.copy_page(*numbers[:2])
        elif what == _Do.REFRESH:
            sharded.weights_changed()
        else:
            dist.barrier(group)
            if what == _Do.END:
                return


def _received(size: int, group: dist.ProcessGroup) -> Tensor:
    numbers = torch.empty(size, dtype=torch.int64)
    dist.broadcast(numbers, 0, group=group)
    return numbers


def _parts(tokens: StepTokens) -> list[Tensor]:
    paged = tokens.paged
    own = [tokens.ids_T, tokens.positions_T, paged.slots_T, tokens.wanted_L]
    return [*own, paged.starts_R1, paged.lengths_R, paged.pages_RM]


def _sizes(numbers: list[int]) -> list[int]:
    num_tokens, num_sequences, num_pages, num_wanted, _ = numbers
    return [num_tokens] * 3 + [num_wanted, num_sequences + 1, num_sequences, num_sequences * num_pages]


def _num_parts(numbers: list[int]) -> int:
    return sum(_sizes(numbers))


def _tokens(sent: Tensor, numbers: list[int], device: torch.device) -> StepTokens:
    """What `_parts` has taken apart."""
    ids, positions, slots, wanted, starts, lengths, pages = sent.split(_sizes(numbers))
    paged = PagedTokens(
        starts.to(device, torch.int32),
        lengths.to(device, torch.int32),
        pages.view(len(lengths), -1).to(device, torch.int32),
        slots.to(device),
        tuple(starts.diff().tolist()),
        tuple(lengths.tolist()),
    )
    return StepTokens(ids.to(device), positions.to(device), paged, wanted.to(device), bool(numbers[-1]))
