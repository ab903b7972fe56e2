"""Cross-entropy from hidden states on a device against PyTorch's on all logits in fp64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from glmforge.kernels.cross_entropy import linear_cross_entropy_sum, token_nll
from helpers.devices import on, relative_error

DTYPES = [
    on("cpu", torch.float32, 1e-5),
    on("cuda", torch.float32, 1e-5),
    # bf16 logits round to 2^-9 of themselves, and the gradient's softmax with them.
    on("cpu", torch.bfloat16, 2e-2),
    on("cuda", torch.bfloat16, 2e-2),
]


@pytest.mark.parametrize(("device", "dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize(("tokens", "vocabulary", "chunk"), [(301, 1000, None), (77, 513, 32), (1, 7, 32)], ids=str)
def test_loss_and_gradients(
    device: str, dtype: torch.dtype, tolerance: float, tokens: int, vocabulary: int, chunk: int | None
) -> None:
    generator = torch.Generator().manual_seed(0)
    h_TD, weight_VD = (torch.randn(shape, generator=generator) for shape in [(tokens, 64), (vocabulary, 64)])
    weight_VD *= 0.2
    labels_T = torch.randint(0, vocabulary, (tokens,), generator=generator)
    labels_T[1::5] = -100
    exact = [x.to(dtype).double().requires_grad_() for x in (h_TD, weight_VD)]
    nll_T = F.cross_entropy(exact[0] @ exact[1].T, labels_T, reduction="none")
    expected = [nll_T.sum(), *torch.autograd.grad(nll_T.sum(), exact)]
    inputs = [h_TD.to(device, dtype).requires_grad_(), weight_VD.to(dtype).float().to(device).requires_grad_()]
    on_device = labels_T.to(device)

    def check(actual: list[Tensor]) -> None:
        for name, a, e in zip(("loss", "h", "weight"), actual, expected, strict=True):
            assert relative_error(a, e) < tolerance, name

    loss = linear_cross_entropy_sum(*inputs, on_device, chunk_tokens=chunk)
    check([loss, *torch.autograd.grad(loss, inputs)])
    each_T = token_nll(*inputs, on_device, chunk_tokens=chunk)
    assert relative_error(each_T, nll_T) < tolerance
    check([each_T.sum(), *torch.autograd.grad(each_T.sum(), inputs)])
