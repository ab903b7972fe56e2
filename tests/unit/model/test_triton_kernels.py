"""A small model, forward and backward, with Triton's kernels in the place of the plain functions."""

import pytest
import torch
from torch import Tensor

from glmforge.kernels.choice import UNMEASURED
from glmforge.kernels.documents import Documents
from glmforge.model import GlmMoe
from glmforge.model.inputs import ModelInputs
from glmforge.model.layers import RMSNorm
from glmforge.model.loss import CrossEntropyHead
from helpers.models import randomize_, tiny_config
from helpers.triton_device import TRITON_DEVICE

pytest.importorskip("triton")

TRITON = UNMEASURED.model_copy(update=dict.fromkeys(("rms_norm", "qk_rope", "cross_entropy"), "triton"))


@pytest.mark.parametrize("use_qk_norm", [True, False])
def test_model_equals_plain(use_qk_norm: bool) -> None:
    model = GlmMoe(tiny_config(use_qk_norm=use_qk_norm)).to(TRITON_DEVICE)
    randomize_(model)
    ids_BS = torch.randint(0, 512, (2, 24), generator=torch.Generator().manual_seed(0)).to(TRITON_DEVICE)
    documents = Documents.from_lengths([5, 19, 24], TRITON_DEVICE)

    def run() -> list[Tensor]:
        head = CrossEntropyHead.whole(ids_BS.roll(-1, 1), documents, num_mtp_layers=1)
        output = model(ModelInputs.whole(ids_BS, documents, num_mtp_layers=1), head=head)
        loss = output.main.sum + output.mtp[0].sum
        return [loss, output.main.nll_T, *torch.autograd.grad(loss, list(model.parameters()))]

    expected = run()
    model.set_kernels(TRITON)
    for actual, e in zip(run(), expected, strict=True):
        # fp32 through five layers; gradients are sums over 48 tokens.
        assert (actual - e).norm() <= 1e-5 * e.norm()


def test_a_layer_compiles_in_one_graph() -> None:
    """Kernels are operations of their own to torch.compile: it goes on around them, forward and backward."""
    norm = RMSNorm(16, 1e-5).to(TRITON_DEVICE)
    torch.nn.init.ones_(norm.weight)
    norm.kernels = TRITON
    x_TD = torch.randn(6, 16, device=TRITON_DEVICE, requires_grad=True)

    def layer(x_TD: Tensor) -> Tensor:
        h_TD, normed_TD = norm.after_adding(x_TD, x_TD.tanh())
        return h_TD + norm(normed_TD * 2)

    def run(function: object) -> list[Tensor]:
        out = function(x_TD)
        return [out, *torch.autograd.grad(out.square().sum(), (x_TD, norm.weight))]

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for actual, expected in zip(run(compiled), run(layer), strict=True):
        torch.testing.assert_close(actual, expected)
