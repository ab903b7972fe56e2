"""CUDA back ends against the CPU's plain references at the same weights and inputs."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from glmforge.kernels.attention import attention
from glmforge.kernels.documents import Documents
from glmforge.kernels.experts import expert_linear
from glmforge.model import GlmMoe
from glmforge.model.inputs import ModelInputs
from glmforge.model.loss import CrossEntropyHead
from glmforge.observe.record_files import read_jsonl
from glmforge.recipes.pretrain import train
from helpers.models import randomize_, tiny_config
from helpers.tiny_data import TinyData

LENGTHS = [1, 37, 128, 5, 85]


@pytest.mark.parametrize(
    ("implementation", "dtype", "tolerance"),
    # bf16 rounds to 2^-9 relative; outputs and gradients are of size one.
    [("flex", torch.float32, 2e-3), ("flex", torch.bfloat16, 5e-2), ("varlen", torch.bfloat16, 5e-2)],
)
def test_attention(implementation: str, dtype: torch.dtype, tolerance: float) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(sum(LENGTHS), heads, 64) for heads in (8, 2, 2)]
    qkv = [torch.randn(shape, generator=generator) for shape in shapes]

    def run(device: str, dtype: torch.dtype, implementation: str) -> list[torch.Tensor]:
        inputs = [x.to(device, dtype).requires_grad_() for x in qkv]
        output = attention(*inputs, Documents.from_lengths(LENGTHS, device), implementation=implementation)
        output.float().square().sum().backward()
        return [output.detach().float().cpu(), *(x.grad.float().cpu() for x in inputs)]

    for expected, actual in zip(run("cpu", torch.float32, "dense"), run("cuda", dtype, implementation), strict=True):
        assert (actual - expected).norm() < tolerance * expected.norm()


def test_grouped_experts() -> None:
    generator = torch.Generator().manual_seed(0)
    counts_E = torch.tensor([0, 5, 130, 1, 0, 64, 8, 48])
    x_ND, gate_up, down = (
        torch.randn(shape, generator=generator) * 0.2 for shape in [(256, 128), (8, 192, 128), (8, 128, 96)]
    )

    def run(device: str, implementation: str, dtype: torch.dtype) -> list[torch.Tensor]:
        inputs = [x.to(device).requires_grad_() for x in (x_ND, gate_up, down)]
        counts = counts_E.to(device)
        gate_NI, up_NI = expert_linear(inputs[0].to(dtype), inputs[1], counts, implementation=implementation).chunk(
            2, dim=-1
        )
        y_ND = expert_linear(F.silu(gate_NI) * up_NI, inputs[2], counts, implementation=implementation)
        y_ND.float().square().sum().backward()
        return [y_ND.detach().float().cpu(), *(x.grad.float().cpu() for x in inputs)]

    reference = run("cpu", "loop", torch.float32)
    for expected, actual in zip(reference, run("cuda", "grouped", torch.bfloat16), strict=True):
        assert (actual - expected).norm() < 5e-2 * expected.norm()


def test_model_in_fp32() -> None:
    model = GlmMoe(tiny_config())
    randomize_(model)
    documents = Documents.from_lengths([20, 44, 64])
    ids_BS = torch.randint(0, 512, (2, 64), generator=torch.Generator().manual_seed(0))
    head = CrossEntropyHead.whole(ids_BS.roll(-1, 1), documents, 1)
    expected = model(ModelInputs.whole(ids_BS, documents, 1), head=head)
    expected.main.sum.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    model.cuda()
    on_gpu = Documents.from_lengths([20, 44, 64], "cuda")
    ids_BS = ids_BS.cuda()
    head = CrossEntropyHead.whole(ids_BS.roll(-1, 1), on_gpu, 1)
    actual = model(ModelInputs.whole(ids_BS, on_gpu, 1), head=head)
    actual.main.sum.backward()
    # TF32 is off by default: fp32 sums in another order.
    torch.testing.assert_close(actual.main.sum.cpu(), expected.main.sum, rtol=1e-4, atol=0)
    for name, expected_gradient in gradients.items():
        gradient = model.get_parameter(name).grad.cpu()
        assert (gradient - expected_gradient).norm() < 1e-3 * expected_gradient.norm(), name


@pytest.mark.parametrize("compile_layers", [False, True])
def test_training_in_bf16_learns(tiny_data: TinyData, tmp_path: Path, compile_layers: bool) -> None:
    config = tiny_data.run_config(
        tmp_path / "run",
        phases=[{"name": "main", "steps": 30, "seq_len": 64, "batch_size": 16}],
        precision={"compute": "bf16"},
        parallel={"compile": compile_layers},
    )
    train(config)
    records = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert records[-1]["loss"] < records[0]["loss"] - 0.5
