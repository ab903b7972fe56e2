"""Every implementation against single rows in float64."""

import pytest
import torch
from torch.nn import functional as F

from glmforge.kernels import experts as kernels
from glmforge.kernels.experts import expert_linear
from glmforge.kernels.native.calls import is_available
from helpers.flops import flop_counter

# D > 2I > I: each of the two weight gradients is the outer product of a wide and a narrow factor, one either way.
D, I = 32, 8  # noqa: E741 - the shape legend's letter
COUNTS = [
    [1],
    [0, 3, 0, 0, 5, 0],  # idle experts at both ends and in the middle
    [40, 1, 33, 0, 2, 70],  # rounding up runs over into the next experts' rows
    [31, 1],  # rounding up would leave the tensor
]


def expert_mlp(x_ND, counts_E, gate_up_E2ID, down_EDI, implementation="auto"):
    """Two expert-wise maps with a SwiGLU between them, as in the model."""
    gate_NI, up_NI = expert_linear(x_ND, gate_up_E2ID, counts_E, implementation=implementation).chunk(2, dim=-1)
    return expert_linear(F.silu(gate_NI) * up_NI, down_EDI, counts_E, implementation=implementation)


def reference(x_ND, counts_E, gate_up_E2ID, down_EDI):
    """Row by row."""
    expert_N = torch.arange(len(counts_E)).repeat_interleave(counts_E)
    rows = []
    for x_D, expert in zip(x_ND, expert_N.tolist(), strict=True):
        gate, up = (gate_up_E2ID[expert] @ x_D).chunk(2)
        rows.append(down_EDI[expert] @ (F.silu(gate) * up))
    return torch.stack(rows)


def random_inputs(counts, dtype, weight_dtype):
    generator = torch.Generator().manual_seed(0)
    shapes = [(sum(counts), D), (len(counts), 2 * I, D), (len(counts), D, I)]
    x, gate_up, down = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    return [x.to(dtype), (gate_up / 4).to(weight_dtype), (down / 4).to(weight_dtype)]


def output_and_gradients(function, counts, inputs):
    inputs = [x.detach().requires_grad_() for x in inputs]
    output = function(inputs[0], torch.tensor(counts), *inputs[1:])
    upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return [output, *torch.autograd.grad(output, inputs, upstream.to(output.dtype))]


