"""Activation recomputation: what a layer's backward pass computes again instead of keeping it.

`full` keeps only a layer's input; `selective` also what is expensive to recompute (matrix products, attention, what
came over the network) and recomputes norms, rotations, SiLU and permutations, which are cheap and most of the bytes;
`budget` leaves the choice to torch.compile's partitioner, which keeps a given share.

Whatever else is recomputed, the router's choice of experts is kept, and so is the bias that Sinkhorn finds for it. On a
GPU a product computed twice need not agree to the last bit, and two experts may be that close: a token routed elsewhere
in the backward pass would get a wrong gradient, and the sizes of an exchange would differ between ranks. Counts of
tokens are outputs of a layer, not writes into a buffer, so nothing is counted twice.

Numbers that the host has read of the device are `remembered`: reading them again would make it wait again.

torch's own selective checkpointing insists that the backward pass runs the very operations of the forward pass. FSDP
units inside a layer (router, experts) break that, since their weights may still be gathered in one and not in the
other; so the two dispatch modes here look at the kept operations only.
"""

import functools
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Literal, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

import glmforge.kernels.adapted_experts  # noqa: F401 - registers an operator named below
from glmforge.model.transformer import GlmMoe

T = TypeVar("T")

_CHOICE = frozenset({torch.ops.aten.topk.default, torch.ops.glmforge.sinkhorn_bias.default})

_DEAR = _CHOICE | {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._grouped_mm.default,
    torch.ops.aten._scaled_mm.default,
    torch.ops.aten._scaled_grouped_mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.torch_attn._varlen_attn.default,
    torch.ops.glmforge.sliced_mm.default,
    torch.ops.glmforge.adapted_mm.default,
    torch.ops._c10d_functional.all_to_all_single.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
    torch.ops._c10d_functional.all_reduce.default,
}


def apply_recompute(model: GlmMoe, mode: Literal["none", "selective", "full", "budget"], budget: float) -> None:
    """Let every layer of `model` keep only what `mode` says, in place. To be called before compiling.

    `budget` is the share of activations that the mode of that name may keep. Compiled code is taken as a whole: there
    the modes are exact for what is not compiled, and the choice of experts is recomputed by the same kernel.
    """
    if mode == "none":
        return
    if mode == "budget":
        torch._functorch.config.activation_memory_budget = budget
        return
    kept = (_DEAR if mode == "selective" else _CHOICE) | _fused_choice(model)
    for layer in model.layers:
        _checkpoint(layer, kept)


def _fused_choice(model: GlmMoe) -> frozenset[Any]:
    """The operation that chooses experts in the model's routers, if Triton's: it is registered by its import."""
    if all(moe.gate.kernels.router != "triton" for moe in model.moe_layers.values()):
        return frozenset()
    import glmforge.kernels.triton.router  # noqa: F401

    return frozenset({torch.ops.glmforge.route.default})


def remembered(compute: Callable[[], T]) -> T:
    """`compute()`; where a layer is computed again, what it gave in the forward pass. Without gradients.

    A layer asks for the same things in the same order every time.
    """
    modes = [mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, _Mode)]
    return modes[-1].note(compute) if modes else compute()


def _checkpoint(layer: nn.Module, kept: frozenset[Any]) -> None:
    # No generator's state changes in a layer (dropout's masks follow from counters), and saving it would wait for the
    # device.
    layer.forward = functools.partial(
        checkpoint,
        layer.forward,
        use_reentrant=False,
        context_fn=functools.partial(_contexts, kept),
        preserve_rng_state=False,
        determinism_check="none",
    )


def _contexts(kept: frozenset[Any]) -> tuple[TorchDispatchMode, TorchDispatchMode]:
    """What the forward pass of one layer runs under, and what its recomputation does."""
    results: dict[Any, list[Any]] = defaultdict(list)
    notes: list[Any] = []
    return _Keep(kept, results, notes), _Reuse(kept, results, notes)


class _Mode(TorchDispatchMode):
    def __init__(self, kept: frozenset[Any], results: dict[Any, list[Any]], notes: list[Any]) -> None:
        super().__init__()
        self.kept, self.results, self.notes = kept, results, notes

    def note(self, compute: Callable[[], T]) -> T:
        """See `remembered`."""
        raise NotImplementedError

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True


class _Keep(_Mode):
    """Keeps the results of some operations, in order."""

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in self.kept:
            self.results[func].append(tree_map_only(Tensor, Tensor.detach, out))
        return out

    def note(self, compute: Callable[[], T]) -> T:
        self.notes.append(compute())
        note: T = self.notes[-1]
        return note


class _Reuse(_Mode):
    """Gives kept results instead of computing them, from the first one on every time it is entered."""

    def __enter__(self) -> Self:
        self.left = {func: iter(results) for func, results in self.results.items()}
        self.notes_left = iter(self.notes)
        super().__enter__()
        return self

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in self.kept:
            return tree_map_only(Tensor, Tensor.detach, next(self.left[func]))
        return func(*args, **(kwargs or {}))

    def note(self, compute: Callable[[], T]) -> T:
        note: T = next(self.notes_left)
        return note
