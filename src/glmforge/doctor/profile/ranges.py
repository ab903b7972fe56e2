"""Named ranges in a profiler's trace around the parts of a training step.

While `marked` is entered, the methods below are wrapped in `record_function`. Classes are patched, not modules: so the
ranges lie inside of what recomputation, FSDP and pipelines wrap around a module, and a model that exists already has
them. Compiled code has no such methods, and cannot be told apart.

A range says what runs forward. Which backward operations belong to it follows from autograd's sequence numbers
(`glmforge.doctor.profile.account`), so nothing is hung into the graph.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.profiler import record_function

from glmforge.backend.native import NativeBackend
from glmforge.model.block import DecoderLayer
from glmforge.model.head import LMHead
from glmforge.model.layers import Embedding, RMSNorm, SwiGLU
from glmforge.model.moe import Experts, MoE
from glmforge.model.router import Router
from glmforge.model.transformer import GlmMoe
from glmforge.parallel.model import ParallelModel

ATTENTION, EXPERTS, DISPATCH, OTHER, HEAD = "attention", "experts", "router and dispatch", "other model", "loss head"
OPTIMIZER, SHARDING, DATA, RECOMPUTE, IDLE = "optimizer", "sharding", "data", "recompute", "idle"
MODEL_PHASES = (ATTENTION, EXPERTS, DISPATCH, OTHER, HEAD)
PHASES = (*MODEL_PHASES, RECOMPUTE, SHARDING, OPTIMIZER, DATA, IDLE)
"""What a step consists of beside communication. `sharding`: FSDP's copies and bookkeeping around its collectives.
`idle`: no phase is at work: on a GPU no kernel runs, on a CPU what is Python's own between the parts."""

PREFIX, STEP, BACKWARD, WAIT = "glmforge.phase:", "glmforge.step", "glmforge.backward", "glmforge.wait"

HEAD_METHODS = ("cross_entropy_sum", "token_nll", "token_nll_and_entropy", "entropy")
"""Of `LMHead`, in training."""

_METHODS: tuple[tuple[Any, str, str], ...] = (
    (GlmMoe, "_run", OTHER),
    (DecoderLayer, "_run", OTHER),
    (DecoderLayer, "_attended", ATTENTION),
    (RMSNorm, "forward", OTHER),
    (RMSNorm, "after_adding", OTHER),
    (SwiGLU, "forward", OTHER),
    (Embedding, "forward", OTHER),
    (MoE, "send", DISPATCH),
    (MoE, "receive", DISPATCH),
    (Router, "forward", DISPATCH),
    (Experts, "swiglu", EXPERTS),
    *((LMHead, name, HEAD) for name in HEAD_METHODS),
    (ParallelModel, "finish_gradients", OPTIMIZER),
    *((NativeBackend, name, OPTIMIZER) for name in ("clip", "step", "balance_routers", "zero_grad")),
    *((FSDPParamGroup, name, SHARDING) for name in ("unshard", "wait_for_unshard", "reshard", "post_backward")),
)


@contextmanager
def marked() -> Iterator[None]:
    """Mark the parts of every step within the block."""
    names = [(owner, name, PREFIX + phase) for owner, name, phase in _METHODS]
    with ExitStack() as stack:
        for owner, name, label in (*names, (torch.autograd, "backward", BACKWARD), (dist.Work, "wait", WAIT)):
            stack.enter_context(wrapped(owner, name, functools.partial(record_function, label)))
        yield


def phase(name: str) -> record_function:
    """A range of one of `PHASES`."""
    return record_function(PREFIX + name)


@contextmanager
def wrapped(owner: Any, name: str, around: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
    """Within the block, let every call of a function of a class or module run within an `around()` of its own."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def within(*args: Any, **kwargs: Any) -> Any:
        with around():
            return original(*args, **kwargs)

    setattr(owner, name, within)
    try:
        yield
    finally:
        setattr(owner, name, original)
