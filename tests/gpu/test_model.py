"""The model on a device: against transformers in fp32 and bf16, against itself on the CPU, trained, and generating."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from glmforge.generate.engine import Engine
from glmforge.generate.params import SamplingParams
from glmforge.kernels.documents import Documents
from glmforge.model import GlmMoe
from glmforge.model.inputs import ModelInputs
from glmforge.model.loss import CrossEntropyHead
from glmforge.observe.record_files import read_jsonl
from glmforge.recipes.train import train
from helpers.devices import DEVICES, on, relative_error
from helpers.models import randomize_, tiny_config, transformers_model
from helpers.tiny_data import TinyData

VARIANTS = {
    "GLM-4.6": {},
    "Air": {"use_qk_norm": False, "routed_scaling_factor": 1.0},
    "groups": {"n_group": 4, "topk_group": 2, "n_routed_experts": 16, "num_experts_per_tok": 4},
}


def pair(overrides: dict, device: str, dtype: torch.dtype) -> tuple[GlmMoe, torch.nn.Module]:
    """Ours with fp32 weights that computes in `dtype`, theirs with weights in `dtype`: the same weights."""
    config = tiny_config(**overrides, num_nextn_predict_layers=0)
    theirs = transformers_model(config, "grouped_mm" if device == "cuda" else "eager")
    randomize_(theirs)
    for parameter in theirs.parameters():
        parameter.data = parameter.data.to(dtype)
    ours = GlmMoe(config)
    ours.load_state_dict({name: tensor.float() for name, tensor in theirs.state_dict().items()})
    ours.compute_dtype = dtype
    return ours.to(device), theirs.to(device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("overrides", VARIANTS.values(), ids=VARIANTS.keys())
def test_logits_and_gradients_equal_transformers_in_fp32(device: str, overrides: dict) -> None:
    ours, theirs = pair(overrides, device, torch.float32)
    ids_BS, labels_T = random_tokens((2, 33), device)
    our_logits, their_logits = ours(ids_BS).main, theirs(ids_BS).logits.flatten(0, 1)
    # fp32 sums in another order; FlexAttention on a GPU may multiply in TF32 (2^-11).
    tolerance = 1e-4 if device == "cpu" else 2e-3
    assert relative_error(our_logits, their_logits) < tolerance
    F.cross_entropy(our_logits, labels_T).backward()
    F.cross_entropy(their_logits, labels_T).backward()
    expected = {name: p.grad for name, p in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        assert relative_error(parameter.grad, expected[name]) < 5 * tolerance, name


@pytest.mark.parametrize("device", DEVICES)
def test_bf16_is_no_further_from_fp32_than_transformers_is(device: str) -> None:
    """Routing flips where scores are close, so neither bf16 equals the other: both are measured against fp32."""
    ids_BS, labels_T = random_tokens((4, 64), device)

    def losses(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        ours, theirs = pair({}, device, dtype)
        logits = ours(ids_BS).main, theirs(ids_BS).logits.flatten(0, 1)
        return tuple(F.cross_entropy(x.float(), labels_T, reduction="none") for x in logits)

    with torch.no_grad():
        exact, _ = losses(torch.float32)
        ours, theirs = losses(torch.bfloat16)
    assert (ours - exact).norm() < 1.5 * (theirs - exact).norm()
    assert relative_error(ours, exact) < 5e-2


@pytest.mark.parametrize("device", DEVICES)
def test_model_with_mtp_equals_the_cpu_in_fp32(device: str) -> None:
    model = GlmMoe(tiny_config())
    randomize_(model)
    ids_BS, _ = random_tokens((2, 64), "cpu")

    def run(device: str) -> list[Tensor]:
        model.to(device).zero_grad()
        documents, ids = Documents.from_lengths([20, 44, 64], device), ids_BS.to(device)
        head = CrossEntropyHead.whole(ids.roll(-1, 1), documents, 1)
        output = model(ModelInputs.whole(ids, documents, 1), head=head)
        (output.main.sum + output.mtp[0].sum).backward()
        gradients = [p.grad.cpu().double() for p in model.parameters()]
        return [output.main.sum.detach().cpu(), output.mtp[0].sum.detach().cpu(), *gradients]

    names = ["loss", "mtp loss", *(name for name, _ in model.named_parameters())]
    model.double()
    model.compute_dtype = torch.float64
    expected = run("cpu")
    model.float()
    model.compute_dtype = torch.float32
    for name, a, e in zip(names, run(device), expected, strict=True):
        assert relative_error(a, e) < (1e-3 if device == "cpu" else 1e-2), name


@pytest.mark.parametrize("device", DEVICES)
def test_greedy_generation_equals_whole_prefixes(device: str) -> None:
    model = GlmMoe(tiny_config())
    randomize_(model)
    model.to(device)
    prompts = [[1, 2, 3, 4, 5], [7, 8]]
    answers = Engine(model).generate(prompts, SamplingParams(max_new_tokens=6))
    for prompt, (answer,) in zip(prompts, answers, strict=True):
        ids = torch.tensor([prompt + answer.tokens], device=device)
        assert model.logits(ids)[0, len(prompt) - 1 : -1].argmax(-1).tolist() == answer.tokens


@pytest.mark.parametrize(("device", "compile_layers"), [on("cuda", False), on("cuda", True)])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_training_in_bf16_learns(
    tiny_data: TinyData, tmp_path: Path, device: str, compile_layers: bool, recompute: str
) -> None:
    config = tiny_data.run_config(
        tmp_path / "run",
        phases=[{"name": "main", "steps": 30, "seq_len": 64, "batch_size": 16}],
        precision={"compute": "bf16"},
        parallel={"compile": compile_layers, "recompute": recompute},
    )
    train(config)
    records = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert records[-1]["loss"] < records[0]["loss"] - 0.5


def random_tokens(shape: tuple[int, int], device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids_BS, labels_BS = torch.randint(0, 512, (2, *shape), generator=generator).unbind()
    return ids_BS.to(device), labels_BS.flatten().to(device)