@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize("implementation", ["loop", "grouped", "sliced", "auto"])
@pytest.mark.parametrize(
    ("dtype", "weight_dtype", "tolerance"),
    [
        (torch.float64, torch.float64, 1e-12),
        (torch.float32, torch.float32, 1e-5),
        # bfloat16 rounds weights, inner activations and results by up to 2^-9 each; a weight's gradient sums some
        # dozens of such terms of size one.
        (torch.bfloat16, torch.bfloat16, 1e-1),
        (torch.bfloat16, torch.float32, 1e-1),
    ],
    ids=["float64", "float32", "bfloat16", "bfloat16-master-weights"],
)
def test_equals_reference(implementation, counts, dtype, weight_dtype, tolerance):
    if implementation == "grouped" and dtype == torch.float64:
        pytest.skip("grouped_mm takes no float64")
    inputs = random_inputs(counts, dtype, weight_dtype)
    expected = output_and_gradients(reference, counts, [x.double() for x in inputs])
    actual = output_and_gradients(lambda *a: expert_mlp(*a, implementation=implementation), counts, inputs)
    for a, e, like in zip(actual, expected, [inputs[0], *inputs], strict=True):
        assert a.dtype == like.dtype
        torch.testing.assert_close(a.double(), e, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("implementation", ["loop", "sliced"])
@pytest.mark.parametrize("frozen", [0, 1], ids=["rows", "weights"])
def test_frozen_inputs_cost_no_matmul_and_change_no_bit_of_the_other_gradient(implementation, frozen):
    counts = [2, 0, 3]
    inputs = [x.requires_grad_() for x in random_inputs(counts, torch.float32, torch.float32)[:2]]

    def gradients(*wanted):
        output = expert_linear(*inputs, torch.tensor(counts), implementation=implementation)
        return torch.autograd.grad(output.sum(), wanted)

    both = gradients(*inputs)
    inputs[frozen] = inputs[frozen].detach()
    with flop_counter() as counter:
        (other,) = gradients(inputs[1 - frozen])
    assert torch.equal(other, both[1 - frozen])
    assert counter.get_total_flops() == 2 * 2 * sum(counts) * D * 2 * I


@pytest.mark.parametrize("implementation", ["loop", "sliced"])
def test_gradcheck(implementation):
    counts = torch.tensor([2, 0, 3])
    inputs = [x.requires_grad_() for x in random_inputs([2, 0, 3], torch.float64, torch.float64)]
    assert torch.autograd.gradcheck(lambda x, g, d: expert_mlp(x, counts, g, d, implementation=implementation), inputs)


@pytest.mark.parametrize("implementation", ["loop", "grouped", "sliced"])
def test_idle_experts_get_zero_gradients(implementation):
    counts = [0, 20, 0, 9]
    inputs = random_inputs(counts, torch.bfloat16, torch.float32)
    _, _, gate_up_grad, down_grad = output_and_gradients(
        lambda *a: expert_mlp(*a, implementation=implementation), counts, inputs
    )
    for grad in (gate_up_grad, down_grad):
        assert grad[[0, 2]].count_nonzero() == 0
        assert grad[1].count_nonzero() > 0


def test_no_rows_at_all():
    inputs = [x.requires_grad_() for x in random_inputs([0, 0], torch.bfloat16, torch.float32)]
    y_ND = expert_mlp(inputs[0], torch.tensor([0, 0]), *inputs[1:])
    assert y_ND.shape == (0, D)
    assert all(grad.count_nonzero() == 0 for grad in torch.autograd.grad(y_ND.sum(), inputs))


def test_experts_do_not_see_each_other():
    """Other rows of the batch change neither an expert's output nor its gradient, by not one bit."""
    counts, others = [40, 7, 3], [40, 7, 30]
    small, large = (random_inputs(c, torch.bfloat16, torch.float32) for c in (counts, others))
    large[0][:47] = small[0][:47]
    large[1:] = small[1:]
    upstream = torch.randn(77, D).bfloat16()

    def run(inputs, counts):
        inputs = [x.detach().requires_grad_() for x in inputs]
        y_ND = expert_mlp(inputs[0], torch.tensor(counts), *inputs[1:])
        gradients = torch.autograd.grad(y_ND, inputs, upstream[: len(y_ND)])
        return y_ND[:40], gradients[0][:40], gradients[1][0], gradients[2][0]

    for a, b in zip(run(small, counts), run(large, others), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["_sliced_mm", "_sliced_outer"])
def test_custom_operators_keep_their_contract(name):
    """Schema, fake tensors and autograd registration agree with what the operator does."""
    counts_E = torch.tensor([2, 0, 3])
    x_NJ, matrix = torch.randn(5, 4), torch.randn(3, 4, 6)
    if name == "_sliced_mm":
        arguments = (x_NJ.requires_grad_(), matrix.requires_grad_(), counts_E)
    else:
        arguments = (x_NJ, torch.randn(5, 6), counts_E)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(getattr(kernels, name), arguments, test_utils=checks)


def test_compiles_without_a_graph_break():
    counts = [3, 0, 6]
    inputs = random_inputs(counts, torch.float32, torch.float32)
    compiled = torch.compile(expert_mlp, backend="aot_eager", fullgraph=True)
    expected = output_and_gradients(expert_mlp, counts, inputs)
    for a, e in zip(output_and_gradients(compiled, counts, inputs), expected, strict=True):
        torch.testing.assert_close(a, e)


def test_bfloat16_meets_few_shapes():
    counts_E = torch.tensor([33, 0, 1, 64, 40])
    slices = list(kernels.row_slices(counts_E, torch.bfloat16))
    assert slices == [(0, 0, 33, 64), (2, 33, 34, 65), (3, 34, 98, 98), (4, 98, 138, 138)]
    assert [stop - end for _, _, end, stop in kernels.row_slices(counts_E, torch.float32)] == [0, 0, 0, 0]


def test_unknown_implementation_is_an_error():
    x, gate_up, down = random_inputs([2], torch.float32, torch.float32)
    with pytest.raises(ValueError, match="unknown implementation 'fused'; choose one of loop, grouped, sliced"):
        expert_mlp(x, torch.tensor([2]), gate_up, down, implementation="fused")


@pytest.mark.skipif(not is_available(), reason="no C++ compiler")
@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize(
    ("dtype", "weight_dtype", "tolerance"),
    [
        (torch.float32, torch.float32, 1e-6),
        (torch.bfloat16, torch.bfloat16, 2**-8),  # only y is rounded; inputs are given as they are
        (torch.bfloat16, torch.float32, 2**-8),
    ],
    ids=str,
)
def test_few_rows_without_a_gradient(counts, dtype, weight_dtype, tolerance, monkeypatch):
    x_ND, weight_EOD, _ = random_inputs(counts, dtype, weight_dtype)
    counts_E = torch.tensor(counts)
    expert_N = torch.arange(len(counts)).repeat_interleave(counts_E)
    expected = torch.einsum("nd,nod->no", x_ND.double(), weight_EOD.double()[expert_N])
    monkeypatch.setattr(kernels, "_sliced_mm", None)  # not called
    with torch.no_grad():
        y_NO = expert_linear(x_ND, weight_EOD, counts_E)
    assert y_NO.dtype == dtype
    assert (y_NO.double() - expected).abs().max() < tolerance * expected.abs().max()
