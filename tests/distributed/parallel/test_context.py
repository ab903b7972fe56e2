"""Attention shared along cp on gloo equals one process: outputs and the gradients of queries, keys and values."""

import weakref
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from glmforge.config.layout import Layout
from glmforge.errors import ConfigError
from glmforge.kernels.attention import attention
from glmforge.kernels.documents import Documents
from glmforge.parallel import context
from glmforge.parallel.collectives import all_gather
from glmforge.parallel.context import GatheredKeyValues, Ulysses, gathered_order, local_ranges, zigzag_index
from glmforge.parallel.world import World, join_world
from helpers.distributed import run_ranks
from helpers.kernels import module_with

NUM_ROWS, SEQ_LEN, H, G, P = 2, 32, 8, 4, 16
LENGTHS = [1, 20, 3, 8, 32]
METHODS = {
    "regather": lambda *args: GatheredKeyValues(*args),
    "gather": lambda *args: GatheredKeyValues(*args, regather=False),
    "gather, dense": lambda *args: partial(_with_dense, GatheredKeyValues(*args)),
    "ulysses": lambda *args: Ulysses(*args),
}


def _with_dense(attend: Any, _: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attend(module_with(attention="dense"), q, k, v)


def inputs() -> list[Tensor]:
    """q, k, v of all tokens and the gradient of the output."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(NUM_ROWS * SEQ_LEN, heads, P, generator=generator) for heads in (H, G, G, H)]


def output_and_gradients(attend: Any, q: Tensor, k: Tensor, v: Tensor, upstream: Tensor) -> list[Tensor]:
    qkv = [x.clone().requires_grad_() for x in (q, k, v)]
    output = attend(module_with(), *qkv)
    return [output.detach(), *torch.autograd.grad(output, qkv, upstream)]


def rank_results(layout: Layout) -> dict[str, list[Tensor]]:
    """Every method as it is, under activation checkpointing, and in bfloat16."""
    results = {}
    with join_world(layout, timeout_s=60) as world:
        index = zigzag_index(NUM_ROWS, SEQ_LEN, layout.cp, world.axis_rank("cp"))
        for name, method in METHODS.items():
            attend = method(Documents.from_lengths(LENGTHS), world, NUM_ROWS, SEQ_LEN)
            recomputed = partial(checkpoint, attend, use_reentrant=False)
            results[name] = output_and_gradients(attend, *(x[index] for x in inputs()))
            results[f"{name}, recomputed"] = output_and_gradients(recomputed, *(x[index] for x in inputs()))
            results[f"{name}, bf16"] = output_and_gradients(attend, *(x[index].bfloat16() for x in inputs()))
    return results


def expected_of(rank: int, layout: Layout) -> list[Tensor]:
    documents = Documents.from_lengths(LENGTHS)
    whole = output_and_gradients(lambda _, q, k, v: attention(q, k, v, documents, implementation="dense"), *inputs())
    index = zigzag_index(NUM_ROWS, SEQ_LEN, layout.cp, layout.coordinates(rank)["cp"])
    return [x[index] for x in whole]


LAYOUTS = {
    "cp2": Layout(cp=2),
    "cp4": Layout(cp=4),
    "dp2cp2": Layout(dp_shard=2, cp=2),
    "cp2tp2": Layout(cp=2, tp=2),
}


# With a second axis each group of cp ranks computes the same, so that a sum over more than cp would show.
@pytest.mark.parametrize("layout", list(LAYOUTS.values()), ids=list(LAYOUTS))
def test_equals_one_process(layout: Layout) -> None:
    for rank, results in enumerate(run_ranks(rank_results, layout.world_size, layout)):
        for method, tensors in results.items():
            # fp32: sums over keys and over ranks in another order. bf16: inputs, scores, probabilities and each rank's
            # part of a gradient are rounded by 2^-9.
            dtype, tolerance = (torch.bfloat16, 2e-2) if "bf16" in method else (torch.float32, 1e-5)
            for name, actual, expected in zip("oqkv", tensors, expected_of(rank, layout), strict=True):
                assert actual.dtype == dtype
                error = (actual.float() - expected).norm() / expected.norm()
                assert error < tolerance, f"rank {rank}, {method}, {name}: {error:.2e}"


@pytest.mark.parametrize("method", list(METHODS))
def test_a_single_rank_needs_no_communication(method: str) -> None:
    attend = METHODS[method](Documents.from_lengths(LENGTHS), World.single("cpu"), NUM_ROWS, SEQ_LEN)
    results = output_and_gradients(attend, *inputs())
    for actual, expected in zip(results, expected_of(0, Layout()), strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def gathers_and_survivors() -> dict[bool, list[int]]:
    """With and without regather: gathers in forward, gathered tensors alive after it; the same after two backwards."""
    gathered: list[weakref.ref[Any]] = []

    def counted(kv: Tensor, group: Any, order: Tensor) -> Tensor:
        result = all_gather(kv, group).index_select(0, order)
        gathered.append(weakref.ref(result.untyped_storage()))
        return result

    def count() -> list[int]:
        return [len(gathered), sum(ref() is not None for ref in gathered)]

    counts = {}
    with join_world(Layout(cp=2), timeout_s=60) as world:
        context._gather = counted
        index = zigzag_index(NUM_ROWS, SEQ_LEN, 2, world.axis_rank("cp"))
        documents = Documents.from_lengths(LENGTHS)
        for regather in (True, False):
            gathered.clear()
            # The dense implementation saves keys and values as they are given, like the CUDA ones.
            attend = GatheredKeyValues(documents, world, NUM_ROWS, SEQ_LEN, regather=regather)
            qkv = [x[index].requires_grad_() for x in inputs()[:3]]
            output = attend(module_with(attention="dense"), *qkv)
            counts[regather] = count()
            first, second = (
                torch.autograd.grad(output, qkv, torch.ones_like(output), retain_graph=True) for _ in range(2)
            )
            counts[regather] += count()
            assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    return counts


def test_what_was_gathered_is_kept_for_backward_or_gathered_again() -> None:
    assert run_ranks(gathers_and_survivors, 2) == [{True: [1, 0, 3, 0], False: [1, 1, 1, 1]}] * 2


@pytest.mark.parametrize("cp", [1, 2, 4])
def test_zigzag_gives_every_token_to_one_rank_and_causal_work_to_all_alike(cp: int) -> None:
    assert gathered_order(NUM_ROWS, SEQ_LEN, cp).sort().values.tolist() == list(range(NUM_ROWS * SEQ_LEN))
    work = {int((zigzag_index(NUM_ROWS, SEQ_LEN, cp, rank) % SEQ_LEN + 1).sum()) for rank in range(cp)}
    assert work == {NUM_ROWS * SEQ_LEN * (SEQ_LEN + 1) // 2 // cp}


def test_zigzag_of_a_small_batch() -> None:
    assert zigzag_index(2, 8, 2, 0).tolist() == [0, 1, 6, 7, 8, 9, 14, 15]
    assert zigzag_index(2, 8, 2, 1).tolist() == [2, 3, 4, 5, 10, 11, 12, 13]
    assert local_ranges(2, 8, 2, 0) == [(0, 2), (6, 8), (8, 10), (14, 16)]


def test_rows_that_do_not_divide_are_refused() -> None:
    assert local_ranges(2, 7, 1, 0) == [(0, 7), (7, 14)]
    with pytest.raises(ConfigError, match="seq_len: 30 tokens do not divide into 2 x cp = 8 chunks"):
        local_ranges(1, 30, 4, 0)


def test_ulysses_needs_heads_to_divide() -> None:
    world = cast(World, SimpleNamespace(axis_size=lambda axis: 4, group=lambda axis: None))
    attend = Ulysses(Documents.from_lengths([16]), world, 1, 16)
    with pytest.raises(ConfigError, match=r"parallel\.cp: 4 does not divide the 2 key/value heads"):
        attend(None, *(torch.zeros(4, heads, P) for heads in (4, 2, 2)))
