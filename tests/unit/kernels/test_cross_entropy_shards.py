"""Cross-entropy over a vocabulary in parts, each on a thread of its own, against the whole one."""

import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from glmforge.kernels.cross_entropy import IGNORE_INDEX, VocabularyShard, linear_cross_entropy_sum, token_nll
from helpers.triton_device import TRITON_DEVICE

T, D, V = 11, 12, 40


class Ranks:
    """Stands in for a group of ranks: threads that meet at a barrier to add up or compare their tensors."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=30)
        self.given: list[Tensor | None] = [None] * size

    def reduce(self, rank: int, how: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def reduced(tensor: Tensor) -> Tensor:
            self.given[rank] = tensor.clone()
            self.barrier.wait()
            result = how(torch.stack([given for given in self.given if given is not None]))
            self.barrier.wait()
            return result

        return reduced

    def shard(self, rank: int, start: int) -> VocabularyShard:
        return VocabularyShard(
            start,
            max=self.reduce(rank, lambda tensors: tensors.amax(0)),
            sum=self.reduce(rank, lambda tensors: tensors.sum(0)),
        )


def run_sharded(
    function: Callable[..., Tensor], h_TD: Tensor, weight_VD: Tensor, labels_T: Tensor, num_ranks: int
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Of each rank: value and gradients of h and of its rows of the weight, for an upstream gradient that is no 1."""
    ranks = Ranks(num_ranks)
    rows = V // num_ranks

    def work(rank: int) -> tuple[Tensor, Tensor, Tensor]:
        h, weight = (x.detach().clone().requires_grad_() for x in (h_TD, weight_VD[rank * rows : (rank + 1) * rows]))
        value = function(h, weight, labels_T, chunk_tokens=4, shard=ranks.shard(rank, rank * rows))
        # _TokenNLL's backward meets the other ranks again: autograd runs it on this very thread.
        h_grad, weight_grad = torch.autograd.grad(value, (h, weight), upstream(value))
        return value.detach(), h_grad, weight_grad

    with ThreadPoolExecutor(num_ranks) as pool:
        return list(pool.map(work, range(num_ranks)))


def upstream(value: Tensor) -> Tensor:
    return torch.linspace(-1, 2, value.numel(), dtype=value.dtype).view_as(value) + 3


_INTERPRETER = threading.Lock()


def one_at_a_time(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Triton's interpreter knows one program at a time, whatever the thread."""

    def locked(*args: Any) -> Any:
        with _INTERPRETER:
            return operation(*args)

    return locked


@pytest.fixture
def inputs() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    h_TD = torch.randn(T, D, generator=generator, dtype=torch.float64)
    weight_VD = torch.randn(V, D, generator=generator, dtype=torch.float64)
    labels_T = torch.randint(0, V, (T,), generator=generator)
    labels_T[:4] = torch.tensor([0, V // 2 - 1, V // 2, V - 1])  # on both sides of every border
    labels_T[[5, 9]] = IGNORE_INDEX
    return h_TD, weight_VD, labels_T


def nll_plus_entropy(h_TD: Tensor, weight_VD: Tensor, labels_T: Tensor, **names: Any) -> Tensor:
    """The entropies have no gradient."""
    entropy_T = torch.zeros(len(labels_T), dtype=h_TD.dtype)
    return token_nll(h_TD, weight_VD, labels_T, entropy_T=entropy_T, **names) + entropy_T


with_z_loss = functools.partial(linear_cross_entropy_sum, z_weight=0.1)


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("function", [linear_cross_entropy_sum, token_nll, nll_plus_entropy, with_z_loss])
def test_parts_equal_the_whole(
    inputs: tuple[Tensor, Tensor, Tensor], function: Callable[..., Tensor], num_ranks: int
) -> None:
    h_TD, weight_VD, labels_T = inputs
    h, weight = (x.clone().requires_grad_() for x in (h_TD, weight_VD))
    whole = function(h, weight, labels_T)
    h_grad, weight_grad = torch.autograd.grad(whole, (h, weight), upstream(whole))
    values, h_grads, weight_grads = zip(*run_sharded(function, *inputs, num_ranks), strict=True)
    if function in (token_nll, nll_plus_entropy):
        assert all(torch.equal(value, values[0]) for value in values)
    else:
        assert not torch.stack(values[1:]).any() if num_ranks > 1 else True
    torch.testing.assert_close(values[0], whole.detach())
    torch.testing.assert_close(torch.stack(h_grads).sum(0), h_grad)
    torch.testing.assert_close(torch.cat(weight_grads), weight_grad)


@pytest.mark.parametrize("function", [token_nll, with_z_loss])
def test_parts_by_triton_equal_the_whole(
    inputs: tuple[Tensor, Tensor, Tensor], function: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = pytest.importorskip("glmforge.kernels.triton.cross_entropy")
    monkeypatch.setattr(kernels, "_COLUMNS", 16)
    for name in ("logit_statistics", "logits_to_gradient_"):
        monkeypatch.setattr(kernels, name, one_at_a_time(getattr(kernels, name)))
    h_TD, weight_VD, labels_T = inputs
    h_TD, weight_VD, labels_T = (
        h_TD.float().to(TRITON_DEVICE),
        weight_VD.float().to(TRITON_DEVICE),
        labels_T.to(TRITON_DEVICE),
    )
    h, weight = (x.clone().requires_grad_() for x in (h_TD, weight_VD))
    whole = function(h, weight, labels_T)
    whole_gradients = torch.autograd.grad(whole, (h, weight), upstream(whole))
    by_triton = functools.partial(function, implementation="triton")
    values, h_grads, weight_grads = zip(*run_sharded(by_triton, h_TD, weight_VD, labels_T, 2), strict=True)
    # fp32 sums of the same terms in another order.
    torch.testing.assert_close(values[0], whole.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.stack(h_grads).sum(0), whole_gradients[0], rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(torch.cat(weight_grads), whole_gradients[1], rtol=1e-5, atol=1e-4)


def test_logits_far_apart_stay_exact(inputs: tuple[Tensor, Tensor, Tensor]) -> None:
    """Without the largest logit of ALL parts an exponential would overflow or a part's sum vanish in fp32."""
    h_TD, labels_T = torch.ones(2, 1), torch.tensor([0, V - 1])
    weight_VD = torch.linspace(200, -200, V).unsqueeze(1)
    results = run_sharded(token_nll, h_TD, weight_VD, labels_T, 2)
    torch.testing.assert_close(results[0][0], token_nll(h_TD, weight_VD, labels_T))
    assert all(gradient.isfinite().all() for _, *gradients in results for gradient in gradients)
