import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from glmforge.kernels.cross_entropy import IGNORE_INDEX, linear_cross_entropy_sum, token_nll
from helpers.triton_device import TRITON_DEVICE, assert_near

triton_cross_entropy = pytest.importorskip("glmforge.kernels.triton.cross_entropy")

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


def random_logits(num_tokens: int, num_logits: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return (4 * torch.randn(num_tokens, num_logits, generator=generator)).to(TRITON_DEVICE, dtype)


def random_labels(num_tokens: int, num_logits: int) -> Tensor:
    labels_C = torch.randint(0, num_logits, (num_tokens,), generator=torch.Generator().manual_seed(1))
    labels_C[:2] = torch.tensor([0, num_logits - 1])[:num_tokens]
    labels_C[3::4] = IGNORE_INDEX
    return labels_C.to(TRITON_DEVICE)


@DTYPES
@pytest.mark.parametrize("num_logits", [1, 15, 16, 17, 100])
@pytest.mark.parametrize("first", [0, 40])
def test_statistics_and_gradient_of_logits(
    num_logits: int, first: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of 16 logits, the last one partly past the end; a vocabulary's part that begins at row `first`."""
    monkeypatch.setattr(triton_cross_entropy, "_COLUMNS", 16)
    logits_CV, labels_C = random_logits(9, num_logits, dtype), random_labels(9, num_logits) + first
    labels_C[4], labels_C[5] = first - 1, first + num_logits  # of the neighbouring parts
    labels_C[3::4] = IGNORE_INDEX
    exact_CV = logits_CV.cpu().double()
    max_C, sum_C, label_C = triton_cross_entropy.logit_statistics(logits_CV, labels_C, first)
    onehot_CV = ((labels_C - first).cpu()[:, None] == torch.arange(num_logits)).double()
    assert_near(max_C, exact_CV.amax(1), 0, dtype)
    # Up to 100 exponentials in fp32, whose argument of size 16 is rounded.
    assert_near(sum_C, (exact_CV - exact_CV.amax(1, keepdim=True)).exp().sum(1), 32, torch.float32)
    assert_near(label_C, (exact_CV * onehot_CV).sum(1), 0, dtype)
    log_z_C = exact_CV.logsumexp(1)
    factor_C = torch.linspace(-1, 2, 9)
    triton_cross_entropy.logits_to_gradient_(
        logits_CV, labels_C, first, log_z_C.to(TRITON_DEVICE, torch.float32), factor_C.to(TRITON_DEVICE)
    )
    expected_CV = factor_C.double()[:, None] * exact_CV.softmax(1) - onehot_CV
    assert_near(logits_CV, expected_CV, 32 if dtype == torch.float32 else 1, dtype)


@DTYPES
@pytest.mark.parametrize("z_weight", [0.0, 0.01])
def test_sum_equals_float64(z_weight: float, dtype: torch.dtype) -> None:
    """More logits than a block holds, an odd number of them, and chunks that end within the tokens."""
    generator = torch.Generator().manual_seed(0)
    num_logits = triton_cross_entropy._COLUMNS + 37
    h_TD = torch.randn(11, 12, generator=generator).to(TRITON_DEVICE, dtype).requires_grad_()
    weight_VD = torch.randn(num_logits, 12, generator=generator).to(TRITON_DEVICE).requires_grad_()
    labels_T = random_labels(11, num_logits)
    nll_T, log_z_T = (torch.zeros(11, device=TRITON_DEVICE) for _ in range(2))
    total = linear_cross_entropy_sum(
        h_TD,
        weight_VD,
        labels_T,
        chunk_tokens=4,
        nll_T=nll_T,
        z_weight=z_weight,
        log_z_T=log_z_T,
        implementation="triton",
    )
    gradients = torch.autograd.grad(total / 7, (h_TD, weight_VD))
    exact_h, exact_weight = (x.detach().cpu().double().requires_grad_() for x in (h_TD, weight_VD))
    logits_TV = exact_h @ exact_weight.to(dtype).double().T
    is_asked_T = labels_T.cpu() != IGNORE_INDEX
    exact_nll_T = F.cross_entropy(logits_TV, labels_T.cpu(), ignore_index=IGNORE_INDEX, reduction="none")
    exact_log_z_T = logits_TV.logsumexp(1) * is_asked_T
    expected = (exact_nll_T + z_weight * exact_log_z_T.square()).sum()
    # A logit of size 4 sums 12 products and is rounded, and so is its gradient; sums of fp32 add little.
    num_roundings = 32 if dtype == torch.float32 else 3
    for actual, e in ((total, expected), (nll_T, exact_nll_T), (log_z_T, exact_log_z_T)):
        assert_near(actual, e.detach(), num_roundings, dtype)
    for a, e in zip(gradients, torch.autograd.grad(expected / 7, (exact_h, exact_weight)), strict=True):
        assert_near(a, e, num_roundings, dtype)


def test_token_nll_equals_plain() -> None:
    generator = torch.Generator().manual_seed(0)
    h_TD, weight_VD = (
        torch.randn(shape, generator=generator).to(TRITON_DEVICE).requires_grad_() for shape in ((11, 12), (37, 12))
    )
    labels_T, upstream_T = random_labels(11, 37), torch.linspace(-1, 2, 11, device=TRITON_DEVICE)

    def run(implementation: str) -> tuple[Tensor, ...]:
        nll_T = token_nll(h_TD, weight_VD, labels_T, chunk_tokens=4, implementation=implementation)
        return nll_T, *torch.autograd.grad(nll_T, (h_TD, weight_VD), upstream_T)

    for actual, expected in zip(run("triton"), run("plain"), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)  # fp32 sums in another order


def test_confident_and_hopeless_tokens_stay_exact() -> None:
    """Logits 200 apart: probabilities underflow in float32, the loss must not."""
    h_TD = torch.ones(2, 1, device=TRITON_DEVICE)
    weight_VD = torch.tensor([[100.0], [-100.0]], device=TRITON_DEVICE)
    labels_T = torch.tensor([0, 1], device=TRITON_DEVICE)
    assert token_nll(h_TD, weight_VD, labels_T, implementation="triton").tolist() == [0.0, 200.0]


def test_no_tokens() -> None:
    h_TD, weight_VD = torch.ones(0, 3, device=TRITON_DEVICE, requires_grad=True), torch.ones(5, 3, device=TRITON_DEVICE)
    labels_T = torch.zeros(0, dtype=torch.int64, device=TRITON_DEVICE)
    total = linear_cross_entropy_sum(h_TD, weight_VD, labels_T, implementation="triton")
    assert total.item() == 0
    assert torch.autograd.grad(total, h_TD)[0].shape == (0, 3)


def test_operations_are_well_formed() -> None:
    logits_CV, labels_C = random_logits(5, 20), random_labels(5, 20)
    torch.library.opcheck(triton_cross_entropy.logit_statistics, (logits_CV, labels_C, 0))
    ones_C = torch.ones(5, device=TRITON_DEVICE)
    torch.library.opcheck(triton_cross_entropy.logits_to_gradient_, (logits_CV, labels_C, 0, ones_C, ones_C))
