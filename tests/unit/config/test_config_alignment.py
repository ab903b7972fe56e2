"""A width that CUDA kernels refuse is refused by name before anything is built."""

import json

import pytest
import torch

from glmforge import load_config
from glmforge.config import preset_names
from glmforge.config.alignment import check_cuda_widths
from glmforge.config.lora import LoraConfig
from glmforge.errors import ConfigError
from glmforge.kernels.choice import UNMEASURED
from glmforge.parallel.build import lay_out_model
from glmforge.parallel.world import World
from helpers.models import tiny_config

KERNELS = UNMEASURED.model_copy(update={"experts": "grouped", "attention": "varlen"})
FP32_KERNELS = KERNELS.model_copy(update={"attention": "flex"})
BY_8, BY_4 = r"is not a multiple of 8, .* bf16", r"is not a multiple of 4, .* fp32"


@pytest.mark.parametrize(
    ("field", "width", "compute", "message"),
    [
        ("moe_intermediate_size", 44, "bf16", rf"^model.moe_intermediate_size: 44 {BY_8} .* set it to 40 or 48$"),
        ("moe_intermediate_size", 46, "fp32", rf"^model.moe_intermediate_size: 46 {BY_4} .* set it to 44 or 48$"),
        ("hidden_size", 3, "bf16", rf"^model.hidden_size: 3 {BY_8} .* set it to 8$"),
        ("head_dim", 20, "bf16", "^model.head_dim: 20 .* FlashAttention .* set it to 16 or 24$"),
    ],
)
def test_refused(field: str, width: int, compute: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_cuda_widths(tiny_config(**{field: width}), compute, KERNELS)


def test_the_rank_of_experts_adapters_is_a_width_too() -> None:
    with pytest.raises(ConfigError, match=rf"^lora.rank: 4 {BY_8} .* set it to 8$"):
        check_cuda_widths(tiny_config(), "bf16", KERNELS, LoraConfig(rank=4, targets=("experts",)))
    check_cuda_widths(tiny_config(), "bf16", KERNELS, LoraConfig(rank=4))


@pytest.mark.parametrize(("field", "width"), [("moe_intermediate_size", 44), ("head_dim", 20)])
def test_wider_numbers_need_shorter_rows_and_no_flash_attention(field: str, width: int) -> None:
    check_cuda_widths(tiny_config(**{field: width}), "fp32", FP32_KERNELS)


@pytest.mark.parametrize("preset", preset_names())
def test_presets_fit(preset: str) -> None:
    check_cuda_widths(load_config(run_of(preset)).model, "bf16", KERNELS)


def run_of(model: str, **changed: int) -> str:
    return f"""
name: widths
model: {json.dumps({"preset": model} | changed)}
data: {{tokenizer: none, sources: [{{name: text, path: none}}]}}
phases: [{{name: main, steps: 1, seq_len: 16, batch_size: 1}}]
"""


def test_only_where_a_gpu_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(run_of("tiny", moe_intermediate_size=44))
    lay_out_model(config, World.single("cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    with pytest.raises(ConfigError, match="moe_intermediate_size"):
        lay_out_model(config, World.single("cuda"))
